// SPDX-License-Identifier: Apache-2.0
// How the Hopper walk (walk_hopper.h) lies on an SM: constexpr, so that the kernel and the plan have one answer.
#pragma once

#include <stdint.h>

namespace xlstm::gpu {

constexpr int kHopperChunk = 64, kHopperBarriers = 16;

// A state of `rows` by 64 `halves` columns in a block, half of the halves in each of two warpgroups. 512 rows are a pair
// of blocks' of 256, each of which owns the outputs of one half.
struct HopperShape {
  int rows, halves;
  bool pair;

  constexpr int columns() const { return 64 * halves; }              // of the state in a block
  constexpr int y_tile() const { return pair ? 64 : 64 * halves; }  // of the outputs
  constexpr int per_warpgroup() const { return halves / 2; }
  constexpr int incoming_bytes() const { return pair ? 64 * kHopperChunk * 4 : 0; }
  // Two stages of a, x, y, scores, and their factors; sums; barriers.
  constexpr int stage_bytes() const { return (2 * rows / 64 + halves + 1) * 128 * kHopperChunk; }
  constexpr int lds_bytes() const {
    return 2 * stage_bytes() + columns() * kHopperChunk * 4 + incoming_bytes() + 4 * kHopperChunk * 4 + kHopperBarriers * 8;
  }
  constexpr int registers() const { return rows / 2 * per_warpgroup(); }  // of the state in a thread
};
constexpr int kHopperStateThreads = 256, kHopperBlockThreads = 384;

constexpr HopperShape kHopperNarrow{128, 2, false}, kHopperWide{128, 4, false}, kHopperTall{256, 2, false},
    kHopperPair{256, 2, true};

constexpr HopperShape hopper_shape(int rows, int64_t columns) {
  return rows == 512 ? kHopperPair : rows == 256 ? kHopperTall : columns > 128 ? kHopperWide : kHopperNarrow;
}

}  // namespace xlstm::gpu
