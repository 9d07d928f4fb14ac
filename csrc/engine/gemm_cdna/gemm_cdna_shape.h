// SPDX-License-Identifier: Apache-2.0
// How gemm_cdna_kernel lies on a compute unit, and how x is packed for it. Plan, kernels and tests use the same
// functions.
#pragma once

#include "engine/gemm_mma/gemm_mma_shape.h"

namespace xlstm::gpu::engine {

constexpr int kCdnaGemmBatch[] = {8, 16, 32, 64};  // the rows of x that kernels are made for; 8 for integers alone
constexpr int kCdnaGemmChains[] = {1, 2};          // strips of 16 rows of weights that a wave has
constexpr int kLeastCdnaGemmWaves = 4, kMostCdnaGemmWaves = 8;
constexpr int kCdnaGemmLoaders = 64 * kLeastCdnaGemmWaves;  // threads that copy x
constexpr int kCdnaGemmShards[] = {1, 2, 4};                // blocks that share a unit's features
constexpr int kMostCdnaGemmColumns = 1 << 16;               // whose scales LDS holds, of a row for each wave

// A line: 128 bytes of each row of weights, so many steps of 64 features. A wave loads all of a line at once, since L1
// does not hold what all waves have on their way.
constexpr int line_steps(int bits) { return 128 * 8 / bits / kStepFeatures; }
constexpr int lines_of(int bits, int columns) {
  return (columns + line_steps(bits) * kStepFeatures - 1) / (line_steps(bits) * kStepFeatures);
}
// Lines that a wave has on their way.
constexpr int lines_ahead(int bits, int batch) { return bits == 16 && batch < 64 ? 4 : 2; }
// The steps of x that a buffer of LDS holds: as many bytes for every batch, of 8 rows half.
constexpr int buffer_steps(int batch) { return batch < 16 ? 4 : 64 / batch; }
// The steps of the loop's body: all of its lines and buffers.
constexpr int body_steps(int bits, int batch) {
  const int of_lines = lines_ahead(bits, batch) * line_steps(bits), of_buffers = 2 * buffer_steps(batch);
  return of_lines > of_buffers ? of_lines : of_buffers;
}

// ---- x of a step: for weights that become bfloat16 each x is the sum of two of these; integers meet it as digits
//
// By unit of features, strip of 16 rows, part and lane, which is a row's and has 16 bytes of it; beside digits by
// strip, digit and lane. Behind them, for quantised weights, each row's scale and sum. Of 8 rows a strip has half the
// lanes: the others read them again, for the rows of the matrix instruction that no output has.

constexpr bool has_digits(int bits, bool integers) { return bits < 16 && integers; }
constexpr int strip_rows(int batch) { return batch < 16 ? batch : 16; }
constexpr int x_parts(bool digits) { return digits ? kXDigits : 2; }
constexpr int x_operand_bytes(bool digits, int batch) {
  return batch * kStepFeatures * (digits ? x_parts(true) : 2 * x_parts(false));
}
constexpr int x_step_bytes(bool digits, bool groups, int batch) {
  return x_operand_bytes(digits, batch) + (groups ? batch * 8 : 0);
}
// Where a row's 8 features are that `at` names (vec8_coord()): 16 bytes of bfloat16, or 8 digits.
constexpr int x_offset(bool digits, int batch, Vec8Coord at, int row, int part) {
  const int rows = strip_rows(batch), strip = row / rows, lane = at.vec16 * rows + row % rows, lanes = 4 * rows;
  if (digits) return ((strip * x_parts(true) + part) * lanes + lane) * 16 + at.unit * 8;
  return (((at.unit * (batch / rows) + strip) * x_parts(false) + part) * lanes + lane) * 16;
}

// The steps that x is packed for: the last line's are zeros behind the columns, and so is what the loop loads ahead.
constexpr int packed_x_steps(int bits, int columns) { return lines_of(bits, columns) * line_steps(bits); }

// ---- LDS: two buffers of x, then the scales of the block's groups, and their offsets, by group, wave, linear and row

// Odd in words, so that lanes that store a row's scales hit different banks.
constexpr int scale_row_bytes(int rows) { return ((rows * 2 + 3) / 4 | 1) * 4; }
// The groups that so many steps have parts of.
constexpr int most_groups_of(int steps) { return steps + 1; }
constexpr int gemm_cdna_lds_bytes(bool digits, bool groups, int batch, int rows, int steps, bool offsets) {
  const int buffers = 2 * buffer_steps(batch) * x_step_bytes(digits, groups, batch);
  return buffers + (groups ? most_groups_of(steps) * scale_row_bytes(rows) * (offsets ? 2 : 1) : 0);
}

}  // namespace xlstm::gpu::engine
