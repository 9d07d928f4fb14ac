// SPDX-License-Identifier: Apache-2.0
// Prologue and epilogue of the decode step's matrix products on a GPU, shared by all of its kernels. Prologue: the RMS
// norm of x. Epilogue: bias, soft caps, masks of gates, residuals, SwiGLU.
#pragma once

#include "arch/fragments.h"
#include "arch/operands.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

constexpr int kEngineThreads = 256, kWaves = kEngineThreads / kWave;

XLSTM_DEVICE float value_of(const DeviceVector& x, int64_t at) {
  if (x.dtype == XLSTM_FLOAT32) return static_cast<const float*>(x.data)[at];
  if (x.dtype == XLSTM_BFLOAT16) return to_float(static_cast<const BFloat16*>(x.data)[at]);
  return to_float(static_cast<const Float16*>(x.data)[at]);
}

XLSTM_DEVICE float wave_sum(float x) {
#pragma unroll
  for (int mask = kWave / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}

XLSTM_DEVICE float sigmoid_of(float x) { return 1 / (1 + exp2_fast(-kLog2E * x)); }
XLSTM_DEVICE float soft_capped(float x, float cap) {
  return cap == 0 ? x : cap * (1 - 2 / (exp2_fast(2 * kLog2E / cap * x) + 1));
}

// kEmpty is itself a NaN: a result with exactly its bits becomes a different NaN, so that every result can be
// published.
XLSTM_DEVICE float not_empty(float x) { return as_bits(x) == kEmpty ? as_float(0x7fffffffu) : x; }

// ---- vec8s: 8 features of x in a thread's registers

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

// Two floats as the sums of two bfloat16 each: packed upper parts, and packed lower parts, which have what the upper
// parts' rounding left.
XLSTM_DEVICE void split_bfloat16(float low, float high, uint32_t& upper, uint32_t& lower) {
  upper = pack(BFloat16{}, low, high);
  lower = pack(BFloat16{}, low - low_float(BFloat16{}, upper), high - high_float(BFloat16{}, upper));
}

// ---- prologue: an RMS norm's factor of each x, 1 / sqrt(mean(x^2) + eps)

// A wave sums up the squares of kVectorsAtOnce x's at a time, so that it waits for memory once for all of them.
template <int kVectorsAtOnce>
XLSTM_DEVICE void measure_rms(const GemmParams& p, int first, int count, float* rms_factor) {
  for (int b = wave_id(); b < count; b += kWaves * kVectorsAtOnce) {
    const float* x[kVectorsAtOnce];
    float squares[kVectorsAtOnce] = {};
#pragma unroll
    for (int j = 0; j < kVectorsAtOnce; ++j)  // past the last x, the first again
      x[j] = p.x + int64_t(first + (b + j * kWaves < count ? b + j * kWaves : b)) * p.columns;
#pragma unroll 4
    for (int k = lane_id(); k < p.columns; k += kWave)
#pragma unroll
      for (int j = 0; j < kVectorsAtOnce; ++j) squares[j] += x[j][k] * x[j][k];
#pragma unroll
    for (int j = 0; j < kVectorsAtOnce; ++j) {
      squares[j] = wave_sum(squares[j]);
      if (lane_id() == 0 && b + j * kWaves < count)
        rms_factor[b + j * kWaves] = 1 / __builtin_sqrtf(squares[j] / float(p.columns) + p.norm_eps);
    }
  }
}

template <Input kInput>
XLSTM_DEVICE float input_value(const GemmParams& p, int first, int b, int k, const float* rms_factor) {
  const float x = p.x[int64_t(first + b) * p.columns + k];
  return kInput == Input::plain ? x : x * rms_factor[b] * value_of(p.weight, k);
}

// ---- epilogue

// The soft cap and the mask of skipped rows of a linear's outputs.
struct CapAndMask {
  float cap, masked;
  const uint8_t* keep;

  XLSTM_DEVICE static CapAndMask of(const GemmParams& p, int linear) {
    const bool gate = linear >= kFirstGate;
    return {gate || p.cap_all ? p.cap : 0, linear == kFirstGate ? kMaskedInputGate : kMaskedForgetGate,
            gate ? p.keep : nullptr};
  }
  // Of y, the output of a row of the batch.
  XLSTM_DEVICE float apply(int b, float y) const { return apply_to(!keep || keep[b], y); }
  XLSTM_DEVICE float apply_to(bool kept, float y) const { return kept ? soft_capped(y, cap) : masked; }
};
XLSTM_DEVICE float cap_and_mask(const GemmParams& p, int linear, int b, float y) {
  return CapAndMask::of(p, linear).apply(b, y);
}
// Stores y so, or adds it to the residual. For SwiGLU, y already combines the gate and up outputs.
XLSTM_DEVICE void store_output(const GemmParams& p, Output output, int linear, int row, int b, float y) {
  float& output_at = p.to[linear][int64_t(b) * p.linear[linear].rows + row];
  if (output == Output::add)
    output_at += y;
  else
    output_at = output == Output::store ? cap_and_mask(p, linear, b, y) : y;
}

XLSTM_DEVICE float swiglu(float gate, float up) { return gate * sigmoid_of(gate) * up; }

}  // namespace xlstm::gpu::engine
