// SPDX-License-Identifier: Apache-2.0
// The plan of the recurrent mLSTM (recurrent.h): its tiles and grid. It is a pure function of shape and chip, so that
// tests run it anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <stdexcept>
#include <string>

#include "arch/chip.h"
#include "base/numbers.h"

namespace xlstm::gpu::mlstm {

constexpr int kRecurrentRows = 8;                     // keys that a thread owns
constexpr int kRecurrentColumns = 4;                  // values that a thread owns: 16 bytes of a row of a float32 C
constexpr int kMaxRecurrentThreads = 256;             // of a block
constexpr int kRecurrentTileBytes[] = {128, 64, 32};  // of a row of C in a block, the widest first
constexpr int kAnyTile = 32, kAnyThreads = 256;

struct RecurrentPlan {
  bool in_registers;      // the state stays in registers for all tokens; else it goes through memory once a token
  int columns;            // columns of C in a block
  int tiles;              // blocks of a head
  int threads;            // threads of a block, a multiple of the wave
  int interleaved_heads;  // heads whose blocks alternate in the grid
  int64_t blocks;
  bool early_launch;  // by programmatic dependent launch (arch/nvidia/dependent_launch.h)
};

// Values that a thread owns: 16 bytes of a row of C. state_bytes: of an element of C.
constexpr int recurrent_columns(int state_bytes) { return 16 / state_bytes; }

// A plan with `columns` of C in a block, in registers.
inline RecurrentPlan plan_recurrent(int columns, int64_t heads, int64_t dqk, int64_t dhv, const Chip& chip,
                                    int state_bytes) {
  const int wave = wave_size(chip.family), lanes = columns / recurrent_columns(state_bytes);
  // A thread for each part of the tile, and for each column, whose sum it writes.
  const int64_t needed = std::max<int64_t>(ceil_div(dqk, kRecurrentRows) * lanes, columns);
  const int64_t threads = ceil_div(needed, wave) * wave;
  RecurrentPlan p{};
  p.in_registers = threads <= kMaxRecurrentThreads;
  p.columns = columns;
  p.tiles = int(ceil_div(dhv, columns));
  p.threads = p.in_registers ? int(threads) : kAnyThreads;
  // MI300X distributes blocks round-robin over its eight dies. With eight interleaved heads, a head's tiles, which
  // share cache lines of C and all of q, k and n, use one L2.
  p.interleaved_heads = chip.family == Family::cdna ? 8 : 1;
  p.blocks = ceil_div(heads, p.interleaved_heads) * p.interleaved_heads * p.tiles;
  p.early_launch = chip.hopper;
  return p;
}

// heads: of all sequences. aligned16: every 8 elements of q and k, every 4 of v and n, and every 16 bytes of C begin at
// a multiple of their size, or of 16 bytes. The plan takes the widest tile that gives every compute unit a block: wide
// rows of C are complete cache lines, and q, k, n and the gates are read once per tile. requested: the columns of a
// tile, or 0 to leave them to the plan; std::invalid_argument where there is no kernel for them.
inline RecurrentPlan plan_recurrent(int64_t heads, int64_t dqk, int64_t dhv, bool aligned16, const Chip& chip,
                                    int64_t requested = 0, int state_bytes = 4) {
  RecurrentPlan best{};
  for (const int bytes : kRecurrentTileBytes) {
    const int columns = bytes / state_bytes;
    if (requested && requested != columns) continue;
    const RecurrentPlan p = plan_recurrent(columns, heads, dqk, dhv, chip, state_bytes);
    if (!aligned16 || !p.in_registers) continue;
    best = p;
    if (heads * p.tiles >= chip.compute_units) break;
  }
  if (best.in_registers) return best;
  if (requested &&
      (aligned16 || std::ranges::find(kRecurrentTileBytes, requested * state_bytes) == std::end(kRecurrentTileBytes)))
    throw std::invalid_argument("step_columns: no kernel for " + std::to_string(requested) +
                                " columns of these head dims on this GPU");
  best = plan_recurrent(kAnyTile, heads, dqk, dhv, chip, state_bytes);
  best.in_registers = false;
  best.threads = kAnyThreads;
  return best;
}

}  // namespace xlstm::gpu::mlstm
