// SPDX-License-Identifier: Apache-2.0
// The walks for dq, dk and dv in one launch, on CDNA, for states of at most 128 rows. They wait for nothing of each
// other, and each by itself has few blocks for a chip or many short segments: together they fill the compute units with
// longer ones.
#pragma once

#include "mlstm/chunkwise/chunk_walk_cdna.h"

namespace xlstm::gpu::mlstm {

struct BackwardWalkParams {
  WalkParams walks[3];  // dq, dk, dv
  uint32_t blocks[2];   // of the first two
};

// kValueRows: the class of the states of dq and dk, kKeyRows of those of dv.
template <class E, int kValueRows, int kKeyRows, int kChunk>
__global__ __launch_bounds__(
    walk_shape(kFamily, sizeof(E), kKeyRows, kChunk).threads,
    walk_shape(kFamily, sizeof(E), kKeyRows, kChunk).blocks) void backward_walks_cdna(const BackwardWalkParams params) {
  if constexpr (kFamily == Family::cdna) {
    using Dv = CdnaWalk<E, kKeyRows, kChunk, output::dv>;
    using Dq = CdnaWalk<E, kValueRows, kChunk, output::dq>;
    using Dk = CdnaWalk<E, kValueRows, kChunk, output::dk>;
    static_assert(Dq::kThreads == Dv::kThreads);
    const BackwardWalkParams* p = reload_params(kernel_params(params));
    uint32_t block = blockIdx.x;
    if (block < p->blocks[0]) return walk_segment<Dq>(reload_params(&p->walks[0]), block);
    block -= p->blocks[0];
    if (block < p->blocks[1]) return walk_segment<Dk>(reload_params(&p->walks[1]), block);
    walk_segment<Dv>(reload_params(&p->walks[2]), block - p->blocks[1]);
  }
}

}  // namespace xlstm::gpu::mlstm
