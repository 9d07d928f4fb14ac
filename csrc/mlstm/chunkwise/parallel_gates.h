// SPDX-License-Identifier: Apache-2.0
// The gates' gradients of the parallel schedule (parallel_scores.h), from the flows of all pairs of tokens
// (gate_gradients.h): between chunks, too, they are sums of pairs in float, so nothing is to be corrected.
//
//     dlf_j = crossing + sum_{t >= j} reaching_t + sum_{s < j} entering_s + across_j      tokens of j's chunk
//     di_s  = leaving_s + entering_s + G_ss
//
// A block has a head, a group of kTokenLanes lanes each of its chunks. Latency binds.
#pragma once

#include "mlstm/chunkwise/gate_gradients.h"
#include "mlstm/chunkwise/parallel_params.h"

namespace xlstm::gpu::mlstm {

constexpr int kMaxParallelGateThreads = kMaxParallelChunks * kTokenLanes;

struct ParallelGates {
  struct ChunkDm {
    double before;  // the gradient of m that the chunk passes on to the one before
    int stops;      // whether it stops the gradient of later chunks
  };

  const ParallelGateParams& p;
  const Head head;
  const int chunks, chunk, lane;
  const int64_t slot, at, token;

  XLSTM_DEVICE ParallelGates(const ParallelGateParams& params, uint32_t row)
      : p(params),
        head(head_of(params.where, row)),
        chunks(int(params.where.slots)),
        chunk(int(threadIdx.x) / kTokenLanes),
        lane(int(threadIdx.x) % kTokenLanes),
        slot(head.slot_of(params.where, chunk)),
        at(slot * params.where.chunk + lane),
        token(int64_t(chunk) * params.where.chunk + lane) {}

  XLSTM_DEVICE bool inside() const { return chunk < chunks && token < p.where.length; }
  XLSTM_DEVICE int64_t tile(int later, int earlier) const {
    return (int64_t(head.row) * chunks + later) * chunks + earlier;
  }
  // From earlier chunks to the lane's token.
  XLSTM_DEVICE double reaches() const {
    double sum = 0;
#pragma unroll 4
    for (int group = 0; group <= chunk / kScoreWaves; ++group)
      sum += p.between.reaching[(slot * score_groups(chunks) + group) * p.where.chunk + lane];
    return sum;
  }
  // From the lane's token to later chunks.
  XLSTM_DEVICE double entering() const {
    double sum = 0;
#pragma unroll 4
    for (int later = chunk + 1; later < chunks; ++later)
      sum += p.between.leaving[tile(later, chunk) * p.where.chunk + lane];
    return sum;
  }
  // From before the chunk to after it.
  XLSTM_DEVICE double crossing() const {
    const int count = (chunks - 1 - chunk) * chunk;
    double sum = 0;
    for (int j = lane; j < count; j += kTokenLanes)
      sum +=
          p.between.between[tile(chunk + 1 + int(unsigned(j) / unsigned(chunk)), int(unsigned(j) % unsigned(chunk)))];
    for (int mask = kTokenLanes / 2; mask > 0; mask /= 2) sum += shuffle_from(sum, lane ^ mask, kTokenLanes);
    return sum;
  }
  // The gradient of m from later chunks.
  XLSTM_DEVICE double dm_after(const ChunkDm* of_chunks) const {
    double sum = 0;
    for (int later = chunk + 1; later < chunks; ++later) {
      sum += of_chunks[later].before;
      if (of_chunks[later].stops) break;
    }
    return sum;
  }

  XLSTM_DEVICE void run(ChunkDm* of_chunks) const {
    const bool is_inside = inside();
    const double ig = is_inside ? load_gate(p.i, head, token) : 0.0, m = is_inside ? p.m[at] : 0.0;
    const bool stop[1] = {is_inside && !(m > ig)};
    DmSum dm[1] = {{is_inside ? p.inside.dm[at] : 0.0, 0}};
    sum_dm_from(dm, stop, lane);
    if (lane == 0 && chunk < chunks) of_chunks[chunk] = {stop[0] ? 0.0 : dm[0].sum, int(stop[0] || dm[0].blocked)};
    __syncthreads();
    if (chunk >= chunks) return;
    const double enters = entering();
    double reaching[1] = {is_inside ? reaches() : 0.0}, entering_up_to[1] = {enters};
    suffix_sums(reaching, lane);
    prefix_sums(entering_up_to, lane);
    const double entering_before = from_lane_below(entering_up_to[0], lane, 1), crosses = crossing();
    if (!is_inside) return;
    double dlf = crosses + reaching[0] + entering_before + p.inside.across[at];
    double di = p.inside.leaving[at] + enters + p.inside.diagonal_flow[at];
    if (!p.sigmoid && p.normalizer_grad)
      (stop[0] ? di : dlf) += dm[0].sum + (dm[0].blocked ? 0.0 : dm_after(of_chunks));
    if (p.sigmoid) di *= sigmoid(-ig);
    store_gate(p.df, head, token, float(dlf * sigmoid(-load_gate(p.f, head, token))));
    store_gate(p.di, head, token, float(di));
  }
};

template <int>
__global__ __launch_bounds__(kMaxParallelGateThreads) void parallel_gate_gradients(const ParallelGateParams p) {
  if constexpr (kFamily == Family::cdna) {
    __shared__ ParallelGates::ChunkDm of_chunks[kMaxParallelChunks];
    ParallelGates(p, blockIdx.x).run(of_chunks);
  }
}

}  // namespace xlstm::gpu::mlstm
