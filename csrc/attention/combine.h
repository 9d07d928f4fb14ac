// SPDX-License-Identifier: Apache-2.0
// Scalar rules, for the host and for GPU kernels, that combine attention over parts of the keys (split-KV), and the
// rule for attention sinks. A part without keys has an infinite lse, of either sign, and has no weight.
#pragma once

#include <math.h>

#include "attention/rules.h"

namespace xlstm {

template <class T>
XLSTM_RULE bool has_keys(T lse) {
  return lse != T(__builtin_inff()) && lse != -T(__builtin_inff());
}
// The lse that a caller sees: +infinity where there are no keys.
template <class T>
XLSTM_RULE T seen_lse(T lse) {
  return lse == -T(__builtin_inff()) ? T(__builtin_inff()) : lse;
}

// A head's sink is a key without a value. For a row whose keys have the log sum `keys` (-infinity: no keys) the sink
// gives a factor for the row's out, the log of the sum that includes the sink, and the lse that a caller sees.
template <class T>
struct WithSink {
  T factor, log_sum, lse;
};
template <class T>
XLSTM_RULE WithSink<T> with_sink(T keys, T sink, bool lse_with_sink) {
  const T max = keys > sink ? keys : sink, none = -T(__builtin_inff());
  const T log_sum = max == none ? none : max + T(::log(::exp(keys - max) + ::exp(sink - max)));
  return {log_sum == none ? T(0) : T(::exp(keys - log_sum)), log_sum, seen_lse(lse_with_sink ? log_sum : keys)};
}
template <class T>
XLSTM_RULE WithSink<T> without_sink(T keys) {
  return {T(1), keys, seen_lse(keys)};
}

}  // namespace xlstm
