// SPDX-License-Identifier: Apache-2.0
// The other kernels of the recurrent mLSTM (recurrent.h): the one for any dims and strides, and the copy of n and m in
// place.
//
// The kernel for any shape has a tile of 32 values of one head in a block, but keeps no state in registers from token
// to token. C goes through memory, where each thread reads what it wrote itself. n goes through two alternating buffers
// of workspace, because all threads of a tile read what one of them writes. A float32 token is computed in double.
#pragma once

#include "mlstm/recurrent/recurrent.h"

namespace xlstm::gpu::mlstm {

constexpr int kKeyGroups = kAnyThreads / kAnyTile, kKeysAhead = 4;

// A thread's part of a tile: one value, which is a column of C, and every kKeyGroups-th key of it and of n.
// C: as in HeadTile.
template <class E, class C>
struct ColumnOfTile {
  int64_t dhv;
  int dqk, lane, group, value_index;
  int64_t column;     // columns beyond the last repeat the tile's first one and are not written
  const C* c_before;  // null: zeros, as n_before
  const float* n_before;
  C* c_after;
  float *n_last, *n_buffers;
  const E *q_row, *k_row, *v_at;

  XLSTM_DEVICE ColumnOfTile(const RecurrentParams& p, int64_t state, int tile)
      : dhv(p.v.columns), dqk(p.q.columns), lane(threadIdx.x % kAnyTile), group(threadIdx.x / kAnyTile) {
    value_index = tile * kAnyTile + lane;
    column = inside() ? value_index : tile * kAnyTile;
    c_before = p.c_initial ? initial_c<C>(p, state * dqk * dhv + column) : nullptr;
    c_after = last_c<C>(p, state * dqk * dhv + column);
    n_before = p.n_initial ? p.n_initial + state * dqk : nullptr;
    n_last = p.n_last + state * dqk;
    n_buffers = p.n_buffers + (state * p.tiles + tile) * 2 * dqk;
  }

  XLSTM_DEVICE bool inside() const { return value_index < dhv; }

  // Without tokens the last state is the initial one.
  XLSTM_DEVICE void copy_initial_state() const {
    for (int d = group; inside() && d < dqk; d += kKeyGroups) c_after[d * dhv] = c_before ? c_before[d * dhv] : C{};
    for (int d = group; value_index == 0 && d < dqk; d += kKeyGroups) n_last[d] = n_before ? n_before[d] : 0.0f;
  }

  XLSTM_DEVICE void first_token(const RecurrentParams& p, const Head& head) {
    q_row = rows<E>(p.q, head).data + head.begin * p.q.stride[2];
    k_row = rows<E>(p.k, head).data + head.begin * p.k.stride[2];
    v_at = rows<E>(p.v, head).data + head.begin * p.v.stride[2] + column;
  }
  XLSTM_DEVICE void next_token(const RecurrentParams& p) {
    q_row += p.q.stride[2];
    k_row += p.k.stride[2];
    v_at += p.v.stride[2];
  }

  // An element of a C' in bfloat16. token: token_bits. n: of key d before the token.
  XLSTM_DEVICE BFloat16 rounded(float x, uint32_t token, int d, float n) const {
    const uint32_t bits = pair_bits(row_bits(token, d, as_bits(n)), uint32_t(value_index) / 2);
    return round_stochastic(x, value_index % 2 ? bits >> 16 : bits & 0xffffu);
  }

  // The current token: C' and n', and their contributions to h and l.
  XLSTM_DEVICE void update(Precise<E> forget, Precise<E> input, [[maybe_unused]] int head, int buffer, bool is_last,
                           float& h, Precise<E>& l) {
    const Precise<E> value = input * to_float(*v_at);
    float* n_after = is_last ? n_last : n_buffers + buffer * dqk;
    const bool writes_n = lane == 0 && (!is_last || value_index == 0);
    for (int d0 = group; d0 < dqk; d0 += kKeyGroups * kKeysAhead) {
      float c[kKeysAhead] = {};
      if (c_before) {  // keys beyond the last repeat the thread's own, which no other thread writes in place
#pragma unroll
        for (int a = 0; a < kKeysAhead; ++a) {
          const int d = d0 + a * kKeyGroups;
          c[a] = to_float(c_before[(d < dqk ? d : d0) * dhv]);
        }
      }
#pragma unroll
      for (int a = 0; a < kKeysAhead; ++a) {
        const int d = d0 + a * kKeyGroups;
        if (d < dqk) {
          const float key = to_float(k_row[d]), query = to_float(q_row[d]);
          const float before = n_before ? n_before[d] : 0.0f, n = float(forget * before + input * key);
          const float x = float(forget * c[a] + key * value);
          if (writes_n) n_after[d] = n;
          if constexpr (sizeof(C) == 2) {
            const uint32_t token = token_bits(head, as_bits(float(forget)), as_bits(float(input)));
            if (inside()) c_after[d * dhv] = rounded(x, token, d, before);
          } else {
            if (inside()) c_after[d * dhv] = x;
          }
          l += Precise<E>(query) * n;
          h += query * x;
        }
      }
    }
    c_before = c_after;
    n_before = n_after;
  }
};

template <class E, class C>
__global__ __launch_bounds__(kAnyThreads) void recurrent_tokens_any_shape(const RecurrentParams p) {
  __shared__ PartialSums<Precise<E>, kAnyTile, kKeyGroups> sums;
  __shared__ Steps steps;
  int64_t state;
  int tile;
  if (!find_tile(p, state, tile)) return;
  constexpr bool kOneToken = sizeof(C) == 2;  // all that a C in bfloat16 comes with
  const Head head = kOneToken ? one_token_head(p, state) : head_of(p.where, state);
  ColumnOfTile<E, C> part(p, state, tile);
  double m = p.m_initial && threadIdx.x < 2 * kGateTokens ? double(p.m_initial[state]) : 0.0;
  if (!kOneToken && head.begin >= head.end) {
    part.copy_initial_state();
    if (part.value_index == 0 && part.group == 0) p.m_last[state] = float(m);
    return;
  }
  const Tokens gate = thread_gate(p);
  TokenOutput<E> output(p, head, tile, kAnyTile);
  part.first_token(p, head);

  int within = 0;
  for (int64_t t = head.begin; t < head.end; ++t, within = (within + 1) % kGateTokens) {
    const int buffer = within % 2;
    if (within == 0)
      compute_steps(p, gate, head, t, int(head.end - t < kGateTokens ? head.end - t : kGateTokens), m, steps);
    const Precise<E> forget = Precise<E>(steps.factor[0][within]) + steps.forget_rest[within];
    float h = 0;
    Precise<E> l = 0;
    part.update(forget, steps.factor[1][within], head.head, buffer, kOneToken || t + 1 == head.end, h, l);
    part.next_token(p);
    sums.h[buffer][part.group][part.lane] = h;
    if (part.lane == 0) sums.l[buffer][part.group] = l;
    __syncthreads();
    output.write(p, sums, buffer, kKeyGroups, steps.m[within]);
    if constexpr (kOneToken) break;
  }
  if (part.value_index == 0 && part.group == 0) p.m_last[state] = float(m);
}

struct CopyStateParams {
  const float* from;  // n of all heads, then m
  float *n, *m;
  int64_t n_size, size;
};

constexpr int kCopyStateThreads = 256;

// Copies n and m from workspace to where they are updated in place.
template <int>
__global__ __launch_bounds__(kCopyStateThreads) void copy_n_and_m(const CopyStateParams p) {
  pdl_trigger();
  pdl_wait();
  const int64_t at = int64_t(blockIdx.x) * kCopyStateThreads + threadIdx.x;
  if (at >= p.size) return;
  if (at < p.n_size)
    p.n[at] = p.from[at];
  else
    p.m[at - p.n_size] = p.from[at];
}

}  // namespace xlstm::gpu::mlstm
