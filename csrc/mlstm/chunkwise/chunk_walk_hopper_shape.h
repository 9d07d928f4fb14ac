// SPDX-License-Identifier: Apache-2.0
// Tile shapes and shared-memory size of the Hopper walk (chunk_walk_hopper.h). The functions are constexpr, so that the
// kernel and the plan share one answer.
#pragma once

#include <stdint.h>

namespace xlstm::gpu::mlstm {

constexpr int kHopperChunk = 64, kHopperBarriers = 28;

// What a walk's kernel has besides the state. It decides the roles of warps and the shared memory.
struct HopperRoles {
  bool outputs;         // otherwise it computes the states between segments alone
  bool epilogue_warps;  // sums go through shared memory to warps that finish outputs; otherwise TMA stores them
  bool n;               // n is kept with the state: a walk that computes its scores, and the states for it
};

// Gate terms of a chunk, for the warps that compute scores: floats of 64 tokens each, exponents of 2 of D, the lower
// bound e^-m of N, and the first token of the sequence (ChunkGates::first). After them the weights of n's sum in two
// rows of bfloat16, upper and lower parts, laid out as in shared memory.
enum HopperGateTerm { kRowHigh, kRowLow, kColumnHigh, kColumnLow, kMinN, kFirstOfSequence, kGateTerms };
constexpr int kGateTermBytes = kGateTerms * kHopperChunk * 4, kWeightBytes = 2 * kHopperChunk * 2;
constexpr int kGateTermFloats = (kGateTermBytes + kWeightBytes) / 4;  // floats of a chunk in memory

// The state of a block: `rows` by 64 `y_panels` columns, half of the panels in each consumer warpgroup. 512 rows are a
// pair of blocks of 256 rows, each of which finishes the outputs of one panel.
struct HopperShape {
  int rows, y_panels;
  bool pair;

  constexpr int y_tile() const { return pair ? 64 : 64 * y_panels; }  // columns of outputs
  constexpr int panels_per_warpgroup() const { return y_panels / 2; }
  // Two stages of a, x (with n, eight rows below each panel), y, scores, and two factors of their tokens; output panels
  // of 64 columns each; two stages of n's weights (a tile of 8 rows), of gate terms and of 1 / N; mbarriers.
  constexpr int stage_bytes(HopperRoles has) const {
    return (2 * rows / 64 + y_panels + 1) * 128 * kHopperChunk + (has.n ? rows / 64 * 1024 : 0);
  }
  constexpr int lds_bytes(HopperRoles has) const {
    const int panel = has.epilogue_warps ? 64 * kHopperChunk * 4 : 128 * kHopperChunk;
    const int panels = has.outputs ? y_panels + (pair ? 1 : 0) : 0;
    const int scoring = has.n ? 2 * (1024 + kGateTermBytes + kHopperChunk * 4) : 0;
    return 2 * stage_bytes(has) + panels * panel + 2 * 2 * kHopperChunk * 4 + scoring + kHopperBarriers * 8;
  }
  // Whether a forward walk computes its scores, n and normalisers itself. A pair does not, because its scores need the
  // features of both blocks.
  constexpr bool makes_scores() const { return !pair; }
  constexpr int registers() const { return rows / 2 * panels_per_warpgroup(); }  // registers of the state in a thread
};
constexpr int kHopperStateThreads = 256, kHopperBlockThreads = 384;

constexpr HopperShape kHopperNarrow{128, 2, false}, kHopperWide{128, 4, false}, kHopperTall{256, 2, false},
    kHopperPair{256, 2, true};

constexpr HopperShape hopper_shape(int rows, int64_t columns) {
  return rows == 512 ? kHopperPair : rows == 256 ? kHopperTall : columns > 128 ? kHopperWide : kHopperNarrow;
}

}  // namespace xlstm::gpu::mlstm
