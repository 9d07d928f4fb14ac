// SPDX-License-Identifier: Apache-2.0
// The properties of a GPU's family: its wave size, the layouts of the matrix instructions' operands, and the swizzles
// of LDS. Plans and tests use these functions without a GPU; kernels use them for the family that they are compiled
// for.
#pragma once

namespace xlstm::gpu {

enum class Family { nvidia, cdna, rdna, rdna4 };  // rdna: RDNA3

// WMMA in waves of 32, with 256 registers a lane that products share with other instructions.
constexpr bool is_rdna(Family f) { return f == Family::rdna || f == Family::rdna4; }

constexpr int wave_size(Family f) { return f == Family::cdna ? 64 : 32; }

// The rows of a strip, which is also the k of one multiply. On CDNA two 16x16x16 instructions share a 16-byte LDS read
// of 2-byte elements, and two multiplies one of floats of 8 bits, which CDNA alone multiplies.
constexpr int strip_step(Family f, int element_bytes) { return f == Family::cdna && element_bytes <= 2 ? 32 : 16; }
constexpr int kStripColumns = 16;
// The accumulators of a strip in each lane.
constexpr int strip_registers(Family f, int element_bytes) {
  return strip_step(f, element_bytes) * kStripColumns / wave_size(f);
}

struct StripPosition {
  int row, column;
};

// The element of a strip that a lane's register holds.
constexpr StripPosition strip_position(Family f, int element_bytes, int lane, int r) {
  if (f == Family::nvidia)  // two m16n8 accumulators side by side, transposed
    return {8 * (r / 4) + 2 * (lane % 4) + r % 2, lane / 4 + 8 * ((r / 2) % 2)};
  if (f == Family::rdna) return {2 * r + lane / 16, lane % 16};
  if (f == Family::cdna && element_bytes == 4) return {4 * (lane / 16) + r, lane % 16};
  // Two 16x16 accumulators on CDNA: their rows alternate in groups of four, so that a lane has 8 consecutive rows, as
  // it has of RDNA4's one accumulator.
  return {8 * (lane / 16) + r, lane % 16};
}

// The registers of a WMMA operand of 2-byte elements, two k each: both halves of an RDNA3 wave have all 16 k, each half
// of an RDNA4 wave has 8.
constexpr int wmma_words(Family f) { return f == Family::rdna ? 8 : 4; }

// A lane's registers of a strip belong to lane_columns() columns, one or two. Register r belongs to the lane's column
// lane_column(), and the lane's column j is the strip's column column_position(). The lanes that hold the other rows of
// the same columns have numbers that differ in the bits of row_lanes().
constexpr int lane_columns(Family f) { return f == Family::nvidia ? 2 : 1; }
constexpr int lane_column(Family f, int r) { return f == Family::nvidia ? r / 2 % 2 : 0; }
constexpr int column_position(Family f, int lane, int j) { return f == Family::nvidia ? lane / 4 + 8 * j : lane % 16; }
constexpr int row_lanes(Family f) { return f == Family::nvidia ? 3 : f == Family::cdna ? 48 : 16; }

// The number of a lane's registers, from the first on, that belong to one column and to rows of the same group of
// eight.
constexpr int eight_registers(Family f, int element_bytes) {
  return f == Family::nvidia ? 2 : f == Family::rdna4 || (f == Family::cdna && element_bytes <= 2) ? 8 : 4;
}

// The row in a group of 32 rows that is row i of accumulator j: the same alternation, for loading stream operands.
constexpr int interleaved_row(int i, int j) { return 8 * (i / 4) + 4 * j + i % 4; }

// The swizzle of an LDS tile: swizzled_vec16() is the slot of a 16-byte vector in its row, swizzled_row() the slot of a
// row. The lanes that are served together hit different banks (tests/cpp/test_lds_conflicts.cpp counts the conflicts).
// A row has `vec16s` vectors, a power of two; rows of fewer than eight vectors share a line of 128 bytes.
constexpr int swizzled_vec16(Family f, int vec16s, int row, int vec16) {
  if (f == Family::nvidia) {  // ldmatrix reads one vector of each of 8 consecutive rows
    const int rows_in_line = vec16s < 8 ? 8 / vec16s : 1, period = vec16s < 8 ? vec16s : 8;
    return vec16 ^ ((row / rows_in_line) % period);
  }
  if (f == Family::cdna) {
    // ds_read_b128 serves lanes {0-3, 20-23}, {4-7, 16-19}, ... together: rows r..r+3 of one vector, and rows r+8..r+11
    // (or, with 4-byte elements, r+4..r+7) of the next. Lanes that store subtiles (tile/paired_tiles.h) are 4 rows
    // apart.
    const int eighth = (row / 4 + row / 8) % 2;
    return vec16s >= 8   ? vec16 ^ (row % 4 + 4 * eighth) ^ 2 * (row / 8 % 2)
           : vec16s == 4 ? vec16 ^ ((row / 2) % 2 + 2 * eighth)
                         : vec16;
  }
  if (vec16s >= 8) return vec16 ^ (4 * ((row / 2 + row / 8) % 2) + 2 * ((row + row / 4) % 2) + (row / 4) % 2);
  return vec16s == 4 ? vec16 ^ (2 * ((row / 2) % 2) + (row / 4) % 2) : vec16 ^ ((row / 4) % 2);
}

// The register word of features that unit w of a transposed subtile has (tile/lds_tile.h): in this order the lanes that
// store together have rows in different parts of a line.
constexpr int transposed_word(int element_bytes, int side, int w) {
  if (element_bytes == 4) return w;
  return side == 32 ? w / 4 * 4 + w % 2 * 2 + w / 2 % 2 : w / 8 * 8 + w / 2 % 2 * 4 + w / 4 % 2 * 2 + w % 2;
}

// The slot of a row: the lanes of a transposing store have rows 8 apart.
constexpr int swizzled_row(Family f, int vec16s, int row) {
  if (f == Family::nvidia) return row;
  return vec16s == 4 ? row ^ ((row / 4 + row / 8) % 2) : vec16s == 2 ? row ^ ((row / 8) % 4) : row;
}

// The coordinates of a lane's four tokens and of its vector of features in the subtile that a wave stores both along
// its rows and transposed (tile/paired_tiles.h).
struct SubtileCoord {
  int quad, vec16;
};
constexpr SubtileCoord subtile_coord(int tokens, int lane) {
  const int token_blocks = tokens >= 32 ? 2 : 1;  // blocks of 16 tokens
  return {lane % 4 + 4 * (lane / 8 % token_blocks), lane / 4 % 2 + 2 * (lane / (8 * token_blocks))};
}

// ---- Operands from rows of tokens by features, in memory or in LDS, 16 or 8 bytes of a row at a time
// (arch/operands.h).
//
// An LDS tile may be read both along its rows and transposed. Its rows are then multiples of a line of 128 bytes, and
// the vectors are permuted within each line so that neither reads nor writes have bank conflicts.
constexpr int two_way_vec16(Family f, int row, int vec16) {
  return f == Family::nvidia ? vec16 ^ (row / 2 % 4 * 2 ^ row % 2 * 4) : swizzled_vec16(f, 8, row, vec16);
}

// Features are k: operands are built from one unit of features at a time, in an order of k that the stream and the
// chain side share.
constexpr int unit_features(Family f, int element_bytes) {
  if (element_bytes == 1) return 64;
  return element_bytes == 2 && !is_rdna(f) ? 32 : 16;
}
constexpr int stream_vec16s(Family f, int element_bytes) {  // of a unit in each lane
  if (is_rdna(f)) return element_bytes / (f == Family::rdna4 ? 2 : 1);
  return f == Family::nvidia || element_bytes <= 2 ? 2 : 1;
}
constexpr int chain_vec16s(Family f, int element_bytes) {
  return f == Family::cdna ? 1 : stream_vec16s(f, element_bytes);
}

struct Vec16Position {
  int row, feature;  // the vector's first feature
};
// The position of a lane's vector p. The row is a strip's row for the stream operand, a strip's column for the chain.
constexpr Vec16Position stream_vec16(Family f, int element_bytes, int lane, int p) {
  const int n = 16 / element_bytes;
  if (f == Family::nvidia) return {lane / 4 + 8 * p, lane % 4 * n};
  if (f == Family::rdna) return {lane % 16, p * n};
  if (f == Family::rdna4) return {lane % 16, lane / 16 * 8 + p * n};
  return {element_bytes <= 2 ? interleaved_row(lane % 16, p) : lane % 16, lane / 16 * n};
}
constexpr Vec16Position chain_vec16(Family f, int element_bytes, int lane, int p) {
  if (f == Family::cdna) return {lane % 16, lane / 16 * (16 / element_bytes)};
  return stream_vec16(f, element_bytes, lane, p);
}

// Tokens are k, and a strip's rows are features: blocks of transposed_features() by the tokens of one multiply's k are
// transposed in registers. Neighbouring features of a vector go to different strips or accumulators, which decides the
// feature of each row of a strip.
constexpr int transposed_words(Family f, int element_bytes) {
  if (element_bytes == 1) return 1;
  return f == Family::nvidia || (f == Family::cdna && element_bytes == 4) ? 4 : 2;
}
constexpr int transposed_elements(Family f, int element_bytes) {
  return transposed_words(f, element_bytes) * 4 / element_bytes;
}
constexpr int transposed_features(Family f, int element_bytes) {
  return transposed_elements(f, element_bytes) * (f == Family::nvidia ? 8 : 16);
}
constexpr int transposed_strips(Family f, int element_bytes) {
  return transposed_features(f, element_bytes) / strip_step(f, element_bytes);
}
constexpr int transposed_vec16s(Family f, int element_bytes) {  // of a block in each lane
  if (is_rdna(f)) return f == Family::rdna4 ? 8 : 16;
  return f == Family::nvidia ? 4 : element_bytes == 4 ? 4 : 8;
}
constexpr Vec16Position transposed_vec16(Family f, int element_bytes, int lane, int p) {
  const int n = transposed_elements(f, element_bytes);
  if (f == Family::nvidia) return {2 * (lane % 4) + p % 2 + 8 * (p / 2), lane / 4 * n};
  if (f == Family::rdna) return {p, lane % 16 * n};
  return {lane / 16 * transposed_vec16s(f, element_bytes) + p, lane % 16 * n};
}
// The feature of the block that row s of strip t is.
constexpr int transposed_feature(Family f, int element_bytes, int t, int s) {
  const int n = transposed_elements(f, element_bytes);
  if (f == Family::nvidia) return n * (s % 8) + 2 * t + s / 8;
  if (is_rdna(f) || element_bytes == 4) return n * s + t;
  return n * (4 * (s / 8) + s % 4) + 2 * t + s / 4 % 2;
}

// The inverse map: for each of its columns a lane's accumulators hold accumulator_vecs() complete vectors of a block's
// features. The first feature of vector h is accumulator_vec_feature(); element e of vector h in the lane's column j is
// in the strip and register of accumulator_register().
constexpr int accumulator_vecs(Family f) { return f == Family::nvidia ? 2 : is_rdna(f) ? 8 : 4; }
constexpr int accumulator_vec_feature(Family f, int element_bytes, int lane, int h) {
  const int n = transposed_elements(f, element_bytes);
  if (f == Family::nvidia) return n * (2 * (lane % 4) + h);
  return n * (f == Family::rdna ? 2 * h + lane / 16 : accumulator_vecs(f) * (lane / 16) + h);
}
struct StripRegister {
  int strip, r;
};
constexpr StripRegister accumulator_register(Family f, int element_bytes, int h, int e, int j) {
  if (f == Family::nvidia) return {e / 2, 4 * (e % 2) + 2 * j + h};
  if (is_rdna(f) || element_bytes == 4) return {e, h};
  return {e / 2, 4 * (e % 2) + h};
}

}  // namespace xlstm::gpu
