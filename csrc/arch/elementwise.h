// SPDX-License-Identifier: Apache-2.0
// Elementwise operations beyond arch/fragments.h: short instructions, whose time the memory accesses must hide.
#pragma once

#include "arch/operands.h"

namespace xlstm::gpu {

// Makes the value opaque: the compiler computes what derives from it again where that is used (rematerialises it),
// rather than keep it in registers.
XLSTM_DEVICE void opaque(Vec16& vec) {
#pragma unroll
  for (uint32_t& word : vec.word) word = opaque(word);
}

// Stores a vector in one access. NVIDIA's compiler would store the words one by one where they are not in neighbouring
// registers.
XLSTM_DEVICE void write_vec16(void* to, const Vec16& vec) {
#if defined(__CUDACC__)
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(vec.word[0]), "r"(vec.word[1]), "r"(vec.word[2]),
               "r"(vec.word[3])
               : "memory");
#else
  *reinterpret_cast<Halves*>(to) = __builtin_bit_cast(Halves, vec);
#endif
}

// 1 / x with an error of one unit in the last place; 0 for x above 2^126.
XLSTM_DEVICE float reciprocal_fast(float x) {
#if defined(__CUDACC__)
  return rcp_approx(x);
#else
  return __builtin_amdgcn_rcpf(x);
#endif
}

// Of a normal number, with an error of 2^-22 near 1 and of two units in the last place elsewhere.
XLSTM_DEVICE float log2_fast(float x) {
#if defined(__CUDACC__)
  return __log2f(x);
#else
  return __builtin_amdgcn_logf(x);
#endif
}

// 1 / sqrt(x), exact up to the last bit or the one before.
XLSTM_DEVICE float reciprocal_sqrt(float x) {
#if defined(__CUDACC__)
  const float r = rsqrt_approx(x), corrected = __builtin_fmaf(__builtin_fmaf(-x * r, r, 1.0f), 0.5f * r, r);
  return corrected == corrected ? corrected : r;  // for zero and infinity
#else
  return 1.0f / sqrtf(x);
#endif
}

XLSTM_DEVICE float max_num(float x, float y) { return __builtin_fmaxf(x, y); }
XLSTM_DEVICE float min_num(float x, float y) { return __builtin_fminf(x, y); }

// Packed operations on both halves of a register, where the GPU has an instruction for two.
#if defined(__CUDACC__)
XLSTM_DEVICE uint32_t max_num_x2(Float16, uint32_t x, uint32_t y) { return max_float16(x, y); }
XLSTM_DEVICE uint32_t max_num_x2(BFloat16, uint32_t x, uint32_t y) { return max_bfloat16(x, y); }
XLSTM_DEVICE uint32_t min_num_x2(Float16, uint32_t x, uint32_t y) { return min_float16(x, y); }
XLSTM_DEVICE uint32_t min_num_x2(BFloat16, uint32_t x, uint32_t y) { return min_bfloat16(x, y); }
XLSTM_DEVICE uint32_t mul_x2(Float16, uint32_t x, uint32_t y) { return multiply_float16(x, y); }
XLSTM_DEVICE uint32_t mul_x2(BFloat16, uint32_t x, uint32_t y) { return multiply_bfloat16(x, y); }
XLSTM_DEVICE uint32_t add_x2(Float16, uint32_t x, uint32_t y) { return add_float16(x, y); }
XLSTM_DEVICE uint32_t add_x2(BFloat16, uint32_t x, uint32_t y) { return add_bfloat16(x, y); }
#else
typedef _Float16 Float16Pair __attribute__((ext_vector_type(2)));
XLSTM_DEVICE uint32_t max_num_x2(Float16, uint32_t x, uint32_t y) {
  return __builtin_bit_cast(
      uint32_t, __builtin_elementwise_max(__builtin_bit_cast(Float16Pair, x), __builtin_bit_cast(Float16Pair, y)));
}
XLSTM_DEVICE uint32_t min_num_x2(Float16, uint32_t x, uint32_t y) {
  return __builtin_bit_cast(
      uint32_t, __builtin_elementwise_min(__builtin_bit_cast(Float16Pair, x), __builtin_bit_cast(Float16Pair, y)));
}
#endif
template <class E>
constexpr bool kHasMinMaxX2 = requires(uint32_t x) { max_num_x2(E{}, x, x); };

// Products and sums of two pairs of elements, each rounded once.
template <class E>
XLSTM_DEVICE uint32_t mul_pair(E e, uint32_t x, uint32_t y) {
#if defined(__CUDACC__)
  return mul_x2(e, x, y);
#else
  return pack_exact(e, low_float(e, x) * low_float(e, y), high_float(e, x) * high_float(e, y));
#endif
}
template <class E>
XLSTM_DEVICE uint32_t add_pair(E e, uint32_t x, uint32_t y) {
#if defined(__CUDACC__)
  return add_x2(e, x, y);
#else
  return pack_exact(e, low_float(e, x) + low_float(e, y), high_float(e, x) + high_float(e, y));
#endif
}

// The maximum and minimum of some elements; NaN is ignored.
struct Extremes {
  float max, min;
};
template <class E, int n>
XLSTM_DEVICE Extremes extremes(E e, const Vec16 (&vecs)[n]) {
  const auto word = [&](int w) { return vecs[w / 4].word[w % 4]; };
  if constexpr (sizeof(E) == 4) {
    Extremes of{as_float(word(0)), as_float(word(0))};
#pragma unroll
    for (int w = 1; w < 4 * n; ++w) of = {max_num(of.max, as_float(word(w))), min_num(of.min, as_float(word(w)))};
    return of;
  } else if constexpr (kHasMinMaxX2<E>) {
    uint32_t max = word(0), min = word(0);
#pragma unroll
    for (int w = 1; w < 4 * n; ++w) max = max_num_x2(e, max, word(w)), min = min_num_x2(e, min, word(w));
    return {max_num(low_float(e, max), high_float(e, max)), min_num(low_float(e, min), high_float(e, min))};
  } else {
    Extremes of{low_float(e, word(0)), low_float(e, word(0))};
#pragma unroll
    for (int w = 0; w < 4 * n; ++w) {
      const float low = low_float(e, word(w)), high = high_float(e, word(w));
      of = {max_num(of.max, max_num(low, high)), min_num(of.min, min_num(low, high))};
    }
    return of;
  }
}

}  // namespace xlstm::gpu
