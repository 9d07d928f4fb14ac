// SPDX-License-Identifier: Apache-2.0
// What stands before and after the products of a step on a GPU, for every kernel that makes them: RMS norms of x's, and
// what becomes of a product: bias, caps, masks, residuals.
#pragma once

#include "arch/fragments.h"
#include "engine/params.h"

namespace xlstm::gpu::engine {

constexpr int kProductThreads = 256, kWaves = kProductThreads / kWave;

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
XLSTM_DEVICE float capped(float x, float cap) {
  return cap == 0 ? x : cap * (1 - 2 / (exp2_fast(2 * kLog2E / cap * x) + 1));
}

// x, which a NaN that looks as if it were absent is not: it becomes another.
XLSTM_DEVICE float present(float x) { return as_bits(x) == kAbsent ? as_float(0x7fffffffu) : x; }

// ---- what an RMS norm needs of each x: the inverse of its root mean square

// A wave measures kTogether x's side by side, so that it waits for memory once for all of them.
template <int kTogether>
XLSTM_DEVICE void measure(const ProductParams& p, int first, int count, float* inverse) {
  for (int b = wave_id(); b < count; b += kWaves * kTogether) {
    const float* x[kTogether];
    float squares[kTogether] = {};
#pragma unroll
    for (int j = 0; j < kTogether; ++j)  // beyond the last, the first again
      x[j] = p.x + int64_t(first + (b + j * kWaves < count ? b + j * kWaves : b)) * p.columns;
#pragma unroll 4
    for (int k = lane_id(); k < p.columns; k += kWave)
#pragma unroll
      for (int j = 0; j < kTogether; ++j) squares[j] += x[j][k] * x[j][k];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      squares[j] = wave_sum(squares[j]);
      if (lane_id() == 0 && b + j * kWaves < count)
        inverse[b + j * kWaves] = 1 / __builtin_sqrtf(squares[j] / float(p.columns) + p.norm_eps);
    }
  }
}

template <Input kInput>
XLSTM_DEVICE float input_value(const ProductParams& p, int first, int b, int k, const float* inverse) {
  const float x = p.x[int64_t(first + b) * p.columns + k];
  return kInput == Input::plain ? x : x * inverse[b] * value_of(p.weight, k);
}

// ---- what becomes of a product

// y of a row of a piece, with caps and masks.
XLSTM_DEVICE float stored(const ProductParams& p, int piece, int b, float y) {
  const bool gate = piece >= kFirstGate, keep = !p.keep || p.keep[b];
  const float capped_y = gate || p.cap_all ? capped(y, p.cap) : y;
  return gate && !keep ? (piece == kFirstGate ? kMaskedInputGate : kMaskedForgetGate) : capped_y;
}
// Stored so, or added. Of SwiGLU `y` is the product of both sides.
XLSTM_DEVICE void put(const ProductParams& p, Output output, int piece, int row, int b, float y) {
  float& place = p.to[piece][int64_t(b) * p.linear[piece].rows + row];
  if (output == Output::add)
    place += y;
  else
    place = output == Output::store ? stored(p, piece, b, y) : y;
}

XLSTM_DEVICE float swiglu(float gate, float up) { return gate * sigmoid_of(gate) * up; }

}  // namespace xlstm::gpu::engine
