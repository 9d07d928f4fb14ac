// SPDX-License-Identifier: Apache-2.0
// The 16-bit floating-point formats by their definition: slow, and independent of csrc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

struct Format {
  int exponent_bits, fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double decode(uint16_t bits) const {
    const int fraction = bits & ((1 << fraction_bits) - 1),
              exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    double x;
    if (exponent == (1 << exponent_bits) - 1)
      x = fraction ? NAN : INFINITY;
    else if (exponent == 0)
      x = std::ldexp(fraction, 1 - bias() - fraction_bits);
    else
      x = std::ldexp(fraction + (1 << fraction_bits), exponent - bias() - fraction_bits);
    return bits >> 15 ? -x : x;
  }

  uint16_t encode(double x) const {  // to nearest even; any NaN is the quiet one
    const unsigned sign = std::signbit(x) ? 0x8000 : 0, infinity = ((1u << exponent_bits) - 1) << fraction_bits;
    if (std::isnan(x)) return uint16_t(sign | infinity | 1u << (fraction_bits - 1));
    const double size = std::fabs(x);
    if (std::isinf(size)) return uint16_t(sign | infinity);
    const int exponent = size == 0 ? 1 - bias() : std::max(std::ilogb(size), 1 - bias());
    const double units =
        std::nearbyint(std::ldexp(size, fraction_bits - exponent));  // below 2^(fraction_bits + 1) or it
    // The sum carries into the exponent where the fraction overflows, and where a denormal becomes a normal number.
    const unsigned bits = ((exponent + bias() - 1u) << fraction_bits) + unsigned(units);
    return uint16_t(sign | (bits < infinity ? bits : infinity));
  }
};

inline constexpr Format kBfloat16{8, 7}, kFloat16{5, 10};
