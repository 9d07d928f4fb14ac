// SPDX-License-Identifier: Apache-2.0
// Eight x's of a thread on their way to products: from memory, times a norm's weights, summed up over lanes.
#pragma once

#include "arch/operands.h"
#include "engine/gemm_mma/gemm_mma_shape.h"
#include "engine/params.h"

namespace xlstm::gpu::engine {

template <int kLanes>
XLSTM_DEVICE float over_lanes(float x) {
#pragma unroll
  for (int mask = 1; mask < kLanes; mask *= 2) x += shuffle_xor(x, mask);
  return x;
}
XLSTM_DEVICE float sum_of_squares(const float (&x)[kEight]) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kEight; ++e) sum = __builtin_fmaf(x[e], x[e], sum);
  return sum;
}
XLSTM_DEVICE void read_eight(const float* from, float (&to)[kEight]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Vec16 four = read_vec16(from + 4 * h);
#pragma unroll
    for (int e = 0; e < 4; ++e) to[4 * h + e] = as_float(four.word[e]);
  }
}

// Eight of a norm's weights, halves or floats.
struct NormEight {
  Vec16 piece[2];

  XLSTM_DEVICE void fetch(const DeviceVector& from, int k) {
    const bool floats = from.dtype == XLSTM_FLOAT32;
    const char* const at = static_cast<const char*>(from.data) + k * (floats ? 4 : 2);
    piece[0] = read_vec16(at);
    piece[1] = read_vec16(at + (floats ? 16 : 0));
  }
  XLSTM_DEVICE void multiply(xlstm_dtype dtype, float (&y)[kEight]) const {
    if (dtype == XLSTM_FLOAT32) {
#pragma unroll
      for (int e = 0; e < kEight; ++e) y[e] *= as_float(piece[e / 4].word[e % 4]);
      return;
    }
    const bool brain = dtype == XLSTM_BFLOAT16;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t both = piece[0].word[w];
      y[2 * w] *= brain ? low_float(BFloat16{}, both) : low_float(Float16{}, both);
      y[2 * w + 1] *= brain ? high_float(BFloat16{}, both) : high_float(Float16{}, both);
    }
  }
};

}  // namespace xlstm::gpu::engine
