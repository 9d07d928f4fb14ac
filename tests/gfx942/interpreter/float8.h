// SPDX-License-Identifier: Apache-2.0
// Floats of a byte. gfx942 has the FNUZ formats: no infinities, no negative zero, whose bits are the only NaN. gfx950
// has OCP's: e4m3 without infinities, whose NaN is all ones, and e5m2, which is the upper half of a 16-bit float.
#pragma once

#include "half.h"

namespace gfx942 {

// A float whose exponent and fraction are moved up to a float's places is off by a power of two, denormals too.
template <int exponent_bits, int fraction_bits, int bias>
float moved_up(uint32_t x) {
  const uint32_t size = (x & ((1u << (exponent_bits + fraction_bits)) - 1)) << (23 - fraction_bits);
  const float scaled = std::bit_cast<float>(size) * std::bit_cast<float>(uint32_t(254 - bias) << 23);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | (x >> (exponent_bits + fraction_bits) & 1) << 31);
}

constexpr uint32_t kNan8 = 0x80;

template <int exponent_bits>
float widen8(uint32_t x) {
  return x == kNan8 ? std::bit_cast<float>(kQuietNan)
                    : moved_up<exponent_bits, 7 - exponent_bits, 1 << (exponent_bits - 1)>(x);
}

template <int exponent_bits>
float widen_ocp8(uint32_t x) {
  if constexpr (exponent_bits == 5) return widen(Half{uint16_t(x << 8)});
  return (x & 0x7f) == 0x7f ? std::bit_cast<float>(kQuietNan) : moved_up<4, 3, 7>(x);
}

// The bits of the size next to a, the even ones of two as near, as if exponents had no end. a < 2^126.
template <int fraction_bits, int bias>
uint32_t rounded8(float a) {
  constexpr int kLeast = 1 - bias;
  const int exponent = std::max(std::ilogb(a), kLeast);
  const float steps = std::scalbn(a, fraction_bits - exponent);  // exact: of 2^(fraction + 1) at most
  uint32_t whole = uint32_t(steps);
  const float rest = steps - float(whole);
  whole += rest > 0.5f || (rest == 0.5f && (whole & 1));
  // A fraction that is full carries into the exponent by itself; a denormal has exponent 0.
  return whole + (uint32_t(exponent - kLeast) << fraction_bits);
}

// To nearest even. What rounds to more than the largest number is NaN, infinities too: MODE.fp16_ovfl, which would make
// it the largest number, cannot be set here. AMD's document of CDNA4 was not at hand; its emulator rocjitsu has this in
// data_types.h (ROCm/rocm-systems), and triton-lang/triton#7337 says it of gfx950's conversions by the document.
constexpr float kBeyond8 = 0x1p126f;
template <int exponent_bits>
uint32_t narrow8(float x) {
  const float a = std::fabs(x);
  if (!(a < kBeyond8)) return kNan8;  // NaN and infinity too
  const uint32_t bits = rounded8<7 - exponent_bits, 1 << (exponent_bits - 1)>(a);
  if (bits >= 0x80) return kNan8;
  return bits ? bits | uint32_t(std::signbit(x)) << 7 : 0;
}
// OCP's e4m3: zeros and NaN keep their sign.
inline uint32_t narrow_ocp8(float x) {
  const float a = std::fabs(x);
  const uint32_t bits = a < kBeyond8 ? std::min(rounded8<3, 7>(a), 0x7fu) : 0x7f;
  return bits | uint32_t(std::signbit(x)) << 7;
}

}  // namespace gfx942
