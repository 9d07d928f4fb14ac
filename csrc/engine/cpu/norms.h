// SPDX-License-Identifier: Apache-2.0
// The norms and activations of a decode step on a CPU. Rows are floats, padded with zeros to whole vectors.
#pragma once

#include "engine/cpu/gemv.h"

namespace xlstm::XLSTM_ISA::engine {

inline float sum_of(Floats x) { return lane_sums<1>(&x)[0]; }

XLSTM_ALWAYS_INLINE Floats sigmoid(Floats x) { return 1.f / (1.f + exp(-x)); }

// Replaces the n values at x by f(vector).
template <class F>
XLSTM_ALWAYS_INLINE void in_place(float* x, int64_t n, F&& f) {
  int64_t j = 0;
  for (; j + kWide <= n; j += kWide) store(x + j, f(load(x + j)));
  if (j == n) return;
  float rest[kWide] = {};
  memcpy(rest, x + j, size_t(n - j) * sizeof(float));
  store(rest, f(load(rest)));
  memcpy(x + j, rest, size_t(n - j) * sizeof(float));
}

inline void soft_cap(float* x, int64_t n, float cap) {
  if (cap != 0) in_place(x, n, [&](Floats y) XLSTM_INLINED { return cap * tanh(y / cap); });
}

// Widens n features to floats, padded with zeros to `padded`; default_value everywhere if v has no data.
inline void widen_vector(float* to, const xlstm_vector& v, int64_t n, int64_t padded, float default_value) {
  if (v.data)
    load_row(to, v.data, v.dtype, 0, n);
  else
    for (int64_t j = 0; j < n; ++j) to[j] = default_value;
  for (int64_t j = n; j < padded; ++j) to[j] = 0;
}

// to = x / rms(x) * weight + bias over n features; x, weight and bias are zero from n to `padded`.
inline void rms_norm(float* to, const float* x, const float* weight, const float* bias, int64_t n, int64_t padded,
                     double eps) {
  Floats squares = {};
  for (int64_t j = 0; j < padded; j += kWide) squares = add_product(squares, load(x + j), load(x + j));
  const float scale = float(1 / ::sqrt(double(sum_of(squares)) / double(n) + eps));
  for (int64_t j = 0; j < padded; j += kWide) store(to + j, load(x + j) * scale * load(weight + j) + load(bias + j));
}

// to = (h - mean) / deviation * weight + bias of one head's n features.
inline void head_norm(float* to, const float* h, const float* weight, const float* bias, int64_t n, double eps) {
  Floats sums = {};
  int64_t vector_end = n / kWide * kWide;
  for (int64_t j = 0; j < vector_end; j += kWide) sums += load(h + j);
  double total = sum_of(sums);
  for (int64_t j = vector_end; j < n; ++j) total += h[j];
  const float mean = float(total / double(n));
  Floats squares = {};
  for (int64_t j = 0; j < vector_end; j += kWide)
    squares = add_product(squares, load(h + j) - mean, load(h + j) - mean);
  double spread = sum_of(squares);
  for (int64_t j = vector_end; j < n; ++j) spread += double(h[j] - mean) * double(h[j] - mean);
  const float scale = float(1 / ::sqrt(spread / double(n) + eps));
  for (int64_t j = 0; j < n; ++j) to[j] = (h[j] - mean) * scale * weight[j] + bias[j];
}

}  // namespace xlstm::XLSTM_ISA::engine
