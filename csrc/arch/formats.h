// SPDX-License-Identifier: Apache-2.0
// The formats of elements in memory, their conversion to and from float, and two or more packed in a register.
#pragma once

#include <type_traits>

#include "arch/compiler.h"
#if defined(__CUDACC__)
#include "arch/nvidia/ptx.h"
#endif

namespace xlstm::gpu {

// The bits of an element in memory.
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

// Two elements packed in a register, low half first. pack() rounds to nearest. On CDNA it rounds ties away from zero,
// which saves an instruction and is precise enough for the operands of a product.
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
// The same, rounded to nearest even on every family: for results in memory. On AMD without a branch for NaN, which
// becomes the NaN whose bits are all ones.
#if !defined(__CUDACC__)
XLSTM_DEVICE uint32_t rounded_to_bfloat16(float x) {  // in the upper half
  const uint32_t u = as_bits(x), rounded = u + 0x7fffu + (u >> 16 & 1u);
  return x == x ? rounded : ~0u;
}
#endif
template <class E>
XLSTM_DEVICE uint32_t pack_exact(E e, float low, float high) {
#if defined(__CUDACC__)
  return pack(e, low, high);
#else
  if constexpr (std::is_same_v<E, BFloat16>)
    return __builtin_amdgcn_perm(rounded_to_bfloat16(high), rounded_to_bfloat16(low), 0x07060302u);
  return pack(e, low, high);
#endif
}
// The upper halves of two floats: their truncation to bfloat16.
XLSTM_DEVICE uint32_t pack_truncated(float low, float high) {
#if defined(__CUDACC__)
  return __byte_perm(as_bits(low), as_bits(high), 0x7632);
#else
  return __builtin_amdgcn_perm(as_bits(high), as_bits(low), 0x07060302u);
#endif
}

// Stochastic rounding to bfloat16: the truncation of x's bits plus 16 random ones, so x is rounded away from zero with
// the probability that makes the result exact in the mean. Random bits could make a number of a NaN: it is truncated.
XLSTM_DEVICE BFloat16 round_stochastic(float x, uint32_t random) {
  return {uint16_t((as_bits(x) + (x == x ? random : 0)) >> 16)};
}
// The same of two, by the lower and the upper 16 bits of random. A NaN truncates both: one comparison a pair.
XLSTM_DEVICE uint32_t pack_stochastic(float low, float high, uint32_t random) {
  const uint32_t bits = low == low && high == high ? random : 0;
  return pack_truncated(as_float(as_bits(low) + (bits & 0xffffu)), as_float(as_bits(high) + (bits >> 16)));
}

// The exact error of the truncation. The error of an infinity is 0, where inf - inf would be NaN.
XLSTM_DEVICE float rest_of_truncation(float x) {
  const float error = x - as_float(as_bits(x) & 0xffff0000u);
  return __builtin_fabsf(x) == __builtin_inff() ? 0.0f : error;
}
// Splits two floats exactly into the sum of three pairs of bfloat16: high, middle and low. The first is truncated, so
// that no finite number becomes infinite. The second is rounded, so that its error has either sign: a truncation's
// error always has x's sign, and then so would all the products that are left out.
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
// Bytes n and n + 2 of a register, signed, as two bfloat16.
template <int n>
XLSTM_DEVICE uint32_t signed_bytes(uint32_t word) {
  static_assert(n == 0 || n == 1);
#if defined(__CUDACC__)
  // A byte's lower seven bits make the bfloat16 128 + bits. From it 128 is subtracted or, where the sign bit is set,
  // 256: the bfloat16 128 and 256 differ in that bit.
  const uint32_t bytes = word >> 8 * n;
  return subtract_bfloat16(and_or(bytes, 0x007f007fu, 0x43004300u), and_or(bytes, 0x00800080u, 0x43004300u));
#else
  const auto byte = [&](int k) { return float(int(__builtin_amdgcn_sbfe(int(word), 8 * k, 8))); };
  return pack_truncated(byte(n), byte(n + 2));
#endif
}
// Nibbles n and n + 4 of a register, plus 16, as two bfloat16: a nibble becomes the upper bits of the fraction behind
// the exponent of 16.
XLSTM_DEVICE uint32_t nibbles_and_16(uint32_t word, int n) {
  const uint32_t shifted = n == 0 ? word << 3 : word >> (4 * n - 3);
  return and_then_or(shifted, 0x00780078u, 0x41804180u);
}

// ---- floats of 8 bits: E4M3 of OCP, and FNUZ, whose exponent bias is one more

struct Float8E4m3fn {
  static constexpr bool kFnuz = false;
};
struct Float8E4m3fnuz {
  static constexpr bool kFnuz = true;
};

// Bytes n and n + 2 of a register, floats of 8 bits, as two floats of 16 bits, smaller by the power of two between the
// formats' biases: the bits are moved to where the wider format has them, and a NaN becomes its NaN.
template <class F, int n, int kFractionBits>
XLSTM_DEVICE uint32_t moved_float8_bytes(uint32_t word) {
  constexpr uint32_t kSigns = 0x80008000u;
  const uint32_t bytes = n == 0 ? word << 8 : word, magnitudes = bytes & 0x7f007f00u;
  // A sum of halves that reaches bit 15: for OCP's NaN alone; for all but the 0 of FNUZ's NaN.
  const uint32_t nan = F::kFnuz ? bytes & ~(magnitudes + 0x7f007f00u) & kSigns : (magnitudes + 0x01000100u) & kSigns;
  const uint32_t quiet = nan - (nan >> (16 - kFractionBits));
  return and_then_or(bytes, kSigns, magnitudes >> (11 - kFractionBits)) | quiet;
}

#if defined(__gfx942__)
#define XLSTM_CONVERTS_FLOAT8(F) F::kFnuz  // whether the chip has an instruction that converts the format
#elif defined(__gfx950__)
#define XLSTM_CONVERTS_FLOAT8(F) !F::kFnuz
#endif
// Whether the chip has matrix products of elements E: of floats of 8 bits, of the format that it converts.
template <class E>
constexpr bool kMultiplies = true;
template <class F>
  requires(sizeof(F) == 1)
constexpr bool kMultiplies<F> =
#if defined(XLSTM_CONVERTS_FLOAT8)
    XLSTM_CONVERTS_FLOAT8(F);
#else
    false;
#endif

#if !defined(__CUDACC__)
// Bytes n and n + 2 of a register as two float16, which have all values of these formats.
template <class F, int n>
XLSTM_DEVICE uint32_t float8_bytes_as_halves(uint32_t word) {
  typedef _Float16 Pair __attribute__((vector_size(4)));
  constexpr _Float16 kPower = F::kFnuz ? 128 : 256;  // float16's bias is 15
  return __builtin_bit_cast(uint32_t,
                            __builtin_bit_cast(Pair, moved_float8_bytes<F, n, 10>(word)) * Pair{kPower, kPower});
}
#endif

// The same as two bfloat16, which have all values of these formats.
template <class F, int n>
XLSTM_DEVICE uint32_t float8_bytes(uint32_t word) {
  static_assert(n == 0 || n == 1);
#if defined(__CUDACC__)
  constexpr uint32_t kPower = F::kFnuz ? 0x7b007b00u : 0x7b807b80u;  // 2^119 or 2^120: bfloat16's bias is 127
  return multiply_bfloat16(moved_float8_bytes<F, n, 7>(word), kPower);
#else
#if defined(XLSTM_CONVERTS_FLOAT8)
  if constexpr (XLSTM_CONVERTS_FLOAT8(F)) {
    const auto lower = __builtin_amdgcn_cvt_pk_f32_fp8(int(word), false);
    const auto upper = __builtin_amdgcn_cvt_pk_f32_fp8(int(word), true);
    return pack_truncated(lower[n], upper[n]);
  }
#endif
  // Through float16, whose products are of two at once.
  const uint32_t halves = float8_bytes_as_halves<F, n>(word);
  return pack_truncated(low_float(Float16{}, halves), high_float(Float16{}, halves));
#endif
}

#if defined(__gfx942__)
// Four floats of OCP's format as FNUZ has their halves: the same bits, but for -0, which becomes 0, and NaN.
XLSTM_DEVICE uint32_t halved_as_fnuz(uint32_t word) {
  constexpr uint32_t kSigns = 0x80808080u;
  const uint32_t magnitudes = word & ~kSigns;
  const uint32_t nan = (magnitudes + 0x01010101u) & kSigns, signs_of_numbers = (magnitudes + 0x7f7f7f7fu) & kSigns;
  return and_then_or(word, signs_of_numbers, magnitudes + (nan >> 7));
}
#endif
// What 1 stands for in the results of widen_float8.
template <class F>
constexpr float widened_unit() {
#if defined(__gfx942__)
  return F::kFnuz ? 1 : 2;
#else
  return 1;
#endif
}

// Four floats of 8 bits as four elements of 16 bits, in their order.
template <class E, class F>
XLSTM_DEVICE void widen_float8(uint32_t word, uint32_t (&to)[2]) {
#if defined(__gfx942__)
  if constexpr (!F::kFnuz) return widen_float8<E, Float8E4m3fnuz>(halved_as_fnuz(word), to);
#endif
  constexpr bool kHalves = std::is_same_v<E, Float16>;
#if defined(__CUDACC__)
  const uint32_t pairs = __byte_perm(word, 0, 0x3120);  // the bytes of a pair are two apart
  if constexpr (kHalves) {
    constexpr uint32_t kPower = F::kFnuz ? 0x58005800u : 0x5c005c00u;  // 2^7 or 2^8: float16's bias is 15
    to[0] = multiply_float16(moved_float8_bytes<F, 0, 10>(pairs), kPower);
    to[1] = multiply_float16(moved_float8_bytes<F, 1, 10>(pairs), kPower);
  } else {
    to[0] = float8_bytes<F, 0>(pairs);
    to[1] = float8_bytes<F, 1>(pairs);
  }
#else
#if defined(XLSTM_CONVERTS_FLOAT8)
  if constexpr (XLSTM_CONVERTS_FLOAT8(F)) {
    const auto lower = __builtin_amdgcn_cvt_pk_f32_fp8(int(word), false);
    const auto upper = __builtin_amdgcn_cvt_pk_f32_fp8(int(word), true);
    if constexpr (kHalves) {
      to[0] = __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_pkrtz(lower[0], lower[1]));  // all values are exact
      to[1] = __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_pkrtz(upper[0], upper[1]));
    } else {
      to[0] = pack_truncated(lower[0], lower[1]);
      to[1] = pack_truncated(upper[0], upper[1]);
    }
    return;
  }
#endif
  const uint32_t pairs = __builtin_amdgcn_perm(0u, word, 0x03010200u);
  if constexpr (kHalves) {
    to[0] = float8_bytes_as_halves<F, 0>(pairs);
    to[1] = float8_bytes_as_halves<F, 1>(pairs);
  } else {
    to[0] = float8_bytes<F, 0>(pairs);
    to[1] = float8_bytes<F, 1>(pairs);
  }
#endif
}

XLSTM_DEVICE uint32_t element_bits(float x) { return as_bits(x); }
XLSTM_DEVICE uint32_t element_bits(BFloat16 x) { return x.bits; }
XLSTM_DEVICE uint32_t element_bits(Float16 x) { return x.bits; }

}  // namespace xlstm::gpu
