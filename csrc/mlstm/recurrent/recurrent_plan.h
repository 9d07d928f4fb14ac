// SPDX-License-Identifier: Apache-2.0
// How the recurrent mLSTM (recurrent.h) is cut up: a pure function of shape and chip, so that it is tested
// anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

#include "arch/chip.h"
#include "base/numbers.h"

namespace xlstm::gpu::mlstm {

constexpr int kRecurrentRows = 8;               // keys that a thread owns
constexpr int kRecurrentColumns = 4;            // values that a thread owns: 16 bytes of a row of C
constexpr int kMostRecurrentThreads = 256;      // of a block
constexpr int kRecurrentTiles[] = {32, 16, 8};  // values that a block may own, the widest first
constexpr int kAnyTile = 32, kAnyThreads = 256;

struct RecurrentPlan {
  bool in_registers;  // the state, for all tokens; else it goes through memory once a token
  int columns;        // of C in a block
  int tiles;          // blocks of a head
  int threads;        // of a block, whole waves
  int together;       // heads whose blocks take turns in the grid
  int64_t blocks;
};

// With `columns` of C in a block, in registers.
inline RecurrentPlan plan_recurrent(int columns, int64_t heads, int64_t dqk, int64_t dhv, Family family) {
  const int wave = wave_size(family);
  const int64_t threads = ceil_div(ceil_div(dqk, kRecurrentRows) * (columns / kRecurrentColumns), wave) * wave;
  RecurrentPlan p{};
  p.in_registers = threads <= kMostRecurrentThreads;
  p.columns = columns;
  p.tiles = int(ceil_div(dhv, columns));
  p.threads = p.in_registers ? int(threads) : kAnyThreads;
  // MI300X hands blocks to its eight dies in turn. Eight heads in turn keep a head's tiles, which share cache lines of
  // C and all of q, k and n, behind one L2.
  p.together = family == Family::cdna ? 8 : 1;
  p.blocks = ceil_div(heads, p.together) * p.together * p.tiles;
  return p;
}

// heads: of all sequences; pieces: every 8 elements of q and k, 4 of v and of the states, begin at a multiple of their
// size. The widest tile that gives every compute unit a block: wide rows of C are whole cache lines, and q, k, n and
// the gates are read once per tile. asked: columns of that tile, 0 leaves them to the plan; one that there is no kernel
// for is an std::invalid_argument.
inline RecurrentPlan plan_recurrent(int64_t heads, int64_t dqk, int64_t dhv, bool pieces, const Chip& chip,
                                    int64_t asked = 0) {
  RecurrentPlan best{};
  for (const int columns : kRecurrentTiles) {
    if (asked && asked != columns) continue;
    const RecurrentPlan p = plan_recurrent(columns, heads, dqk, dhv, chip.family);
    if (!pieces || !p.in_registers) continue;
    best = p;
    if (heads * p.tiles >= chip.compute_units) break;
  }
  if (best.in_registers) return best;
  if (asked && (pieces || std::ranges::find(kRecurrentTiles, asked) == std::end(kRecurrentTiles)))
    throw std::invalid_argument("step_columns: no kernel for " + std::to_string(asked) +
                                " columns of these head dims on this GPU");
  best = plan_recurrent(kAnyTile, heads, dqk, dhv, chip.family);
  best.in_registers = false;
  best.threads = kAnyThreads;
  return best;
}

}  // namespace xlstm::gpu::mlstm
