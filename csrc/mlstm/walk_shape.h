// SPDX-License-Identifier: Apache-2.0
// How the GPU walk (walk_gpu.h) lies on a chip of each family: constexpr, so that the kernel, the plan and the tests
// have one answer.
#pragma once

#include <stdint.h>

#include "arch/family.h"

namespace xlstm::gpu {

struct WalkShape {
  int chunk;             // tokens
  int waves_x, waves_y;  // waves along the state's rows and columns
  int x_per_wave;        // of its rows; its columns are kColumnsPerWave
  int y_tile;            // columns of the state that a block keeps
  int threads;
  int out_stride;  // of a row of outputs in LDS, in floats
  int a_bytes, x_bytes, y_bytes, scores_bytes, out_bytes, factor_bytes;
  bool shared_a_x;  // a and x take turns in one buffer
  int lds_bytes;
};

constexpr int kColumnsPerWave = 32;

// The classes of state rows that there are kernels for; a dimension takes the next one.
constexpr int kWalkRows[] = {64, 128, 256, 512};
constexpr int kMostWalkRows = 512;
constexpr int walk_rows(int64_t dimension) {
  for (int rows : kWalkRows)
    if (dimension <= rows) return rows;
  return 0;
}

constexpr WalkShape walk_shape(Family f, int element_bytes, int rows, int chunk) {
  WalkShape s{};
  s.chunk = chunk;
  const int waves = f == Family::cdna || rows <= 128 ? 4 : 8;
  // 128 accumulators a lane hold the state: 256 x 32 in a wave of 64, 128 x 32 in a wave of 32.
  const int most = f == Family::cdna ? 256 : 128;
  s.x_per_wave = rows < most ? rows : most;
  s.waves_x = rows / s.x_per_wave;
  s.waves_y = waves / s.waves_x;
  s.y_tile = kColumnsPerWave * s.waves_y;
  s.threads = waves * wave_size(f);
  // Lanes that write outputs together differ by 2, 8 or 1 in the token: this puts them into different banks.
  s.out_stride = s.y_tile + (f == Family::nvidia ? 4 : f == Family::cdna ? 2 : 16);
  s.a_bytes = s.x_bytes = chunk * rows * element_bytes;
  s.y_bytes = chunk * s.y_tile * element_bytes;
  s.scores_bytes = chunk * chunk * element_bytes;
  s.out_bytes = s.waves_x * chunk * s.out_stride * 4;
  s.factor_bytes = 2 * 2 * chunk * 4;  // of two chunks
  s.shared_a_x = f != Family::nvidia;
  s.lds_bytes =
      s.a_bytes + (s.shared_a_x ? 0 : s.x_bytes) + s.y_bytes + s.scores_bytes + s.out_bytes + s.factor_bytes;
  return s;
}

// Chunks that kernels are compiled for, the longest first.
constexpr int kChunks[] = {32, 16};

// Whether a family has a kernel for this: what its LDS holds. Floats take 16 tokens everywhere, so that 512 rows of them
// fit; 2-byte elements 32, but for 512 rows on RDNA.
constexpr bool has_walk(Family f, int element_bytes, int rows, int chunk) {
  if (element_bytes == 4) return chunk == 16;
  return f == Family::rdna && rows == 512 ? chunk == 16 : chunk == 32 || f == Family::rdna;
}

constexpr int scores_threads(Family f) { return 4 * wave_size(f); }
constexpr int kSliceColumns = 64;  // features that the score kernel takes at a time
constexpr int scores_lds_bytes(Family f, int element_bytes, int chunk, bool backward) {
  const int slices = (f == Family::nvidia ? 2 : 1) * 2 * chunk * kSliceColumns * element_bytes;
  const int products = (backward ? 2 : 1) * chunk * (chunk + 1) * 4;
  return (slices > products ? slices : products) + 56 * chunk;  // ChunkGates
}

}  // namespace xlstm::gpu
