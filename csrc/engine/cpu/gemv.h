// SPDX-License-Identifier: Apache-2.0
// y = W x for few x on a CPU, W as it lies in memory: float, bfloat16, float16, floats of 8 bits,
// int8 or int4.
//
// A row of W and an x run along the same features. So a sum is a vector of partial sums, lane j of features j, j + L,
// ..., which is added up across lanes at the end. Tiles of R rows and C x's keep R C such vectors in registers: the C
// x's share the load and conversion of a weight, the R rows share the load of an x. The order of every sum is fixed, so
// a row of the batch has the same result whatever the batch. At batch 1 memory binds; at larger batches multiplications
// do, but for int8 and int4 on a CPU with tile registers (byte_tiles.h).
#pragma once

#include "arch/cpu/vector.h"
#include "engine/cpu/byte_tiles.h"
#include "tile/lane_folds.h"

namespace xlstm::XLSTM_ISA::engine {

constexpr int kWide = kLanes<float>;
using Floats = Vec<float>;
constexpr int64_t kColumnsPadded = 128;  // x is padded with zeros to a multiple of this
inline int64_t padded_columns(int64_t columns) { return round_up(columns, kColumnsPadded); }

template <class Byte>
struct NarrowOf {
  typedef Byte type __attribute__((vector_size(kWide * sizeof(Byte)), may_alias));
};
template <class Byte>
using Narrow = typename NarrowOf<Byte>::type;  // a vector of kWide narrow integers
typedef uint32_t UintVector __attribute__((vector_size(kVectorBytes), may_alias));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes), may_alias));

template <class Byte>
XLSTM_ALWAYS_INLINE Narrow<Byte> load_narrow(const void* p) {
  Narrow<Byte> x;
  memcpy(&x, p, sizeof x);
  return x;
}

template <class Byte>
XLSTM_ALWAYS_INLINE Floats floats_of(Narrow<Byte> x) {
  return __builtin_convertvector(__builtin_convertvector(x, IntVector), Floats);
}

// ---- dequantises kWide weights to floats, by format

struct FloatWeights {
  using Element = float;
  static XLSTM_ALWAYS_INLINE Floats widen(const float* p) { return load(p); }
};
struct Bfloat16Weights {
  using Element = uint16_t;
  static XLSTM_ALWAYS_INLINE Floats widen(const uint16_t* p) {
    return Floats(__builtin_convertvector(load_narrow<uint16_t>(p), UintVector) << 16);
  }
};
struct Float16Weights {
  using Element = uint16_t;
  static XLSTM_ALWAYS_INLINE Floats widen(const uint16_t* p) { return widen_halves(p); }
};

// ---- quantised weights: kWide of a byte each

template <xlstm_code kCode>
XLSTM_ALWAYS_INLINE Floats widen_bytes(const char* q) {
  const Narrow<uint8_t> bytes = load_narrow<uint8_t>(q);
  if constexpr (kCode == XLSTM_CODE_INTEGER) {
    // as unsigned bytes: gcc 12 converts signed ones to float one by one
    return floats_of<uint8_t>(bytes ^ 128) - 128.f;
  } else {
    // The exponent is moved into a float's. Numbers below its least have no leading one: it is put in front and taken
    // away again, since a machine may be set to flush a float of such bits to zero.
    constexpr bool kIsFnuz = kCode == XLSTM_CODE_E4M3FNUZ;
    constexpr int kBias = 127 - (kIsFnuz ? 8 : 7), kLeast = (kBias + 1) << 23;
    const IntVector code = __builtin_convertvector(bytes, IntVector), magnitude = code & 0x7f;
    const IntVector is_small = magnitude < 8, is_nan = kIsFnuz ? code == 0x80 : magnitude == 0x7f;
    const Floats above = Floats((magnitude << 20) + (kBias << 23) + (is_small & 1 << 23));
    const Floats value = above - Floats(is_small & kLeast);
    return Floats(IntVector(value) | (code & 0x80) << 24 | (is_nan & 0x7fc00000));
  }
}

// ---- tiles: R rows of W by C x's; lane c * R + r of the result

template <class Weights, int R, int C>
XLSTM_ALWAYS_INLINE Floats plain_tile(const char* const* row, const float* x, int64_t x_stride, int64_t columns) {
  using Element = typename Weights::Element;
  Floats sums[R * C] = {};
  const auto add = [&](int64_t k, auto&& weights) XLSTM_INLINED {
    XLSTM_UNROLL for (int r = 0; r < R; ++r) {
      const Floats w = weights(reinterpret_cast<const Element*>(row[r]));
      XLSTM_UNROLL for (int c = 0; c < C; ++c) sums[c * R + r] =
          add_product(sums[c * R + r], w, load(x + c * x_stride + k));
    }
  };
  int64_t k = 0;
  for (; k + kWide <= columns; k += kWide)
    add(k, [&](const Element* p) XLSTM_INLINED { return Weights::widen(p + k); });
  if (k < columns)
    add(k, [&](const Element* p) XLSTM_INLINED {
      Element rest[kWide] = {};
      memcpy(rest, p + k, size_t(columns - k) * sizeof(Element));
      return Weights::widen(rest);
    });
  return lane_sums<R * C>(sums);
}

// scale and offset: `groups` floats for each row. Nibbles are multiplied as q - 8, and their offset includes 8 scale:
// so the sums stay small. Sums of q would contain 8 times the sum of x, several times what remains once it is
// subtracted.
template <int Bits, xlstm_code kCode, bool Offsets, int R, int C>
XLSTM_ALWAYS_INLINE Floats quantised_tile(const char* const* row, const float* const* scale, const float* const* offset,
                                          int64_t group_size, int64_t groups, const float* x, int64_t x_stride) {
  Floats sums[R * C] = {};
  for (int64_t g = 0; g < groups; ++g) {
    const float* group_x = x + g * group_size;
    Floats inputs[C] = {};  // the factors of offsets
    if constexpr (Offsets)
      for (int64_t k = 0; k < group_size; k += kWide)
        XLSTM_UNROLL for (int c = 0; c < C; ++c) inputs[c] += load(group_x + c * x_stride + k);
    XLSTM_UNROLL for (int r = 0; r < R; ++r) {
      Floats part[C] = {};
      if constexpr (Bits == 8) {
        const char* q = row[r] + g * group_size;
        for (int64_t k = 0; k < group_size; k += kWide) {
          const Floats w = widen_bytes<kCode>(q + k);
          XLSTM_UNROLL for (int c = 0; c < C; ++c) part[c] = add_product(part[c], w, load(group_x + c * x_stride + k));
        }
      } else {
        const char* q = row[r] + g * group_size / 2;
        for (int64_t block = 0; block < group_size; block += 32, q += 16)
          XLSTM_UNROLL for (int k = 0; k < 16; k += kWide) {
            const Narrow<uint8_t> packed = load_narrow<uint8_t>(q + k);
            const Floats low = floats_of<uint8_t>(packed & 15) - 8.f;
            const Floats high = floats_of<uint8_t>(packed >> 4) - 8.f;
            XLSTM_UNROLL for (int c = 0; c < C; ++c) {
              part[c] = add_product(part[c], low, load(group_x + c * x_stride + block + k));
              part[c] = add_product(part[c], high, load(group_x + c * x_stride + block + 16 + k));
            }
          }
      }
      XLSTM_UNROLL for (int c = 0; c < C; ++c) {
        sums[c * R + r] = add_product(sums[c * R + r], part[c], broadcast(scale[r][g]));
        if constexpr (Offsets) sums[c * R + r] = add_product(sums[c * R + r], inputs[c], broadcast(offset[r][g]));
      }
    }
  }
  return lane_sums<R * C>(sums);
}

// ---- all x's

constexpr int kRowsAtOnce = kWide >= 8 ? 8 : 4;

// Floats of a worker's scratch for a product: the scales and offsets of kRowsAtOnce rows, or the sums of tiles.
inline int64_t product_scratch_floats(int64_t columns, int64_t batch) {
  const int64_t scales = 2 * kRowsAtOnce * ((columns + 31) / 32), sums = byte_tile_floats(batch);
  return scales > sums ? scales : sums;
}

// Runs tile<R, C>(r, b), rows r to r + R by x's b to b + C, while C x's are left.
template <int C, class Tile>
XLSTM_ALWAYS_INLINE void columns_of(int64_t rows, int64_t batch, int64_t& b, float* y, int64_t y_stride, Tile&& tile) {
  constexpr int R = kWide / C < kRowsAtOnce ? kWide / C : kRowsAtOnce;
  for (; b + C <= batch; b += C)
    for (int64_t r = 0; r < rows; r += R) {
      float sums[kWide];
      store(sums, tile.template operator()<R, C>(r, b));
      const int64_t count = rows - r < R ? rows - r : R;
      for (int c = 0; c < C; ++c)
        for (int64_t j = 0; j < count; ++j) y[(b + c) * y_stride + r + j] = sums[c * R + j];
    }
}

template <class Tile>
XLSTM_ALWAYS_INLINE void all_columns(int64_t rows, int64_t batch, float* y, int64_t y_stride, Tile&& tile) {
  int64_t b = 0;
  columns_of<4>(rows, batch, b, y, y_stride, tile);
  columns_of<2>(rows, batch, b, y, y_stride, tile);
  columns_of<1>(rows, batch, b, y, y_stride, tile);
}

// x (batch, x_stride), whose rows are padded with zeros; y (batch, y_stride), whose first column is row `begin`.
struct Product {
  const xlstm_linear& w;
  int64_t begin, end;
  const float* x;
  int64_t x_stride, batch;
  const XDigits& digits;  // of x, for a w by tiles, which does not read x itself
  float* y;
  int64_t y_stride;
  float* scratch;  // product_scratch_floats(columns, batch)

  // Calls f(first row, rows, pointers to kRowsAtOnce rows); past the last row, the last row again.
  template <class F>
  XLSTM_ALWAYS_INLINE void each_rows(int64_t row_bytes, F&& f) const {
    for (int64_t first = begin; first < end; first += kRowsAtOnce) {
      const int64_t rows = end - first < kRowsAtOnce ? end - first : kRowsAtOnce;
      const char* row[kRowsAtOnce];
      for (int64_t r = 0; r < kRowsAtOnce; ++r)
        row[r] = static_cast<const char*>(w.data) + (first + (r < rows ? r : rows - 1)) * row_bytes;
      f(first, rows, row);
    }
  }
};

template <class Weights>
void multiply_plain(const Product& p) {
  const int64_t columns = p.w.columns;
  p.each_rows(columns * int64_t(sizeof(typename Weights::Element)),
              [&](int64_t first, int64_t rows, const char* const* row) XLSTM_INLINED {
                all_columns(rows, p.batch, p.y + (first - p.begin), p.y_stride,
                            [&]<int R, int C>(int64_t r, int64_t b) XLSTM_INLINED {
                              return plain_tile<Weights, R, C>(row + r, p.x + b * p.x_stride, p.x_stride, columns);
                            });
              });
}

template <int Bits, xlstm_code kCode, bool Offsets>
void multiply_quantised(const Product& p) {
  const xlstm_linear& w = p.w;
  const int64_t groups = (w.columns + w.group_size - 1) / w.group_size;
  p.each_rows(groups * w.group_size * Bits / 8, [&](int64_t first, int64_t rows, const char* const* row) XLSTM_INLINED {
    const float *scale[kRowsAtOnce], *offset[kRowsAtOnce];
    for (int64_t r = 0; r < kRowsAtOnce; ++r) {
      float *to = p.scratch + r * groups, *to_offset = to + kRowsAtOnce * groups;
      scale[r] = to, offset[r] = to_offset;
      const int64_t from = (first + (r < rows ? r : rows - 1)) * groups;
      load_row(to, w.scales, w.dtype, from, groups);
      if (!Offsets) continue;
      load_row(to_offset, w.offsets, w.dtype, from, groups);
      for (int64_t g = 0; Bits == 4 && g < groups; ++g) to_offset[g] += 8 * to[g];
    }
    all_columns(rows, p.batch, p.y + (first - p.begin), p.y_stride,
                [&]<int R, int C>(int64_t r, int64_t b) XLSTM_INLINED {
                  return quantised_tile<Bits, kCode, Offsets, R, C>(row + r, scale + r, offset + r, w.group_size,
                                                                    groups, p.x + b * p.x_stride, p.x_stride);
                });
  });
}

inline void multiply_by_vectors(const Product& p) {
  if (p.w.bits == 4)
    p.w.offsets ? multiply_quantised<4, XLSTM_CODE_INTEGER, true>(p)
                : multiply_quantised<4, XLSTM_CODE_INTEGER, false>(p);
  else if (p.w.code == XLSTM_CODE_E4M3FN)
    multiply_quantised<8, XLSTM_CODE_E4M3FN, false>(p);
  else if (p.w.code == XLSTM_CODE_E4M3FNUZ)
    multiply_quantised<8, XLSTM_CODE_E4M3FNUZ, false>(p);
  else if (p.w.bits == 8)
    p.w.offsets ? multiply_quantised<8, XLSTM_CODE_INTEGER, true>(p)
                : multiply_quantised<8, XLSTM_CODE_INTEGER, false>(p);
  else if (p.w.dtype == XLSTM_FLOAT32)
    multiply_plain<FloatWeights>(p);
  else if (p.w.dtype == XLSTM_BFLOAT16)
    multiply_plain<Bfloat16Weights>(p);
  else
    multiply_plain<Float16Weights>(p);
}

// y[b][r - begin] = bias[r] + W[r] x[b] for rows begin to end.
inline void multiply(const Product& p) {
  if constexpr (kHasTiles) {
    if (is_by_tiles(p.w, p.batch))
      multiply_byte_tiles(p.w, p.begin, p.end, p.digits, p.y, p.y_stride, p.scratch);
    else
      multiply_by_vectors(p);
  } else {
    multiply_by_vectors(p);
  }
  if (!p.w.bias.data) return;
  for (int64_t r = p.begin; r < p.end; ++r) {
    const float bias = widen<float>(p.w.bias.data, p.w.bias.dtype, r);
    for (int64_t b = 0; b < p.batch; ++b) p.y[b * p.y_stride + r - p.begin] += bias;
  }
}

}  // namespace xlstm::XLSTM_ISA::engine
