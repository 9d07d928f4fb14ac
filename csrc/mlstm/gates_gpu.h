// SPDX-License-Identifier: Apache-2.0
// The stabilisers at the chunks' borders. Over a chunk, m becomes max(m + sum of lf, most): one wave makes the two
// numbers of each chunk, and one block a head goes through them. The tokens' own m are made where they are needed
// (scores_gpu.h).
//
// Floor: a few bytes a token. Latency binds: a head's chunks one after the other, some ten cycles each.
#pragma once

#include "mlstm/sequences_gpu.h"

namespace xlstm::gpu {

constexpr int kGateThreads = 128, kGateScanThreads = 256;
constexpr int kGatesPerBlock = kGateThreads / kTokenLanes;

template <int>
__global__ __launch_bounds__(kGateThreads) void chunk_gates(const GateParams p) {
  const ChunkToken t(p.where, kGatesPerBlock);
  const TokenGates x = t.inside ? token_gates(p.i, p.f, p.sigmoid, t.head, t.token) : TokenGates{0, -INFINITY};
  double sum = x.lf, most = x.ig;
#pragma unroll
  for (int by = 1; by < kTokenLanes; by *= 2) {  // this lane's tokens, then those above
    const double sum_above = shuffle_from(sum, t.lane + by, kTokenLanes);
    const double most_above = shuffle_from(most, t.lane + by, kTokenLanes);
    if (t.lane + by < kTokenLanes) {
      most = nan_max(most + sum_above, most_above);
      sum += sum_above;
    }
  }
  if (t.lane != 0 || !t.chunk_inside) return;
  p.sums[t.slot] = sum;
  p.mosts[t.slot] = most;
}

template <int>
__global__ __launch_bounds__(kGateScanThreads) void stabilisers(const GateParams p) {
  __shared__ double sums[kGateScanThreads], mosts[kGateScanThreads];
  const Head h = head_of(p.where, blockIdx.x);
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int64_t first = h.row * p.where.slots + h.slot;
  double m = p.m_initial ? double(p.m_initial[h.state]) : 0.0;
  for (int64_t done = 0; done < chunks; done += kGateScanThreads) {
    const int64_t mine = first + done + threadIdx.x;
    const bool inside = done + threadIdx.x < chunks;
    __syncthreads();
    if (inside) {
      sums[threadIdx.x] = p.sums[mine];
      mosts[threadIdx.x] = p.mosts[mine];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = int(chunks - done < kGateScanThreads ? chunks - done : kGateScanThreads);
      for (int j = 0; j < count; ++j) {
        const double after = p.sigmoid ? 0.0 : nan_max(m + sums[j], mosts[j]);
        sums[j] = m;
        m = after;
      }
    }
    __syncthreads();
    if (inside) p.m_before[mine] = sums[threadIdx.x];
  }
  if (p.m_last && threadIdx.x == 0) p.m_last[h.state] = float(m);
}

}  // namespace xlstm::gpu
