// SPDX-License-Identifier: Apache-2.0
// How the Hopper walk (chunk_walk_hopper.h) lies on an SM: constexpr, so that the kernel and the plan have one answer.
#pragma once

#include <stdint.h>

namespace xlstm::gpu::mlstm {

constexpr int kHopperChunk = 64, kHopperBarriers = 28;

// What a walk's sums become: nothing; nothing, with n kept beside the state; outputs; h, whose scores, n and
// normalisers are made on the way; outputs of sums of two blocks, times a gain where there is one; or gradients that
// have more to them, those of q and k.
enum class HopperOutput { none, none_with_n, plain, scored, summed, flowing };
constexpr bool keeps_n(HopperOutput output) {
  return output == HopperOutput::none_with_n || output == HopperOutput::scored;
}

// Of each chunk, what its gates say, for the warps that make scores: floats of 64 tokens each, exponents of 2 of D and
// what N is at least; then the weights of n's sum in two rows of bfloat16, upper and lower parts, as they lie in LDS.
enum HopperMeasure { kRowHigh, kRowLow, kColumnHigh, kColumnLow, kLeast, kMeasures };
constexpr int kMeasureBytes = kMeasures * kHopperChunk * 4, kWeightBytes = 2 * kHopperChunk * 2;
constexpr int kMeasureFloats = (kMeasureBytes + kWeightBytes) / 4;  // of a chunk in memory

// A state of `rows` by 64 `halves` columns in a block, half of the halves in each of two warpgroups. 512 rows are a
// pair of blocks' of 256, each of which owns the outputs of one half.
struct HopperShape {
  int rows, halves;
  bool pair;

  constexpr int y_tile() const { return pair ? 64 : 64 * halves; }  // of the outputs
  constexpr int per_warpgroup() const { return halves / 2; }
  // Two stages of a, x (with n, eight rows to a panel), y, scores, and two factors of their tokens; outputs of 64
  // columns each; two stages of n's weights, a tile of 8 rows, of measures and of gains; barriers.
  constexpr int stage_bytes(HopperOutput output) const {
    return (2 * rows / 64 + halves + 1) * 128 * kHopperChunk + (keeps_n(output) ? rows / 64 * 1024 : 0);
  }
  constexpr int lds_bytes(HopperOutput output) const {
    const int half = output >= HopperOutput::summed ? 64 * kHopperChunk * 4 : 128 * kHopperChunk;
    const int outputs = output <= HopperOutput::none_with_n ? 0 : halves + (pair ? 1 : 0);
    const int scoring = keeps_n(output) ? 2 * (1024 + kMeasureBytes + kHopperChunk * 4) : 0;
    return 2 * stage_bytes(output) + outputs * half + 2 * 2 * kHopperChunk * 4 + scoring + kHopperBarriers * 8;
  }
  // Whether a forward walk makes its scores, n and normalisers itself; a pair's scores need both blocks' features.
  constexpr bool scores() const { return !pair; }
  constexpr int registers() const { return rows / 2 * per_warpgroup(); }  // of the state in a thread
};
constexpr int kHopperStateThreads = 256, kHopperBlockThreads = 384;

constexpr HopperShape kHopperNarrow{128, 2, false}, kHopperWide{128, 4, false}, kHopperTall{256, 2, false},
    kHopperPair{256, 2, true};

constexpr HopperShape hopper_shape(int rows, int64_t columns) {
  return rows == 512 ? kHopperPair : rows == 256 ? kHopperTall : columns > 128 ? kHopperWide : kHopperNarrow;
}

}  // namespace xlstm::gpu::mlstm
