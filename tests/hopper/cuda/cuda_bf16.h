// SPDX-License-Identifier: Apache-2.0
// bfloat16 as arch/fragments.h uses it.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  uint16_t bits;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (x != x) return {0x7fff};
  return {uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
