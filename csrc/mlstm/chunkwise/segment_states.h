// SPDX-License-Identifier: Apache-2.0
// What each segment adds to the state, in one launch for the walks of both directions, and beside them the scans over
// chunks of n and dn, which need nothing of them.
#pragma once

#include "mlstm/chunkwise/chunk_walk_cdna.h"
#include "mlstm/chunkwise/normalisers.h"

namespace xlstm::gpu::mlstm {

template <class Forward, class Reverse>
XLSTM_DEVICE void make_segment_states(const SegmentStatesParams* p) {
  static_assert(vector_lds_bytes(Forward::kThreads) <= Forward::kShape.lds_bytes);
  extern __shared__ __align__(128) char lds[];
  uint32_t block = blockIdx.x;
  if (block < p->walk_blocks[0]) return walk_segment<Forward>(reload_params(&p->walks[0]), block);
  block -= p->walk_blocks[0];
  if (block < p->walk_blocks[1]) return walk_segment<Reverse>(reload_params(&p->walks[1]), block);
  block -= p->walk_blocks[1];
  const bool second = block >= p->vector_blocks[0];
  scan_vector_over_chunks<Forward::kThreads>(p->vectors[second], block - (second ? p->vector_blocks[0] : 0), lds);
}

template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(
    walk_shape(kFamily, sizeof(E), kRows, kChunk).threads,
    walk_shape(kFamily, sizeof(E), kRows, kChunk).blocks) void segment_states(XLSTM_PARAM SegmentStatesParams params) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk))
    make_segment_states<Walk<E, kRows, kChunk, output::c>, Walk<E, kRows, kChunk, output::dc>>(
        reload_params(kernel_params(params)));
}
template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(
    walk_shape(kFamily, sizeof(E), kRows, kChunk).threads,
    walk_shape(kFamily, sizeof(E), kRows, kChunk).blocks) void segment_states_cdna(const SegmentStatesParams params) {
  if constexpr (kFamily == Family::cdna && has_walk(kFamily, sizeof(E), kRows, kChunk))
    make_segment_states<CdnaWalk<E, kRows, kChunk, output::c>, CdnaWalk<E, kRows, kChunk, output::dc>>(
        reload_params(kernel_params(params)));
}

}  // namespace xlstm::gpu::mlstm
