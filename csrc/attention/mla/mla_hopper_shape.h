// SPDX-License-Identifier: Apache-2.0
// Shapes of MLA on a Hopper SM (mla_hopper.h): constexpr, so that the kernel and the plan use the same numbers.
#pragma once

#include "attention/mla/mla_shape.h"

namespace xlstm::gpu::attention {

constexpr int kMlaHopperRows = 64, kMlaHopperKeys = 64, kMlaHopperBuffers = 2;
constexpr int kMlaHopperThreads = 384;  // three warpgroups
constexpr int kMlaHopperBarriers = 11;

// Byte offsets in shared memory: Q, buffers of keys, weights as operands, a factor for each row of each thread,
// barriers.
struct MlaHopperOffsets {
  int tile, keys, weights, row_factors, barriers, bytes;

  constexpr explicit MlaHopperOffsets(int features)
      : tile(kMlaHopperKeys * features * 2),
        keys(kMlaHopperRows * features * 2),
        weights(keys + kMlaHopperBuffers * tile),
        row_factors(weights + kMlaHopperRows * kMlaHopperKeys * 2),
        barriers(row_factors + 128 * 2 * 4),
        bytes(barriers + kMlaHopperBarriers * 8) {}
};

constexpr MlaShape mla_hopper_shape(int features) {
  const MlaHopperOffsets at(features);
  MlaShape s{};
  s.waves = kMlaHopperThreads / 32, s.row_strips = kMlaHopperRows / kStripColumns, s.parts = 1;
  s.keys = kMlaHopperKeys, s.buffers = kMlaHopperBuffers, s.stages = 1;
  s.threads = kMlaHopperThreads;
  s.tile_bytes = at.tile, s.weight_bytes = at.row_factors - at.weights, s.lds_bytes = at.bytes;
  return s;
}

}  // namespace xlstm::gpu::attention
