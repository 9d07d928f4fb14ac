// SPDX-License-Identifier: Apache-2.0
// What the launches of the Hopper schedule share.
#pragma once

#include "arch/hopper.h"
#include "mlstm/launch_gpu.h"
#include "mlstm/walk_hopper_shape.h"

namespace xlstm::gpu {

// Of tiles of a chunk's tokens by 64 columns.
inline CUtensorMap token_map(const Tokens& x, const Sequences& where) {
  return panel_map(x.data, x.columns, where.length, where.heads, where.rows / where.heads, x.stride, kHopperChunk);
}

}  // namespace xlstm::gpu
