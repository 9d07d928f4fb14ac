// SPDX-License-Identifier: Apache-2.0
// Operands built from 16-byte vectors of rows (csrc/arch/operands.h): products by the published layouts of the matrix
// instructions are exact for integers, with features as k and with tokens as k, on every family; and no access of the
// MLA kernel to its LDS tile has bank conflicts.
#include "attention/mla/mla_shape.h"
#include "operands.h"

using namespace operands;
using namespace xlstm::gpu::attention;

namespace {

// Element e of a lane's vector, from `rows`, a matrix of tokens by features.
template <class Position>
int64_t element(const Matrix& rows, const Position& at, int e) {
  return rows(at.row, at.feature + e);
}

// ---- the operands of arch/operands.h, for one step of a unit: element e of an operand's vector or register e / 2

template <int kBytes>
typename Cdna<kBytes>::Stream stream_of(Cdna<kBytes>, const Matrix& unit, int) {
  typename Cdna<kBytes>::Stream o;
  for (int lane = 0; lane < 64; ++lane)
    for (int j = 0; j < stream_vec16s(Family::cdna, kBytes); ++j)
      for (int e = 0; e < 16 / kBytes; ++e)
        o.k[j][lane][e] = element(unit, stream_vec16(Family::cdna, kBytes, lane, j), e);
  return o;
}
template <int kBytes>
typename Cdna<kBytes>::Chain chain_of(Cdna<kBytes>, const Matrix& unit, int) {
  typename Cdna<kBytes>::Chain o;
  for (int lane = 0; lane < 64; ++lane)
    for (int e = 0; e < 16 / kBytes; ++e) o[lane][e] = element(unit, chain_vec16(Family::cdna, kBytes, lane, 0), e);
  return o;
}
template <int kBytes>
typename Rdna<kBytes>::Chain stream_of(Rdna<kBytes>, const Matrix& unit, int) {
  typename Rdna<kBytes>::Chain o;
  constexpr int n = 16 / kBytes;
  for (int lane = 0; lane < 32; ++lane)
    for (int k = 0; k < 16; ++k) o[lane][k] = element(unit, stream_vec16(Family::rdna, kBytes, lane, k / n), k % n);
  return o;
}
template <int kBytes>
typename Rdna<kBytes>::Chain chain_of(Rdna<kBytes> f, const Matrix& unit, int step) {
  return stream_of(f, unit, step);
}
template <int kBytes>
typename Rdna4<kBytes>::Chain stream_of(Rdna4<kBytes>, const Matrix& unit, int) {
  typename Rdna4<kBytes>::Chain o;
  constexpr int n = 16 / kBytes;
  for (int lane = 0; lane < 32; ++lane)
    for (int k = 0; k < 8; ++k) o[lane][k] = element(unit, stream_vec16(Family::rdna4, kBytes, lane, k / n), k % n);
  return o;
}
template <int kBytes>
typename Rdna4<kBytes>::Chain chain_of(Rdna4<kBytes> f, const Matrix& unit, int step) {
  return stream_of(f, unit, step);
}
template <int kBytes>
typename Nvidia<kBytes>::Stream stream_of(Nvidia<kBytes>, const Matrix& unit, int step) {
  typename Nvidia<kBytes>::Stream o;
  for (int lane = 0; lane < 32; ++lane)
    for (int w = 0; w < 4; ++w)
      for (int h = 0; h < 2; ++h) {
        const int e = kBytes == 2 ? 2 * (2 * step + w % 2) + h : w % 2 * 2 + h;
        o[lane][2 * w + h] = element(unit, stream_vec16(Family::nvidia, kBytes, lane, w / 2), e);
      }
  return o;
}
template <int kBytes>
typename Nvidia<kBytes>::Chain chain_of(Nvidia<kBytes> f, const Matrix& unit, int step) {
  const auto across = stream_of(f, unit, step);
  typename Nvidia<kBytes>::Chain o;
  for (int lane = 0; lane < 32; ++lane)
    for (int w = 0; w < 4; ++w)
      for (int h = 0; h < 2; ++h) o[lane][2 * w + h] = across[lane][2 * (w % 2 * 2 + w / 2) + h];
  return o;
}

// Strip t of a block of tokens by features.
template <int kBytes>
typename Cdna<kBytes>::Stream transposed_of(Cdna<kBytes>, const Matrix& block, int t) {
  typename Cdna<kBytes>::Stream o;
  for (int lane = 0; lane < 64; ++lane)
    for (int k = 0; k < 16 / kBytes; ++k) {
      const Vec16Position at = transposed_vec16(Family::cdna, kBytes, lane, k);
      if (kBytes == 4) o.k[0][lane][k] = element(block, at, t);
      for (int j = 0; kBytes == 2 && j < 2; ++j) o.k[j][lane][k] = element(block, at, 2 * t + j);
    }
  return o;
}
template <int kBytes>
typename Rdna<kBytes>::Chain transposed_of(Rdna<kBytes>, const Matrix& block, int t) {
  typename Rdna<kBytes>::Chain o;
  for (int lane = 0; lane < 32; ++lane)
    for (int k = 0; k < 16; ++k) o[lane][k] = element(block, transposed_vec16(Family::rdna, kBytes, lane, k), t);
  return o;
}
template <int kBytes>
typename Rdna4<kBytes>::Chain transposed_of(Rdna4<kBytes>, const Matrix& block, int t) {
  typename Rdna4<kBytes>::Chain o;
  for (int lane = 0; lane < 32; ++lane)
    for (int k = 0; k < 8; ++k) o[lane][k] = element(block, transposed_vec16(Family::rdna4, kBytes, lane, k), t);
  return o;
}
template <int kBytes>
typename Nvidia<kBytes>::Stream transposed_of(Nvidia<kBytes>, const Matrix& block, int t) {
  typename Nvidia<kBytes>::Stream o;
  for (int lane = 0; lane < 32; ++lane)
    for (int half = 0; half < 2; ++half)  // rows 0 to 7, then 8 to 15: neighbours in a vector
      for (int p = 0; p < 4; ++p)
        o[lane][4 * half + p] = element(block, transposed_vec16(Family::nvidia, kBytes, lane, p), 2 * t + half);
  return o;
}

// A chain operand whose k are the tokens in their order, as in an accumulated strip.
template <class F>
typename F::Chain chain_in_order(int bytes, const Matrix& k_by_column) {
  const Stored tile(F::kFamily, bytes, transposed(k_by_column));
  return F::load_chain(tile, true, 0, 0);
}

template <class F>
void test_products(F family, int bytes) {
  const Family f = F::kFamily;
  const int step = strip_step(f, bytes), unit = unit_features(f, bytes);
  const Matrix keys = random_matrix(step, unit, 1), q = random_matrix(kStripColumns, unit, 2);
  typename F::Accumulators v{};
  for (int s = 0; s < unit / step; ++s) F::multiply(v, stream_of(family, keys, s), chain_of(family, q, s));
  const Matrix strip = strip_matrix<F>(v, bytes), expected = product(keys, transposed(q));
  CHECK(strip.value == expected.value, "%s, %d bytes: features as k", name(f), bytes);

  const Matrix values = random_matrix(step, transposed_features(f, bytes), 3),
               weights = random_matrix(step, kStripColumns, 4);
  const Matrix out = product(transposed(values), weights);
  const typename F::Chain chain = chain_in_order<F>(bytes, weights);
  std::vector<typename F::Accumulators> block(transposed_strips(f, bytes));
  std::vector<int> times(transposed_features(f, bytes));
  for (int t = 0; t < transposed_strips(f, bytes); ++t) {
    block[t] = {};
    F::multiply(block[t], transposed_of(family, values, t), chain);
    const Matrix strip_values = strip_matrix<F>(block[t], bytes);
    for (int s = 0; s < step; ++s) {
      const int feature = transposed_feature(f, bytes, t, s);
      ++times[feature];
      for (int c = 0; c < kStripColumns; ++c)
        CHECK(strip_values(s, c) == out(feature, c), "%s, %d bytes: tokens as k, strip %d, row %d", name(f), bytes, t,
              s);
    }
  }
  for (int n : times) CHECK(n == 1, "%s, %d bytes: a feature has %d rows", name(f), bytes, n);
  // The vectors of out in a lane's accumulators.
  for (int lane = 0; lane < wave_size(f); ++lane)
    for (int j = 0; j < lane_columns(f); ++j)
      for (int h = 0; h < accumulator_vecs(f); ++h)
        for (int e = 0; e < transposed_elements(f, bytes); ++e) {
          const StripRegister at = accumulator_register(f, bytes, h, e, j);
          const int feature = accumulator_vec_feature(f, bytes, lane, h) + e;
          CHECK(block[at.strip][lane][at.r] == out(feature, column_position(f, lane, j)),
                "%s, %d bytes: lane %d, vector %d, element %d", name(f), bytes, lane, h, e);
        }
}

// ---- the MLA kernel's tile

int slot_offset(Family f, int row_bytes, int row, int byte) {
  return row * row_bytes + two_way_vec16(f, row, byte / 16) * 16 + byte % 16;
}

void test_tile(Family f, lds::Lds lds, int rows, int features, int bytes_each) {
  const MlaShape s = mla_shape(f, rows, features, false, bytes_each);
  const int row_bytes = mla_row_bytes(features, bytes_each), wave = wave_size(f), lines = row_bytes / 128;
  const auto check = [&](const char* what, lds::Access access, int bytes, auto&& at) {
    std::vector<int> address(wave);
    for (int lane = 0; lane < wave; ++lane) address[lane] = at(lane);
    const int times = lds::conflict(f, lds, access, bytes, address);
    CHECK(times == 1 || (times == 2 && banks_of(lds, access, bytes) == 64),
          "%s, %d rows, %d features: %s takes %d times as long", name(f), rows, features, what, times);
  };
  std::vector<int> times(s.tile_bytes / 16);
  for (int key = 0; key < s.keys; ++key)
    for (int vec16 = 0; vec16 < row_bytes / 16; ++vec16) ++times[slot_offset(f, row_bytes, key, 16 * vec16) / 16];
  for (int n : times) CHECK(n == 1, "%s, %d features: vectors share a slot", name(f), features);
  for (int first = 0; first < s.keys; first += wave / 8)
    for (int line = 0; line < lines; ++line)
      check("a line stored", lds::Access::write, 16,
            [&](int lane) { return slot_offset(f, row_bytes, first + lane / 8, line * 128 + lane % 8 * 16); });
  for (int key = 0; key < s.keys; key += strip_step(f, bytes_each)) {
    for (int unit = 0; unit < features / unit_features(f, bytes_each); ++unit)
      for (int p = 0; p < stream_vec16s(f, bytes_each); ++p)
        check("keys along the features", lds::Access::read, 16, [&](int lane) {
          const Vec16Position at = stream_vec16(f, bytes_each, lane, p);
          const int feature = unit * unit_features(f, bytes_each) + at.feature;
          return slot_offset(f, row_bytes, key + at.row, bytes_each * feature);
        });
    for (int block = 0; block < kMlaValues / transposed_features(f, bytes_each); ++block)
      for (int p = 0; p < transposed_vec16s(f, bytes_each); ++p)
        check("values across them", lds::Access::read, 4 * transposed_words(f, bytes_each), [&](int lane) {
          const Vec16Position at = transposed_vec16(f, bytes_each, lane, p);
          const int feature = block * transposed_features(f, bytes_each) + at.feature;
          return slot_offset(f, row_bytes, key + at.row, bytes_each * feature);
        });
  }
}

}  // namespace

int main() {
  test_products(Cdna<2>{}, 2);
  test_products(Cdna<4>{}, 4);
  test_products(Rdna<2>{}, 2);
  test_products(Rdna<4>{}, 4);
  test_products(Rdna4<2>{}, 2);
  test_products(Rdna4<4>{}, 4);
  test_products(Nvidia<2>{}, 2);
  test_products(Nvidia<4>{}, 4);
  for (Family f : kFamilies)
    for (int rows : kMlaRows)
      for (int features : kMlaFeatures)
        for (int bytes : {1, 2})
          if (has_mla(f, rows, false) && (bytes == 2 || f == Family::cdna))
            test_tile(f, lds::Lds::of_family, rows, features, bytes);
  // With gfx950's banks a read takes no longer than with gfx942's, which are half as many.
  for (int rows : kMlaRows)
    for (int features : kMlaFeatures)
      for (int bytes : {1, 2}) test_tile(Family::cdna, lds::Lds::of_gfx950, rows, features, bytes);
  return finish();
}
