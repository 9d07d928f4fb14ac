// SPDX-License-Identifier: Apache-2.0
// 16-bit floats: exact widening, and narrowing in each of the four rounding modes.
#pragma once

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <type_traits>
#ifdef __F16C__
#include <immintrin.h>
#endif

namespace gfx942 {

struct Half {
  uint16_t bits;
};

constexpr uint32_t kQuietNan = 0x7fc00000u;
constexpr uint64_t kQuietNan64 = 0x7ff8000000000000u;
constexpr uint16_t kQuietNan16 = 0x7e00u;

// NaN keeps its payload and becomes quiet.
inline float widen(Half h) {
#ifdef __F16C__
  return _cvtsh_ss(h.bits);
#endif
  const uint32_t sign = uint32_t(h.bits & 0x8000) << 16, exponent = h.bits >> 10 & 31, fraction = h.bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0u));
  if (exponent) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = float(fraction) * 0x1p-24f;
  return sign ? -tiny : tiny;
}

// Round modes are the MODE register's: 0 nearest even, 1 up, 2 down, 3 towards zero. Any float of 64 bits is taken, so
// that exact sums and products round once.
template <class Wide>
Half narrow(Wide x, int round = 0) {
#ifdef __F16C__
  if constexpr (std::is_same_v<Wide, float>) {
    switch (round) {
      case 0:
        return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
      case 1:
        return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_POS_INF))};
      case 2:
        return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEG_INF))};
      default:
        return {uint16_t(_cvtss_sh(x, _MM_FROUND_TO_ZERO))};
    }
  }
#endif
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (x != x) {
    const uint32_t payload = std::bit_cast<uint32_t>(float(x)) >> 13 & 1023;
    return {uint16_t(sign | 0x7c00 | 0x200 | payload)};
  }
  const Wide a = std::fabs(x);
  if (a == 0) return {sign};
  const bool away = (round == 1 && !sign) || (round == 2 && sign);
  if (std::isinf(a)) return {uint16_t(sign | 0x7c00)};
  const int exponent = std::max(std::ilogb(a), -14);
  const Wide steps = std::scalbn(a, 10 - exponent);  // exact: of 2^11 at most
  Wide whole = std::floor(steps);
  const Wide rest = steps - whole;
  if (round == 0 ? (rest > Wide(0.5) || (rest == Wide(0.5) && (int64_t(whole) & 1))) : (away && rest > 0)) whole += 1;
  // A fraction of 2^11 carries into the exponent by itself.
  const int64_t bits =
      exponent == -14 && whole < 1024 ? int64_t(whole) : (int64_t(exponent + 14) << 10) + int64_t(whole);
  if (bits >= 0x7c00) return {uint16_t(sign | (round == 0 || away ? 0x7c00 : 0x7bff))};
  return {uint16_t(sign | bits)};
}

// In the rounding that the host is set to, as other float arithmetic.
template <class Wide>
Half narrow_now(Wide x) {
#ifdef __F16C__
  if constexpr (std::is_same_v<Wide, float>) return {uint16_t(_cvtss_sh(x, _MM_FROUND_CUR_DIRECTION))};
#endif
  const int host = std::fegetround();
  return narrow(x, host == FE_TONEAREST ? 0 : host == FE_UPWARD ? 1 : host == FE_DOWNWARD ? 2 : 3);
}

}  // namespace gfx942
