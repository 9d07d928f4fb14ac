// SPDX-License-Identifier: Apache-2.0
// How a product of weights with few rows of x's lies on the matrix units of each family: which features a lane reads,
// and where x's must lie in LDS to meet them. Host code, kernels and tests use the same functions.
//
// Weights are the chain side, 16 rows of them at a time, from memory to registers as they are. x's are the stream side:
// float, split into two bfloat16, so that a row of the batch is two rows of a strip, whose sums are added up at the
// end. k goes in eights: 8 features of one row, 16 bytes of bfloat16, in whatever order makes the weights' bytes whole
// loads.
#pragma once

#include "arch/family.h"

namespace xlstm::gpu {

constexpr int kEight = 8;
constexpr int kStepFeatures = 64;  // of a wave at a time; a group of quantised weights is one or two of them
constexpr int kAlong = 4;          // waves that share rows, each with its own features
constexpr int kTileFeatures = kAlong * kStepFeatures;
constexpr int kMatrixThreads = 256;
constexpr int kMostMatrixHeads = 32;            // whose means and deviations are kept
constexpr int kMatrixBatch[] = {1, 8, 16, 32};  // rows of the batch that a kernel is made for
constexpr int kMostWholeFeatures = 11264;       // of the one x that lies in LDS as a whole
constexpr int kMatrixRows[] = {32, 64};         // of weights, of a block

constexpr int matrix_waves(Family f) { return kMatrixThreads / wave_size(f); }
constexpr int row_groups(Family f) { return matrix_waves(f) / kAlong; }  // waves side by side across rows
constexpr int chains(Family f, int rows) { return rows / (kStripColumns * row_groups(f)); }  // of a wave
// Rows of the batch in a strip.
constexpr int split_rows(Family f) { return strip_step(f, 2) / 2; }
// converted: weights that are not bfloat16 in memory. Their parts, or sums of groups, and RDNA's operands, which halves
// of a wave hold twice, leave registers for 16 rows of the batch.
constexpr bool has_matrix_kernel(Family f, int batch, bool converted) {
  return batch == 1 || (batch >= split_rows(f) && (batch <= 16 || !(converted || f == Family::rdna)));
}
constexpr int matrix_strips(Family f, int batch) { return batch == 1 ? 1 : batch / split_rows(f); }

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
constexpr int strip_slots(Family f) { return stream_slots(f) * stream_pieces(f, 2); }
constexpr int tile_units(Family f) { return kTileFeatures / unit_features(f, 2); }
// Of a strip's rows the first half are the upper parts of the batch's, the other half the lower ones.
constexpr int slot_in_strip(Family f, int row, int piece) {
  if (f == Family::nvidia) return row * 4 + piece;
  if (f == Family::rdna) return piece * 16 + row;
  return row / 4 % 2 * 64 + piece * 16 + row / 8 * 4 + row % 4;
}

// Where there is one x, all rows of a strip's half are it: lanes share what they read.
constexpr int whole_unit_slots(Family f) { return 2 * unit_features(f, 2) / kEight; }
constexpr int whole_slot(Family f, int row, int piece) {
  return row / split_rows(f) * (unit_features(f, 2) / kEight) + piece;
}

constexpr int tiles_of(int columns) { return (columns + kTileFeatures - 1) / kTileFeatures; }
// Bytes that a launch asks for: of several x's a kernel has what it needs by itself.
constexpr int matrix_lds_bytes(Family f, int batch, int rows, int columns) {
  const int sums = 2 * split_rows(f) * rows * 4, x = tiles_of(columns) * kTileFeatures * 4;
  return batch > 1 ? 0 : x > sums ? x : sums;
}

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
constexpr int eight_feature(int bits, int e) { return bits == 4 ? e / 4 * 4 + e % 2 * 2 + e / 2 % 2 : e; }

}  // namespace xlstm::gpu
