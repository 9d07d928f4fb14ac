// SPDX-License-Identifier: Apache-2.0
// What stands before and after the products of a step on a GPU, for every kernel that makes them: norms and gates of
// x's, and what becomes of a product: bias, caps, masks, residuals.
#pragma once

#include "arch/gpu.h"
#include "decode/params_gpu.h"

namespace xlstm::gpu {

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

constexpr float kLog2E = 1.44269504f;
XLSTM_DEVICE float sigmoid_of(float x) { return 1 / (1 + exp2_fast(-kLog2E * x)); }
XLSTM_DEVICE float capped(float x, float cap) {
  return cap == 0 ? x : cap * (1 - 2 / (exp2_fast(2 * kLog2E / cap * x) + 1));
}

// ---- what a norm needs of each x: its mean and the inverse of its deviation, of the whole row or of each head

struct Spread {
  float mean, inverse;
};

// A wave measures kTogether parts side by side, so that it waits for memory once for all of them, and keeps what it has
// read of parts that fit.
template <Input kInput, int kTogether>
XLSTM_DEVICE void measure(const ProductParams& p, int first, int count, Spread* spread) {
  constexpr int kKept = 16;  // of a part in each lane
  const int parts = count * (kInput == Input::heads ? p.heads : 1), size = p.columns / (parts / count);
  const bool kept = size <= kKept * kWave;
  for (int part = wave_id(); part < parts; part += kWaves * kTogether) {
    const float* x[kTogether];
    float own[kTogether][kKept], mean[kTogether] = {}, squares[kTogether] = {};
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {  // beyond the last, the first again
      x[j] = p.x + int64_t(first) * p.columns + int64_t(part + j * kWaves < parts ? part + j * kWaves : part) * size;
#pragma unroll
      for (int n = 0; n < kKept; ++n) {
        const int k = lane_id() + n * kWave;
        own[j][n] = x[j][kept && k < size ? k : 0];
      }
    }
    // f(value) of each part's, in one order whichever way.
    const auto each = [&](auto&& f) {
      if (kept) {
#pragma unroll
        for (int n = 0; n < kKept; ++n)
#pragma unroll
          for (int j = 0; j < kTogether; ++j)
            if (lane_id() + n * kWave < size) f(j, own[j][n]);
      } else {
#pragma unroll 4
        for (int k = lane_id(); k < size; k += kWave)
#pragma unroll
          for (int j = 0; j < kTogether; ++j) f(j, x[j][k]);
      }
    };
    if constexpr (kInput == Input::heads) {
      each([&](int j, float value) { mean[j] += value; });
#pragma unroll
      for (int j = 0; j < kTogether; ++j) mean[j] = wave_sum(mean[j]) / float(size);
    }
    each([&](int j, float value) { squares[j] += (value - mean[j]) * (value - mean[j]); });
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      squares[j] = wave_sum(squares[j]);
      if (lane_id() == 0 && part + j * kWaves < parts)
        spread[part + j * kWaves] = {mean[j], 1 / __builtin_sqrtf(squares[j] / float(size) + p.norm_eps)};
    }
  }
}

template <Input kInput>
XLSTM_DEVICE float input_value(const ProductParams& p, int first, int b, int k, const Spread* spread) {
  const int64_t at = int64_t(first + b) * p.columns + k;
  const float x = p.x[at];
  if constexpr (kInput == Input::plain) return x;
  const Spread s = spread[kInput == Input::heads ? b * p.heads + k / (p.columns / p.heads) : b];
  float y = (x - s.mean) * s.inverse * value_of(p.weight, k);
  if (p.bias.data) y += value_of(p.bias, k);
  return kInput == Input::heads ? y * sigmoid_of(p.gate[at]) : y;
}

// ---- what becomes of a product

// y of this row of a piece: stored, with caps and masks, or added. Of SwiGLU `y` is the product of both sides.
XLSTM_DEVICE void put(const ProductParams& p, Output output, int piece, int row, int b, float y) {
  float& place = p.to[piece][int64_t(b) * p.linear[piece].rows + row];
  if (output == Output::add) {
    place += y;
    return;
  }
  const bool gate = output == Output::store && piece >= kFirstGate, keep = !p.keep || p.keep[b];
  const float capped_y = output == Output::store && (gate || p.cap_all) ? capped(y, p.cap) : y;
  place = gate && !keep ? (piece == kFirstGate ? kMaskedInputGate : kMaskedForgetGate) : capped_y;
}

XLSTM_DEVICE float swiglu(float gate, float up) { return gate * sigmoid_of(gate) * up; }

}  // namespace xlstm::gpu
