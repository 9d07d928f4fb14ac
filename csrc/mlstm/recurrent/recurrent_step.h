// SPDX-License-Identifier: Apache-2.0
// The decode step: one token of every sequence, on the tiles of recurrent.h.
//
// Floor: memory binds, C read and written once. Latency is all that separates the kernel from a copy. So the gates are
// loaded before C, whose tile would otherwise precede them in every SM's queue while all threads wait for two numbers;
// C' is stored before the sums are complete; and on Hopper C is prefetched to L2 while the kernel before this one ends
// (programmatic dependent launch).
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "mlstm/recurrent/recurrent.h"

namespace xlstm::gpu::mlstm {

// The token's effect on the state, computed by the first threads: one has the forget gate and one the input gate.
struct OneStep {  // in LDS
  double m;
  float factor[2];  // forget, input
};

struct OneGate {
  int thread;  // of those that compute a tile
  bool computes, is_input;
  double x = 0, m = 0;

  XLSTM_DEVICE explicit OneGate(int index = int(threadIdx.x))
      : thread(index), computes(index < 2 * kGateTokens), is_input(index >= kGateTokens) {}
  // Both loads are issued before those of C: after a tile of C they would arrive last, and all threads wait for them.
  XLSTM_DEVICE OneGate(const RecurrentParams& p, const Head& head, const float* m_initial) : OneGate() {
    if (computes) {
      x = load_gate(thread_gate(p), head, head.begin);
      if (m_initial) m = double(m_initial[head.state]);
    }
    load_barrier();
  }
  // A barrier must follow.
  XLSTM_DEVICE void compute(const RecurrentParams& p, OneStep& step) const {
    if (!computes) return;
    const double capped = capped_gate(x, p.gate_soft_cap),
                 log_gate = is_input && !p.sigmoid ? capped : log_sigmoid(capped);
    const double lf = shuffle_from(log_gate, 0, 2 * kGateTokens),
                 ig = shuffle_from(log_gate, kGateTokens, 2 * kGateTokens);
    const double next = next_stabiliser(p.sigmoid, lf, m, ig);
    if (thread % kGateTokens == 0) step.factor[is_input] = float(exp(is_input ? ig - next : lf + m - next));
    if (thread == 0) step.m = next;
  }
};

// Three blocks fit an SM and put 96 KB of C in flight. (HIP reads that bound as waves of a SIMD, which has registers
// for more.)
template <class E, int kColumns, class C>
__global__ __launch_bounds__(kMaxRecurrentThreads,
                             sizeof(E) == 2 ? 3 : 2) void recurrent_step(const RecurrentParams p) {
  using Tile = HeadTile<E, kColumns, false, C>;
  __shared__ PartialSums<float, kColumns, kMaxRecurrentThreads / kWave> sums;
  __shared__ OneStep step;
  pdl_trigger();
  int64_t state;
  int tile_index;
  if (!find_tile(p, state, tile_index)) return;
  Tile tile(p, tile_index);
  const int64_t n_offset = state * p.q.columns, c_offset = n_offset * p.v.columns;
  if (p.c_initial) tile.prefetch_to_l2(initial_c<C>(p, c_offset));
  pdl_wait();

  const Head head = one_token_head(p, state);
  const OneGate gate(p, head, p.m_initial);
  if (p.c_initial) tile.load(initial_c<C>(p, c_offset), p.n_initial + n_offset);
  tile.fetch(p, head);
  gate.compute(p, step);
  __syncthreads();
  float h[Tile::kWidth] = {}, l = 0;
  const Decay decay{step.factor[0], 0, step.factor[1]};
  if constexpr (Tile::kRounded)
    tile.update_rounded(decay, head.head, h, l);
  else
    tile.update(decay, h, l);
  tile.store_c(last_c<C>(p, c_offset));
  store_partial_sums<Tile>(sums, 0, h, l);
  __syncthreads();
  TokenOutput<E>(p, head, tile_index, kColumns).write(p, sums, 0, blockDim.x / kWave, step.m);
  if (tile.column != 0) return;
  tile.store_n(p.n_last + n_offset);
  if (threadIdx.x == 0) p.m_last[state] = float(step.m);
}

}  // namespace xlstm::gpu::mlstm
