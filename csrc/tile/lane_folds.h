// SPDX-License-Identifier: Apache-2.0
// Sums, or maxima, of the lanes of vectors, several vectors at a time.
#pragma once

#include <utility>

#include "tile/cpu_panels.h"

namespace xlstm::XLSTM_ISA {

// Lane l of the result is a[l] and a[l ^ H] folded if l lacks bit H, else the same of b.
template <int H, class F, int... L>
XLSTM_ALWAYS_INLINE Vec<float> fold_pairs(Vec<float> a, Vec<float> b, F&& fold, std::integer_sequence<int, L...>) {
  constexpr int n = sizeof...(L);
  const Vec<float> same_lane = __builtin_shufflevector(a, b, ((L & H) ? L + n : L)...);
  const Vec<float> swapped_lane = __builtin_shufflevector(a, b, ((L & H) ? (L ^ H) + n : (L ^ H))...);
  return fold(same_lane, swapped_lane);
}

// Lane l of the result is all lanes of x[l % N], folded in the same order for every N, a power of two.
template <int N, int H = 1, class F>
XLSTM_ALWAYS_INLINE Vec<float> fold_lanes(const Vec<float>* x, F&& fold) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes<float>>{};
  if constexpr (H == kLanes<float>) {
    return x[0];
  } else if constexpr (N == 1) {
    const Vec<float> one = fold_pairs<H>(x[0], x[0], fold, lanes);
    return fold_lanes<1, H * 2>(&one, fold);
  } else {
    Vec<float> half[N / 2];
    XLSTM_UNROLL for (int j = 0; j < N / 2; ++j) half[j] = fold_pairs<H>(x[2 * j], x[2 * j + 1], fold, lanes);
    return fold_lanes<N / 2, H * 2>(half, fold);
  }
}

template <int N>
XLSTM_ALWAYS_INLINE Vec<float> lane_sums(const Vec<float>* x) {
  return fold_lanes<N>(x, [](Vec<float> a, Vec<float> b) XLSTM_INLINED { return a + b; });
}
template <int N>
XLSTM_ALWAYS_INLINE Vec<float> lane_maxima(const Vec<float>* x) {
  return fold_lanes<N>(x, [](Vec<float> a, Vec<float> b) XLSTM_INLINED { return max(a, b); });
}

}  // namespace xlstm::XLSTM_ISA
