// SPDX-License-Identifier: Apache-2.0
// How the Hopper walk (walk_hopper.h) lies on an SM: constexpr, so that the kernel and the plan have one answer.
#pragma once

#include <stdint.h>

namespace xlstm::gpu {

constexpr int kHopperChunk = 64, kHopperBarriers = 24;

// What a walk's sums become: nothing; outputs, times a gain where there is one; outputs over normalisers that are made
// on the way; outputs of sums of two blocks, times a gain; or gradients that have more to them, those of q and k.
enum class HopperOutput { none, plain, normalised, summed, flowing };

// A state of `rows` by 64 `halves` columns in a block, half of the halves in each of two warpgroups. 512 rows are a
// pair of blocks' of 256, each of which owns the outputs of one half.
struct HopperShape {
  int rows, halves;
  bool pair;

  constexpr int y_tile() const { return pair ? 64 : 64 * halves; }  // of the outputs
  constexpr int per_warpgroup() const { return halves / 2; }
  // Two stages of a, x, y, scores, and three factors of their tokens; outputs of 64 columns each; two stages of what
  // normalisers are made of, and become; barriers.
  constexpr int stage_bytes() const { return (2 * rows / 64 + halves + 1) * 128 * kHopperChunk; }
  constexpr int lds_bytes(HopperOutput output) const {
    const int half = output >= HopperOutput::summed ? 64 * kHopperChunk * 4 : 128 * kHopperChunk;
    const int outputs = output == HopperOutput::none ? 0 : halves + (pair ? 1 : 0);
    const int normal = output == HopperOutput::normalised ? 2 * (rows * 4 + kHopperChunk * 16) : 0;
    return 2 * stage_bytes() + outputs * half + 2 * 3 * kHopperChunk * 4 + normal + kHopperBarriers * 8;
  }
  // Whether a forward walk makes its normalisers itself: of more rows that takes as long as a kernel before the walk.
  constexpr bool normalises() const { return rows == 128; }
  constexpr int registers() const { return rows / 2 * per_warpgroup(); }  // of the state in a thread
};
constexpr int kHopperStateThreads = 256, kHopperBlockThreads = 384;

constexpr HopperShape kHopperNarrow{128, 2, false}, kHopperWide{128, 4, false}, kHopperTall{256, 2, false},
    kHopperPair{256, 2, true};

constexpr HopperShape hopper_shape(int rows, int64_t columns) {
  return rows == 512 ? kHopperPair : rows == 256 ? kHopperTall : columns > 128 ? kHopperWide : kHopperNarrow;
}

}  // namespace xlstm::gpu
