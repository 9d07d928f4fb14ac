// SPDX-License-Identifier: Apache-2.0
// The machine as CPU kernels see it: vector width, register tile, loads and stores by dtype, exp.
//
// Kernel sources (*_cpu.cpp) are compiled once per instruction set with -DXLSTM_ISA=name and live in a namespace of
// that name. They must not use inline functions of the standard library: the linker would merge an AVX-512 copy into
// code that runs on older machines. Only this file asks which instruction set it is compiled for.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "arch/cpu/amx.h"
#include "arch/cpu/compiled_isa.h"
#include "base/float8.h"
#include "xlstm_hip.h"

namespace xlstm::XLSTM_ISA {

// The register tile of a matrix product: kRows rows times kVectors vectors of accumulators, sized so that accumulators,
// one row of the right operand and one broadcast fit the register file.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 8, kVectors = 2;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32, kRows = 4, kVectors = 3;
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kRows = 4, kVectors = 4;
#else
constexpr int kVectorBytes = 16, kRows = 4, kVectors = 2;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes), may_alias));
};
template <class T>
using Vec = typename VectorOf<T>::type;
template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);

template <class T>
struct IntegerOf_;
template <>
struct IntegerOf_<float> {
  using type = int32_t;
};
template <>
struct IntegerOf_<double> {
  using type = int64_t;
};
template <class T>
using IntegerOf = typename IntegerOf_<T>::type;  // as wide as T: what comparing vectors of T gives

template <class T>
inline Vec<T> load(const T* p) {
  Vec<T> v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline void store(T* p, Vec<T> v) {
  memcpy(p, &v, sizeof v);
}
template <class T>
inline Vec<T> broadcast(T x) {
  return x - Vec<T>{};
}

// The maximum, lane by lane, and b where one is NaN. Compilers turn the general form into two instructions, the first
// of which occupies the multiply-add unit.
inline Vec<float> max(Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return Vec<float>(_mm512_max_ps(__m512(a), __m512(b)));
#elif defined(__AVX2__)
  return Vec<float>(_mm256_max_ps(__m256(a), __m256(b)));
#else
  return a > b ? a : b;
#endif
}
inline Vec<double> max(Vec<double> a, Vec<double> b) { return a > b ? a : b; }

// ---- loads and stores: narrow dtypes in memory, float or double in registers

inline float bf16_to_float(uint16_t x) {
  const uint32_t bits = uint32_t(x) << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
inline uint16_t float_to_bf16(float f) {  // to nearest even; NaN stays a quiet NaN
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return uint16_t(f != f ? (bits >> 16) | 0x40 : rounded);
}

#if defined(__F16C__)
inline float half_to_float(uint16_t x) { return _cvtsh_ss(x); }
inline uint16_t float_to_half(float f) { return _cvtss_sh(f, 0); }
#elif defined(__aarch64__)
inline float half_to_float(uint16_t x) {
  __fp16 h;
  memcpy(&h, &x, 2);
  return float(h);
}
inline uint16_t float_to_half(float f) {
  const __fp16 h = __fp16(f);
  uint16_t x;
  memcpy(&x, &h, 2);
  return x;
}
#else
inline float half_to_float(uint16_t x) {
  const float magnitude = (x & 0x7c00) == 0x7c00 ? ((x & 0x3ff) ? __builtin_nanf("") : __builtin_inff())
                          : (x & 0x7c00)         ? ldexpf(float(0x400 | (x & 0x3ff)), ((x >> 10) & 31) - 25)
                                                 : ldexpf(float(x & 0x3ff), -24);
  return x & 0x8000 ? -magnitude : magnitude;
}
inline uint16_t float_to_half(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const float a = fabsf(f);
  if (f != f) return sign | 0x7e00;
  if (a >= 65520.f) return sign | 0x7c00;
  if (a == 0) return sign;
  int e;
  frexpf(a, &e);                                 // a = m 2^e, m in [0.5, 1)
  const int unit = e - 11 < -24 ? -24 : e - 11;  // the exponent of the last place
  const float ulps = rintf(ldexpf(a, -unit));    // to nearest even, as the mode is
  const uint32_t n = uint32_t(ulps);
  return uint16_t(sign | (unit == -24 ? n : ((unit + 24) << 10) + n));
}
#endif

inline int64_t element_bytes(xlstm_dtype dtype) {
  return is_float8(dtype) ? 1 : dtype == XLSTM_FLOAT64 ? 8 : dtype == XLSTM_FLOAT32 ? 4 : 2;
}

// A float of 8 bits. Its exponent is moved into a float's. Numbers below the least normal one have no leading one: it
// is put in front and taken away again, since a machine may be set to flush a float of such bits to zero.
template <bool kFnuz>
inline float float8_to_float(uint8_t code) {
  constexpr uint32_t kBias = kFnuz ? 119 : 120;
  const uint32_t magnitude = code & 0x7f, is_small = magnitude < 8;
  const bool is_nan = kFnuz ? code == 0x80 : magnitude == 0x7f;
  const uint32_t above = (magnitude << 20) + ((kBias + is_small) << 23), least = is_small * ((kBias + 1) << 23);
  float value, ones;
  memcpy(&value, &above, 4);
  memcpy(&ones, &least, 4);
  value -= ones;
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits |= uint32_t(code & 0x80) << 24 | (is_nan ? 0x7fc00000u : 0);
  memcpy(&value, &bits, 4);
  return value;
}

template <class T>
inline T widen(const void* p, xlstm_dtype dtype, int64_t at) {
  switch (dtype) {
    case XLSTM_FLOAT32:
      return T(static_cast<const float*>(p)[at]);
    case XLSTM_FLOAT64:
      return T(static_cast<const double*>(p)[at]);
    case XLSTM_BFLOAT16:
      return T(bf16_to_float(static_cast<const uint16_t*>(p)[at]));
    default:
      return T(half_to_float(static_cast<const uint16_t*>(p)[at]));
  }
}

template <bool kFnuz, class T>
inline void load_float8(T* __restrict to, const void* p, int64_t at, int64_t n) {
  const uint8_t* s = static_cast<const uint8_t*>(p) + at;
  for (int64_t j = 0; j < n; ++j) to[j] = T(float8_to_float<kFnuz>(s[j]));
}

// Reads n elements from p + at. The compiler vectorises these plain loops.
template <class T>
inline void load_row(T* __restrict to, const void* p, xlstm_dtype dtype, int64_t at, int64_t n) {
  if (dtype == XLSTM_FLOAT32) {
    const float* s = static_cast<const float*>(p) + at;
    for (int64_t j = 0; j < n; ++j) to[j] = T(s[j]);
  } else if (dtype == XLSTM_FLOAT64) {
    const double* s = static_cast<const double*>(p) + at;
    for (int64_t j = 0; j < n; ++j) to[j] = T(s[j]);
  } else if (dtype == XLSTM_BFLOAT16) {
    const uint16_t* s = static_cast<const uint16_t*>(p) + at;
    for (int64_t j = 0; j < n; ++j) to[j] = T(bf16_to_float(s[j]));
  } else if (dtype == XLSTM_FLOAT8_E4M3FN) {
    load_float8<false>(to, p, at, n);
  } else if (dtype == XLSTM_FLOAT8_E4M3FNUZ) {
    load_float8<true>(to, p, at, n);
  } else {
    const uint16_t* s = static_cast<const uint16_t*>(p) + at;
    int64_t j = 0;
#if defined(__F16C__)
    if constexpr (sizeof(T) == 4)
      for (; j + 8 <= n; j += 8)
        _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(s + j))));
#endif
    for (; j < n; ++j) to[j] = T(half_to_float(s[j]));
  }
}

template <class T>
inline void store_row(void* p, xlstm_dtype dtype, int64_t at, const T* __restrict from, int64_t n) {
  if (dtype == XLSTM_FLOAT32) {
    float* d = static_cast<float*>(p) + at;
    for (int64_t j = 0; j < n; ++j) d[j] = float(from[j]);
  } else if (dtype == XLSTM_FLOAT64) {
    double* d = static_cast<double*>(p) + at;
    for (int64_t j = 0; j < n; ++j) d[j] = double(from[j]);
  } else if (dtype == XLSTM_BFLOAT16) {
    uint16_t* d = static_cast<uint16_t*>(p) + at;
    for (int64_t j = 0; j < n; ++j) d[j] = float_to_bf16(float(from[j]));
  } else if (is_float8(dtype)) {
    uint8_t* d = static_cast<uint8_t*>(p) + at;
    for (int64_t j = 0; j < n; ++j) d[j] = float8_of(float(from[j]), dtype == XLSTM_FLOAT8_E4M3FNUZ);
  } else {
    uint16_t* d = static_cast<uint16_t*>(p) + at;
    int64_t j = 0;
#if defined(__F16C__)
    if constexpr (sizeof(T) == 4)
      for (; j + 8 <= n; j += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(d + j), _mm256_cvtps_ph(_mm256_loadu_ps(from + j), 0));
#endif
    for (; j < n; ++j) d[j] = float_to_half(float(from[j]));
  }
}

// Loads kLanes<float> float16 values as float.
inline Vec<float> widen_halves(const uint16_t* p) {
#if defined(__AVX512F__)
  return Vec<float>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return Vec<float>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  Vec<float> x;
  for (int j = 0; j < kLanes<float>; ++j) x[j] = half_to_float(p[j]);
  return x;
#endif
}

// sum + a b, rounded once on machines with a fused multiply-add: for sums that must not depend on which products the
// compiler fuses.
inline Vec<float> add_product(Vec<float> sum, Vec<float> a, Vec<float> b) {
#if defined(__AVX512F__)
  return Vec<float>(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(sum)));
#elif defined(__FMA__)
  return Vec<float>(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(sum)));
#else
  return sum + a * b;
#endif
}

// ---- operands of a matrix product
//
// An operand's element holds kPack consecutive values along the summed dimension, in the bits of a Scalar: one Scalar,
// or, where the machine has a bfloat16 dot product, two bfloat16 values. Sums are always Scalars. kTiles: products are
// those of tile registers (amx.h).
template <class T>
struct Plain {
  using Scalar = T;
  static constexpr int kPack = 1;
  static constexpr bool kTiles = false;
  static constexpr xlstm_dtype kStored = sizeof(T) == 8 ? XLSTM_FLOAT64 : XLSTM_FLOAT32;
  static Vec<T> multiply_add(Vec<T> acc, Vec<T> right, T left) { return acc + right * left; }
  static Vec<T> pack(Vec<T> first, Vec<T>) { return first; }
  static void unpack(Vec<T> element, Vec<T>& first, Vec<T>& second) { first = element, second = Vec<T>{}; }
  // Makes elements of values in memory of dtype kStored.
  static Vec<T> zip(const void* first, const void*) { return load(static_cast<const T*>(first)); }
};

#if defined(__AVX512BF16__)
struct Bf16Pairs {
  using Scalar = float;
  static constexpr int kPack = 2;
  static constexpr bool kTiles = kHasTiles;
  static constexpr xlstm_dtype kStored = XLSTM_BFLOAT16;
  static Vec<float> multiply_add(Vec<float> acc, Vec<float> right, float left) {
    const __m512i l = _mm512_set1_epi32(__builtin_bit_cast(int32_t, left));
    return Vec<float>(_mm512_dpbf16_ps(__m512(acc), __m512bh(right), __m512bh(l)));
  }
  static Vec<float> pack(Vec<float> first, Vec<float> second) {
    typedef uint16_t Halves __attribute__((vector_size(kVectorBytes)));
    constexpr Halves interleave = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                   8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const Halves both = Halves(_mm512_cvtne2ps_pbh(__m512(second), __m512(first)));
    return Vec<float>(__builtin_shuffle(both, interleave));
  }
  static void unpack(Vec<float> element, Vec<float>& first, Vec<float>& second) {
    typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
    first = Vec<float>(Words(element) << 16);
    second = Vec<float>(Words(element) & 0xffff0000u);
  }
  static Vec<float> zip(const void* first, const void* second) {
    const auto wide = [](const void* p) {
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
    };
    return Vec<float>(_mm512_or_si512(wide(first), _mm512_slli_epi32(wide(second), 16)));
  }
  // Makes kLanes elements of 2 kLanes consecutive values.
  static Vec<float> join(Vec<float> low, Vec<float> high) {
    return Vec<float>(_mm512_cvtne2ps_pbh(__m512(high), __m512(low)));
  }
};
#endif

// ---- exp of a vector: 2^n e^r with |r| <= ln2/2 and a Taylor polynomial of degree 7; 1 ulp. Below e^-87.3 it is zero,
// above e^88.3 infinity.
inline Vec<float> exp(Vec<float> x) {
  typedef int32_t Int __attribute__((vector_size(kVectorBytes)));
  const Vec<float> shift = broadcast(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec<float> t = x * 1.44269504f + shift;
  const Vec<float> n = t - shift;
  const Vec<float> r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec<float> p = broadcast(1.f / 5040);
  p = p * r + 1.f / 720;
  p = p * r + 1.f / 120;
  p = p * r + 1.f / 24;
  p = p * r + 1.f / 6;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.f;
  Int bits;
  memcpy(&bits, &t, sizeof bits);
  bits = (bits - 0x4b400000 + 127) << 23;
  Vec<float> scale;
  memcpy(&scale, &bits, sizeof scale);
  Vec<float> y = p * scale;
  y = x < -87.3f ? Vec<float>{} : y;
  return x > 88.3f ? broadcast(__builtin_inff()) : y;  // NaN has come through p
}
inline Vec<double> exp(Vec<double> x) {
  Vec<double> y;
  for (int e = 0; e < kLanes<double>; ++e) y[e] = ::exp(x[e]);
  return y;
}

#if defined(__AVX512F__)
// ---- 2^x of a vector: n is x rounded, and a minimax polynomial that is 1 at 0 approximates 2^(x - n); 1 ulp. It takes
// half of exp's multiplications and none of its comparisons, all of which need the multiply-add unit. Results below
// 2^-126 are subnormal or zero; exp2(infinity) is NaN.
inline Vec<float> exp2(Vec<float> x) {
  x = max(broadcast(-160.f), x);                   // so that -infinity has a remainder; 2^-160 is zero
  const Vec<float> shift = broadcast(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec<float> n = (x + shift) - shift;
  const Vec<float> r = x - n;
  Vec<float> p = broadcast(1.53533620e-4f);
  p = p * r + 1.33988750e-3f;
  p = p * r + 9.61843692e-3f;
  p = p * r + 5.55033237e-2f;
  p = p * r + 0.240226477f;
  p = p * r + 0.693147182f;
  p = p * r + 1.f;
  return Vec<float>(_mm512_scalef_ps(__m512(p), __m512(n)));
}
// The same to 2^-18, for what is rounded to bfloat16: two multiplications less.
inline Vec<float> exp2_rounded_later(Vec<float> x) {
  x = max(broadcast(-160.f), x);
  const Vec<float> shift = broadcast(12582912.f);
  const Vec<float> n = (x + shift) - shift;
  const Vec<float> r = x - n;
  Vec<float> p = broadcast(9.58285294e-3f);
  p = p * r + 5.59064262e-2f;
  p = p * r + 0.240240991f;
  p = p * r + 0.693124175f;
  p = p * r + 1.f;
  return Vec<float>(_mm512_scalef_ps(__m512(p), __m512(n)));
}
#endif

// ---- tanh of a vector: an odd polynomial near zero, where 1 - 2 / (e^2x + 1) would cancel, else that formula; 2 ulp
inline Vec<float> tanh(Vec<float> x) {
  const Vec<float> z = x * x;
  Vec<float> p = broadcast(-0.00566477536f);
  p = p * z + 0.02059568f;
  p = p * z - 0.0537226793f;
  p = p * z + 0.133311502f;
  p = p * z - 0.333332616f;
  const Vec<float> near = x * z * p + x;
  const Vec<float> far = 1.f - 2.f / (exp(x + x) + 1.f);
  return z < 0.390625f ? near : far;
}
inline Vec<double> tanh(Vec<double> x) {
  Vec<double> y;
  for (int e = 0; e < kLanes<double>; ++e) y[e] = ::tanh(x[e]);
  return y;
}

}  // namespace xlstm::XLSTM_ISA
