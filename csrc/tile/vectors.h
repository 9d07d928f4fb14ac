// SPDX-License-Identifier: Apache-2.0
// n elements that lie side by side in device memory and are moved in one access, aligned to their size.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

template <class E, int n>
XLSTM_DEVICE void load_elements(const E* from, float (&to)[n]) {
  constexpr int kWords = n * int(sizeof(E)) / 4;
  if constexpr (n == 1) {
    to[0] = to_float(*from);
  } else {
    struct alignas(4 * kWords) {
      uint32_t word[kWords];
    } held = *reinterpret_cast<const decltype(held)*>(from);
#pragma unroll
    for (int j = 0; j < n; ++j)
      if constexpr (sizeof(E) == 4)
        to[j] = as_float(held.word[j]);
      else
        to[j] = j % 2 ? high_float(E{}, held.word[j / 2]) : low_float(E{}, held.word[j / 2]);
  }
}

// Rounded to nearest, even.
template <class E, int n>
XLSTM_DEVICE void store_elements(E* to, const float (&from)[n]) {
  constexpr int kWords = n * int(sizeof(E)) / 4;
  if constexpr (n == 1) {
    *to = from_float<E>(from[0]);
  } else {
    struct alignas(4 * kWords) Held {
      uint32_t word[kWords];
    } held;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      if constexpr (sizeof(E) == 4)
        held.word[w] = as_bits(from[w]);
      else
        held.word[w] = pack_exact(E{}, from[2 * w], from[2 * w + 1]);
    *reinterpret_cast<Held*>(to) = held;
  }
}

}  // namespace xlstm::gpu
