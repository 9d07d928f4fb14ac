// SPDX-License-Identifier: Apache-2.0
// What host code must know of a GPU's family: its wave, and where the matrix instructions keep their operands. Plans
// and tests use these without a GPU; kernels use the same functions for the family that they are compiled for.
#pragma once

namespace xlstm::gpu {

enum class Family { nvidia, cdna, rdna };

constexpr int wave_size(Family f) { return f == Family::cdna ? 64 : 32; }

// Rows of a strip, and k of one multiply. On CDNA two 16x16x16 instructions share a 16-byte LDS read of 2-byte
// elements.
constexpr int strip_step(Family f, int element_bytes) { return f == Family::cdna && element_bytes == 2 ? 32 : 16; }
constexpr int kStripColumns = 16;
// Accumulators of a strip in each lane.
constexpr int strip_registers(Family f, int element_bytes) {
  return strip_step(f, element_bytes) * kStripColumns / wave_size(f);
}

struct StripPosition {
  int row, column;
};

// Which element of a strip a lane's register holds.
constexpr StripPosition strip_position(Family f, int element_bytes, int lane, int r) {
  if (f == Family::nvidia)  // two m16n8 accumulators side by side, transposed
    return {8 * (r / 4) + 2 * (lane % 4) + r % 2, lane / 4 + 8 * ((r / 2) % 2)};
  if (f == Family::rdna) return {2 * r + lane / 16, lane % 16};
  if (element_bytes == 4) return {4 * (lane / 16) + r, lane % 16};
  // Two 16x16 accumulators; their rows alternate in fours, so that 8 consecutive rows are one lane's.
  return {8 * (lane / 16) + r, lane % 16};
}

// A lane's registers of a strip lie in one or two of its columns: how many, which of them each is in, and where that
// is. The lanes that hold the other rows of the same columns differ from it in the bits of row_lanes().
constexpr int lane_columns(Family f) { return f == Family::nvidia ? 2 : 1; }
constexpr int lane_column(Family f, int r) { return f == Family::nvidia ? r / 2 % 2 : 0; }
constexpr int column_position(Family f, int lane, int j) { return f == Family::nvidia ? lane / 4 + 8 * j : lane % 16; }
constexpr int row_lanes(Family f) { return f == Family::nvidia ? 3 : f == Family::cdna ? 48 : 16; }

// Registers of a lane, from the first on, whose rows are of one eight and whose column is one.
constexpr int eight_registers(Family f, int element_bytes) {
  return f == Family::nvidia ? 2 : f == Family::cdna && element_bytes == 2 ? 8 : 4;
}

// Which row of a 32-row group the row i of accumulator j is: the same alternation, for loading stream operands.
constexpr int interleaved_row(int i, int j) { return 8 * (i / 4) + 4 * j + i % 4; }

// Where a 16-byte piece lies in a row of an LDS tile, and which row takes which place: permuted so that the lanes that
// are served together hit different banks (tests/cpp/test_lds_conflicts.cpp counts). pieces: of a row, a power of two;
// rows of fewer than eight share a line of 128 bytes.
constexpr int swizzled_vec16(Family f, int pieces, int row, int piece) {
  if (f == Family::nvidia) {  // ldmatrix: 8 consecutive rows at one piece
    const int rows_in_line = pieces < 8 ? 8 / pieces : 1, reach = pieces < 8 ? pieces : 8;
    return piece ^ ((row / rows_in_line) % reach);
  }
  if (f == Family::cdna) {
    // ds_read_b128 serves lanes {0-3, 20-23}, {4-7, 16-19}, ... together: rows r..r+3 at one piece, r+8..r+11 (or, with
    // 4-byte elements, r+4..r+7) at the next. Those that store squares (tile/paired_tiles.h) have rows 4 apart.
    const int eighth = (row / 4 + row / 8) % 2;
    return pieces >= 8   ? piece ^ (row % 4 + 4 * eighth) ^ 2 * (row / 8 % 2)
           : pieces == 4 ? piece ^ ((row / 2) % 2 + 2 * eighth)
                         : piece;
  }
  if (pieces >= 8) return piece ^ (4 * ((row / 2 + row / 8) % 2) + 2 * ((row + row / 4) % 2) + (row / 4) % 2);
  return pieces == 4 ? piece ^ (2 * ((row / 2) % 2) + (row / 4) % 2) : piece ^ ((row / 4) % 2);
}

// In which order a small square's words of features are turned (tile/lds_tile.h): lanes that store together have rows
// in different parts of a line.
constexpr int transposed_word(int element_bytes, int side, int w) {
  if (element_bytes == 4) return w;
  return side == 32 ? w / 4 * 4 + w % 2 * 2 + w / 2 % 2 : w / 8 * 8 + w / 2 % 2 * 4 + w / 4 % 2 * 2 + w % 2;
}

// A transposing store puts its lanes into rows 8 apart.
constexpr int swizzled_row(Family f, int pieces, int row) {
  if (f == Family::nvidia) return row;
  return pieces == 4 ? row ^ ((row / 4 + row / 8) % 2) : pieces == 2 ? row ^ ((row / 8) % 4) : row;
}

// Where a lane's four tokens and its piece of features are in the square that a wave stores both ways
// (tile/paired_tiles.h).
struct SubtileCoord {
  int four, piece;
};
constexpr SubtileCoord subtile_coord(int tokens, int lane) {
  const int fours = tokens >= 32 ? 2 : 1;  // beyond the first four
  return {lane % 4 + 4 * (lane / 8 % fours), lane / 4 % 2 + 2 * (lane / (8 * fours))};
}

// ---- Operands from rows of tokens by features as they lie, in memory or in LDS, 16 or 8 bytes of a row at a time
// (arch/operands.h).
//
// In LDS a row of a tile that is read both ways is a whole number of lines of 128 bytes, and its pieces are permuted
// within each line so that no way of reading or writing them has conflicts.
constexpr int two_way_vec16(Family f, int row, int piece) {
  return f == Family::nvidia ? piece ^ (row / 2 % 4 * 2 ^ row % 2 * 4) : swizzled_vec16(f, 8, row, piece);
}

// With features as k: a unit of features at a time, in an order of k that the stream and the chain side share.
constexpr int unit_features(Family f, int element_bytes) { return element_bytes == 2 && f != Family::rdna ? 32 : 16; }
constexpr int stream_vec16s(Family f, int element_bytes) {  // of a unit in each lane
  return f == Family::rdna ? element_bytes : f == Family::nvidia || element_bytes == 2 ? 2 : 1;
}
constexpr int chain_vec16s(Family f, int element_bytes) {
  return f == Family::cdna ? 1 : stream_vec16s(f, element_bytes);
}

struct Vec16Position {
  int row, feature;  // the first of the piece's
};
// Piece p of a lane; the side is a strip's rows for the stream operand, its columns for the chain.
constexpr Vec16Position stream_vec16(Family f, int element_bytes, int lane, int p) {
  const int n = 16 / element_bytes;
  if (f == Family::nvidia) return {lane / 4 + 8 * p, lane % 4 * n};
  if (f == Family::rdna) return {lane % 16, p * n};
  return {element_bytes == 2 ? interleaved_row(lane % 16, p) : lane % 16, lane / 16 * n};
}
constexpr Vec16Position chain_vec16(Family f, int element_bytes, int lane, int p) {
  if (f == Family::cdna) return {lane % 16, lane / 16 * (16 / element_bytes)};
  return stream_vec16(f, element_bytes, lane, p);
}

// With tokens as k, a strip's rows being features: blocks of transposed_features() by as many tokens as k of one
// multiply, turned in registers. Which feature a strip's row is follows from the pieces: neighbours in a piece go to
// different strips, or accumulators.
constexpr int transposed_words(Family f, int element_bytes) {
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
  return f == Family::nvidia ? 4 : f == Family::rdna ? 16 : 16 / element_bytes;
}
constexpr Vec16Position transposed_vec16(Family f, int element_bytes, int lane, int p) {
  const int n = transposed_elements(f, element_bytes);
  if (f == Family::nvidia) return {2 * (lane % 4) + p % 2 + 8 * (p / 2), lane / 4 * n};
  if (f == Family::rdna) return {p, lane % 16 * n};
  return {lane / 16 * (16 / element_bytes) + p, lane % 16 * n};
}
// The feature in the block that row s of its strip t is.
constexpr int transposed_feature(Family f, int element_bytes, int t, int s) {
  const int n = transposed_elements(f, element_bytes);
  if (f == Family::nvidia) return n * (s % 8) + 2 * t + s / 8;
  if (f == Family::rdna || element_bytes == 4) return n * s + t;
  return n * (4 * (s / 8) + s % 4) + 2 * t + s / 4 % 2;
}

// And back: for a column of its own a lane's accumulators hold whole pieces of a block's features, transposed_held() of
// them. Where the hth begins, and which strip and register its element e is in for the lane's column j.
constexpr int transposed_held(Family f) { return f == Family::nvidia ? 2 : f == Family::rdna ? 8 : 4; }
constexpr int transposed_held_feature(Family f, int element_bytes, int lane, int h) {
  const int n = transposed_elements(f, element_bytes);
  return n * (f == Family::nvidia ? 2 * (lane % 4) + h : f == Family::rdna ? 2 * h + lane / 16 : 4 * (lane / 16) + h);
}
struct StripRegister {
  int strip, r;
};
constexpr StripRegister transposed_register(Family f, int element_bytes, int h, int e, int j) {
  if (f == Family::nvidia) return {e / 2, 4 * (e % 2) + 2 * j + h};
  if (f == Family::rdna || element_bytes == 4) return {e, h};
  return {e / 2, 4 * (e % 2) + h};
}

}  // namespace xlstm::gpu
