// SPDX-License-Identifier: Apache-2.0
// Vectors of 8 features of x in a thread's registers: loads, the weights of an RMS norm, sums over lanes.
#pragma once

#include "arch/operands.h"
#include "engine/gemm_mma/gemm_mma_shape.h"
#include "engine/params.h"

namespace xlstm::gpu::engine {

template <int kLanes>
XLSTM_DEVICE float sum_over_lanes(float x) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}
XLSTM_DEVICE float sum_of_squares(const float (&x)[kVec8]) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kVec8; ++e) sum = __builtin_fmaf(x[e], x[e], sum);
  return sum;
}
XLSTM_DEVICE void read_vec8(const float* from, float (&to)[kVec8]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Vec16 vec4 = read_vec16(from + 4 * h);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[4 * h + e] = as_float(vec4.word[e]);
  }
}

// 8 weights of a norm, of 2 or 4 bytes each.
struct NormVec8 {
  Vec16 data[2];

  XLSTM_DEVICE void fetch(const DeviceVector& from, int k) {
    const bool is_float = from.dtype == XLSTM_FLOAT32;
    const char* const at = static_cast<const char*>(from.data) + k * (is_float ? 4 : 2);
    data[0] = read_vec16(at);
    data[1] = read_vec16(at + (is_float ? 16 : 0));
  }
  XLSTM_DEVICE void multiply(xlstm_dtype dtype, float (&y)[kVec8]) const {
    if (dtype == XLSTM_FLOAT32) {
#pragma unroll
      for (int e = 0; e < kVec8; ++e) y[e] *= as_float(data[e / 4].word[e % 4]);
      return;
    }
    const bool is_bfloat16 = dtype == XLSTM_BFLOAT16;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t pair = data[0].word[w];
      y[2 * w] *= is_bfloat16 ? low_float(BFloat16{}, pair) : low_float(Float16{}, pair);
      y[2 * w + 1] *= is_bfloat16 ? high_float(BFloat16{}, pair) : high_float(Float16{}, pair);
    }
  }
};

}  // namespace xlstm::gpu::engine
