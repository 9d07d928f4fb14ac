// SPDX-License-Identifier: Apache-2.0
// What kernels that go over elements take of a GPU beside arch/gpu.h: short instructions for what memory must hide.
#pragma once

#include "arch/pieces.h"

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

// Of each half, where the GPU has an instruction for two.
XLSTM_DEVICE uint32_t greater_halves(Float16, uint32_t x, uint32_t y) {
#if defined(__CUDACC__)
  return greater_float16(x, y);
#else
  typedef _Float16 Pair __attribute__((ext_vector_type(2)));
  const Pair greater = __builtin_elementwise_max(__builtin_bit_cast(Pair, x), __builtin_bit_cast(Pair, y));
  return __builtin_bit_cast(uint32_t, greater);
#endif
}
#if defined(__CUDACC__)
XLSTM_DEVICE uint32_t times_halves(Float16, uint32_t x, uint32_t y) { return multiply_float16(x, y); }
XLSTM_DEVICE uint32_t times_halves(BFloat16, uint32_t x, uint32_t y) { return multiply_bfloat16(x, y); }
XLSTM_DEVICE uint32_t plus_halves(Float16, uint32_t x, uint32_t y) { return add_float16(x, y); }
XLSTM_DEVICE uint32_t plus_halves(BFloat16, uint32_t x, uint32_t y) { return add_bfloat16(x, y); }
XLSTM_DEVICE uint32_t greater_halves(BFloat16, uint32_t x, uint32_t y) { return greater_bfloat16(x, y); }
#endif
template <class E>
constexpr bool kHasGreaterHalves = requires(uint32_t x) { greater_halves(E{}, x, x); };

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

// The greatest element; NaN counts for nothing.
template <class E>
XLSTM_DEVICE float greatest(E e, const Piece& piece) {
  const uint32_t* w = piece.word;
  if constexpr (sizeof(E) == 4) {
    return greater(greater(as_float(w[0]), as_float(w[1])), greater(as_float(w[2]), as_float(w[3])));
  } else if constexpr (kHasGreaterHalves<E>) {
    const uint32_t most = greater_halves(e, greater_halves(e, w[0], w[1]), greater_halves(e, w[2], w[3]));
    return greater(low_float(e, most), high_float(e, most));
  } else {
    float most = greater(low_float(e, w[0]), high_float(e, w[0]));
#pragma unroll
    for (int j = 1; j < 4; ++j) most = greater(most, greater(low_float(e, w[j]), high_float(e, w[j])));
    return most;
  }
}

}  // namespace xlstm::gpu
