// SPDX-License-Identifier: Apache-2.0
// Tile shapes and LDS layout of the GPU walk (chunk_walk.h) on a chip of each family. The functions are constexpr, so
// that the kernel, the plan and the tests share one answer.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"

namespace xlstm::gpu::mlstm {

struct WalkShape {
  int waves_x, waves_y;  // waves along the state's rows and columns
  int x_per_wave;        // rows of the state in a wave; a wave has kColumnsPerWave columns
  int y_tile;            // columns of the state that a block keeps
  int threads;
  int blocks;          // blocks that share a multiprocessor: a bound on registers (occupancy)
  int blocks_at_once;  // blocks that run at once without being slower for it: used by plans
  // LDS holds the operands of a chunk once, or twice where the next chunk is copied while this one is multiplied, and
  // the factors twice. Outputs reuse the memory of a, x and scores once these have been read, on CDNA that of a and x.
  int buffers;
  bool a_x_share_buffer;  // a and x use one buffer, one after the other
  bool out_apart;         // outputs have memory of their own
  int a_bytes, x_bytes, scores_bytes, y_bytes, with_bytes, region_bytes, buffer_bytes;
  int out_begin, scores_begin, y_begin;  // in a buffer
  int factor_floats;                     // factors of the tokens and of the columns
  int lds_bytes;
};

constexpr int kColumnsPerWave = 32;

// The classes of state rows that kernels are compiled for; a dimension takes the next larger class. A dimension above
// the largest class is walked in slices of kWideRows (chunk_walk_wide.h).
constexpr int kWalkRows[] = {64, 128, 256, 512};
// CDNA has one class more, of 128 rows too, for states of so few columns that half of the waves of the other would have
// none: its waves have 64 rows. A class's rows are class_rows().
constexpr int kNarrowClass = 129, kNarrowColumns = 64;
constexpr int class_rows(int walk_class) { return walk_class / 64 * 64; }
constexpr int kMaxWalkRows = 512, kWideRows = 64;
constexpr int walk_rows(int64_t dimension) {
  for (int rows : kWalkRows)
    if (dimension <= rows) return rows;
  return kWideRows;
}

constexpr int kCdnaLds = 64 << 10;  // of a compute unit
constexpr int kMaxSegments = 64;
constexpr int kTokenFactors = 4;  // factors per token that a walk reads

// Outputs of a block in LDS: tokens by y_tile floats. Lanes that write together differ by 2 (NVIDIA), by 1 (RDNA3), by
// 8 (RDNA4), or on CDNA by 8 or 4 in the token; lanes that read vectors together on CDNA differ by 1 or 2 in it, and
// have every second vector of 64 columns on RDNA4. Padding columns, or an exclusive or, put these lanes into different
// banks.
constexpr int out_stride(Family f, int y_tile) {
  return y_tile + (f == Family::nvidia ? 4 : f == Family::rdna ? 16 : 0);
}
constexpr int out_offset(Family f, int element_bytes, int y_tile, int token, int column) {
  if (f == Family::cdna && element_bytes == 2) column ^= 16 * (token / 8 % 2) ^ 4 * (token * y_tile / 128 % 2);
  if (f == Family::cdna && element_bytes == 4) column ^= 16 * (token / 4 % 2);
  if (f == Family::rdna4) column ^= 16 * (token / 8 % 2) ^ 4 * (column / 32 % 2);
  return token * out_stride(f, y_tile) + column;
}
// The offset of (token, column) relative to a base whose token and column have no bit in common with them.
constexpr int out_offset_from(int base, Family f, int element_bytes, int y_tile, int token, int column) {
  const int distance = out_offset(f, element_bytes, y_tile, token, column);
  return f == Family::cdna || f == Family::rdna4 ? (base ^ distance % 32) + distance / 32 * 32 : base + distance;
}

constexpr WalkShape walk_shape(Family f, int element_bytes, int walk_class, int chunk) {
  WalkShape s{};
  const int rows = class_rows(walk_class);
  // Registers hold the state. CDNA: 64 registers a lane, for 128 x 32 elements in a wave of 64, so that two waves fit a
  // SIMD with a chunk's operands under way besides. NVIDIA: 128 a lane, for 128 x 32 in a wave of 32. (64 a lane in
  // twice the waves was a third slower: the additional waves issue more instructions than their latency hiding saves.)
  // RDNA has 256 registers, and loads through them: 64 a lane, for 64 x 32.
  const int max_rows_per_wave = is_rdna(f) || walk_class == kNarrowClass ? 64 : 128;
  const int max_rows_of_four_waves = is_rdna(f) ? 64 : f == Family::cdna ? 128 : 256;
  const int waves = rows <= max_rows_of_four_waves ? 4 : !is_rdna(f) || rows <= 256 ? 8 : 16;
  s.x_per_wave = rows < max_rows_per_wave ? rows : max_rows_per_wave;
  s.waves_x = rows / s.x_per_wave;
  s.waves_y = waves / s.waves_x;
  s.y_tile = kColumnsPerWave * s.waves_y;
  s.threads = waves * wave_size(f);
  // Two small blocks fill an SM of NVIDIA's, and each has the SM's four partitions to itself. On CDNA each SIMD has two
  // waves, of one block or of two, with 256 registers each, which matrix instructions and other instructions share. A
  // single wave would have twice as many and would copy the state between its two register files in every chunk.
  s.blocks = f == Family::nvidia ? 256 / s.threads : f == Family::cdna ? 512 / s.threads : 1;
  s.blocks_at_once = f == Family::nvidia ? s.blocks : 1;
  const bool copies = f == Family::nvidia;  // asynchronous copies to LDS, without registers
  s.buffers = copies ? 2 : 1;
  s.a_x_share_buffer = !copies;
  s.a_bytes = s.x_bytes = chunk * rows * element_bytes;
  s.y_bytes = chunk * s.y_tile * element_bytes;
  s.scores_bytes = chunk * chunk * element_bytes;
  s.with_bytes = copies ? s.y_bytes : 0;
  const int out_bytes = s.waves_x * chunk * out_stride(f, s.y_tile) * 4;
  s.factor_floats = kTokenFactors * chunk + s.y_tile;
  // On CDNA the next chunk's scores are stored while outputs are read, and outputs have memory of their own where LDS
  // suffices.
  const bool scores_apart = f == Family::cdna;
  const int operand_bytes = s.a_bytes + (s.a_x_share_buffer ? 0 : s.x_bytes) + (scores_apart ? 0 : s.scores_bytes);
  const int bytes_beside = (scores_apart ? s.scores_bytes : 0) + s.y_bytes + s.with_bytes;
  s.out_apart =
      f == Family::cdna && s.blocks * (operand_bytes + out_bytes + bytes_beside + 2 * s.factor_floats * 4) <= kCdnaLds;
  s.out_begin = s.out_apart ? operand_bytes : 0;
  const int region_bytes = s.out_begin + out_bytes > operand_bytes ? s.out_begin + out_bytes : operand_bytes;
  s.region_bytes = (region_bytes + 127) / 128 * 128;
  s.scores_begin = scores_apart ? s.region_bytes : operand_bytes - s.scores_bytes;
  s.y_begin = s.region_bytes + (scores_apart ? s.scores_bytes : 0);
  s.buffer_bytes = s.region_bytes + bytes_beside;
  s.lds_bytes = s.buffers * s.buffer_bytes + 2 * s.factor_floats * 4;
  return s;
}

// Whether CDNA's walk for h (chunk_walk_cdna.h) makes the normalisers. With more rows it loses as much time by their
// products in each chunk as their launch takes.
constexpr bool makes_normalisers(int walk_class) { return walk_class <= 64; }

// The chunk lengths that kernels are compiled for, the longest first.
constexpr int kChunks[] = {32, 16};

// Whether a family has a kernel for this shape. float32 takes 16 tokens everywhere, so that 512 rows fit. 2-byte
// elements take 32 tokens, and 16 where the LDS of RDNA, or of NVIDIA's smaller chips, does not hold 512 rows.
constexpr bool has_walk(Family f, int element_bytes, int rows, int chunk) {
  if (rows == kNarrowClass && (f != Family::cdna || element_bytes == 4)) return false;
  if (element_bytes == 4) return chunk == 16;
  return chunk == 32 ? !is_rdna(f) || rows < 512 : f != Family::cdna;
}

// The chunk length of a walk in slices: the shorter of the two, because the sum over slices takes registers.
constexpr bool has_wide_walk(Family f, int element_bytes, int chunk) {
  return chunk == (f == Family::cdna && element_bytes == 2 ? 32 : 16);
}

// Whether a family has the kernels around the walk. Those for chunks of 64 bfloat16 tokens serve the walk of NVIDIA's
// Hopper.
constexpr int kMaxChunk = 64;
constexpr bool has_scores(Family f, int element_bytes, int chunk) {
  if (chunk == kMaxChunk) return f == Family::nvidia && element_bytes == 2;
  return has_walk(f, element_bytes, kWalkRows[0], chunk);
}

constexpr int scores_threads(Family f) { return 4 * wave_size(f); }
constexpr int kSliceColumns = 64;  // features that the score kernel takes at a time
constexpr int kGateBytes = 36;     // of a token, ChunkGates
constexpr int scores_lds_bytes(Family f, int element_bytes, int chunk, bool backward) {
  const int slices = (f == Family::nvidia ? 2 : 1) * 2 * chunk * kSliceColumns * element_bytes;
  const int products = (backward ? 2 : 1) * chunk * (chunk + 1) * 4;
  return (slices > products ? slices : products) + kGateBytes * chunk;
}

}  // namespace xlstm::gpu::mlstm
