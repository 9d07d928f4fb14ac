// SPDX-License-Identifier: Apache-2.0
// The grids of the layers' kernels: pure functions of shape and chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "base/numbers.h"

namespace xlstm::gpu::layer {

constexpr int kRegisterChunks = 2;  // of eight features, in a thread's registers
constexpr int kTwoByteChunks = 4;   // the same for two-byte features, forward
constexpr int kLineLanes = 8;       // lanes whose 16 bytes each make up a line of memory
constexpr int kLayerThreads = 256;  // threads of a block whose groups are no larger
constexpr int kMaxGroup = 512;      // threads that share a row: more would have too few registers
constexpr int kBatchChunks = 4;     // of a row of classes, in flight together in a thread
constexpr int kMaxBatches = 16;     // a thread's batches of a row, beyond which the row gets another wave
constexpr int kClassChunks = 4;     // of a thread, backward

// Occupancy: the resident threads of a compute unit, as the registers of a thread allow: 64, and 128 backward.
constexpr int kResidentThreads = 1024, kBackwardResidentThreads = 512;

// The number of threads that share a head of `features`: a power of two, either part of a wave or a number of waves.
constexpr int group_lanes(int64_t features, int chunks = kRegisterChunks, int max_lanes = kMaxGroup) {
  int lanes = 1;
  while (lanes < max_lanes && int64_t(lanes) * chunks * 8 < features) lanes *= 2;
  return lanes;
}
// The same for classes: a wave needs no barrier, so a wave takes longer rows.
constexpr int class_lanes(const Chip& chip, int64_t classes) {
  const int wave_lanes = group_lanes(classes, kBatchChunks, wave_size(chip.family));
  const int block_lanes = group_lanes(classes, kBatchChunks * kMaxBatches);
  return wave_lanes > block_lanes ? wave_lanes : block_lanes;
}
// The same for a norm: at least the lanes of a line of memory.
constexpr int norm_lanes(int64_t features, int chunks) {
  const int min_lanes = group_lanes(features, 1, kLineLanes), needed = group_lanes(features, chunks);
  return needed > min_lanes ? needed : min_lanes;
}
// A group that synchronises at barriers is a block.
constexpr int group_threads(const Chip& chip, int lanes) {
  return lanes > wave_size(chip.family) ? lanes : kLayerThreads;
}

// A persistent kernel's grid: each group loops over one head of every slices-th row. There are at most as many groups
// as the chip holds at a time, and all have the same number of rows, give or take one.
struct PersistentPlan {
  int lanes, threads;
  int64_t slices, blocks;
};
constexpr PersistentPlan plan_persistent(const Chip& chip, int64_t rows, int64_t heads, int lanes,
                                         int resident_threads = kResidentThreads, int64_t min_rows = 1) {
  const int threads = group_threads(chip, lanes);
  const int64_t groups_per_block = threads / lanes,
                groups = chip.compute_units * (resident_threads / threads) * groups_per_block;
  const int64_t resident = groups / heads, useful = rows / min_rows, max_slices = resident < useful ? resident : useful;
  const int64_t rounds = max_slices > 1 ? ceil_div(rows, max_slices) : rows;
  const int64_t slices = rounds ? ceil_div(rows, rounds) : 0;
  return {lanes, threads, slices, ceil_div(slices * heads, groups_per_block)};
}
// The grid with one group for each head of each row.
struct Groups {
  int lanes, threads;
  int64_t blocks;
  bool early_launch;  // by programmatic dependent launch (arch/nvidia/dependent_launch.h)
};
constexpr Groups plan_norm(const Chip& chip, int64_t rows, int64_t heads, int64_t features, int chunks) {
  const int lanes = norm_lanes(features, chunks), threads = group_threads(chip, lanes),
            groups_per_block = threads / lanes;
  return {lanes, threads, ceil_div(rows * heads, groups_per_block), chip.hopper};
}
// Each slice stores its sums of gradients in memory, so a slice has at least eight rows.
constexpr PersistentPlan plan_norm_backward(const Chip& chip, int64_t rows, int64_t heads, int64_t features) {
  return plan_persistent(chip, rows, heads, norm_lanes(features, kRegisterChunks), kBackwardResidentThreads, 8);
}
constexpr PersistentPlan plan_cross_entropy(const Chip& chip, int64_t rows, int64_t classes) {
  return plan_persistent(chip, rows, 1, class_lanes(chip, classes));
}

}  // namespace xlstm::gpu::layer
