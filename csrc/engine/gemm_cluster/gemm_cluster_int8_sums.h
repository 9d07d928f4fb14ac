// SPDX-License-Identifier: Apache-2.0
// What a block of a cluster multiplies (engine/gemm_cluster/gemm_cluster.h): how x's lie in its shared memory, and what
// a warp makes of 64 features of 16 rows of weights.
//
// Quantised weights are multiplied as the integers that they are: the 64 x's that share a group are integers too, of 22
// bits below the greatest of them, in three digits to base 256, which are columns of one product. So bytes need no
// conversion, nibbles a mask, and the sum of a group is exact before its scale is applied.
#pragma once

#include "engine/gemm_cluster/gemm_cluster_plan.h"
#include "engine/gemm_mma/gemm_mma_weights.h"
#include "engine/gemm_mma/input_vectors.h"

namespace xlstm::gpu::engine {

constexpr int kStepEights = kStepFeatures / kEight;
// Rows of weights that lane has in a product: this one, and that + 8.
XLSTM_DEVICE int item_row() { return lane_id() / 4; }
XLSTM_DEVICE int quarter() { return lane_id() % 4; }  // of a step, or of sums

// x's of a block's part.
struct ClusterX {
  char* values;
  float* sums;  // by step and row of the batch, two numbers each; of one x four
};

constexpr int kDigits = 3, kDigitBits = 22;

template <class Weights, int kBatch>
struct DigitSums {
  static constexpr int kBits = Weights::kBits, kStrips = kBatch == 1 ? 1 : kBatch / 8;
  // Planes of a step's x's: digits from the highest on, for each row of the batch. One x has its digits in the columns
  // of one product, in the order (2, 1), (none, 0): so each lane's two columns are a number to base 256.
  static constexpr int kPlanes = kBatch == 1 ? 4 : kDigits, kPlaneBytes = kBatch * kStepFeatures;
  static constexpr int kStepBytes = kPlanes * kPlaneBytes;

  XLSTM_DEVICE static uint32_t low_bytes(int a, int b, int c, int d) {
    return __byte_perm(__byte_perm(uint32_t(a), uint32_t(b), 0x0040), __byte_perm(uint32_t(c), uint32_t(d), 0x0040),
                       0x5410);
  }
  XLSTM_DEVICE static void store(const ClusterX& x, int step, int n, int b, const float (&y)[kEight], bool there) {
    uint32_t size = 0;
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      const uint32_t own = as_bits(y[e]) & 0x7fffffffu;
      size = own > size ? own : size;
    }
#pragma unroll
    for (int mask = 1; mask < kStepEights; mask *= 2) {
      const uint32_t other = as_bits(shuffle_xor(as_float(size), mask));
      size = other > size ? other : size;
    }
    const int exponent = int(size >> 23) < 32 ? 32 : int(size >> 23);  // and 255 is no number, nor is what it scales
    const float up = as_float(uint32_t(127 + kDigitBits + 126 - exponent) << 23);
    const float down = exponent == 255 ? NAN : as_float(uint32_t(exponent - kDigitBits + 1) << 23);
    int digits[kEight];
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      const float rounded = __builtin_rintf(y[e] * up);
      digits[e] = int(rounded);
      sum += rounded;  // of 22 bits each: two of 64 may be lost, of what is added to in float
    }
    sum = over_lanes<kStepEights>(sum);
    if (!there) return;
    const EightPlace place = eight_place(kFamily, kBits, n);
    char* const to = x.values + step * kStepBytes + b * kStepFeatures + place.piece * 16 + place.unit * 8;
#pragma unroll
    for (int d = kDigits - 1; d >= 0; --d) {  // the lowest digit first
      const int plane = kBatch == 1 && d == 2 ? 3 : d;
      *reinterpret_cast<uint2*>(to + plane * kPlaneBytes) = make_uint2(
          low_bytes(digits[0], digits[1], digits[2], digits[3]), low_bytes(digits[4], digits[5], digits[6], digits[7]));
#pragma unroll
      for (int e = 0; e < kEight; ++e) digits[e] = (digits[e] + 128) >> 8;
    }
    if (kBatch == 1) *reinterpret_cast<uint2*>(to + 2 * kPlaneBytes) = make_uint2(0, 0);
    if (n != 0) return;
    if constexpr (kBatch == 1)  // of even lanes, which have the upper digits, and of odd ones
      *reinterpret_cast<float4*>(x.sums + step * 4) = {down * 256, sum * down, down, 0};
    else
      *reinterpret_cast<float2*>(x.sums + (step * kBatch + b) * 2) = make_float2(down, sum * down);
  }

  // Sums of the upper digits, and of the lowest: so they are the same, bit for bit, where lanes have one or the other.
  // Of one x even lanes have the upper and odd ones the lowest, of row item_row() or of that + 8.
  static constexpr int kEach = kBatch == 1 ? 1 : 4;
  float upper[kStrips][kEach], lowest[kStrips][kEach];

  XLSTM_DEVICE void clear() {
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int r = 0; r < kEach; ++r) upper[s][r] = lowest[s][r] = 0;
  }

  // A lane's 16 weights of a row, four in a word.
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
  // A step whose groups have these scales, and offsets or none: of one x, of the lane's one row.
  template <bool kOffsets>
  XLSTM_DEVICE void multiply(const ClusterX& x, int at, const char* const (&row)[2], const float (&scale)[2],
                             const float (&offset)[2]) {
    uint32_t w[2][4];
    load(row[0], w[0]), load(row[1], w[1]);
    const char* const own = x.values + at * kStepBytes + quarter() * 16;
    const float* const facts = x.sums + (kBatch == 1 ? at * 4 + quarter() % 2 * 2 : at * kBatch * 2);
    constexpr float kShift = kBits == 4 ? 8 : 0;  // what weights without offsets are less
    const auto product = [&](const Vec16& digits, int(&c)[4]) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t a[4] = {w[0][2 * k], w[1][2 * k], w[0][2 * k + 1], w[1][2 * k + 1]};
        mma_int8(c, a, digits.word[2 * k], digits.word[2 * k + 1]);
      }
    };
    // all: what is met by the offset, with the upper digits.
    const auto add = [&](float& sum, int digits, float down, float all, int j) {
      const float product = float(digits) * down;
      if (kOffsets)
        sum = __builtin_fmaf(scale[j], product, __builtin_fmaf(offset[j], all, sum));
      else
        sum = __builtin_fmaf(scale[j], __builtin_fmaf(-kShift, all, product), sum);
    };
    if constexpr (kBatch == 1) {
      int c[4] = {};
      product(read_vec16(own + item_row() % 4 * kPlaneBytes), c);
      const bool below = quarter() >= 2;
      const float2 fact = *reinterpret_cast<const float2*>(facts);
      add(upper[0][0], (below ? c[2] : c[0]) * 256 + (below ? c[3] : c[1]), fact.x, fact.y, 0);
    } else {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        int c[kDigits][4] = {};
#pragma unroll
        for (int d = 0; d < kDigits; ++d)
          product(read_vec16(own + d * kPlaneBytes + (8 * s + item_row()) * kStepFeatures), c[d]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 fact = *reinterpret_cast<const float2*>(facts + (8 * s + 2 * quarter() + i) * 2);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int r = 2 * j + i;
            add(upper[s][r], c[0][r] * 256 + c[1][r], fact.x * 256, fact.y, j);
            add(lowest[s][r], c[2][r], fact.x, 0.0f, j);
          }
        }
      }
    }
  }

  // The same of bfloat16 weights beside such, gates that stayed as they were: digits are bfloat16 too.
  XLSTM_DEVICE void multiply_gate(const ClusterX& x, int at, const char* const (&row)[2]) {
    uint32_t w[2][8];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const Vec16 p = read_vec16(row[j] + gate_eight(u) * 16);
#pragma unroll
        for (int i = 0; i < 4; ++i)  // features 0 and 2, 1 and 3 of four, as signed_bytes() has them
          w[j][4 * u + i] = __byte_perm(p.word[i / 2 * 2], p.word[i / 2 * 2 + 1], i % 2 ? 0x7632 : 0x5410);
      }
    const char* const own = x.values + at * kStepBytes + quarter() * 16;
    const float* const facts = x.sums + (kBatch == 1 ? at * 4 + quarter() % 2 * 2 : at * kBatch * 2);
    const auto product = [&](const Vec16& digits, float(&c)[4]) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint32_t a[4] = {w[0][2 * k], w[1][2 * k], w[0][2 * k + 1], w[1][2 * k + 1]};
        mma_bfloat16(c, a, signed_bytes<0>(digits.word[k]), signed_bytes<1>(digits.word[k]));
      }
    };
    if constexpr (kBatch == 1) {
      float c[4] = {};
      product(read_vec16(own + item_row() % 4 * kPlaneBytes), c);
      const bool below = quarter() >= 2;
      const float digits = __builtin_fmaf(below ? c[2] : c[0], 256.0f, below ? c[3] : c[1]);
      upper[0][0] = __builtin_fmaf(digits, facts[0], upper[0][0]);
    } else {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        float c[kDigits][4] = {};
#pragma unroll
        for (int d = 0; d < kDigits; ++d)
          product(read_vec16(own + d * kPlaneBytes + (8 * s + item_row()) * kStepFeatures), c[d]);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float down = facts[(8 * s + 2 * quarter() + r % 2) * 2];
          upper[s][r] = __builtin_fmaf(__builtin_fmaf(c[0][r], 256.0f, c[1][r]), down * 256, upper[s][r]);
          lowest[s][r] = __builtin_fmaf(c[2][r], down, lowest[s][r]);
        }
      }
    }
  }
  // Which eight of a step's features the uth of a lane is.
  XLSTM_DEVICE static int gate_eight(int u) {
    return kBits == 8 ? 2 * quarter() + u : quarter() / 2 * 4 + quarter() % 2 + 2 * u;
  }

  XLSTM_DEVICE static int own_row() { return quarter() % 2 == 0 ? item_row() + 4 * quarter() : -1; }
  XLSTM_DEVICE float alone() const { return upper[0][0] + shuffle_xor(upper[0][0], 1); }
  XLSTM_DEVICE float of_batch(int s, int j, int i) const { return upper[s][2 * j + i] + lowest[s][2 * j + i]; }
};

}  // namespace xlstm::gpu::engine
