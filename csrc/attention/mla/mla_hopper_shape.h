// SPDX-License-Identifier: Apache-2.0
// How MLA lies on a Hopper SM (mla_hopper.h): constexpr, so that the kernel and the plan have one answer.
#pragma once

#include "attention/mla/mla_shape.h"

namespace xlstm::gpu::attention {

constexpr int kMlaHopperRows = 64, kMlaHopperKeys = 64, kMlaHopperBuffers = 2;
constexpr int kMlaHopperThreads = 384;  // three warpgroups
constexpr int kMlaHopperBarriers = 11;

// From the start of LDS: Q, buffers of keys, weights as operands, a number for each row of each thread, barriers.
struct MlaHopperPlaces {
  int tile, keys, weights, numbers, barriers, bytes;

  constexpr explicit MlaHopperPlaces(int features)
      : tile(kMlaHopperKeys * features * 2),
        keys(kMlaHopperRows * features * 2),
        weights(keys + kMlaHopperBuffers * tile),
        numbers(weights + kMlaHopperRows * kMlaHopperKeys * 2),
        barriers(numbers + 128 * 2 * 4),
        bytes(barriers + kMlaHopperBarriers * 8) {}
};

constexpr MlaShape mla_hopper_shape(int features) {
  const MlaHopperPlaces at(features);
  MlaShape s{};
  s.waves = kMlaHopperThreads / 32, s.row_strips = kMlaHopperRows / kStripColumns, s.parts = 1;
  s.keys = kMlaHopperKeys, s.buffers = kMlaHopperBuffers, s.turns = 1;
  s.threads = kMlaHopperThreads;
  s.tile_bytes = at.tile, s.weight_bytes = at.numbers - at.weights, s.lds_bytes = at.bytes;
  return s;
}

}  // namespace xlstm::gpu::attention
