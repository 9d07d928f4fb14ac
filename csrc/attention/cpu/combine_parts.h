// SPDX-License-Identifier: Apache-2.0
// The split-KV combination of a row of attention, on a CPU.
#pragma once

#include "attention/combine.h"
#include "tile/cpu_panels.h"

namespace xlstm::XLSTM_ISA::attention {

// Combines `splits` parts into out[0 .. dv); the rows of the parts and their lse are a step apart. Parts without keys
// do not count. Returns the lse, -infinity where no part counts.
template <class T>
inline T combine_row(const T* parts, int64_t step, const T* lse, int64_t lse_step, int64_t splits, int64_t dv, T* out) {
  double max_lse = -__builtin_inf(), sum = 0;
  for (int64_t s = 0; s < splits; ++s)
    if (has_keys(lse[s * lse_step]) && !(double(lse[s * lse_step]) <= max_lse)) max_lse = double(lse[s * lse_step]);
  for (int64_t j = 0; j < dv; ++j) out[j] = 0;
  for (int64_t s = 0; s < splits; ++s) {
    if (!has_keys(lse[s * lse_step])) continue;
    const double weight = ::exp(double(lse[s * lse_step]) - max_lse);
    const T* part = parts + s * step;
    for (int64_t j = 0; j < dv; ++j) out[j] += T(weight) * part[j];
    sum += weight;
  }
  if (sum == 0) return -T(__builtin_inff());
  const T inverse = T(1 / sum);
  for (int64_t j = 0; j < dv; ++j) out[j] *= inverse;
  return T(max_lse + ::log(sum));
}

// The lse and the factor of out for a row of one head of a forward call, with the head's sink or without one.
template <class T>
inline WithSink<double> row_with_sink(const xlstm_attention_forward& p, int64_t head, T keys) {
  if (!p.in.sink) return without_sink(double(keys));
  return with_sink(double(keys), double(static_cast<const T*>(p.in.sink)[head]), p.lse_with_sink != 0);
}

}  // namespace xlstm::XLSTM_ISA::attention
