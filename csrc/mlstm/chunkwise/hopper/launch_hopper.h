// SPDX-License-Identifier: Apache-2.0
// Shared by the launches of the Hopper schedule.
#pragma once

#include "arch/hopper/hopper.h"
#include "mlstm/chunkwise/chunk_walk_hopper_shape.h"
#include "mlstm/chunkwise/launch.h"

namespace xlstm::gpu::mlstm {

// TMA map of x, for tiles of so many tokens, a chunk's, by 64 columns.
inline CUtensorMap token_map(const Tokens& x, const Sequences& where, int tokens = kHopperChunk) {
  return tensor_map(x.data, x.columns, where.length, where.heads, where.rows / where.heads, x.stride, tokens);
}

}  // namespace xlstm::gpu::mlstm
