// SPDX-License-Identifier: Apache-2.0
// Loads and stores n contiguous elements of device memory in one access, aligned to their size.
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
    } bits = *reinterpret_cast<const decltype(bits)*>(from);
#pragma unroll
    for (int j = 0; j < n; ++j)
      if constexpr (sizeof(E) == 4)
        to[j] = as_float(bits.word[j]);
      else
        to[j] = j % 2 ? high_float(E{}, bits.word[j / 2]) : low_float(E{}, bits.word[j / 2]);
  }
}

// Stores n floats, rounded to nearest even.
template <class E, int n>
XLSTM_DEVICE void store_elements(E* to, const float (&from)[n]) {
  constexpr int kWords = n * int(sizeof(E)) / 4;
  if constexpr (n == 1) {
    *to = from_float<E>(from[0]);
  } else {
    struct alignas(4 * kWords) Bits {
      uint32_t word[kWords];
    } bits;
#pragma unroll
    for (int w = 0; w < kWords; ++w)
      if constexpr (sizeof(E) == 4)
        bits.word[w] = as_bits(from[w]);
      else
        bits.word[w] = pack_exact(E{}, from[2 * w], from[2 * w + 1]);
    *reinterpret_cast<Bits*>(to) = bits;
  }
}

}  // namespace xlstm::gpu
