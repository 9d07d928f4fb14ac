// SPDX-License-Identifier: Apache-2.0
// What kernels that go over elements take of a GPU beside arch/fragments.h: short instructions for what memory must
// hide.
#pragma once

#include "arch/operands.h"

namespace xlstm::gpu {

// The same bits, which the compiler takes for new ones: what it made of them before it makes again, where it is used,
// rather than keep it in registers.
XLSTM_DEVICE void made_here(Piece& piece) {
#pragma unroll
  for (uint32_t& word : piece.word) word = made_here(word);
}

// 1 / x, wrong by a unit in the last place; 0 of more than 2^126.
XLSTM_DEVICE float inverse_fast(float x) {
#if defined(__CUDACC__)
  return inverse_approximate(x);
#else
  return __builtin_amdgcn_rcpf(x);
#endif
}

// 1 / sqrt(x), to the last bit or the one before.
XLSTM_DEVICE float inverse_root(float x) {
#if defined(__CUDACC__)
  const float r = inverse_root_approximate(x), closer = __builtin_fmaf(__builtin_fmaf(-x * r, r, 1.0f), 0.5f * r, r);
  return closer == closer ? closer : r;  // of zero and infinity
#else
  return 1.0f / sqrtf(x);
#endif
}

XLSTM_DEVICE float greater(float x, float y) { return __builtin_fmaxf(x, y); }
XLSTM_DEVICE float less(float x, float y) { return __builtin_fminf(x, y); }

// Of each half, where the GPU has an instruction for two.
#if defined(__CUDACC__)
XLSTM_DEVICE uint32_t greater_halves(Float16, uint32_t x, uint32_t y) { return greater_float16(x, y); }
XLSTM_DEVICE uint32_t greater_halves(BFloat16, uint32_t x, uint32_t y) { return greater_bfloat16(x, y); }
XLSTM_DEVICE uint32_t less_halves(Float16, uint32_t x, uint32_t y) { return less_float16(x, y); }
XLSTM_DEVICE uint32_t less_halves(BFloat16, uint32_t x, uint32_t y) { return less_bfloat16(x, y); }
XLSTM_DEVICE uint32_t times_halves(Float16, uint32_t x, uint32_t y) { return multiply_float16(x, y); }
XLSTM_DEVICE uint32_t times_halves(BFloat16, uint32_t x, uint32_t y) { return multiply_bfloat16(x, y); }
XLSTM_DEVICE uint32_t plus_halves(Float16, uint32_t x, uint32_t y) { return add_float16(x, y); }
XLSTM_DEVICE uint32_t plus_halves(BFloat16, uint32_t x, uint32_t y) { return add_bfloat16(x, y); }
#else
typedef _Float16 Float16Pair __attribute__((ext_vector_type(2)));
XLSTM_DEVICE uint32_t greater_halves(Float16, uint32_t x, uint32_t y) {
  return __builtin_bit_cast(
      uint32_t, __builtin_elementwise_max(__builtin_bit_cast(Float16Pair, x), __builtin_bit_cast(Float16Pair, y)));
}
XLSTM_DEVICE uint32_t less_halves(Float16, uint32_t x, uint32_t y) {
  return __builtin_bit_cast(
      uint32_t, __builtin_elementwise_min(__builtin_bit_cast(Float16Pair, x), __builtin_bit_cast(Float16Pair, y)));
}
#endif
template <class E>
constexpr bool kHasExtremesOfHalves = requires(uint32_t x) { greater_halves(E{}, x, x); };

// Products and sums of two pairs of elements, each rounded once.
template <class E>
XLSTM_DEVICE uint32_t times(E e, uint32_t x, uint32_t y) {
#if defined(__CUDACC__)
  return times_halves(e, x, y);
#else
  return pack_exact(e, low_float(e, x) * low_float(e, y), high_float(e, x) * high_float(e, y));
#endif
}
template <class E>
XLSTM_DEVICE uint32_t plus(E e, uint32_t x, uint32_t y) {
#if defined(__CUDACC__)
  return plus_halves(e, x, y);
#else
  return pack_exact(e, low_float(e, x) + low_float(e, y), high_float(e, x) + high_float(e, y));
#endif
}

// The greatest and the least of some elements; NaN counts for nothing.
struct Extremes {
  float most, least;
};
template <class E, int n>
XLSTM_DEVICE Extremes extremes(E e, const Piece (&pieces)[n]) {
  const auto word = [&](int w) { return pieces[w / 4].word[w % 4]; };
  if constexpr (sizeof(E) == 4) {
    Extremes of{as_float(word(0)), as_float(word(0))};
#pragma unroll
    for (int w = 1; w < 4 * n; ++w) of = {greater(of.most, as_float(word(w))), less(of.least, as_float(word(w)))};
    return of;
  } else if constexpr (kHasExtremesOfHalves<E>) {
    uint32_t most = word(0), least = word(0);
#pragma unroll
    for (int w = 1; w < 4 * n; ++w) most = greater_halves(e, most, word(w)), least = less_halves(e, least, word(w));
    return {greater(low_float(e, most), high_float(e, most)), less(low_float(e, least), high_float(e, least))};
  } else {
    Extremes of{low_float(e, word(0)), low_float(e, word(0))};
#pragma unroll
    for (int w = 0; w < 4 * n; ++w) {
      const float low = low_float(e, word(w)), high = high_float(e, word(w));
      of = {greater(of.most, greater(low, high)), less(of.least, less(low, high))};
    }
    return of;
  }
}

}  // namespace xlstm::gpu
