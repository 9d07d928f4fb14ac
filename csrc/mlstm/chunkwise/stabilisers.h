// SPDX-License-Identifier: Apache-2.0
// What the tokens of a chunk do to the stabiliser m (StabiliserSums): one wave computes the sums of a chunk. m before a
// chunk and at its tokens follow where they are needed (gate_factors.h).
//
// Floor: some 30 bytes a token. Latency binds: exp and log in double.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr int kGateThreads = 128;
constexpr int kChunksPerBlock = kGateThreads / kTokenLanes;

template <int kEach>
__global__ __launch_bounds__(kGateThreads) void chunk_gate_sums(const GateParams p) {
  if constexpr (has_scores(kFamily, 2, kEach * kTokenLanes)) {
    // A sequence without tokens leaves m as it was. There are at least as many threads as states.
    const int64_t thread = int64_t(blockIdx.x) * kGateThreads + threadIdx.x;
    if (p.m_last && p.where.cu_seqlens && thread < p.where.sequences * p.where.heads) {
      const Head h = head_of(p.where, thread);
      if (h.begin >= h.end) p.m_last[thread] = p.m_initial ? p.m_initial[thread] : 0.0f;
    }
    const ChunkTokens<kEach> t(p.where, kChunksPerBlock);
    GateSums x[kEach], restarted[kEach];  // restarted: the same of a joined row, with a restart where a sequence begins
    double ig[kEach], first_lf = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      ig[j] = -INFINITY;
      if (!t.inside(j)) continue;
      const TokenGates gates = token_gates(p.i, p.f, p.sigmoid, t.head, t.first + j);
      const bool first = t.first_in_chunk + j == 0;
      if (first) first_lf = gates.lf;
      ig[j] = gates.ig;
      x[j] = restarted[j] = {first ? 0.0 : gates.lf, gates.ig};
      if (!p.joined.cu_seqlens) continue;
      const int64_t token = t.first + j;
      const int begin = find_sequence_begin(p.joined, p.where.length, token - (t.first_in_chunk + j), token);
      if (begin == t.first_in_chunk + j) restarted[j] = GateSums::restart(nan_max(gates.lf, gates.ig));
      if (t.head.row == 0) p.joined.sequence_begin[token] = begin;
    }
    scan_gates(x, t.lane);
    if (p.joined.cu_seqlens) {
      scan_gates(restarted, t.lane);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j) restarted[j] = x[j];
    }
    first_lf = shuffle_from(first_lf, 0, kTokenLanes);
    if (!t.chunk_inside) return;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (t.first_in_chunk + j >= p.where.chunk) break;
      p.sums.lf[t.at + j] = x[j].sum;
      p.sums.max[t.at + j] = restarted[j].max;
      p.sums.column[t.at + j] = ig[j] - x[j].sum;
    }
    if (t.lane != kTokenLanes - 1) return;
    p.sums.first_lf[t.slot] = first_lf;
    p.sums.chunk_lf[t.slot] = first_lf + restarted[kEach - 1].sum;
    p.sums.chunk_max[t.slot] = restarted[kEach - 1].max;
  }
}

}  // namespace xlstm::gpu::mlstm
