// SPDX-License-Identifier: Apache-2.0
// x as integers, for products of bytes: the 64 x's of a step are made integers of 22 bits below the largest of them, in
// three digits to base 256, so that a step's sum is exact before its scale is applied. CDNA alone has kernels that use
// them.
#pragma once

#include "arch/lane_octets.h"
#include "engine/gpu/params.h"
#include "engine/gpu/weight_formats.h"

namespace xlstm::gpu::engine {

struct XDigits {
  uint32_t word[kXDigits][2];  // of this lane's 8 features, the highest digit first
  float scale, sum;            // of the step: what sums of products of digits are multiplied by, and the sum of its x's
};

// Eight neighbouring lanes have a step.
XLSTM_DEVICE XDigits digits_of(const float (&y)[kVec8]) {
  XDigits of;
  uint32_t most = 0;  // of magnitudes, as bits: a NaN is above infinity
#pragma unroll
  for (int e = 0; e < kVec8; ++e) {
    const uint32_t magnitude = as_bits(y[e]) & 0x7fffffffu;
    most = magnitude > most ? magnitude : most;
  }
  const int exponent = int(most_over_octet(most) >> 23), above = exponent < 32 ? 32 : exponent;
  const float up = as_float(uint32_t(127 + kXDigitBits + 126 - above) << 23);
  of.scale = exponent == 255 ? as_float(0x7fc00000u) : as_float(uint32_t(above - kXDigitBits + 1) << 23);
  int digits[kVec8], integers = 0;
#pragma unroll
  for (int e = 0; e < kVec8; ++e) {
    digits[e] = int(__builtin_rintf(y[e] * up));
    integers += digits[e];
  }
  of.sum = float(sum_over_octet(integers)) * of.scale;
#pragma unroll
  for (int n = kXDigits - 1; n >= 0; --n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int* const d = digits + 4 * h;
      of.word[n][h] =
          uint32_t(d[0] & 255) | uint32_t(d[1] & 255) << 8 | uint32_t(d[2] & 255) << 16 | uint32_t(d[3]) << 24;
    }
#pragma unroll
    for (int& digit : digits) digit = (digit + 128) >> 8;
  }
  return of;
}

}  // namespace xlstm::gpu::engine
