// SPDX-License-Identifier: Apache-2.0
// Packs x for gemm_cdna_kernel: once a product, each float, times a norm's weight, becomes two bfloat16 or three digits
// at the place where a wave's lane reads them (gemm_cdna_shape.h). A block packs one row of the batch, and computes its
// RMS norm's factor; eight neighbouring lanes have a step.
#pragma once

#include "engine/gemm_cdna/gemm_cdna_shape.h"
#include "engine/gpu/prologue_epilogue.h"
#include "engine/gpu/x_digits.h"

namespace xlstm::gpu::engine {

constexpr int kPackCdnaThreads = 1024;

struct PackCdnaParams {
  GemmParams product;
  int bits, batch;  // of the weights, whose order of features x has; the rows of x that are packed together
  bool gates;       // x is packed a second time, for bfloat16 gates
};

// kDigits, kGroups: of the weights.
template <bool kDigits, bool kGroups>
struct CdnaPacker {
  static constexpr int kStepVec8s = kStepFeatures / kVec8;

  const PackCdnaParams& p;
  int b;

  XLSTM_DEVICE void run(float* squares) const {
    const GemmParams& product = p.product;
    const bool normed = product.input == Input::rms;
    const int vec8s = packed_x_steps(p.bits, product.columns) * kStepVec8s;
    float square_sum = 0;
#pragma unroll 1
    for (int v = int(threadIdx.x); v < vec8s; v += kPackCdnaThreads) {
      const int k = v * kVec8;
      const bool inside = k < product.columns && b < product.batch;
      float y[kVec8];
      NormVec8 weight;
      read_vec8(product.x + (inside ? int64_t(b) * product.columns + k : 0), y);
      if (normed) weight.fetch(product.weight, inside ? k : 0);
#pragma unroll
      for (float& value : y) value = inside ? value : 0.0f;
      square_sum += sum_of_squares(y);
      if (normed && inside) weight.multiply(product.weight.dtype, y);
      store(y, v);
    }
    if (normed) store_factor(square_sum, squares);
  }
  XLSTM_DEVICE void store_factor(float square_sum, float* squares) const {
    square_sum = wave_sum(square_sum);
    if (lane_id() == 0) squares[wave_id()] = square_sum;
    __syncthreads();
    if (threadIdx.x != 0 || b >= p.product.batch) return;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kPackCdnaThreads / kWave; ++n) sum += squares[n];
    p.product.packed.rms_factors[b] = 1 / __builtin_sqrtf(sum / float(p.product.columns) + p.product.norm_eps);
  }
  XLSTM_DEVICE char* step_at(char* packed, int bits, bool digits, bool groups, int step) const {
    const int64_t steps = int64_t(b / p.batch) * packed_x_steps(bits, p.product.columns) + step;
    return packed + steps * x_step_bytes(digits, groups, p.batch);
  }
  XLSTM_DEVICE void store(const float (&y)[kVec8], int v) const {
    char* const to = step_at(p.product.packed.x[0], p.bits, kDigits, kGroups, v / kStepVec8s);
    float scale = 1, sum = 0;
    if constexpr (kDigits) {
      const Vec8Coord at = vec8_coord(Family::cdna, p.bits, v % kStepVec8s);
      const XDigits of = digits_of(y);
      scale = of.scale, sum = of.sum;
#pragma unroll
      for (int n = 0; n < kXDigits; ++n)
        *reinterpret_cast<uint64_t*>(to + x_offset(true, p.batch, at, b % p.batch, n)) =
            of.word[n][0] | uint64_t(of.word[n][1]) << 32;
    } else {
      sum = store_parts<kGroups ? 8 : 16>(y, to, v);
    }
    if constexpr (!kGroups) return;
    if (v % kStepVec8s == 0) {
      float* const scales = reinterpret_cast<float*>(to + x_operand_bytes(kDigits, p.batch)) + b % p.batch;
      scales[0] = scale, scales[p.batch] = sum;
    }
    if (p.gates) store_parts<16>(y, step_at(p.product.packed.x[1], 16, false, false, v / kStepVec8s), v);
  }
  // Returns the sum of the step's parts.
  template <int kBits>
  XLSTM_DEVICE float store_parts(const float (&y)[kVec8], char* to, int v) const {
    const Vec8Coord at = vec8_coord(Family::cdna, kBits, v % kStepVec8s);
    Vec16 part[2];
#pragma unroll
    for (int w = 0; w < 4; ++w)
      split_bfloat16(y[vec8_feature(kBits, 2 * w)], y[vec8_feature(kBits, 2 * w + 1)], part[0].word[w],
                     part[1].word[w]);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      *reinterpret_cast<Vec16*>(to + x_offset(false, p.batch, at, b % p.batch, n)) = part[n];
#pragma unroll
      for (const uint32_t word : part[n].word) sum += low_float(BFloat16{}, word) + high_float(BFloat16{}, word);
    }
    return kBits < 16 ? sum_over_lanes<kStepVec8s>(sum) : sum;
  }
};

// LDS: a float for each wave.
template <bool kDigits, bool kGroups>
__global__ __launch_bounds__(kPackCdnaThreads) void pack_cdna_kernel(XLSTM_PARAM PackCdnaParams kernel_arg) {
  if constexpr (kFamily == Family::cdna) {
    extern __shared__ __align__(16) char lds[];
    const CdnaPacker<kDigits, kGroups> packer{*kernel_params(kernel_arg), int(blockIdx.x)};
    packer.run(reinterpret_cast<float*>(lds));
  }
}

}  // namespace xlstm::gpu::engine
