// SPDX-License-Identifier: Apache-2.0
// tile/cpu_panels.h of the portable instruction set: products, for every remainder of rows and columns, are tested
// against a plain triple loop; also the packings.
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "tile/cpu_panels.h"

using namespace xlstm::portable;

namespace {

std::mt19937 engine;

template <class T>
std::vector<T> random_values(int64_t n) {
  std::vector<T> x(n);
  for (T& value : x) value = T(std::uniform_real_distribution<double>(-1, 1)(engine));
  return x;
}

template <class T>
constexpr double kTolerance = sizeof(T) == 4 ? 1e-5 : 1e-14;

// A product, added to another product with scaled rows, or to a scaled state, as in a walk.
template <class T>
void test_product(int64_t rows, int64_t columns, int64_t steps) {
  const int64_t a_step = kRows + 3;
  const auto a = random_values<T>(steps * a_step), b = random_values<T>(steps * NR<T>);
  const auto before = random_values<T>(kRows * NR<T>), factor = random_values<T>(kRows);
  std::vector<T> plain(kRows * NR<T>, T(99)), loaded(kRows * NR<T>, T(99));
  int64_t called = 0;
  with_tile<T>(rows, columns, [&](auto& tile) {
    ++called;
    tile.template product<Plain<T>>({a.data(), a_step, 1}, b.data(), steps);
    tile.store_to(plain.data());
    tile.add_scaled_rows(plain.data(), factor.data());
    tile.store_to(plain.data());
    tile.template product<Plain<T>>({a.data(), a_step, 1}, b.data(), steps);
    tile.add_scaled(before.data(), T(0.5));
    tile.store_to(loaded.data());
  });
  CHECK(called == 1, "%d rows, %d columns", int(rows), int(columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      double product = 0;
      for (int64_t k = 0; k < steps; ++k) product += double(a[k * a_step + r]) * double(b[k * NR<T> + c]);
      const int64_t at = r * NR<T> + c;
      CHECK(std::fabs(plain[at] - product * (factor[r] + 1.0)) <= kTolerance<T> * (1 + double(steps)),
            "%d rows, %d columns, %d steps", int(rows), int(columns), int(steps));
      CHECK(std::fabs(loaded[at] - (product + 0.5 * double(before[at]))) <= kTolerance<T> * (1 + double(steps)),
            "%d rows, %d columns, %d steps", int(rows), int(columns), int(steps));
    }
  for (int64_t at = rows * NR<T>; at < kRows * NR<T>; ++at)
    CHECK(plain[at] == 99 && loaded[at] == 99, "%d rows: wrote row %d", int(rows), int(at / NR<T>));
}

// A left operand in row order, like a state, and the operations of a twin on its tile.
template <class T>
void test_product_by_rows(int64_t rows, int64_t steps) {
  const auto a = random_values<T>(kRows * NR<T>), b = random_values<T>(steps * NR<T>);
  const auto before = random_values<T>(kRows * NR<T>), of_row = random_values<T>(kRows),
             of_column = random_values<T>(NR<T>);
  std::vector<T> got(kRows * NR<T>);
  with_rows<T, kVectors>(rows, [&](auto& tile) {
    tile.template product_part<Plain<T>>({a.data(), 1, NR<T>}, b.data(), NR<T>, steps);
    tile.add_outer(of_row.data(), of_column.data());
    tile.add_scaled_columns(before.data(), of_column.data());
    tile.store_to(got.data());
  });
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < NR<T>; ++c) {
      double expected = (double(of_row[r]) + double(before[r * NR<T> + c])) * double(of_column[c]);
      for (int64_t k = 0; k < steps; ++k) expected += double(a[r * NR<T> + k]) * double(b[k * NR<T> + c]);
      CHECK(std::fabs(got[r * NR<T> + c] - expected) <= kTolerance<T> * (1 + double(steps)), "%d rows, %d steps",
            int(rows), int(steps));
    }
}

template <class T>
void test_sums() {
  for (int64_t n = 0; n <= 5 * NR<T>; ++n) {
    const auto a = random_values<T>(n), b = random_values<T>(n);
    const std::vector<double> wide(b.begin(), b.end());
    double sum_of_a = 0, product = 0;
    for (int64_t j = 0; j < n; ++j) sum_of_a += double(a[j]), product += double(a[j]) * double(b[j]);
    CHECK(std::fabs(sum(a.data(), n) - sum_of_a) <= kTolerance<T> * double(1 + n), "sum of %d", int(n));
    CHECK(std::fabs(dot(a.data(), b.data(), n) - product) <= kTolerance<T> * double(1 + n), "dot of %d", int(n));
    CHECK(std::fabs(wide_dot(a.data(), wide.data(), n) - product) <= 1e-14 * double(1 + n), "wide_dot of %d", int(n));
  }
}

// Tokens by features as a Rows, with the values that it should read.
template <class T>
struct Sample {
  int64_t tokens, features;
  std::vector<T> data;
  Rows<T> rows;

  Sample(int64_t tokens, int64_t features)
      : tokens(tokens), features(features), data(random_values<T>(tokens * (features + 2))) {
    rows.data = data.data();
    rows.dtype = sizeof(T) == 4 ? XLSTM_FLOAT32 : XLSTM_FLOAT64;
    rows.stride = features + 2;
    rows.features = features;
  }
  T expected(int64_t token, int64_t feature) const { return data[token * (features + 2) + feature]; }
};

template <class T>
void test_packing(int64_t t0, int64_t n, int64_t width) {
  using Op = Plain<T>;
  const Sample<T> s(t0 + n, width);
  const auto where = [&](const char* what, bool right) {
    CHECK(right, "%s: %d tokens from %d, %d features", what, int(n), int(t0), int(width));
  };
  std::vector<T> buffer(pack_buffer_size<T>(width));

  std::vector<T> across(padded<T>(n) * width, T(99));
  pack_transposed<Op>(s.rows, t0, n, across.data(), buffer.data());
  for (int64_t t = 0; t < padded<T>(n); ++t)
    for (int64_t d = 0; d < width; ++d)
      where("pack_transposed",
            across[(t / NR<T> * width + d) * NR<T> + t % NR<T>] == (t < n ? s.expected(t0 + t, d) : 0));

  const auto weight = random_values<T>(n);
  const int64_t ld = round_up(width, 16);
  std::vector<T> weighted(n * ld, T(99));
  pack_weighted<Op>(s.rows, t0, n, weight.data(), weighted.data(), ld, buffer.data());
  for (int64_t t = 0; t < n; ++t)
    for (int64_t j = 0; j < width; ++j)
      where("pack_weighted", weighted[t * ld + j] == s.expected(t0 + t, j) * weight[t]);

  std::vector<T> columns(n * padded<T>(width), T(99));
  where("pack_columns", pack_columns<Op>(s.rows, t0, n, columns.data(), buffer.data()));
  for (int64_t t = 0; t < n; ++t)
    for (int64_t j = 0; j < padded<T>(width); ++j)
      where("pack_columns",
            columns[(j / NR<T> * n + t) * NR<T> + j % NR<T>] == (j < width ? s.expected(t0 + t, j) : T(0)));

  std::vector<T> by_token(n * ld, T(99));
  where("pack_rows", pack_rows<Op>(s.rows, t0, n, by_token.data(), ld, buffer.data()));
  for (int64_t t = 0; t < n; ++t)
    for (int64_t j = 0; j < ld; ++j)
      where("pack_rows", by_token[t * ld + j] == (j < width ? s.expected(t0 + t, j) : T(0)));
}

template <class T>
void test_finite(T bad) {
  for (int64_t token = 0; token < 5; ++token)
    for (int64_t feature = 0; feature < 11; ++feature) {
      Sample<T> s(5, 11);
      s.data[token * 13 + feature] = bad;
      std::vector<T> to(5 * padded<T>(12)), buffer(pack_buffer_size<T>(12));
      const bool finite = pack_columns<Plain<T>>(s.rows, 0, 5, to.data(), buffer.data());
      CHECK(!finite, "%g at %d, %d", double(bad), int(token), int(feature));
    }
}

template <class T>
void test_transpose() {
  constexpr int n = kLanes<T>;
  Vec<T> rows[n];
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < n; ++c) rows[r][c] = T(r * n + c);
  transpose<T>(rows);
  for (int r = 0; r < n; ++r)
    for (int c = 0; c < n; ++c) CHECK(rows[r][c] == T(c * n + r), "%d, %d", r, c);
}

template <class T>
void test_all() {
  CHECK(NR<T> % kRows == 0);  // the walk reads kRows tokens of one token panel at a time
  test_transpose<T>();
  test_sums<T>();
  for (int64_t rows = 1; rows <= kRows; ++rows)
    for (int64_t steps = 0; steps <= NR<T>; ++steps) test_product_by_rows<T>(rows, steps);
  CHECK(panels<T>(1) == 1 && panels<T>(NR<T>) == 1 && panels<T>(NR<T> + 1) == 2 && padded<T>(NR<T> + 1) == 2 * NR<T>);
  for (int64_t rows = 1; rows <= kRows; ++rows)
    for (int64_t columns = 1; columns <= NR<T>; ++columns)
      for (int64_t steps : {0, 1, 2, 7, 64}) test_product<T>(rows, columns, steps);
  for (int64_t n = 1; n <= 2 * NR<T> + 1; ++n)
    for (int64_t features = 1; features <= 2 * NR<T> + 1; ++features) test_packing<T>(n % 3, n, features);
  for (T bad : {T(NAN), T(INFINITY), T(-INFINITY)}) test_finite<T>(bad);
}

}  // namespace

int main() {
  test_all<float>();
  test_all<double>();
  return finish();
}
