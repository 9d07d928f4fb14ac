// SPDX-License-Identifier: Apache-2.0
// How the layers lie on a GPU: pure functions of shape and chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "base/numbers.h"

namespace xlstm::gpu::layer {

constexpr int kKeptChunks = 2;      // of eight features, in a thread's registers
constexpr int kSmallChunks = 4;     // the same of two-byte features, forward
constexpr int kLineLanes = 8;       // whose pieces of 16 bytes are a line of memory
constexpr int kLayerThreads = 256;  // of a block whose groups are no larger
constexpr int kMostGroup = 512;     // threads that share a row: more would have too few registers
constexpr int kBatchChunks = 4;     // of a row of classes, in flight together in a thread
constexpr int kMostBatches = 16;    // after which a row of classes is worth another wave
constexpr int kClassChunks = 4;     // of a thread, backward

// Threads of a compute unit at once, by the registers that walking rows takes: 64, and 128 backward.
constexpr int kThreadsAtOnce = 1024, kBackwardThreadsAtOnce = 512;

// Threads that share a head of so many features: a power of two, within a wave or whole waves.
constexpr int group_lanes(int64_t features, int chunks = kKeptChunks, int most = kMostGroup) {
  int lanes = 1;
  while (lanes < most && int64_t(lanes) * chunks * 8 < features) lanes *= 2;
  return lanes;
}
// The same for classes: a wave needs no barrier, so it takes longer rows.
constexpr int class_lanes(const Chip& chip, int64_t classes) {
  const int within = group_lanes(classes, kBatchChunks, wave_size(chip.family));
  const int beyond = group_lanes(classes, kBatchChunks * kMostBatches);
  return within > beyond ? within : beyond;
}
// The same for a norm: a line's lanes at least.
constexpr int norm_lanes(int64_t features, int chunks) {
  const int least = group_lanes(features, 1, kLineLanes), needed = group_lanes(features, chunks);
  return needed > least ? needed : least;
}
// A group that meets at barriers is a block of its own.
constexpr int group_threads(const Chip& chip, int lanes) {
  return lanes > wave_size(chip.family) ? lanes : kLayerThreads;
}

// Groups that each walk one head of every slices-th row: as many as the chip has at once, their rows balanced.
struct Walk {
  int lanes, threads;
  int64_t slices, blocks;
};
constexpr Walk plan_walk(const Chip& chip, int64_t rows, int64_t heads, int lanes, int at_once = kThreadsAtOnce,
                         int64_t least_rows = 1) {
  const int threads = group_threads(chip, lanes);
  const int64_t together = threads / lanes, groups = chip.compute_units * (at_once / threads) * together;
  const int64_t fitting = groups / heads, worth = rows / least_rows, most = fitting < worth ? fitting : worth;
  const int64_t turns = most > 1 ? ceil_div(rows, most) : rows;
  const int64_t slices = turns ? ceil_div(rows, turns) : 0;
  return {lanes, threads, slices, ceil_div(slices * heads, together)};
}
// A group for each head of each row.
struct Groups {
  int lanes, threads;
  int64_t blocks;
};
constexpr Groups plan_norm(const Chip& chip, int64_t rows, int64_t heads, int64_t features, int chunks) {
  const int lanes = norm_lanes(features, chunks), threads = group_threads(chip, lanes), together = threads / lanes;
  return {lanes, threads, ceil_div(rows * heads, together)};
}
// Each slice leaves sums in memory: it has eight rows or more.
constexpr Walk plan_norm_backward(const Chip& chip, int64_t rows, int64_t heads, int64_t features) {
  return plan_walk(chip, rows, heads, norm_lanes(features, kKeptChunks), kBackwardThreadsAtOnce, 8);
}
constexpr Walk plan_cross_entropy(const Chip& chip, int64_t rows, int64_t classes) {
  return plan_walk(chip, rows, 1, class_lanes(chip, classes));
}

}  // namespace xlstm::gpu::layer
