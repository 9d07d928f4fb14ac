// SPDX-License-Identifier: Apache-2.0
// The stabilisers m at the borders between chunks. A chunk turns m into max(m + sum of lf, max): one wave computes the
// two numbers of each chunk, and one block a head scans over the chunks. The tokens' own m are computed where they are
// needed (scores.h).
//
// Floor: a few bytes a token. Latency binds: a head's chunks one after the other, some ten cycles each.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr int kGateThreads = 128, kGateScanThreads = 256;
constexpr int kChunksPerBlock = kGateThreads / kTokenLanes;

template <int kEach>
__global__ __launch_bounds__(kGateThreads) void chunk_gate_sums(const GateParams p) {
  if constexpr (has_scores(kFamily, 2, kEach * kTokenLanes)) {
    const ChunkTokens<kEach> t(p.where, kChunksPerBlock);
    GateSums x[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (t.inside(j)) {
        const TokenGates gates = token_gates(p.i, p.f, p.sigmoid, t.head, t.first + j);
        x[j] = {gates.lf, gates.ig};
      }
    scan_gates(x, t.lane);
    if (t.lane != kTokenLanes - 1 || !t.chunk_inside) return;
    p.lf_sums[t.slot] = x[kEach - 1].sum;
    p.m_maxima[t.slot] = x[kEach - 1].max;
  }
}

template <int>
__global__ __launch_bounds__(kGateScanThreads) void scan_stabilisers(const GateParams p) {
  __shared__ double sums[kGateScanThreads], m_maxima[kGateScanThreads];
  const Head h = head_of(p.where, blockIdx.x);
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int64_t first = h.row * p.where.slots + h.slot;
  double m = p.m_initial ? double(p.m_initial[h.state]) : 0.0;
  for (int64_t done = 0; done < chunks; done += kGateScanThreads) {
    const int64_t slot = first + done + threadIdx.x;
    const bool inside = done + threadIdx.x < chunks;
    __syncthreads();
    if (inside) {
      sums[threadIdx.x] = p.lf_sums[slot];
      m_maxima[threadIdx.x] = p.m_maxima[slot];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = int(chunks - done < kGateScanThreads ? chunks - done : kGateScanThreads);
      for (int j = 0; j < count; ++j) {
        const double after = GateSums{sums[j], m_maxima[j]}.after(p.sigmoid, m);
        sums[j] = m;
        m = after;
      }
    }
    __syncthreads();
    if (inside) p.m_before[slot] = sums[threadIdx.x];
  }
  if (p.m_last && threadIdx.x == 0) p.m_last[h.state] = float(m);
}

}  // namespace xlstm::gpu::mlstm
