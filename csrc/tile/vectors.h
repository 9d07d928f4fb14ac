// SPDX-License-Identifier: Apache-2.0
// Loads and stores n contiguous elements of device memory in one access, and the end of a row that is no such access.
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

// n elements in the bits of memory.
template <class E, int n>
struct alignas(n * sizeof(E) < 16 ? n * sizeof(E) : 16) PackedElements {
  uint32_t word[n * sizeof(E) / 4];

  XLSTM_DEVICE E element(int j) const {
    if constexpr (sizeof(E) == 4)
      return as_float(word[j]);
    else
      return E{uint16_t(word[j / 2] >> (16 * (j % 2)))};
  }
};
// Rounds to nearest even.
template <class E, int n>
XLSTM_DEVICE PackedElements<E, n> pack_elements(const float (&from)[n]) {
  PackedElements<E, n> packed;
#pragma unroll
  for (int w = 0; w < n * int(sizeof(E)) / 4; ++w)
    if constexpr (sizeof(E) == 4)
      packed.word[w] = as_bits(from[w]);
    else
      packed.word[w] = pack_exact(E{}, from[2 * w], from[2 * w + 1]);
  return packed;
}

// Stores n floats, rounded to nearest even.
template <class E, int n>
XLSTM_DEVICE void store_elements(E* to, const float (&from)[n]) {
  if constexpr (n == 1)
    *to = from_float<E>(from[0]);
  else
    *reinterpret_cast<PackedElements<E, n>*>(to) = pack_elements<E>(from);
}

// Stores elements [column, column + n) of a row of `columns`, as far as the row has them. aligned: the row consists of
// vectors of n elements, at multiples of their size or of 16 bytes.
template <class E, int n>
XLSTM_DEVICE void store_run(E* row, int column, int columns, bool aligned, const float (&from)[n]) {
  if (column >= columns) return;
  E* to = row + column;
  const PackedElements<E, n> packed = pack_elements<E>(from);
  if (aligned) {
    *reinterpret_cast<PackedElements<E, n>*>(to) = packed;
    return;
  }
#pragma unroll
  for (int j = 0; j < n; ++j) {
    if (column + j >= columns) return;
    to[j] = packed.element(j);
  }
}

// The same where accumulators fill a wave's registers (attention's backward): each store has its own test and address.
// With store_run() clang 19 keeps float16's accumulators in other registers than products want them in, and moves them
// in every pass of the loop.
template <class E, int n>
XLSTM_DEVICE void store_run_by_tests(E* row, int column, int columns, bool aligned, const float (&from)[n]) {
  const PackedElements<E, n> packed = pack_elements<E>(from);
  if (aligned && column + n <= columns) {
    *reinterpret_cast<PackedElements<E, n>*>(row + column) = packed;
    return;
  }
#pragma unroll
  for (int j = 0; j < n; ++j)
    if (column + j < columns) row[column + j] = packed.element(j);
}

}  // namespace xlstm::gpu
