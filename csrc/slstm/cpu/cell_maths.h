// SPDX-License-Identifier: Apache-2.0
// The functions of slstm/recurrence.h on a CPU's vectors.
#pragma once

#include "arch/cpu/vector.h"
#include "slstm/recurrence.h"

namespace xlstm::XLSTM_ISA::slstm {

template <class T>
struct VectorMaths {
  using V = Vec<T>;
  static V of(T x) { return broadcast(x); }
  static V exp(V x) { return XLSTM_ISA::exp(x); }
  static V tanh(V x) { return XLSTM_ISA::tanh(x); }
  static V divide(V x, V y) { return x / y; }
  static V sigmoid(V x) { return T(1) / (T(1) + exp(-x)); }
  static V gated_ratio(V gate, V c, V n, V& open) {
    open = sigmoid(gate);
    return open * (c / n);
  }
  // min(x, 0) - log(1 + e^-|x|), where log(1 + e) is 2 atanh(e / (2 + e)), a series in a number of at most 1/3.
  static V log_sigmoid(V x, V& slope) {
    const V e = exp(x > 0 ? -x : x), smaller = e / (T(1) + e);
    slope = x > 0 ? smaller : T(1) - smaller;
    V rest;
    if constexpr (sizeof(T) == 8) {
      for (int j = 0; j < kLanes<T>; ++j) rest[j] = ::log1p(e[j]);
    } else {
      const V s = e / (e + 2.f), z = s * s;
      V p = broadcast(2.f / 15);
      p = p * z + 2.f / 13;
      p = p * z + 2.f / 11;
      p = p * z + 2.f / 9;
      p = p * z + 2.f / 7;
      p = p * z + 2.f / 5;
      p = p * z + 2.f / 3;
      rest = s * (z * p + 2.f);
    }
    return (x > 0 ? V{} : x) - rest;
  }
};

}  // namespace xlstm::XLSTM_ISA::slstm
