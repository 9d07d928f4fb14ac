// SPDX-License-Identifier: Apache-2.0
// How the layers lie on a GPU: pure functions of shape and chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"

namespace xlstm::gpu {

constexpr int kKeptChunks = 2;       // of eight features, in a thread's registers
constexpr int kLayerThreads = 256;   // of a block whose groups are no larger
constexpr int kMostGroup = 512;      // threads that share a row: more would have too few registers
constexpr int kThreadsAtOnce = 1024;  // of a compute unit, which then have 64 registers each
constexpr int kPointwiseChunks = 2;  // of a thread, in flight together
constexpr int kBatchChunks = 4;      // of a row of classes, in flight together in a thread
constexpr int kMostBatches = 4;      // after which a row of classes is worth another wave

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
constexpr int group_threads(int lanes) { return lanes < kLayerThreads ? kLayerThreads : lanes; }

// Groups that each walk one head of every slices-th row: as many as the chip has at once, their rows balanced.
struct Walk {
  int lanes, threads;
  int64_t slices, blocks;
};
constexpr Walk plan_walk(const Chip& chip, int64_t rows, int64_t heads, int lanes) {
  const int threads = group_threads(lanes);
  const int64_t together = threads / lanes, at_once = chip.compute_units * (kThreadsAtOnce / threads) * together;
  const int64_t most = at_once > heads ? at_once / heads : 1, turns = (rows + most - 1) / most;
  const int64_t slices = turns ? (rows + turns - 1) / turns : 0;
  return {lanes, threads, slices, (slices * heads + together - 1) / together};
}

// Backward: how many groups walk the rows of a head. Enough to fill the chip, but eight rows or more for each.
constexpr int64_t norm_slices(const Chip& chip, int64_t rows, int64_t heads, int64_t features) {
  const int lanes = group_lanes(features), threads = group_threads(lanes);
  const int64_t groups = int64_t(4) * chip.compute_units * (threads / lanes);
  const int64_t most = rows / 8, wanted = groups / heads;
  const int64_t slices = most < wanted ? most : wanted;
  return slices < 1 ? 1 : slices;
}

}  // namespace xlstm::gpu
