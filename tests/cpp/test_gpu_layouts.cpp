// SPDX-License-Identifier: Apache-2.0
// Strips (csrc/arch/layouts.h) against the published layouts of the matrix instructions: every element belongs to one
// register of one lane, an accumulated strip is the next product's chain operand, and products of operands that are
// loaded from an LDS tile, as csrc/arch/amd/{cdna,rdna}.h and csrc/arch/nvidia/mma.h load them, are exact for integers.
#include "operands.h"

using namespace operands;

namespace {

void test_strip_is_a_bijection(Family f, int bytes) {
  const int rows = strip_step(f, bytes), registers = strip_registers(f, bytes);
  std::vector<int> times(rows * kStripColumns);
  for (int lane = 0; lane < wave_size(f); ++lane)
    for (int r = 0; r < registers; ++r) {
      const StripPosition at = strip_position(f, bytes, lane, r);
      CHECK(at.row >= 0 && at.row < rows && at.column >= 0 && at.column < kStripColumns, "%s, %d bytes: lane %d, %d",
            name(f), bytes, lane, r);
      ++times[at.row * kStripColumns + at.column];
    }
  for (size_t i = 0; i < times.size(); ++i)
    CHECK(times[i] == 1, "%s, %d bytes: element %d has %d positions", name(f), bytes, int(i), times[i]);
}

// The lanes that reduce a column over its rows all have that column, and together have each of its rows once.
void test_columns(Family f, int bytes) {
  const int rows = strip_step(f, bytes), registers = strip_registers(f, bytes), partner_bits = row_lanes(f);
  for (int lane = 0; lane < wave_size(f); ++lane)
    for (int j = 0; j < lane_columns(f); ++j) {
      std::vector<int> times(rows);
      for (int bits = 0; bits < wave_size(f); ++bits) {
        if (bits & ~partner_bits) continue;
        const int partner = lane ^ bits;
        for (int r = 0; r < registers; ++r) {
          if (lane_column(f, r) != j) continue;
          const StripPosition at = strip_position(f, bytes, partner, r);
          CHECK(at.column == column_position(f, lane, j), "%s, %d bytes: lane %d and %d", name(f), bytes, lane,
                partner);
          ++times[at.row];
        }
      }
      for (int row = 0; row < rows; ++row)
        CHECK(times[row] == 1, "%s, %d bytes: lane %d, row %d", name(f), bytes, lane, row);
    }
}

// Registers that share a draw of eight random numbers: all of one column and one group of eight rows.
void test_groups_of_eight(Family f, int bytes) {
  const int together = eight_registers(f, bytes);
  for (int lane = 0; lane < wave_size(f); ++lane)
    for (int r = 0; r < strip_registers(f, bytes); ++r) {
      const StripPosition at = strip_position(f, bytes, lane, r),
                          first = strip_position(f, bytes, lane, r / together * together);
      CHECK(at.row / 8 == first.row / 8 && at.column == first.column, "%s, %d bytes: lane %d, %d", name(f), bytes, lane,
            r);
    }
}

void test_a_tile_is_a_bijection(Family f, int bytes, int rows, int columns) {
  const lds::Tile tile{f, bytes, rows, columns};
  std::vector<int> times(rows * columns);
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column) {
      const int at = tile.at(row, column);
      if (at < 0 || at >= rows * columns * bytes || at % bytes != 0)
        CHECK(false, "%s, %d bytes, %d x %d: (%d, %d) lies at %d", name(f), bytes, rows, columns, row, column, at);
      else
        ++times[at / bytes];
    }
  for (const int n : times) CHECK(n == 1, "%s, %d bytes, %d x %d", name(f), bytes, rows, columns);
}

// Stores a matrix of [side][k] in a tile: as it is, or, with `along` false, as [k][side] for families that transpose
// while they read.
template <class F>
Stored store(int bytes, const Matrix& side_by_k, bool along) {
  return Stored(F::kFamily, bytes, along || F::kTransposesBeforeLds ? side_by_k : transposed(side_by_k));
}

template <class F>
void test_products(int bytes, bool along) {
  const int step = strip_step(F::kFamily, bytes), depth = 2 * step;
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Matrix a = random_matrix(2 * step, depth, seed), b = random_matrix(depth, 2 * kStripColumns, seed + 10);
    const Matrix next = random_matrix(2 * step, step, seed + 20), expected = product(a, b);
    const Stored stream_tile = store<F>(bytes, a, along), chain_tile = store<F>(bytes, transposed(b), along);
    const Stored next_tile = store<F>(bytes, next, along);
    const int s0 = seed % 2 * step, c0 = seed / 2 * kStripColumns;
    typename F::Accumulators v{};
    for (int k = 0; k < depth; k += step)
      F::multiply(v, F::load_stream(stream_tile, along, s0, k), F::load_chain(chain_tile, along, c0, k));
    const Matrix strip = strip_matrix<F>(v, bytes);
    for (int s = 0; s < step; ++s)
      for (int c = 0; c < kStripColumns; ++c)
        CHECK(strip(s, c) == expected(s0 + s, c0 + c), "%s, %d bytes, along %d: product at (%d, %d)", name(F::kFamily),
              bytes, along, s, c);
    // The strip's rows are the k of the next product.
    typename F::Accumulators w{};
    F::multiply(w, F::load_stream(next_tile, along, s0, 0), F::as_chain(v));
    const Matrix second = strip_matrix<F>(w, bytes), expected_second = product(next, strip);
    for (int s = 0; s < step; ++s)
      for (int c = 0; c < kStripColumns; ++c)
        CHECK(second(s, c) == expected_second(s0 + s, c), "%s, %d bytes, along %d: chained product at (%d, %d)",
              name(F::kFamily), bytes, along, s, c);
  }
}

// ---- the rules that the arch headers rely on

void test_chain_rules() {
  for (int bytes :
       {2, 4})  // CDNA: a lane's registers are consecutive rows, and begin at the row that is its operand's first k
    for (int lane = 0; lane < 64; ++lane)
      for (int r = 0; r < strip_registers(Family::cdna, bytes); ++r) {
        const StripPosition at = strip_position(Family::cdna, bytes, lane, r);
        CHECK(at.row == lane / 16 * (16 / bytes) + r && at.column == lane % 16, "cdna, %d bytes: lane %d, %d", bytes,
              lane, r);
      }
  std::vector<int> times(32);  // the two accumulators' rows are disjoint and make up a step
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 2; ++j) ++times[interleaved_row(i, j)];
  for (int n : times) CHECK(n == 1, "interleaved_row");
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 8; ++r) {
      const StripPosition lane_at = strip_position(Family::rdna, 2, lane, r),
                          partner = strip_position(Family::rdna, 2, lane ^ 16, r);
      CHECK(lane_at.column == partner.column && lane_at.row / 2 == r && partner.row / 2 == r &&
                lane_at.row != partner.row,
            "rdna: the halves of lane %d do not make up rows %d and %d", lane, 2 * r, 2 * r + 1);
      // RDNA4: register r is element r of B: column = column, k = row.
      const StripPosition in_order = strip_position(Family::rdna4, 2, lane, r);
      CHECK(in_order.row == lane / 16 * 8 + r && in_order.column == lane % 16, "rdna4: lane %d, %d", lane, r);
      // NVIDIA: register r is element r of A: chain column m = column, k = row.
      const StripPosition at = strip_position(Family::nvidia, 2, lane, r);
      CHECK(lane == 4 * (at.column % 8) + at.row % 8 / 2 && r == 4 * (at.row / 8) + 2 * (at.column / 8) + at.row % 2,
            "nvidia: lane %d, register %d", lane, r);
    }
}

}  // namespace

int main() {
  for (Family f : kFamilies)
    for (int bytes : {2, 4}) {
      test_strip_is_a_bijection(f, bytes);
      test_columns(f, bytes);
      test_groups_of_eight(f, bytes);
      for (int rows : {16, 32, 64, 128, 256, 512})
        for (int columns : {16, 32, 64, 128, 256, 512}) test_a_tile_is_a_bijection(f, bytes, rows, columns);
    }
  test_chain_rules();
  for (bool along : {true, false}) {
    test_products<Cdna<2>>(2, along);
    test_products<Cdna<4>>(4, along);
    test_products<Rdna<2>>(2, along);
    test_products<Rdna<4>>(4, along);
    test_products<Rdna4<2>>(2, along);
    test_products<Rdna4<4>>(4, along);
    test_products<Nvidia<2>>(2, along);
    test_products<Nvidia<4>>(4, along);
  }
  return finish();
}
