// SPDX-License-Identifier: Apache-2.0
// What parts of attention over parts of the keys say together, and what a sink adds; scalar rules for the host and for
// GPU kernels. A part without keys has an infinite lse, of either sign, and counts for nothing.
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

// What a head's sink, a key without a value, makes of a row whose keys have the log sum `keys` (-infinity: none): a
// factor of its out, the log of its whole sum, and the lse that a caller sees.
template <class T>
struct WithSink {
  T factor, whole, lse;
};
template <class T>
XLSTM_RULE WithSink<T> with_sink(T keys, T sink, bool lse_with_sink) {
  const T top = keys > sink ? keys : sink, none = -T(__builtin_inff());
  const T whole = top == none ? none : top + T(::log(::exp(keys - top) + ::exp(sink - top)));
  return {whole == none ? T(0) : T(::exp(keys - whole)), whole, seen_lse(lse_with_sink ? whole : keys)};
}
template <class T>
XLSTM_RULE WithSink<T> without_sink(T keys) {
  return {T(1), keys, seen_lse(keys)};
}

}  // namespace xlstm
