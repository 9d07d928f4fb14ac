// SPDX-License-Identifier: Apache-2.0
// Strips (csrc/arch/family.h) against the published layouts of the matrix instructions: every element has one place, an
// accumulated strip is the next product's chain operand where it lies, and products through operands that are filled as
// csrc/arch/{cdna,rdna,nvidia}.h fill them, from an LDS tile, are exact for integers.
#include <random>
#include <vector>

#include "arch/family.h"
#include "check.h"
#include "lds.h"
#include "matrix_layouts.h"

using namespace xlstm::gpu;
using layouts::Wave;

namespace {

const char* name(Family f) { return f == Family::nvidia ? "nvidia" : f == Family::cdna ? "cdna" : "rdna"; }

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
    CHECK(times[i] == 1, "%s, %d bytes: element %d has %d places", name(f), bytes, int(i), times[i]);
}

// Lanes that exchange a column's values over its rows have that column, and together all of its rows.
void test_columns(Family f, int bytes) {
  const int rows = strip_step(f, bytes), registers = strip_registers(f, bytes), others = row_lanes(f);
  for (int lane = 0; lane < wave_size(f); ++lane)
    for (int j = 0; j < lane_columns(f); ++j) {
      std::vector<int> times(rows);
      for (int bits = 0; bits < wave_size(f); ++bits) {
        if (bits & ~others) continue;
        const int other = lane ^ bits;
        for (int r = 0; r < registers; ++r) {
          if (lane_column(f, r) != j) continue;
          const StripPosition at = strip_position(f, bytes, other, r);
          CHECK(at.column == column_position(f, lane, j), "%s, %d bytes: lane %d and %d", name(f), bytes, lane, other);
          ++times[at.row];
        }
      }
      for (int row = 0; row < rows; ++row)
        CHECK(times[row] == 1, "%s, %d bytes: lane %d, row %d", name(f), bytes, lane, row);
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

// ---- memory and matrices

struct Matrix {
  int rows, columns;
  std::vector<int64_t> value;
  Matrix(int r, int c) : rows(r), columns(c), value(r * c) {}
  int64_t& operator()(int r, int c) { return value[r * columns + c]; }
  int64_t operator()(int r, int c) const { return value[r * columns + c]; }
};
Matrix random_matrix(int rows, int columns, unsigned seed) {
  Matrix m(rows, columns);
  std::mt19937 g(seed);
  for (int64_t& x : m.value) x = int64_t(g() % 201) - 100;
  return m;
}
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.columns);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < b.columns; ++j)
      for (int k = 0; k < a.columns; ++k) c(i, j) += a(i, k) * b(k, j);
  return c;
}
Matrix turned(const Matrix& a) {
  Matrix b(a.columns, a.rows);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < a.columns; ++j) b(j, i) = a(i, j);
  return b;
}

// A matrix in an LDS tile, element by element through the swizzle.
struct Stored {
  lds::Tile tile;
  std::vector<int64_t> memory;
  Stored(Family f, int bytes, const Matrix& m) : tile{f, bytes, m.rows, m.columns}, memory(m.rows * m.columns) {
    for (int r = 0; r < m.rows; ++r)
      for (int c = 0; c < m.columns; ++c) memory[tile.at(r, c) / bytes] = m(r, c);
  }
  // `next` elements on from (row, column), as a lane's wide read has them.
  int64_t at(int row, int column, int next = 0) const {
    return memory[tile.at(row, column) / tile.element_bytes + next];
  }
};

// ---- one family's operands: the strip's stream side (rows s) and chain side (columns c), by lane

template <int kBytes>
struct Cdna {
  static constexpr Family kFamily = Family::cdna;
  static constexpr int n = 16 / kBytes, kAccumulators = kBytes == 2 ? 2 : 1;
  using Accumulators = Wave<64, 4 * kAccumulators>;
  using Chain = Wave<64, n>;
  struct Stream {
    Chain k[kAccumulators];
  };

  static Stream load_stream(const Stored& t, bool, int s0, int k0) {  // tiles lie [side][k] already
    Stream o;
    for (int lane = 0; lane < 64; ++lane)
      for (int j = 0; j < kAccumulators; ++j)
        for (int e = 0; e < n; ++e) {
          const int i = lane % 16, row = kBytes == 2 ? interleaved_row(i, j) : i;
          o.k[j][lane][e] = t.at(s0 + row, k0 + lane / 16 * n, e);
        }
    return o;
  }
  static Chain load_chain(const Stored& t, bool, int c0, int k0) {
    Chain o;
    for (int lane = 0; lane < 64; ++lane)
      for (int e = 0; e < n; ++e) o[lane][e] = t.at(c0 + lane % 16, k0 + lane / 16 * n, e);
    return o;
  }
  static void multiply(Accumulators& v, const Stream& stream, const Chain& chain) {
    constexpr int kTaken = kBytes == 2 ? 4 : 1;  // k of one lane that an instruction takes
    for (int j = 0; j < kAccumulators; ++j)
      for (int first = 0; first < n; first += kTaken) {
        Wave<64, 4> sum;
        Wave<64, kTaken> a, b;
        for (int lane = 0; lane < 64; ++lane) {
          for (int r = 0; r < 4; ++r) sum[lane][r] = v[lane][4 * j + r];
          for (int e = 0; e < kTaken; ++e) {
            a[lane][e] = stream.k[j][lane][first + e];
            b[lane][e] = chain[lane][first + e];
          }
        }
        if constexpr (kBytes == 2)
          layouts::mfma_16x16x16(a, b, sum);
        else
          layouts::mfma_16x16x4(a, b, sum);
        for (int lane = 0; lane < 64; ++lane)
          for (int r = 0; r < 4; ++r) v[lane][4 * j + r] = sum[lane][r];
      }
  }
  static Chain as_chain(const Accumulators& v) { return v; }  // nothing moves, not even in the lane
  static constexpr bool kTurnsOnTheWayIn = true;
};

template <int kBytes>
struct Rdna {
  static constexpr Family kFamily = Family::rdna;
  using Accumulators = Wave<32, 8>;
  using Chain = Wave<32, 16>;
  using Stream = Chain;

  static Chain load_chain(const Stored& t, bool, int c0, int k0) {
    constexpr int n = 16 / kBytes;
    Chain o;
    for (int lane = 0; lane < 32; ++lane)
      for (int k = 0; k < 16; ++k) o[lane][k] = t.at(c0 + lane % 16, k0 + k / n * n, k % n);
    return o;
  }
  static Stream load_stream(const Stored& t, bool, int s0, int k0) { return load_chain(t, true, s0, k0); }
  static void multiply(Accumulators& v, const Stream& stream, const Chain& chain) {
    Accumulators other = v;
    layouts::wmma_16x16x16(stream, chain, other, 1);
    layouts::wmma_16x16x16(stream, chain, v, 0);
    CHECK(v == other, "the halves of a wave hold different operands");
  }
  static Chain as_chain(const Accumulators& v) {  // own rows, and by one exchange the other half's
    Chain o;
    for (int lane = 0; lane < 32; ++lane)
      for (int r = 0; r < 8; ++r) {
        o[lane][2 * r] = v[lane % 16][r];
        o[lane][2 * r + 1] = v[lane % 16 + 16][r];
      }
    return o;
  }
  static constexpr bool kTurnsOnTheWayIn = true;
};

template <int kBytes>
struct Nvidia {
  static constexpr Family kFamily = Family::nvidia;
  using Accumulators = Wave<32, 8>;
  using Chain = Wave<32, 8>;
  using Stream = Chain;

  static Stream load_stream(const Stored& t, bool along, int s0, int k0) {
    if constexpr (kBytes == 2)
      return layouts::ldmatrix(!along, [&](int lane, int next) {
        const int m = lane / 8, i = lane % 8;
        return along ? t.at(s0 + 8 * (m / 2) + i, k0 + 8 * (m % 2), next)
                     : t.at(k0 + 8 * (m % 2) + i, s0 + 8 * (m / 2), next);
      });
    Stream o;
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 8; ++e) {
        const int w = e / 2, s = s0 + 8 * (w / 2) + lane / 4, k = k0 + 8 * (w % 2) + 2 * (lane % 4) + e % 2;
        o[lane][e] = along ? t.at(s, k) : t.at(k, s);
      }
    return o;
  }
  static Chain load_chain(const Stored& t, bool along, int c0, int k0) {
    if constexpr (kBytes == 2)
      return layouts::ldmatrix(!along, [&](int lane, int next) {
        return along ? t.at(c0 + 8 * ((lane / 8) % 2) + lane % 8, k0 + 8 * (lane / 16), next)
                     : t.at(k0 + 8 * (lane / 16) + lane % 8, c0 + 8 * ((lane / 8) % 2), next);
      });
    Chain o;
    for (int lane = 0; lane < 32; ++lane)
      for (int e = 0; e < 8; ++e) {
        const int w = e / 2, c = c0 + 8 * (w % 2) + lane / 4, k = k0 + 8 * (w / 2) + 2 * (lane % 4) + e % 2;
        o[lane][e] = along ? t.at(c, k) : t.at(k, c);
      }
    return o;
  }
  static void multiply(Accumulators& v, const Stream& stream, const Chain& chain) {
    for (int half = 0; half < 2; ++half) {
      Wave<32, 4> b, sum;
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 4; ++e) {
          b[lane][e] = stream[lane][4 * half + e];
          sum[lane][e] = v[lane][4 * half + e];
        }
      layouts::mma_m16n8k16(chain, b, sum);
      for (int lane = 0; lane < 32; ++lane)
        for (int e = 0; e < 4; ++e) v[lane][4 * half + e] = sum[lane][e];
    }
  }
  static Chain as_chain(const Accumulators& v) { return v; }
  static constexpr bool kTurnsOnTheWayIn = false;
};

// ---- products

template <class F>
Matrix strip_matrix(const typename F::Accumulators& v, int bytes) {
  Matrix m(strip_step(F::kFamily, bytes), kStripColumns);
  for (size_t lane = 0; lane < v.size(); ++lane)
    for (size_t r = 0; r < v[lane].size(); ++r) {
      const StripPosition at = strip_position(F::kFamily, bytes, int(lane), int(r));
      m(at.row, at.column) = v[lane][r];
    }
  return m;
}

// Where a matrix of [side][k] is kept: so, or with `along` false as [k][side] for what reads it transposed.
template <class F>
Stored store(int bytes, const Matrix& side_by_k, bool along) {
  return Stored(F::kFamily, bytes, along || F::kTurnsOnTheWayIn ? side_by_k : turned(side_by_k));
}

template <class F>
void test_products(int bytes, bool along) {
  const int step = strip_step(F::kFamily, bytes), depth = 2 * step;
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Matrix a = random_matrix(2 * step, depth, seed), b = random_matrix(depth, 2 * kStripColumns, seed + 10);
    const Matrix next = random_matrix(2 * step, step, seed + 20), expected = product(a, b);
    const Stored stream_tile = store<F>(bytes, a, along), chain_tile = store<F>(bytes, turned(b), along);
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

// ---- what the arch headers rely on, said once more as a rule

void test_chain_rules() {
  for (int bytes : {2, 4})  // CDNA: a lane's registers are consecutive rows, and start where its k of an operand do
    for (int lane = 0; lane < 64; ++lane)
      for (int r = 0; r < strip_registers(Family::cdna, bytes); ++r) {
        const StripPosition at = strip_position(Family::cdna, bytes, lane, r);
        CHECK(at.row == lane / 16 * (16 / bytes) + r && at.column == lane % 16, "cdna, %d bytes: lane %d, %d", bytes,
              lane, r);
      }
  std::vector<int> times(32);  // the two accumulators' rows share a step out
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 2; ++j) ++times[interleaved_row(i, j)];
  for (int n : times) CHECK(n == 1, "interleaved_row");
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 8; ++r) {
      const StripPosition own = strip_position(Family::rdna, 2, lane, r),
                          other = strip_position(Family::rdna, 2, lane ^ 16, r);
      CHECK(own.column == other.column && own.row / 2 == r && other.row / 2 == r && own.row != other.row,
            "rdna: the halves of lane %d do not make up rows %d and %d", lane, 2 * r, 2 * r + 1);
      // NVIDIA: register r is element r of A: chain column m = column, k = row.
      const StripPosition at = strip_position(Family::nvidia, 2, lane, r);
      CHECK(lane == 4 * (at.column % 8) + at.row % 8 / 2 && r == 4 * (at.row / 8) + 2 * (at.column / 8) + at.row % 2,
            "nvidia: lane %d, register %d", lane, r);
    }
}

}  // namespace

int main() {
  for (Family f : {Family::nvidia, Family::cdna, Family::rdna})
    for (int bytes : {2, 4}) {
      test_strip_is_a_bijection(f, bytes);
      test_columns(f, bytes);
      for (int rows : {16, 32, 64, 128, 256, 512})
        for (int columns : {16, 32, 64, 128, 256, 512}) test_a_tile_is_a_bijection(f, bytes, rows, columns);
    }
  test_chain_rules();
  for (bool along : {true, false}) {
    test_products<Cdna<2>>(2, along);
    test_products<Cdna<4>>(4, along);
    test_products<Rdna<2>>(2, along);
    test_products<Rdna<4>>(4, along);
    test_products<Nvidia<2>>(2, along);
    test_products<Nvidia<4>>(4, along);
  }
  return finish();
}
