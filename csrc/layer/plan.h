// SPDX-License-Identifier: Apache-2.0
// How the layers lie on a GPU: pure functions of shape and chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"

namespace xlstm::gpu {

constexpr int kKeptChunks = 2;      // of eight features, in a thread's registers
constexpr int kLayerThreads = 256;  // of a block whose groups are within waves
constexpr int kMostLayerThreads = 1024;
constexpr int kMostBackwardThreads = 512;  // which need more registers
constexpr int kPointwiseChunks = 2;        // of a thread, in flight together

// Threads that share a head of so many features: a power of two within a wave, or a whole block.
constexpr int group_lanes(int64_t features, int most = kMostLayerThreads) {
  int lanes = 1;
  while (lanes < most && int64_t(lanes) * kKeptChunks * 8 < features) lanes *= 2;
  return lanes;
}
constexpr int group_threads(const Chip& chip, int lanes) {
  return lanes <= wave_size(chip.family) ? kLayerThreads : lanes;
}

// Backward: how many groups walk the rows of a head. Enough to fill the chip, but eight rows or more for each.
constexpr int64_t norm_slices(const Chip& chip, int64_t rows, int64_t heads, int64_t features) {
  const int lanes = group_lanes(features, kMostBackwardThreads), threads = group_threads(chip, lanes);
  const int64_t groups = int64_t(4) * chip.compute_units * (threads / lanes);
  const int64_t most = rows / 8, wanted = groups / heads;
  const int64_t slices = most < wanted ? most : wanted;
  return slices < 1 ? 1 : slices;
}

}  // namespace xlstm::gpu
