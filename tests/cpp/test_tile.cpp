// SPDX-License-Identifier: Apache-2.0
// tile/cpu.h as the portable set has it: products for every remainder of rows and columns against a plain triple loop,
// and the packings.
#include <cmath>
#include <random>
#include <vector>

#include "check.h"
#include "tile/cpu.h"

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

// A product, and to it another with its rows scaled, or a scaled state, as a walk does it.
template <class T>
void test_product(int64_t rows, int64_t columns, int64_t steps) {
  const int64_t a_step = kRows + 3;
  const auto a = random_values<T>(steps * a_step), b = random_values<T>(steps * NR<T>);
  const auto before = random_values<T>(kRows * NR<T>), factor = random_values<T>(kRows);
  std::vector<T> plain(kRows * NR<T>, T(99)), loaded(kRows * NR<T>, T(99));
  int64_t called = 0;
  with_tile<T>(rows, columns, [&](auto& tile) {
    ++called;
    tile.zero();
    tile.template multiply<Plain<T>>(a.data(), a_step, b.data(), steps);
    tile.store_to(plain.data());
    tile.add_scaled_rows(plain.data(), factor.data());
    tile.store_to(plain.data());
    tile.zero();
    tile.template multiply<Plain<T>>(a.data(), a_step, b.data(), steps);
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

// Tokens by features as a Rows, and what it should read as.
template <class T>
struct Sample {
  int64_t tokens, features;
  std::vector<T> data, extra_value;
  Rows<T> rows;

  Sample(int64_t tokens, int64_t features, bool extra, bool per_token)
      : tokens(tokens),
        features(features),
        data(random_values<T>(tokens * (features + 2))),
        extra_value(random_values<T>(tokens)) {
    rows.data = data.data();
    rows.dtype = sizeof(T) == 4 ? XLSTM_FLOAT32 : XLSTM_FLOAT64;
    rows.stride = features + 2;
    rows.features = features;
    rows.extra = extra;
    if (per_token) rows.extra_value = extra_value.data();
  }
  T expected(int64_t token, int64_t feature) const {
    if (feature == features) return rows.extra_value ? extra_value[token] : T(1);
    return data[token * (features + 2) + feature];
  }
};

template <class T>
void test_packing(int64_t t0, int64_t n, int64_t features, bool extra, bool per_token) {
  using Op = Plain<T>;
  const Sample<T> s(t0 + n, features, extra, per_token);
  const int64_t width = s.rows.width();
  CHECK(width == features + extra);
  const auto where = [&](const char* what, bool right) {
    CHECK(right, "%s: %d tokens from %d, %d features, extra %d, per token %d", what, int(n), int(t0), int(features),
          int(extra), int(per_token));
  };
  std::vector<T> room(pack_room<T>(width));

  std::vector<T> across(padded<T>(n) * width, T(99));
  pack_transposed<Op>(s.rows, t0, n, across.data(), room.data());
  for (int64_t t = 0; t < padded<T>(n); ++t)
    for (int64_t d = 0; d < width; ++d)
      where("pack_transposed",
            across[(t / NR<T> * width + d) * NR<T> + t % NR<T>] == (t < n ? s.expected(t0 + t, d) : 0));

  const auto weight = random_values<T>(n);
  const int64_t ld = round_up(width, 16);
  std::vector<T> weighted(n * ld, T(99));
  pack_weighted<Op>(s.rows, t0, n, weight.data(), weighted.data(), ld, room.data());
  for (int64_t t = 0; t < n; ++t)
    for (int64_t j = 0; j < width; ++j)
      where("pack_weighted", weighted[t * ld + j] == s.expected(t0 + t, j) * weight[t]);

  std::vector<T> columns(n * padded<T>(width), T(99));
  where("pack_columns", pack_columns<Op>(s.rows, t0, n, columns.data(), room.data()));
  for (int64_t t = 0; t < n; ++t)
    for (int64_t j = 0; j < padded<T>(width); ++j)
      where("pack_columns",
            columns[(j / NR<T> * n + t) * NR<T> + j % NR<T>] == (j < width ? s.expected(t0 + t, j) : T(0)));
}

template <class T>
void test_finite(T bad) {
  for (int64_t token = 0; token < 5; ++token)
    for (int64_t feature = 0; feature < 11; ++feature) {
      Sample<T> s(5, 11, true, false);
      s.data[token * 13 + feature] = bad;
      std::vector<T> to(5 * padded<T>(12)), room(pack_room<T>(12));
      const bool finite = pack_columns<Plain<T>>(s.rows, 0, 5, to.data(), room.data());
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
  CHECK(panels<T>(1) == 1 && panels<T>(NR<T>) == 1 && panels<T>(NR<T> + 1) == 2 && padded<T>(NR<T> + 1) == 2 * NR<T>);
  for (int64_t rows = 1; rows <= kRows; ++rows)
    for (int64_t columns = 1; columns <= NR<T>; ++columns)
      for (int64_t steps : {0, 1, 2, 7, 64}) test_product<T>(rows, columns, steps);
  for (int64_t n = 1; n <= 2 * NR<T> + 1; ++n)
    for (int64_t features = 1; features <= 2 * NR<T> + 1; ++features)
      for (bool extra : {false, true})
        for (bool per_token : {false, true}) test_packing<T>(n % 3, n, features, extra, per_token);
  for (T bad : {T(NAN), T(INFINITY), T(-INFINITY)}) test_finite<T>(bad);
}

}  // namespace

int main() {
  test_all<float>();
  test_all<double>();
  return finish();
}
