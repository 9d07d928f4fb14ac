// SPDX-License-Identifier: Apache-2.0
// y = W x for W of int8 or int4 by tile registers (arch/cpu/amx.h): the weights are the left operand, bytes as they lie
// in memory, and x is the right one, as integers.
//
//   acc (16 rows x columns)  +=  scale of the row's group  *  scale of the column  *  (16 x 64 bytes) (64 x columns)
//
// x as integers: 64 features of a row are made integers of 22 bits below the largest of them, in three digits to base
// 256, so that the sum of a step of 64 is exact before its scales are applied. A digit of a row is a column, with a
// float sum of its own; the three sums are added up at the end. So a row's result is the same in any company and at any
// batch that tiles have. A row that is not finite gives NaN.
//
// What binds: memory, up to about 30 rows. A step of 16 rows of weights is 1 KiB, for which a core waits 200 cycles at
// 5 bytes a cycle. For 16 columns (5 rows of x) a product takes 16 cycles of its unit, and then 64 loads bind, 32
// cycles: of both operands, the sums and the scales; 16 int32 to float, 16 products and 16 fused multiply-adds take 24.
// By vectors (gemv.h) a row of x takes 32 cycles for the same, and converting the weights for each four rows 110. So
// tiles have every batch of int8. Nibbles are copied as bytes first, and loads of 16 bytes wait for memory unless it is
// asked ahead: on a Xeon tiles were slower than vectors up to 8 rows and faster from 16 on, where they begin.
//
// Floats of 8 bits and groups of 32 stay with gemv.h.
#pragma once

#include "arch/cpu/vector.h"
#include "base/arena.h"
#include "tile/cpu_panels.h"
#include "xlstm_hip.h"

namespace xlstm::XLSTM_ISA::engine {

constexpr int kXDigits = 3, kXDigitBits = 22;
constexpr int64_t kStep = kByteTileBytes;  // features
constexpr int64_t kStepsAtOnce = 16;       // whose weights L1 holds for all columns

constexpr int64_t kLeastRowsOfNibbles = 16;  // of x

inline bool is_by_tiles(const xlstm_linear& w, int64_t batch) {
  const bool is_wide_enough = w.bits == 8 || (w.bits == 4 && batch >= kLeastRowsOfNibbles);
  return kHasTiles && is_wide_enough && w.code == XLSTM_CODE_INTEGER && w.group_size % kStep == 0;
}
template <class... Linears>
inline bool any_by_tiles(int64_t batch, const Linears&... w) {
  return (is_by_tiles(w, batch) || ...);
}

// x (batch, features) as the right operand of products with any such weights.
struct XDigits {
  int64_t batch = 0, tiles = 0;  // tiles of 16 columns: the first digits of all rows, then the second, then the third
  int8_t* panels = nullptr;      // by steps and tiles: 16 quads of features by 16 columns
  float* scales = nullptr;       // (steps, columns)
  float* sums = nullptr;         // (steps, columns): what offsets are multiplied by, 0 but for the first digits

  static int64_t tiles_of(int64_t batch) {
    return kHasTiles ? round_up(kXDigits * batch, kTileColumns) / kTileColumns : 0;
  }
  XDigits() = default;
  XDigits(Arena& arena, int64_t rows, int64_t features) : batch(rows), tiles(tiles_of(rows)) {
    const int64_t panel_count = round_up(features, kStep) / kStep * tiles;
    panels = arena.take<int8_t>(panel_count * kTileColumns * kStep);
    scales = arena.take<float>(panel_count * kTileColumns);
    sums = arena.take<float>(panel_count * kTileColumns);
  }
  int64_t columns() const { return tiles * kTileColumns; }
  const int8_t* panel(int64_t step, int64_t tile) const {
    return panels + (step * tiles + tile) * kTileColumns * kStep;
  }

  // Stores row b, x with zeros up to a whole step.
  void store_row(int64_t b, const float* x, int64_t features) const {
    for (int64_t step = 0; step * kStep < features; ++step, x += kStep) store_step(b, step, x);
  }

 private:
  static float power_of_two(int exponent) {
    const uint32_t bits = uint32_t(exponent + 127) << 23;
    float x;
    memcpy(&x, &bits, 4);
    return x;
  }
  void store_step(int64_t b, int64_t step, const float* x) const {
    uint32_t most = 0;  // of magnitudes, as bits: a NaN is above infinity
    for (int64_t e = 0; e < kStep; ++e) {
      uint32_t bits;
      memcpy(&bits, x + e, 4);
      most = (bits & 0x7fffffffu) > most ? bits & 0x7fffffffu : most;
    }
    constexpr int kLeast = 32;  // exponents below it would make `up` infinite
    const int biased = int(most >> 23), unit = (biased < kLeast ? kLeast : biased) - 126 - kXDigitBits;
    const bool is_finite = biased < 255;
    const float up = is_finite ? power_of_two(-unit) : 0, down = is_finite ? power_of_two(unit) : __builtin_nanf("");
    int32_t integers[kStep] = {}, sum = 0;
    for (int64_t e = 0; is_finite && e < kStep; ++e) integers[e] = int32_t(__builtin_rintf(x[e] * up));
    for (int64_t e = 0; e < kStep; ++e) sum += integers[e];
    float unit_of_digit = down;
    for (int digit = kXDigits - 1; digit >= 0; --digit, unit_of_digit *= 256) {  // from the lowest
      int8_t bytes[kStep];
      for (int64_t e = 0; e < kStep; ++e) bytes[e] = int8_t(integers[e]), integers[e] = (integers[e] + 128) >> 8;
      const int64_t column = digit * batch + b;
      int8_t* to = panels + (step * tiles + column / kTileColumns) * kTileColumns * kStep + column % kTileColumns * 4;
      for (int64_t e = 0; e < kStep; e += 4, to += kTileColumns * 4) memcpy(to, bytes + e, 4);
      scales[step * columns() + column] = unit_of_digit;
      sums[step * columns() + column] = digit == 0 ? float(sum) * down : 0;
    }
    if (b > 0) return;  // columns of no row have no scales, so their sums are zero
    for (int64_t column = kXDigits * batch; column < columns(); ++column)
      scales[step * columns() + column] = sums[step * columns() + column] = 0;
  }
};

// Floats of scratch for a product.
inline int64_t byte_tile_floats(int64_t batch) { return kByteTileRows * XDigits::tiles_of(batch) * kTileColumns; }

// Some steps of 16 rows of weights: bytes in memory, or a copy, with the factors of each row's groups.
struct ByteRows {
  const char* data;
  int64_t row, step;  // bytes from row to row, from step to step
  int group_shift;    // 2^group_shift steps have a group
  float scales[kByteTileRows][kStepsAtOnce], offsets[kByteTileRows][kStepsAtOnce];
  alignas(64) char copy[kStepsAtOnce][kByteTileRows][kByteTileBytes];
};

// Copies steps [first, first + count) of rows of W, which are row_bytes apart, as bytes; nibbles as q - 8. Rows from
// `rows` on are zero. Nibbles go by vectors: a loop over bytes, which may alias all that it reads, stays one of bytes.
// The next block, `ahead` of each byte, is prefetched: loads between the copy's stores are few at once.
template <int Bits>
inline void copy_bytes(const char* from, int64_t row_bytes, int64_t rows, int64_t first, int64_t count, int64_t ahead,
                       ByteRows& to) {
  typedef uint8_t Bytes16 __attribute__((vector_size(16)));
  for (int64_t r = 0; r < kByteTileRows; ++r)
    for (int64_t s = 0; s < count; ++s) {
      char* bytes = to.copy[s][r];
      const char* q = from + r * row_bytes + (first + s) * kStep * Bits / 8;
      __builtin_prefetch(q + ahead);
      if (r >= rows) {
        memset(bytes, 0, kStep);
      } else if constexpr (Bits == 8) {
        memcpy(bytes, q, kStep);
      } else {
        for (int64_t block = 0; block < kStep / 32; ++block, q += 16, bytes += 32) {
          Bytes16 pairs;
          memcpy(&pairs, q, sizeof pairs);
          const Bytes16 low = (pairs & 15) - 8, high = (pairs >> 4) - 8;
          memcpy(bytes, &low, sizeof low);
          memcpy(bytes + 16, &high, sizeof high);
        }
      }
    }
  to.data = to.copy[0][0], to.row = kByteTileBytes, to.step = sizeof to.copy[0];
}

// acc (16, columns of the tile) += W x of steps [first, first + count), of one tile of columns.
template <bool Offsets>
inline void add_steps(const ByteRows& w, const XDigits& x, int64_t first, int64_t count, int64_t tile, float* acc) {
  constexpr int V = kTileColumns / kLanes<float>;
  typedef int32_t Ints __attribute__((vector_size(kVectorBytes), may_alias));
  const int64_t ld = x.columns();
  Vec<float> sums[kByteTileRows][V];
  alignas(64) int32_t products[2][kByteTileRows * kTileColumns];
  const auto each = [&](auto&& f) XLSTM_INLINED {
    _Pragma("GCC unroll 16") for (int r = 0; r < kByteTileRows; ++r) for (int v = 0; v < V; ++v) f(r, v);
  };
  const auto scale = [&](int64_t step, const int32_t* of) XLSTM_INLINED {
    const float* factors = x.scales + (first + step) * ld + tile * kTileColumns;
    const float* inputs = x.sums + (first + step) * ld + tile * kTileColumns;
    const int64_t group = step >> w.group_shift;
    each([&](int r, int v) XLSTM_INLINED {
      Ints integers;
      memcpy(&integers, of + r * kTileColumns + v * kLanes<float>, sizeof integers);
      const Vec<float> product = __builtin_convertvector(integers, Vec<float>) * load(factors + v * kLanes<float>);
      sums[r][v] = add_product(sums[r][v], product, broadcast(w.scales[r][group]));
      if constexpr (Offsets)
        sums[r][v] = add_product(sums[r][v], load(inputs + v * kLanes<float>), broadcast(w.offsets[r][group]));
    });
  };
  each([&](int r, int v) XLSTM_INLINED { sums[r][v] = load(acc + r * ld + v * kLanes<float>); });
  int64_t s = 0;
  for (; s + 2 <= count; s += 2) {
    multiply_bytes<0>(w.data + s * w.step, w.row, x.panel(first + s, tile), products[0]);
    multiply_bytes<1>(w.data + (s + 1) * w.step, w.row, x.panel(first + s + 1, tile), products[1]);
    scale(s, products[0]);
    scale(s + 1, products[1]);
  }
  if (s < count) {
    multiply_bytes<0>(w.data + s * w.step, w.row, x.panel(first + s, tile), products[0]);
    scale(s, products[0]);
  }
  each([&](int r, int v) XLSTM_INLINED { store(acc + r * ld + v * kLanes<float>, sums[r][v]); });
}

// y[b][r - begin] = W x[b] for rows begin to end. acc: byte_tile_floats(batch) of scratch.
template <int Bits, bool Offsets>
inline void multiply_byte_tiles(const xlstm_linear& w, int64_t begin, int64_t end, const XDigits& x, float* y,
                                int64_t y_stride, float* acc) {
  const int64_t groups = (w.columns + w.group_size - 1) / w.group_size, per_group = w.group_size / kStep;
  const int64_t steps = groups * per_group, row_bytes = groups * w.group_size * Bits / 8;
  // From a row's block of steps to its next one, and from its last one to the first one of the row 16 further down.
  const int64_t block_bytes = kStepsAtOnce * kStep * Bits / 8;
  const int64_t to_next_rows = kByteTileRows * row_bytes - (steps - 1) / kStepsAtOnce * block_bytes;
  ByteRows some;
  some.group_shift = per_group == 2;
  for (int64_t first = begin; first < end; first += kByteTileRows) {
    const int64_t rows = end - first < kByteTileRows ? end - first : kByteTileRows;
    const char* const data = static_cast<const char*>(w.data) + first * row_bytes;
    memset(acc, 0, size_t(byte_tile_floats(x.batch)) * sizeof(float));
    for (int64_t step = 0; step < steps; step += kStepsAtOnce) {
      const int64_t count = steps - step < kStepsAtOnce ? steps - step : kStepsAtOnce;
      memset(some.scales, 0, sizeof some.scales);
      if (Offsets) memset(some.offsets, 0, sizeof some.offsets);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t from = (first + r) * groups + step / per_group, n = count / per_group;
        load_row(some.scales[r], w.scales, w.dtype, from, n);
        if (!Offsets) continue;
        load_row(some.offsets[r], w.offsets, w.dtype, from, n);
        for (int64_t g = 0; Bits == 4 && g < n; ++g) some.offsets[r][g] += 8 * some.scales[r][g];
      }
      // Rows that are a multiple of 4 KiB apart share a set of L1, which is too small for 16: several tiles read a
      // copy.
      if (Bits == 8 && rows == kByteTileRows && x.tiles == 1)
        some.data = data + step * kStep, some.row = row_bytes, some.step = kStep;
      else
        copy_bytes<Bits>(data, row_bytes, rows, step, count, step + count < steps ? block_bytes : to_next_rows, some);
      for (int64_t tile = 0; tile < x.tiles; ++tile)
        add_steps<Offsets>(some, x, step, count, tile, acc + tile * kTileColumns);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const float *high = acc + r * x.columns(), *middle = high + x.batch, *low = middle + x.batch;
      for (int64_t b = 0; b < x.batch; ++b) y[b * y_stride + first - begin + r] = high[b] + (middle[b] + low[b]);
    }
  }
}
inline void multiply_byte_tiles(const xlstm_linear& w, int64_t begin, int64_t end, const XDigits& x, float* y,
                                int64_t y_stride, float* acc) {
  const auto run = w.bits == 8 ? (w.offsets ? multiply_byte_tiles<8, true> : multiply_byte_tiles<8, false>)
                               : (w.offsets ? multiply_byte_tiles<4, true> : multiply_byte_tiles<4, false>);
  run(w, begin, end, x, y, y_stride, acc);
}

}  // namespace xlstm::XLSTM_ISA::engine
