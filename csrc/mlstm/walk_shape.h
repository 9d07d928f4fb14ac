// SPDX-License-Identifier: Apache-2.0
// How the GPU walk (walk_gpu.h) lies on a chip of each family: constexpr, so that the kernel, the plan and the tests
// have one answer.
#pragma once

#include <stdint.h>

#include "arch/family.h"

namespace xlstm::gpu {

struct WalkShape {
  int waves_x, waves_y;  // waves along the state's rows and columns
  int x_per_wave;        // of its rows; its columns are kColumnsPerWave
  int y_tile;            // columns of the state that a block keeps
  int threads;
  // In LDS: what chunks bring, once, or twice where the next chunk is copied there while this one is multiplied; numbers
  // per token, twice; outputs.
  int buffers;
  bool a_x_take_turns;  // in one room
  int a_bytes, x_bytes, y_bytes, scores_bytes, with_bytes, buffer_bytes;
  int numbers;     // floats: factors of the tokens, and of the columns
  int out_stride;  // of a row of outputs, in floats
  int out_bytes, lds_bytes;
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

constexpr int kMostSegments = 64;
constexpr int kTokenFactors = 4;  // numbers a token that a walk reads

constexpr WalkShape walk_shape(Family f, int element_bytes, int rows, int chunk) {
  WalkShape s{};
  // Four waves; on wave32 the 512 rows take eight. Where registers are for eight, two blocks fill each other's gaps.
  const int waves = f == Family::cdna || rows <= 256 ? 4 : 8;
  // 128 accumulators a lane hold the state: 256 x 32 in a wave of 64, 128 x 32 in a wave of 32.
  const int most = f == Family::cdna ? 256 : 128;
  s.x_per_wave = rows < most ? rows : most;
  s.waves_x = rows / s.x_per_wave;
  s.waves_y = waves / s.waves_x;
  s.y_tile = kColumnsPerWave * s.waves_y;
  s.threads = waves * wave_size(f);
  const bool copies = f == Family::nvidia;  // to LDS without registers
  s.buffers = copies ? 2 : 1;
  s.a_x_take_turns = !copies;
  s.a_bytes = s.x_bytes = chunk * rows * element_bytes;
  s.y_bytes = chunk * s.y_tile * element_bytes;
  s.scores_bytes = chunk * chunk * element_bytes;
  s.with_bytes = copies ? s.y_bytes : 0;
  s.buffer_bytes = s.a_bytes + (s.a_x_take_turns ? 0 : s.x_bytes) + s.y_bytes + s.scores_bytes + s.with_bytes;
  s.numbers = kTokenFactors * chunk + s.y_tile;
  // Lanes that write outputs together differ by 2, 8 or 1 in the token: this puts them into different banks.
  s.out_stride = s.y_tile + (f == Family::nvidia ? 4 : f == Family::cdna ? 2 : 16);
  s.out_bytes = s.waves_x * chunk * s.out_stride * 4;
  s.lds_bytes = s.buffers * s.buffer_bytes + 2 * s.numbers * 4 + s.out_bytes;
  return s;
}

// Chunks that kernels are compiled for, the longest first.
constexpr int kChunks[] = {32, 16};

// Whether a family has a kernel for this. Floats take 16 tokens everywhere, so that 512 rows of them fit; 2-byte
// elements 32, and 16 where the LDS of RDNA, or of the smaller chips of NVIDIA, holds no more of 512 rows.
constexpr bool has_walk(Family f, int element_bytes, int, int chunk) {
  return element_bytes == 4 ? chunk == 16 : chunk == 32 || f != Family::cdna;
}

constexpr int scores_threads(Family f) { return 4 * wave_size(f); }
constexpr int kSliceColumns = 64;  // features that the score kernel takes at a time
constexpr int scores_lds_bytes(Family f, int element_bytes, int chunk, bool backward) {
  const int slices = (f == Family::nvidia ? 2 : 1) * 2 * chunk * kSliceColumns * element_bytes;
  const int products = (backward ? 2 : 1) * chunk * (chunk + 1) * 4;
  return (slices > products ? slices : products) + 56 * chunk;  // ChunkGates
}

}  // namespace xlstm::gpu
