// SPDX-License-Identifier: Apache-2.0
// What attention's backward kernels are given, and where a block's part of the call is.
#pragma once

#include "attention/backward/backward_plan.h"
#include "attention/backward/band.h"
#include "attention/gpu/score_rules.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::attention {

struct BackwardParams {
  xlstm_attention_backward call;
  // Rows are whole pieces of 16 bytes, at multiples of 16.
  struct Whole {
    bool q, k, v, out, dout, dq, dk, dv;
  } whole;
  float* facts;        // (heads_q, slots, 2), or with equal lengths (batch, heads_q, slots, 2): see fact_place()
  int64_t slots;       // queries of a head in facts, a multiple of kFactPad
  float* dsink_parts;  // (blocks_delta, batch, heads_q)
  int64_t blocks_delta, blocks_q, blocks_k;  // along the tokens of the longest sequence
  int parts;                                 // of a key head's rows, each with sums of its own
  float* sums;                               // (parts, blocks of dk and dv, registers, threads) with several parts

  XLSTM_HOST_DEVICE int64_t heads_all_q() const { return call.in.batch * call.in.heads_q; }
  XLSTM_HOST_DEVICE int64_t heads_all_k() const { return call.in.batch * call.in.heads_k; }
};

// What scores and lse are in: logarithms to base 2. Of floats they are natural ones: their differences are small where
// weights are large, so that a factor behind the difference rounds off less.
template <class E>
constexpr float score_unit = sizeof(E) == 4 ? 1.0f : kLog2E;

// All launches, for one dtype: backward_kernels.hip.
template <class E>
void launch_backward(const AttentionBackwardPlan&, const BackwardParams&, Stream);
// dk, dv and dq of 2-byte dtypes where the plan says so, in a library for CUDA.
template <class E>
void launch_gradients_hopper(const AttentionBackwardPlan&, const BackwardParams&, Stream);

// Where the facts of a sequence's query 0 are.
XLSTM_DEVICE float* facts_of(const BackwardParams& p, const AttentionLayout& at, int64_t head) {
  const xlstm_attention& in = p.call.in;
  int64_t slot = (at.index * in.heads_q + head) * p.slots;
  if (in.cu_seqlens_q) {  // a sequence's whole blocks do not reach the next one's, wherever it begins
    slot = head * p.slots + (at.first_query + at.index * kFactPad) / kFactPad * kFactPad;
  }
  return global(p.facts) + 2 * slot;
}

template <class E>
XLSTM_DEVICE TokenRows<E> query_rows(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t features,
                                     bool whole) {
  return {global(static_cast<const E*>(x.data)) + at.query(x, head, 0), x.stride[2], int(features), whole};
}
// Of the token at place t: AttentionLayout::key() where there are neither pages nor a cache.
XLSTM_DEVICE int64_t key_offset(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t t) {
  return (at.in.cu_seqlens_k ? 0 : at.index * x.stride[0]) + (at.first_token + t) * x.stride[2] + head * x.stride[1];
}
template <class E>
XLSTM_DEVICE TokenRows<E> key_rows(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t features,
                                   bool whole) {
  return {global(static_cast<const E*>(x.data)) + key_offset(at, x, head, at.first_key), x.stride[2], int(features),
          whole};
}

// Places of no key in use, each block its share: their gradients are zero.
template <class E, int kThreads>
XLSTM_DEVICE void clear_pads(const BackwardParams& p, const AttentionLayout& at, int64_t key_head, int first,
                             int count) {
  const int keys = int(at.keys), pads = int(at.capacity) - keys;
  for (int t = first; t < first + count && t < pads; ++t) {
    const int64_t place = t < at.first_key ? t : t + keys;
    for (const bool is_first : {true, false}) {
      const xlstm_tensor& x = is_first ? p.call.dk : p.call.dv;
      E* to = static_cast<E*>(x.data) + key_offset(at, x, key_head, place);
      for (int j = threadIdx.x; j < (is_first ? p.call.in.dqk : p.call.in.dv); j += kThreads)
        to[j] = from_float<E>(0.0f);
    }
  }
}

}  // namespace xlstm::gpu::attention
