// SPDX-License-Identifier: Apache-2.0
// What the launches of the Hopper schedule share.
#pragma once

#include "arch/hopper/hopper.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_shape.h"
#include "mlstm/chunkwise/launch.h"

namespace xlstm::gpu::mlstm {

// Of tiles of a chunk's tokens by 64 columns.
inline CUtensorMap token_map(const Tokens& x, const Sequences& where) {
  return tensor_map(x.data, x.columns, where.length, where.heads, where.rows / where.heads, x.stride, kHopperChunk);
}

}  // namespace xlstm::gpu::mlstm
