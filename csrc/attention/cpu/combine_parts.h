// SPDX-License-Identifier: Apache-2.0
// Parts of a row of attention made one, on a CPU.
#pragma once

#include "attention/combine.h"
#include "tile/cpu_panels.h"

namespace xlstm::XLSTM_ISA::attention {

// out[0 .. dv) from `splits` parts, their rows and lse a step apart; parts without keys do not count. Returns the lse,
// -infinity where no part counts.
template <class T>
inline T combine_row(const T* parts, int64_t step, const T* lse, int64_t lse_step, int64_t splits, int64_t dv, T* out) {
  double most = -__builtin_inf(), sum = 0;
  for (int64_t s = 0; s < splits; ++s)
    if (has_keys(lse[s * lse_step]) && !(double(lse[s * lse_step]) <= most)) most = double(lse[s * lse_step]);
  for (int64_t j = 0; j < dv; ++j) out[j] = 0;
  for (int64_t s = 0; s < splits; ++s) {
    if (!has_keys(lse[s * lse_step])) continue;
    const double weight = ::exp(double(lse[s * lse_step]) - most);
    const T* part = parts + s * step;
    for (int64_t j = 0; j < dv; ++j) out[j] += T(weight) * part[j];
    sum += weight;
  }
  if (sum == 0) return -T(__builtin_inff());
  const T inverse = T(1 / sum);
  for (int64_t j = 0; j < dv; ++j) out[j] *= inverse;
  return T(most + ::log(sum));
}

// Of one head of a forward call, with its sink or without.
template <class T>
inline WithSink<double> whole_row(const xlstm_attention_forward& p, int64_t head, T keys) {
  if (!p.in.sink) return without_sink(double(keys));
  return with_sink(double(keys), double(static_cast<const T*>(p.in.sink)[head]), p.lse_with_sink != 0);
}

}  // namespace xlstm::XLSTM_ISA::attention
