// SPDX-License-Identifier: Apache-2.0
// Parts of attention over parts of the keys, made one; and what a sink adds. For a CPU.
#pragma once

#include "tile/cpu.h"

namespace xlstm::XLSTM_ISA {

template <class T>
inline bool has_keys(T lse) {
  return lse != T(__builtin_inff()) && lse != -T(__builtin_inff());
}

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

// What a head's sink, a key without a value, makes of a row: a factor of its out, the log of its whole sum, and the lse
// that a caller sees. A row with neither keys nor sink has lse +infinity.
struct WithSink {
  double factor, whole, lse;
};
template <class T>
inline WithSink with_sink(const xlstm_attention_forward& p, int64_t head, T keys) {
  const double lse = double(keys), none = __builtin_inf();
  if (!p.in.sink) return {1, lse, lse == -none ? none : lse};
  const double sink = double(static_cast<const T*>(p.in.sink)[head]), top = lse > sink ? lse : sink;
  const double whole = top == -none ? -none : top + ::log(::exp(lse - top) + ::exp(sink - top));
  const double seen = p.lse_with_sink ? whole : lse;
  return {whole == -none ? 0 : ::exp(lse - whole), whole, seen == -none ? none : seen};
}

}  // namespace xlstm::XLSTM_ISA
