// SPDX-License-Identifier: Apache-2.0
// The mainloop of gemm_cluster (engine/gemm_cluster/gemm_cluster.h): the layout of x in a block's shared memory, and
// the products of 64 features of an item's 16 rows of weights.
//
// Quantised weights are multiplied as the integers they are. The 64 x's of a group are made integers too, with 22 bits
// below the largest of them, in three digits to base 256, which are columns of int8 products. So bytes need no
// conversion and nibbles only a mask, and the sum of a group is exact before its scale is applied.
//
// A product has eight columns. Of one to four rows of the batch they are digits, or bfloat16 parts, side by side, of up
// to two rows, or four; of eight rows and more a product has one digit or part of eight rows.
#pragma once

#include "engine/gemm_cluster/gemm_cluster_plan.h"
#include "engine/gpu/prologue_epilogue.h"
#include "engine/gpu/weight_formats.h"

namespace xlstm::gpu::engine {

constexpr int kStepVec8s = kStepFeatures / kVec8;
// A lane's rows of weights in a product: this one, and this one + 8.
XLSTM_DEVICE int item_row() { return lane_id() / 4; }
XLSTM_DEVICE int quarter() { return lane_id() % 4; }  // the lane's quarter of a step, or of the columns of sums

// A block's part of x.
struct ClusterX {
  char* values;
  float* x_scales;  // for each step and row of the batch: the scale of its digits, and the sum of x; four floats of up
                    // to four rows
};

// Calls store(row, b, sum, next) for sums of a row of weights with two neighbouring rows of the batch, of eight and
// more.
template <int kStrips, class Sums, class Store>
XLSTM_DEVICE void each_pair_of_strips(const Sums& sums, Store&& store) {
#pragma unroll
  for (int s = 0; s < kStrips; ++s)
#pragma unroll
    for (int j = 0; j < 2; ++j)
      store(item_row() + 8 * j, 8 * s + 2 * quarter(), sums.batch_sum(s, j, 0), sums.batch_sum(s, j, 1));
}

template <class Weights, int kBatch>
struct Int8Sums {
  static constexpr int kBits = Weights::kBits;
  static constexpr bool kFewRows = kBatch <= 4;                             // whose digits are columns of one product
  static constexpr int kStrips = kFewRows ? (kBatch + 1) / 2 : kBatch / 8;  // of eight columns
  // A step of x. Of few rows each has its digits in the order (2, 1), (none, 0): a lane's two columns are then a number
  // to base 256. Otherwise there are planes of digits, the highest first, each with all rows.
  static constexpr int kPlanes = kFewRows ? 4 : kXDigits, kPlaneBytes = (kFewRows ? 1 : kBatch) * kStepFeatures;
  static constexpr int kRowBytes = kFewRows ? kPlanes * kPlaneBytes : kStepFeatures;
  static constexpr int kStepBytes = kPlanes * kBatch * kStepFeatures;

  XLSTM_DEVICE static uint32_t low_bytes(int a, int b, int c, int d) {
    return __byte_perm(__byte_perm(uint32_t(a), uint32_t(b), 0x0040), __byte_perm(uint32_t(c), uint32_t(d), 0x0040),
                       0x5410);
  }
  XLSTM_DEVICE static void store(const ClusterX& x, int step, int n, int b, const float (&y)[kVec8], bool is_inside) {
    uint32_t size = 0;
#pragma unroll
    for (int e = 0; e < kVec8; ++e) {
      const uint32_t magnitude = as_bits(y[e]) & 0x7fffffffu;
      size = magnitude > size ? magnitude : size;
    }
#pragma unroll
    for (int mask = 1; mask < kStepVec8s; mask *= 2) {
      const uint32_t other = as_bits(shuffle_xor(as_float(size), mask));
      size = other > size ? other : size;
    }
    const int exponent = int(size >> 23) < 32 ? 32 : int(size >> 23);  // 255: infinities and NaN, whose scale is NaN
    const float up = as_float(uint32_t(127 + kXDigitBits + 126 - exponent) << 23);
    const float down = exponent == 255 ? NAN : as_float(uint32_t(exponent - kXDigitBits + 1) << 23);
    int digits[kVec8];
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kVec8; ++e) {
      const float rounded = __builtin_rintf(y[e] * up);
      digits[e] = int(rounded);
      sum += rounded;  // a sum of 64 integers of 22 bits: float rounds it
    }
    sum = sum_over_lanes<kStepVec8s>(sum);
    if (!is_inside) return;
    const Vec8Coord coord = vec8_coord(kFamily, kBits, n);
    char* const to = x.values + step * kStepBytes + b * kRowBytes + coord.vec16 * 16 + coord.unit * 8;
#pragma unroll
    for (int d = kXDigits - 1; d >= 0; --d) {  // from the lowest digit
      const int plane = kFewRows && d == 2 ? 3 : d;
      *reinterpret_cast<uint2*>(to + plane * kPlaneBytes) = make_uint2(
          low_bytes(digits[0], digits[1], digits[2], digits[3]), low_bytes(digits[4], digits[5], digits[6], digits[7]));
#pragma unroll
      for (int e = 0; e < kVec8; ++e) digits[e] = (digits[e] + 128) >> 8;
    }
    if (kFewRows) *reinterpret_cast<uint2*>(to + 2 * kPlaneBytes) = make_uint2(0, 0);
    if (n != 0) return;
    if constexpr (kFewRows)  // for even lanes, which have the upper digits, then for odd lanes
      *reinterpret_cast<float4*>(x.x_scales + (step * kBatch + b) * 4) = {down * 256, sum * down, down, 0};
    else
      *reinterpret_cast<float2*>(x.x_scales + (step * kBatch + b) * 2) = make_float2(down, sum * down);
  }

  // The sums of the upper digits, and those of the lowest digit: kept apart, they are the same bits when different
  // lanes have them. Of few rows, even lanes have the upper digits and odd lanes the lowest, both in `upper`: at batch
  // 1 of weights' row item_row() or of that + 8, else of both.
  static constexpr int kRegisters = kBatch == 1 ? 1 : kFewRows ? 2 : 4;
  float upper[kStrips][kRegisters], lowest[kStrips][kRegisters];

  XLSTM_DEVICE void clear() {
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int r = 0; r < kRegisters; ++r) upper[s][r] = lowest[s][r] = 0;
  }

  // Reads a lane's 16 weights of a row, four to a register.
  XLSTM_DEVICE static void load(const char* row, uint32_t (&w)[4]) {
    if constexpr (kBits == 8) {
      const Vec16 p = read_vec16(row + quarter() * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = p.word[i];
    } else {
      const uint2 p = *reinterpret_cast<const uint2*>(row + quarter() * 8);
      w[0] = p.x & 0x0f0f0f0fu, w[1] = p.y & 0x0f0f0f0fu;
      w[2] = p.x >> 4 & 0x0f0f0f0fu, w[3] = p.y >> 4 & 0x0f0f0f0fu;
    }
  }
  // Multiplies a step, whose groups have these scales and, if kOffsets, offsets; at batch 1, those of the lane's one
  // row.
  template <bool kOffsets>
  XLSTM_DEVICE void multiply(const ClusterX& x, int at, const char* const (&row)[2], const float (&scale)[2],
                             const float (&offset)[2]) {
    uint32_t w[2][4];
    load(row[0], w[0]), load(row[1], w[1]);
    const char* const step_x = x.values + at * kStepBytes + quarter() * 16;
    const float* const x_scales = x.x_scales + at * kBatch * (kFewRows ? 4 : 2) + lane_scales();
    constexpr float kShift = kBits == 4 ? 8 : 0;  // weights without offsets mean q - kShift
    const auto mma = [&](const Vec16& digits, int(&c)[4]) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t a[4] = {w[0][2 * k], w[1][2 * k], w[0][2 * k + 1], w[1][2 * k + 1]};
        mma_int8(c, a, digits.word[2 * k], digits.word[2 * k + 1]);
      }
    };
    // x_sum: the factor of the offset, which goes to the upper digits.
    const auto add = [&](float& sum, int digits, float down, float x_sum, int j) {
      const float product = float(digits) * down;
      if (kOffsets)
        sum = __builtin_fmaf(scale[j], product, __builtin_fmaf(offset[j], x_sum, sum));
      else
        sum = __builtin_fmaf(scale[j], __builtin_fmaf(-kShift, x_sum, product), sum);
    };
    if constexpr (kBatch == 1) {
      int c[4] = {};
      mma(read_vec16(step_x + item_row() % 4 * kPlaneBytes), c);
      const bool is_lower_row = quarter() >= 2;
      const float2 x_scale = *reinterpret_cast<const float2*>(x_scales);
      add(upper[0][0], (is_lower_row ? c[2] : c[0]) * 256 + (is_lower_row ? c[3] : c[1]), x_scale.x, x_scale.y, 0);
    } else if constexpr (kFewRows) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        int c[4] = {};
        mma(read_vec16(step_x + column_offset(s)), c);
        const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + s * 8);
#pragma unroll
        for (int j = 0; j < 2; ++j) add(upper[s][j], c[2 * j] * 256 + c[2 * j + 1], x_scale.x, x_scale.y, j);
      }
    } else {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        int c[kXDigits][4] = {};
#pragma unroll
        for (int d = 0; d < kXDigits; ++d)
          mma(read_vec16(step_x + d * kPlaneBytes + (8 * s + item_row()) * kStepFeatures), c[d]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 x_scale = *reinterpret_cast<const float2*>(x_scales + (8 * s + 2 * quarter() + i) * 2);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int r = 2 * j + i;
            add(upper[s][r], c[0][r] * 256 + c[1][r], x_scale.x * 256, x_scale.y, j);
            lowest[s][r] = __builtin_fmaf(scale[j], float(c[2][r]) * x_scale.x, lowest[s][r]);
          }
        }
      }
    }
  }

  // The same for gates that stayed bfloat16, next to quantised linears: the digits of x are multiplied as bfloat16.
  XLSTM_DEVICE void multiply_gate(const ClusterX& x, int at, const char* const (&row)[2]) {
    uint32_t w[2][8];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const Vec16 p = read_vec16(row[j] + gate_vec8(u) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i)  // features 0 and 2, then 1 and 3 of four, in the order of signed_bytes()
          w[j][4 * u + i] = __byte_perm(p.word[i / 2 * 2], p.word[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410);
      }
    const char* const step_x = x.values + at * kStepBytes + quarter() * 16;
    const float* const x_scales = x.x_scales + at * kBatch * (kFewRows ? 4 : 2) + lane_scales();
    const auto mma = [&](const Vec16& digits, float(&c)[4]) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t a[4] = {w[0][2 * k], w[1][2 * k], w[0][2 * k + 1], w[1][2 * k + 1]};
        mma_bfloat16(c, a, signed_bytes<0>(digits.word[k]), signed_bytes<1>(digits.word[k]));
      }
    };
    if constexpr (kBatch == 1) {
      float c[4] = {};
      mma(read_vec16(step_x + item_row() % 4 * kPlaneBytes), c);
      const bool is_lower_row = quarter() >= 2;
      const float digits = __builtin_fmaf(is_lower_row ? c[2] : c[0], 256.0f, is_lower_row ? c[3] : c[1]);
      upper[0][0] = __builtin_fmaf(digits, x_scales[0], upper[0][0]);
    } else if constexpr (kFewRows) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        float c[4] = {};
        mma(read_vec16(step_x + column_offset(s)), c);
#pragma unroll
        for (int j = 0; j < 2; ++j)
          upper[s][j] = __builtin_fmaf(__builtin_fmaf(c[2 * j], 256.0f, c[2 * j + 1]), x_scales[s * 8], upper[s][j]);
      }
    } else {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        float c[kXDigits][4] = {};
#pragma unroll
        for (int d = 0; d < kXDigits; ++d)
          mma(read_vec16(step_x + d * kPlaneBytes + (8 * s + item_row()) * kStepFeatures), c[d]);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float down = x_scales[(8 * s + 2 * quarter() + r % 2) * 2];
          upper[s][r] = __builtin_fmaf(__builtin_fmaf(c[0][r], 256.0f, c[1][r]), down * 256, upper[s][r]);
          lowest[s][r] = __builtin_fmaf(c[2][r], down, lowest[s][r]);
        }
      }
    }
  }
  // Which of a step's vec8s is the uth of a lane.
  XLSTM_DEVICE static int gate_vec8(int u) {
    return kBits == 8 ? 2 * quarter() + u : quarter() / 2 * 4 + quarter() % 2 + 2 * u;
  }

  // Of two or four rows: the lane's column of x in a strip, as bytes of a step; and of its x_scales in a step.
  XLSTM_DEVICE static int column_offset(int s) {
    return (2 * s + item_row() / 4) * kRowBytes + item_row() % 4 * kPlaneBytes;
  }
  XLSTM_DEVICE static int lane_scales() {
    return kFewRows ? (kBatch == 1 ? 0 : quarter() / 2 * 4) + quarter() % 2 * 2 : 0;
  }

  XLSTM_DEVICE static int lane_row() { return quarter() % 2 == 0 ? item_row() + 4 * quarter() : -1; }
  XLSTM_DEVICE float single_sum() const { return upper[0][0] + shuffle_xor(upper[0][0], 1); }
  XLSTM_DEVICE float batch_sum(int s, int j, int i) const { return upper[s][2 * j + i] + lowest[s][2 * j + i]; }

  // Calls store(row, b, sum, next) for sums of a row of weights with two neighbouring rows of the batch, each by one
  // lane, of two rows and more.
  template <class Store>
  XLSTM_DEVICE void each_pair(Store&& store) const {
    if constexpr (kFewRows) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        float sum[2], other[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) sum[j] = upper[s][j] + shuffle_xor(upper[s][j], 1);
#pragma unroll
        for (int j = 0; j < 2; ++j) other[j] = shuffle_xor(sum[j], 2);
        if (quarter() == 0) store(item_row(), 2 * s, sum[0], other[0]);
        if (quarter() == 2) store(item_row() + 8, 2 * s, other[1], sum[1]);
      }
    } else {
      each_pair_of_strips<kStrips>(*this, store);
    }
  }
};

// Sums for bfloat16 weights, with the interface of Int8Sums: each x is the sum of two bfloat16, whose products are
// summed separately and added up at the end, so a row has the same sums alone and in a batch. Of one to four rows the
// two parts of x are alternate columns of one product, so that a lane's two columns are the upper and the lower part.
template <int kBatch>
struct Bfloat16Sums {
  static constexpr bool kFewRows = kBatch <= 4;
  static constexpr int kStrips = kFewRows ? 1 : kBatch / 8, kSumsPerStrip = kFewRows ? 1 : 2;
  static constexpr int kRowBytes = kStepFeatures * 2, kPartBytes = kBatch * kRowBytes, kStepBytes = 2 * kPartBytes;
  float sum[kStrips][kSumsPerStrip][4] = {};

  XLSTM_DEVICE void clear() { *this = {}; }

  // Rows of the batch, or parts, are swizzled, so that lanes that read two of them together have no bank conflict.
  XLSTM_DEVICE static int swizzle_of(int b, int part) { return (kFewRows ? kBatch == 1 ? 0 : part : b % 2) * 64; }
  XLSTM_DEVICE static void store(const ClusterX& x, int step, int n, int b, const float (&y)[kVec8], bool is_inside) {
    if (!is_inside) return;
    Vec16 upper, lower;
#pragma unroll
    for (int w = 0; w < 4; ++w) split_bfloat16(y[2 * w], y[2 * w + 1], upper.word[w], lower.word[w]);
    char* const to = x.values + step * kStepBytes + b * kRowBytes;
    *reinterpret_cast<Vec16*>(to + (n * 16 ^ swizzle_of(b, 0))) = upper;
    *reinterpret_cast<Vec16*>(to + kPartBytes + (n * 16 ^ swizzle_of(b, 1))) = lower;
  }
  // row: the lane's two rows, whose step begins at `begin`; swizzle: that of the rows' vec16s.
  XLSTM_DEVICE void multiply(const ClusterX& x, int at, const char* const (&row)[2], int begin, int swizzle) {
    const char* const step_x = x.values + at * kStepBytes;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int byte_offset = (begin + u * 64 + quarter() * 16) ^ swizzle;
      const Vec16 upper = read_vec16(row[0] + byte_offset), lower = read_vec16(row[1] + byte_offset);
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int part = 0; part < kSumsPerStrip; ++part) {
          const int b = kFewRows ? item_row() / 2 % kBatch : 8 * s + item_row();
          const int of_part = kFewRows ? item_row() % 2 : part, x_swizzle = swizzle_of(b, of_part);
          const Vec16 by =
              read_vec16(step_x + of_part * kPartBytes + b * kRowBytes + ((u * 64 + quarter() * 16) ^ x_swizzle));
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const uint32_t a[4] = {upper.word[2 * k], lower.word[2 * k], upper.word[2 * k + 1], lower.word[2 * k + 1]};
            mma_bfloat16(sum[s][part], a, by.word[2 * k], by.word[2 * k + 1]);
          }
        }
    }
  }

  XLSTM_DEVICE static int lane_row() { return quarter() % 2 == 0 ? item_row() + 4 * quarter() : -1; }
  XLSTM_DEVICE float single_sum() const {
    const float(&lane_sums)[4] = sum[0][0];
    return quarter() == 0 ? lane_sums[0] + lane_sums[1] : lane_sums[2] + lane_sums[3];
  }
  XLSTM_DEVICE float batch_sum(int s, int j, int i) const {
    return sum[s][0][2 * j + i] + sum[s][kSumsPerStrip - 1][2 * j + i];
  }
  template <class Store>
  XLSTM_DEVICE void each_pair(Store&& store) const {
    if constexpr (kFewRows) {  // a lane's row of the batch is its quarter
      const float(&lane_sums)[4] = sum[0][0];
      const float own[2] = {lane_sums[0] + lane_sums[1], lane_sums[2] + lane_sums[3]};
      const float other[2] = {shuffle_xor(own[0], 1), shuffle_xor(own[1], 1)};
      const int b = quarter() & ~1;
      if (b >= kBatch) return;
      if (quarter() % 2 == 0)
        store(item_row(), b, own[0], other[0]);
      else
        store(item_row() + 8, b, other[1], own[1]);
    } else {
      each_pair_of_strips<kStrips>(*this, store);
    }
  }
};

template <class Weights, int kBatch>
struct SumsOf {
  using type = Int8Sums<Weights, kBatch>;
};
template <int kBatch>
struct SumsOf<Bfloat16Weights, kBatch> {
  using type = Bfloat16Sums<kBatch>;
};

}  // namespace xlstm::gpu::engine
