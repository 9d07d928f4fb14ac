// SPDX-License-Identifier: Apache-2.0
// How the GPU walk (chunk_walk.h) lies on a chip of each family: constexpr, so that the kernel, the plan and the tests
// have one answer.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"

namespace xlstm::gpu::mlstm {

struct WalkShape {
  int waves_x, waves_y;  // waves along the state's rows and columns
  int x_per_wave;        // of its rows; its columns are kColumnsPerWave
  int y_tile;            // columns of the state that a block keeps
  int threads;
  int blocks;          // that shall share a multiprocessor: a bound on registers
  int blocks_at_once;  // of them, that are no slower for it: for plans
  // In LDS: what chunks bring, once, or twice where the next chunk is copied there while this one is multiplied, and
  // numbers, twice. Outputs take the room of a, x and scores when those are done.
  int buffers;
  bool a_x_take_turns;  // in one room
  int a_bytes, x_bytes, scores_bytes, out_room, y_bytes, with_bytes, buffer_bytes;
  int numbers;  // floats: factors of the tokens, and of the columns
  int lds_bytes;
};

constexpr int kColumnsPerWave = 32;

// The classes of state rows that there are kernels for; a dimension takes the next one. What has more than the largest
// is walked a slice of kWideRows at a time (chunk_walk_wide.h).
constexpr int kWalkRows[] = {64, 128, 256, 512};
constexpr int kMostWalkRows = 512, kWideRows = 64;
constexpr int walk_rows(int64_t dimension) {
  for (int rows : kWalkRows)
    if (dimension <= rows) return rows;
  return kWideRows;
}

constexpr int kMostSegments = 64;
constexpr int kTokenFactors = 4;  // numbers a token that a walk reads

// Outputs of a block in LDS, tokens by y_tile floats. Lanes that write together differ by 2 (NVIDIA), 1 (RDNA), or on
// CDNA 8 or 4 in the token; those that read pieces together there, by 1 or 2. Further columns, or an exclusive or, put
// them into different banks.
constexpr int out_stride(Family f, int y_tile) {
  return y_tile + (f == Family::nvidia ? 4 : f == Family::rdna ? 16 : 0);
}
constexpr int out_place(Family f, int element_bytes, int y_tile, int token, int column) {
  if (f == Family::cdna && element_bytes == 2) column ^= 16 * (token / 8 % 2) ^ 4 * (token * y_tile / 128 % 2);
  if (f == Family::cdna && element_bytes == 4) column ^= 16 * (token / 4 % 2);
  return token * out_stride(f, y_tile) + column;
}
// The same for (token, column) from a place on whose own have no bit in common with them.
constexpr int out_place_from(int place, Family f, int element_bytes, int y_tile, int token, int column) {
  const int further = out_place(f, element_bytes, y_tile, token, column);
  return f == Family::cdna ? (place ^ further % 32) + further / 32 * 32 : place + further;
}

constexpr WalkShape walk_shape(Family f, int element_bytes, int rows, int chunk) {
  WalkShape s{};
  // Registers hold the state. CDNA: 128 a lane, for 256 x 32 in a wave of 64, so that two waves of a SIMD have room;
  // 512 rows bring more with them, and take twice the waves of half. NVIDIA: 128 a lane, for 128 x 32 in a wave of 32.
  // (64 a lane in twice the waves were a third slower: more instructions than their company hides.) RDNA has 256
  // registers, and operands of 8: 64 a lane, for 64 x 32.
  const int most = f == Family::cdna ? (rows <= 256 ? 256 : 128) : f == Family::nvidia ? 128 : 64;
  const int few = f == Family::rdna ? 64 : 256;
  const int waves = rows <= few ? 4 : f != Family::rdna || rows <= 256 ? 8 : 16;
  s.x_per_wave = rows < most ? rows : most;
  s.waves_x = rows / s.x_per_wave;
  s.waves_y = waves / s.waves_x;
  s.y_tile = kColumnsPerWave * s.waves_y;
  s.threads = waves * wave_size(f);
  // Two small blocks fill an SM of NVIDIA's, whose four parts they have to themselves. On CDNA each has a wave on every
  // SIMD: a second one hides latency, no more. With two waves a SIMD, each has 256 registers, which matrix instructions
  // and others share; alone it would have twice as many, and copy the state between its two files in every chunk.
  s.blocks = f == Family::nvidia ? 256 / s.threads : f == Family::cdna ? 512 / s.threads : 1;
  s.blocks_at_once = f == Family::nvidia ? s.blocks : 1;
  const bool copies = f == Family::nvidia;  // to LDS without registers
  s.buffers = copies ? 2 : 1;
  s.a_x_take_turns = !copies;
  s.a_bytes = s.x_bytes = chunk * rows * element_bytes;
  s.y_bytes = chunk * s.y_tile * element_bytes;
  s.scores_bytes = chunk * chunk * element_bytes;
  s.with_bytes = copies ? s.y_bytes : 0;
  const int out_bytes = s.waves_x * chunk * out_stride(f, s.y_tile) * 4;
  const int products = s.a_bytes + (s.a_x_take_turns ? 0 : s.x_bytes) + s.scores_bytes;
  s.out_room = ((out_bytes > products ? out_bytes : products) + 127) / 128 * 128;
  s.buffer_bytes = s.out_room + s.y_bytes + s.with_bytes;
  s.numbers = kTokenFactors * chunk + s.y_tile;
  s.lds_bytes = s.buffers * s.buffer_bytes + 2 * s.numbers * 4;
  return s;
}

// Chunks that kernels are compiled for, the longest first.
constexpr int kChunks[] = {32, 16};

// Whether a family has a kernel for this. Floats take 16 tokens everywhere, so that 512 rows of them fit; 2-byte
// elements 32, and 16 where the LDS of RDNA, or of the smaller chips of NVIDIA, holds no more of 512 rows.
constexpr bool has_walk(Family f, int element_bytes, int rows, int chunk) {
  if (element_bytes == 4) return chunk == 16;
  return chunk == 32 ? f != Family::rdna || rows < 512 : f != Family::cdna;
}

// The chunk of a walk in slices: the shorter of two, for the registers that a sum over slices takes.
constexpr bool has_wide_walk(Family f, int element_bytes, int chunk) {
  return chunk == (f == Family::cdna && element_bytes == 2 ? 32 : 16);
}

// Whether it has the kernels around the walk: those for 64 bfloat16 tokens stand around a walk of NVIDIA's Hopper.
constexpr int kMostChunk = 64;
constexpr bool has_scores(Family f, int element_bytes, int chunk) {
  if (chunk == kMostChunk) return f == Family::nvidia && element_bytes == 2;
  return has_walk(f, element_bytes, kWalkRows[0], chunk);
}

constexpr int scores_threads(Family f) { return 4 * wave_size(f); }
constexpr int kSliceColumns = 64;  // features that the score kernel takes at a time
constexpr int scores_lds_bytes(Family f, int element_bytes, int chunk, bool backward) {
  const int slices = (f == Family::nvidia ? 2 : 1) * 2 * chunk * kSliceColumns * element_bytes;
  const int products = (backward ? 2 : 1) * chunk * (chunk + 1) * 4;
  return (slices > products ? slices : products) + 32 * chunk + 40;  // ChunkGates
}

}  // namespace xlstm::gpu::mlstm
