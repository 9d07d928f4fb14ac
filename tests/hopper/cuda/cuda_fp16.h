// SPDX-License-Identifier: Apache-2.0
// float16 as arch/fragments.h uses it.
#pragma once

#include <bit>
#include <cstdint>

struct __half {
  _Float16 value;
};
inline __half __ushort_as_half(uint16_t x) { return {std::bit_cast<_Float16>(x)}; }
inline float __half2float(__half x) { return float(x.value); }
inline __half __float2half_rn(float x) { return {_Float16(x)}; }
inline uint16_t __half_as_ushort(__half x) { return std::bit_cast<uint16_t>(x.value); }
