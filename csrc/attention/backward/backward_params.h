// SPDX-License-Identifier: Apache-2.0
// Parameters of attention's backward kernels, and the addresses of a block's part of the call.
#pragma once

#include "attention/backward/backward_plan.h"
#include "attention/gpu/band.h"
#include "attention/gpu/score_rules.h"
#include "attention/gpu/token_rows.h"

namespace xlstm::gpu::attention {

struct BackwardParams {
  xlstm_attention_backward call;
  // Rows consist of 16-byte vectors, at multiples of 16 bytes.
  struct Aligned16 {
    bool q, k, v, out, dout, dq, dk, dv;
  } aligned16;
  float* row_stats;    // (heads_q, slots, 2), or with equal lengths (batch, heads_q, slots, 2): see row_stats_index()
  int64_t slots;       // queries of a head in row_stats, a multiple of kStatsPad
  float* dsink_parts;  // (blocks_delta, batch, heads_q)
  int64_t blocks_delta, blocks_q, blocks_k;  // along the tokens of the longest sequence
  int parts;                                 // of a key head's rows, each with separate sums
  int64_t whole_k;                           // of blocks_k the first, which have all rows
  float* sums;     // (parts, divided blocks of dk and dv, registers, threads) with several parts
  float* dq_sums;  // of the kernel that adds to dq by atomics; queries are where row_stats has them: see dq_sums_of()

  XLSTM_HOST_DEVICE int64_t heads_all_q() const { return call.in.batch * call.in.heads_q; }
  XLSTM_HOST_DEVICE int64_t heads_all_k() const { return call.in.batch * call.in.heads_k; }
  // The sums of the n-th divided block, of all heads, in part `part`.
  XLSTM_HOST_DEVICE float* sums_of(int64_t part, int64_t n, int floats) const {
    return sums + (part * ((blocks_k - whole_k) * heads_all_k()) + n) * floats;
  }
};

// Unit of scores and lse: logarithms to base 2. For floats they are natural logarithms: their differences are small
// where weights are large, so that a factor after the difference rounds off less.
template <class E>
constexpr float score_unit = sizeof(E) == 4 ? 1.0f : kLog2E;

// All launches, for one dtype: backward_kernels.hip.
template <class E>
void launch_backward(const AttentionBackwardPlan&, const BackwardParams&, Stream);
// The launches of the Hopper kernels (dk, dv and dq of 2-byte dtypes), in a library for CUDA.
template <class E>
void launch_backward_hopper(const BackwardParams&, Stream);

// Where a sequence's query 0 is among the queries of row_stats.
XLSTM_DEVICE int64_t slot_of(const BackwardParams& p, const AttentionLayout& at, int64_t head) {
  const xlstm_attention& in = p.call.in;
  if (!in.cu_seqlens_q) return (at.index * in.heads_q + head) * p.slots;
  // Padded blocks of a sequence do not overlap the next sequence's, wherever it begins.
  return head * p.slots + (at.first_query + at.index * kStatsPad) / kStatsPad * kStatsPad;
}
// The row statistics of a sequence's query 0.
XLSTM_DEVICE float* row_stats_of(const BackwardParams& p, const AttentionLayout& at, int64_t head) {
  return global(p.row_stats) + 2 * slot_of(p, at, head);
}
// Sums of dq, from a sequence's query 0 on. A tile of 32 queries by all features consists of strips of 32 features by
// 16 queries, features first; a strip has 64 floats of each register of a lane.
template <class E>
constexpr int kDqStripFloats = Strip<E>::kRegisters * kWave;
XLSTM_DEVICE float* dq_sums_of(const BackwardParams& p, const AttentionLayout& at, int64_t head) {
  return global(p.dq_sums) + slot_of(p, at, head) * p.call.in.dqk;
}

// Clears the gradients in slots that hold no key; each block clears its share.
template <class E, int kThreads>
XLSTM_DEVICE void clear_pads(const BackwardParams& p, const AttentionLayout& at, int64_t key_head, int first,
                             int count) {
  const int keys = int(at.keys), pads = int(at.capacity) - keys;
  for (int t = first; t < first + count && t < pads; ++t) {
    const int64_t token = t < at.first_key ? t : t + keys;
    for (const bool is_first : {true, false}) {
      const xlstm_tensor& x = is_first ? p.call.dk : p.call.dv;
      E* to = static_cast<E*>(x.data) + key_offset(at, x, key_head, token);
      for (int j = threadIdx.x; j < (is_first ? p.call.in.dqk : p.call.in.dv); j += kThreads)
        to[j] = from_float<E>(0.0f);
    }
  }
}

}  // namespace xlstm::gpu::attention
