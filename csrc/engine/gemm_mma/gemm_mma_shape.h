// SPDX-License-Identifier: Apache-2.0
// How a product of weights with few rows of x's lies on the matrix units of each family: which features a lane reads,
// and where x's must lie in LDS to meet them. Host code, kernels and tests use the same functions.
//
// Weights are the chain side, 16 rows of them at a time, from memory to registers as they are. x's are the stream side:
// float, split into two bfloat16, so that a row of the batch is two rows of a strip, whose sums are added up at the
// end. k goes in eights: 8 features of one row, 16 bytes of bfloat16, in whatever order makes the weights' bytes whole
// loads.
#pragma once

#include "arch/layouts.h"

namespace xlstm::gpu::engine {

constexpr int kEight = 8;
constexpr int kStepFeatures = 64;    // of a wave at a time; a group of quantised weights is one or two of them
constexpr int kChunkFeatures = 256;  // that 32 threads bring of an x
constexpr int kMatrixThreads = 256;
constexpr int kMatrixBatch[] = {1, 8, 16, 32};  // rows of the batch that a kernel is made for
constexpr int kMostWholeFeatures = 11264;       // of the one x that lies in LDS as a whole
constexpr int kMatrixRows[] = {16, 32, 64};     // of weights, of a unit of work

// All waves of a block share rows and take steps in turns.
constexpr int waves_along(Family f) { return kMatrixThreads / wave_size(f); }
constexpr int tile_features(Family f) { return waves_along(f) * kStepFeatures; }
constexpr int tiles_of(Family f, int columns) { return (columns + tile_features(f) - 1) / tile_features(f); }
// Rows of the batch in a strip.
constexpr int split_rows(Family f) { return strip_step(f, 2) / 2; }
constexpr int matrix_strips(Family f, int batch) { return batch == 1 ? 1 : batch / split_rows(f); }
// converted: weights that are not bfloat16 in memory. Their parts, or sums of groups, leave registers for 16 rows of
// the batch, RDNA's operands, which halves of a wave hold twice, for 8. Many rows of the batch ask for many of weights,
// which share what x's cost; CDNA's LDS has no room for the sums of most.
constexpr bool has_matrix_kernel(Family f, int batch, bool converted) {
  const int most = f == Family::rdna ? 8 : converted ? 16 : 32;
  return batch == 1 || (batch >= split_rows(f) && batch <= most);
}
constexpr bool has_matrix_rows(Family f, int batch, int rows, bool groups) {
  if (rows == 64) return !groups && (f == Family::nvidia ? batch >= 16 : f == Family::cdna && batch == 16);
  return rows == 32 || batch <= 8;
}

// ---- a lane's eights of a step, by the row of weights

constexpr int lanes_of_row(Family f) { return f == Family::rdna ? 1 : 4; }
constexpr int lane_rows(Family f) { return f == Family::nvidia ? 2 : 1; }  // of 16
constexpr int lane_eights(Family f) { return kStepFeatures / kEight / lanes_of_row(f); }
constexpr int unit_eights(Family f) { return f == Family::rdna ? 2 : 1; }  // of a lane in a unit of features

constexpr int load_bytes(int bits) { return bits == 4 ? 8 : 16; }
constexpr int load_eights(int bits) { return load_bytes(bits) * 8 / bits / kEight; }
constexpr int lane_loads(Family f, int bits) { return lane_eights(f) / load_eights(bits); }

constexpr int row_of_lane(Family f, int lane, int j) { return f == Family::nvidia ? lane / 4 + 8 * j : lane % 16; }
// Where in a row a lane is among those that share it.
constexpr int place_in_row(Family f, int lane) {
  return f == Family::nvidia ? lane % 4 : f == Family::cdna ? lane / 16 : 0;
}
// The first byte of a lane's load in a row's step.
constexpr int load_offset(Family f, int bits, int lane, int load) {
  return (load * lanes_of_row(f) + place_in_row(f, lane)) * load_bytes(bits);
}

// ---- x's in LDS: units of features, in them strips, in them what each lane reads, 16 bytes after 16 bytes

constexpr int kSlotBytes = 16;
constexpr int stream_slots(Family f) { return f == Family::rdna ? 16 : wave_size(f); }  // of a piece: lanes that differ
constexpr int strip_slots(Family f) { return stream_slots(f) * stream_vec16s(f, 2); }
// Of a strip's rows the first half are the upper parts of the batch's, the other half the lower ones. Lanes that store
// together have the eights of one row's step: places are permuted by unit and piece, so that they meet in no bank, and
// lanes that read together still read a line.
constexpr int slot_in_strip(Family f, int unit, int row, int piece) {
  if (f == Family::nvidia) return (row * 4 + piece) ^ ((unit & 1) * 4);
  if (f == Family::rdna) return piece * 16 + (row ^ (unit % 4 * 2) ^ piece);
  return row / 4 % 2 * 64 + piece * 16 + ((row / 8 * 4 + row % 4) ^ (unit % 2 * 4) ^ piece);
}

// Where there is one x, all rows of a strip's half are it: lanes share what they read. Where a strip is more than one
// instruction's rows, one's are enough: both parts of x take turns in them, and the strip's other half is not made.
constexpr bool whole_in_half(Family f) { return f != Family::rdna; }
constexpr int whole_part(Family f, int row) { return whole_in_half(f) ? row % 2 : row / split_rows(f); }
constexpr int whole_row(Family f, int part) { return whole_in_half(f) ? part : part * split_rows(f); }  // its first
constexpr int whole_unit_slots(Family f) { return 2 * unit_features(f, 2) / kEight; }
constexpr int whole_slot(Family f, int unit, int row, int piece) {
  const int pieces = unit_features(f, 2) / kEight, turn = f == Family::rdna ? unit / 2 % 2 : unit & 1;
  return (whole_part(f, row) * pieces + piece) ^ (turn * pieces);
}

// Bytes of x's in LDS: of a tile of features, two bfloat16 of each, and the sums of steps that offsets need.
constexpr int matrix_tile_bytes(Family f, int batch, bool groups) {
  return batch * (tile_features(f) * 4 + (groups ? waves_along(f) * 4 : 0));
}
// What one wave has summed up, and how many waves leave theirs side by side; two such places take turns.
constexpr int wave_sum_bytes(Family f, int batch, int rows) {
  return rows * (batch == 1 ? 2 : 2 * split_rows(f) * matrix_strips(f, batch)) * 4;
}
constexpr int waves_together(Family f, int batch, int rows) {
  int waves = waves_along(f);
  while (waves > 1 && waves * wave_sum_bytes(f, batch, rows) > 8 << 10) waves /= 2;
  return waves;
}
constexpr int matrix_sum_bytes(Family f, int batch, int rows) {
  return 2 * waves_together(f, batch, rows) * wave_sum_bytes(f, batch, rows);
}
// That a kernel has of LDS beside those: what a norm needs.
constexpr int kMostStageBytes = 192 << 10;  // of x's
constexpr int matrix_fact_bytes(int batch) {
  const int chunks = batch == 1 ? kMostWholeFeatures / kChunkFeatures : kMostStageBytes / (batch * 4 * kChunkFeatures);
  return batch * (1 + chunks) * 4;
}
// Tiles of x's that fit what is left of LDS beside `others`.
constexpr int tiles_in_lds(Family f, int batch, int rows, bool groups, int others, int lds_bytes) {
  const int room = lds_bytes - matrix_fact_bytes(batch) - matrix_sum_bytes(f, batch, rows) - others;
  const int most = batch == 1 ? room : kMostStageBytes;
  return room <= 0 ? 0 : (room < most ? room : most) / matrix_tile_bytes(f, batch, groups);
}

// Weights on their way to a lane, steps ahead. NVIDIA has them in LDS where x's leave room, since what is loaded to
// registers there is waited for all at once (arch/nvidia/cp_async_ring.h). In registers they fit what the least chip of
// a family has in LDS, since a step's place in turn must not depend on it.
constexpr bool has_ring(Family f, int batch) { return f == Family::nvidia && batch <= 8; }
// Whether half of a strip may be of one of SwiGLU's sides and half of the other: lanes of a ring bring rows of either.
constexpr bool has_mixed_strip(Family f, int bits, int batch) { return has_ring(f, batch) && bits == 16; }
constexpr int ring_step_bytes(Family f, int bits, int rows) { return rows * tile_features(f) * bits / 8; }
constexpr int most_groups(int columns) { return (columns + kStepFeatures - 1) / kStepFeatures; }
// Scales, or offsets, of a unit's rows, where weights are in a ring.
constexpr int unit_group_bytes(int rows, int groups) { return rows * groups * 2; }

constexpr int kLeastLds[] = {99 << 10, 64 << 10, 64 << 10};  // NVIDIA, CDNA, RDNA
constexpr int matrix_depth(Family f, int bits, int batch, int rows) {
  const bool groups = bits < 16;
  if (has_ring(f, batch))
    return ((batch == 1 && groups ? 40 : groups ? 48 : 64) << 10) / ring_step_bytes(f, bits, rows);
  // AMD's waves of 64 have twice the bytes, and RDNA's operands are held twice.
  const int held = f != Family::nvidia && (f == Family::rdna || groups) ? 32 : 64;
  const int words = rows / kStripColumns *
                    (lane_rows(f) * lane_loads(f, bits) * load_bytes(bits) / 4 + (groups ? 2 * lane_columns(f) : 0));
  const int room = batch == 1 ? 8 : tiles_in_lds(f, batch, rows, groups, 0, kLeastLds[int(f)]);
  int depth = 8;
  while (depth > 1 && (depth * words > held || depth > room)) depth /= 2;
  return depth;
}

// What a ring, and twice the scales and offsets of a unit's rows, take.
constexpr int matrix_ring_bytes(Family f, int bits, int batch, int rows, int columns) {
  if (!has_ring(f, batch)) return 0;
  const int groups = bits < 16 ? 2 * 2 * unit_group_bytes(rows, most_groups(columns)) : 0;
  return matrix_depth(f, bits, batch, rows) * ring_step_bytes(f, bits, rows) + groups;
}

// Tiles of x's that LDS holds at once: all, or whole rounds of a lane's steps, or none where there is no room. And what
// a launch asks for.
constexpr int matrix_stage_tiles(Family f, int bits, int batch, int rows, int columns, int lds_bytes) {
  const int ring = matrix_ring_bytes(f, bits, batch, rows, columns);
  const int tiles = tiles_of(f, columns), fit = tiles_in_lds(f, batch, rows, bits < 16, ring, lds_bytes);
  if (fit >= tiles) return tiles;
  return batch == 1 ? 0 : has_ring(f, batch) ? fit : fit - fit % matrix_depth(f, bits, batch, rows);
}
constexpr int matrix_lds_bytes(Family f, int bits, int batch, int rows, int columns, int lds_bytes) {
  return matrix_stage_tiles(f, bits, batch, rows, columns, lds_bytes) * matrix_tile_bytes(f, batch, bits < 16) +
         matrix_sum_bytes(f, batch, rows) + matrix_ring_bytes(f, bits, batch, rows, columns);
}

// Blocks that a CU holds.
constexpr int matrix_blocks_of_cu(Family f, int batch) { return batch == 1 && f != Family::rdna ? 2 : 1; }

struct EightPlace {
  int unit, piece;  // of a step
};
// Where the nth eight of a step's features goes. Of nibbles 16 bytes hold 32 features, the low ones first, and a lane
// has half of them.
constexpr EightPlace eight_place(Family f, int bits, int n) {
  const int lanes = lanes_of_row(f), each = load_eights(bits);
  int lane = 0, eight = 0;  // of a row's lanes, and of the lane's
  if (bits == 4) {
    const int load = n / 4 * 2 + n % 2;  // 8 bytes
    lane = load % lanes, eight = load / lanes * each + n / 2 % 2;
  } else {
    lane = n / each % lanes, eight = n / each / lanes * each + n % each;
  }
  return {eight / unit_eights(f), f == Family::rdna ? eight % 2 : lane};
}
// Which feature of an eight is its element e: as bytes and nibbles are turned into bfloat16 most cheaply.
constexpr int eight_feature(int bits, int e) { return bits < 16 ? e / 4 * 4 + e % 2 * 2 + e / 2 % 2 : e; }

}  // namespace xlstm::gpu::engine
