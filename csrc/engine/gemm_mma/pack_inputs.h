// SPDX-License-Identifier: Apache-2.0
// Packs x for gemm_stream_k_kernel on NVIDIA: once a product, each float, times a norm's weight, becomes
// the sum of two bfloat16 at the place where a warp's lane reads them (engine/gemm_mma/gemm_mma_shape.h). A block packs
// one row of the batch, and computes its RMS norm's factor in the order of sums of gemm_mma_kernel for one row.
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "engine/gemm_mma/gemm_mma_inputs.h"

namespace xlstm::gpu::engine {

constexpr int kPackThreads = 1024;

struct PackParams {
  GemmParams product;
  int bits;        // of the weights, whose order of features x has
  int block_rows;  // of the batch, which are packed together
  bool gates;      // x is packed a second time, for bfloat16 gates
};

// Splits 8 features of x.
template <int kBits>
XLSTM_DEVICE void split_vec8(const float (&y)[kVec8], Vec16& upper, Vec16& lower) {
#pragma unroll
  for (int w = 0; w < 4; ++w)
    split_bfloat16(y[vec8_feature(kBits, 2 * w)], y[vec8_feature(kBits, 2 * w + 1)], upper.word[w], lower.word[w]);
}
// The sum of a step's split x, in the lanes that have the step.
XLSTM_DEVICE float step_sum_of(const Vec16& upper, const Vec16& lower) {
  float partial = 0;
#pragma unroll
  for (int w = 0; w < 4; ++w)
    partial += (low_float(BFloat16{}, upper.word[w]) + low_float(BFloat16{}, lower.word[w])) +
               (high_float(BFloat16{}, upper.word[w]) + high_float(BFloat16{}, lower.word[w]));
  return sum_over_lanes<kStepFeatures / kVec8>(partial);
}

// kQuantised: of the weights. A block runs its code once, from a cold instruction cache: short code is fast code.
template <bool kQuantised>
struct InputPacker {
  static constexpr int kStepVec8s = kStepFeatures / kVec8, kChunkVec8s = kChunkFeatures / kVec8;

  const PackParams& p;
  int b, steps;

  XLSTM_DEVICE int row() const { return b % p.block_rows; }

  XLSTM_DEVICE void run(float* squares) const {
    const GemmParams& product = p.product;
    const bool normed = product.input == Input::rms;
    const int vec8s = steps * kStepVec8s;
#pragma unroll 1
    for (int v = int(threadIdx.x); v < vec8s; v += kPackThreads) {
      const int k = v * kVec8;
      const bool inside = k < product.columns && b < product.batch;
      float y[kVec8];
      NormVec8 weight;
      read_vec8(product.x + (inside ? int64_t(b) * product.columns + k : 0), y);
      if (normed) weight.fetch(product.weight, inside ? k : 0);
#pragma unroll
      for (int e = 0; e < kVec8; ++e) y[e] = inside ? y[e] : 0.0f;
      if (normed) {
        const float square_sum = sum_over_lanes<kChunkVec8s>(sum_of_squares(y));
        if (v % kChunkVec8s == 0) squares[v / kChunkVec8s] = square_sum;
        if (inside) weight.multiply(product.weight.dtype, y);
      }
      store(y, v);
    }
    if (!normed) return;
    __syncthreads();
    if (threadIdx.x != 0 || b >= product.batch) return;
    float sum = 0;
    for (int chunk = 0; chunk < vec8s / kChunkVec8s; ++chunk) sum += squares[chunk];
    product.packed.rms_factors[b] = 1 / __builtin_sqrtf(sum / float(product.columns) + product.norm_eps);
  }
  XLSTM_DEVICE void store(const float (&y)[kVec8], int v) const {
    Vec16 upper, lower;
    split_vec8<kQuantised ? 8 : 16>(y, upper, lower);
    store_parts(p.product.packed.x[0], p.bits, v, upper, lower);
    if constexpr (kQuantised) {
      const float sum = step_sum_of(upper, lower);
      if (v % kStepVec8s == 0) store_sum(sum, v / kStepVec8s);
      if (!p.gates) return;
      split_vec8<16>(y, upper, lower);
      store_parts(p.product.packed.x[1], 16, v, upper, lower);
    }
  }
  XLSTM_DEVICE void store_sum(float sum, int step) const {
    p.product.packed.step_sums[(int64_t(b / p.block_rows) * steps + step) * p.block_rows + row()] = sum;
  }
  XLSTM_DEVICE void store_parts(char* to, int bits, int v, const Vec16& upper, const Vec16& lower) const {
    const Vec8Coord at = vec8_coord(kFamily, bits, v % kStepVec8s);
    const int64_t step = int64_t(b / p.block_rows) * steps + v / kStepVec8s;
    char* const from_step = to + step * packed_step_bytes(p.block_rows);
    const auto slot = [&](int half) {
      return reinterpret_cast<Vec16*>(from_step + packed_offset(p.block_rows, at.unit, row(), half, at.vec16));
    };
    *slot(0) = upper;
    *slot(1) = lower;
  }
};

// LDS: a float for each chunk of a row.
template <bool kQuantised>
__global__ __launch_bounds__(kPackThreads) void pack_kernel(XLSTM_PARAM PackParams kernel_arg) {
  const PackParams& p = *kernel_params(kernel_arg);
  extern __shared__ __align__(16) char lds[];
  pdl_trigger();
  pdl_wait();
  const InputPacker<kQuantised> packer{p, int(blockIdx.x), packed_steps(kFamily, p.product.columns)};
  packer.run(reinterpret_cast<float*>(lds));
}

}  // namespace xlstm::gpu::engine
