// SPDX-License-Identifier: Apache-2.0
// Elements as they lie in memory, the floats that they stand for, and two or more of them in a register.
#pragma once

#include "arch/compiler.h"
#if defined(__CUDACC__)
#include "arch/nvidia/ptx.h"
#endif

namespace xlstm::gpu {

// Elements as they lie in memory.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

XLSTM_DEVICE uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
XLSTM_DEVICE float as_float(uint32_t x) { return __builtin_bit_cast(float, x); }

XLSTM_DEVICE float to_float(float x) { return x; }
XLSTM_DEVICE float to_float(BFloat16 x) { return as_float(uint32_t(x.bits) << 16); }
XLSTM_DEVICE float to_float(Float16 x) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(x.bits));
#else
  return float(__builtin_bit_cast(_Float16, x.bits));
#endif
}

template <class E>
XLSTM_DEVICE E from_float(float x);
template <>
XLSTM_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
XLSTM_DEVICE BFloat16 from_float<BFloat16>(float x) {
#if defined(__CUDACC__)
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
  const uint32_t u = as_bits(x);
  if (x != x) return {uint16_t((u >> 16) | 0x40)};
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
#endif
}
template <>
XLSTM_DEVICE Float16 from_float<Float16>(float x) {
#if defined(__CUDACC__)
  return {__half_as_ushort(__float2half_rn(x))};
#else
  return {__builtin_bit_cast(uint16_t, _Float16(x))};
#endif
}

// Two elements in a register, low half first. pack rounds to nearest, away from zero where it is a tie on CDNA: one
// instruction less there, and operands inside a product need no more.
XLSTM_DEVICE float low_float(BFloat16, uint32_t x) { return as_float(x << 16); }
XLSTM_DEVICE float high_float(BFloat16, uint32_t x) { return as_float(x & 0xffff0000u); }
XLSTM_DEVICE float low_float(Float16, uint32_t x) { return to_float(Float16{uint16_t(x)}); }
XLSTM_DEVICE float high_float(Float16, uint32_t x) { return to_float(Float16{uint16_t(x >> 16)}); }

XLSTM_DEVICE uint32_t pack(BFloat16, float low, float high) {
#if defined(__CUDACC__)
  return pack_bfloat16(low, high);
#else
  return __builtin_amdgcn_perm(as_bits(high) + 0x8000u, as_bits(low) + 0x8000u, 0x07060302u);
#endif
}
XLSTM_DEVICE uint32_t pack(Float16, float low, float high) {
#if defined(__CUDACC__)
  return pack_float16(low, high);
#else
  return uint32_t(from_float<Float16>(low).bits) | uint32_t(from_float<Float16>(high).bits) << 16;
#endif
}
// The same, to nearest even everywhere: for what goes to memory.
template <class E>
XLSTM_DEVICE uint32_t pack_exact(E e, float low, float high) {
#if defined(__CUDACC__)
  return pack(e, low, high);
#else
  (void)e;
  return uint32_t(from_float<E>(low).bits) | uint32_t(from_float<E>(high).bits) << 16;
#endif
}
// The upper halves of two floats: what truncation to bfloat16 keeps.
XLSTM_DEVICE uint32_t pack_truncated(float low, float high) {
#if defined(__CUDACC__)
  return __byte_perm(as_bits(low), as_bits(high), 0x7632);
#else
  return __builtin_amdgcn_perm(as_bits(high), as_bits(low), 0x07060302u);
#endif
}

// And what it loses, exactly. An infinity is kept whole: inf - inf would be NaN.
XLSTM_DEVICE float rest_of_truncation(float x) {
  const float rest = x - as_float(as_bits(x) & 0xffff0000u);
  return __builtin_fabsf(x) == __builtin_inff() ? 0.0f : rest;
}
// Two floats as the sum of three pairs of bfloat16, high, middle and low: exactly. The first is truncated, so that no
// finite number becomes infinite. Its rest has x's sign, and so would all products have that are left out: the second
// is rounded, and what is left of it has either sign.
XLSTM_DEVICE void split_in_three(float low, float high, uint32_t& first, uint32_t& second, uint32_t& third) {
  first = pack_truncated(low, high);
  low = rest_of_truncation(low), high = rest_of_truncation(high);
  second = pack(BFloat16{}, low, high);
  third = pack_truncated(low - low_float(BFloat16{}, second), high - high_float(BFloat16{}, second));
}

// (a & b) | c in one instruction.
XLSTM_DEVICE uint32_t and_then_or(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDACC__)
  return and_or(a, b, c);
#else
  return (a & b) | c;
#endif
}
// Bytes n and n + 2 of a word, signed, as two bfloat16.
template <int n>
XLSTM_DEVICE uint32_t signed_bytes(uint32_t word) {
  static_assert(n == 0 || n == 1);
#if defined(__CUDACC__)
  // Its lower seven bits above 128, less 128 or, where its sign is set, 256, which differ in that bit.
  const uint32_t bytes = word >> 8 * n;
  return subtract_bfloat16(and_or(bytes, 0x007f007fu, 0x43004300u), and_or(bytes, 0x00800080u, 0x43004300u));
#else
  const auto byte = [&](int k) { return float(int(__builtin_amdgcn_sbfe(int(word), 8 * k, 8))); };
  return pack_truncated(byte(n), byte(n + 2));
#endif
}
// Nibbles n and n + 4 of a word, 16 added, as two bfloat16: the upper bits of what follows 16's exponent.
XLSTM_DEVICE uint32_t nibbles_and_16(uint32_t word, int n) {
  const uint32_t there = n == 0 ? word << 3 : word >> (4 * n - 3);
  return and_then_or(there, 0x00780078u, 0x41804180u);
}

XLSTM_DEVICE uint32_t element_bits(float x) { return as_bits(x); }
XLSTM_DEVICE uint32_t element_bits(BFloat16 x) { return x.bits; }
XLSTM_DEVICE uint32_t element_bits(Float16 x) { return x.bits; }

}  // namespace xlstm::gpu
