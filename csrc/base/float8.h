// SPDX-License-Identifier: Apache-2.0
// Floats of 8 bits with 4 exponent and 3 fraction bits, in both formats of xlstm_code: the nearest one to a float, for
// the host and for GPU kernels.
#pragma once

#include <stdint.h>

#include "base/host_device.h"
#include "xlstm_hip.h"

namespace xlstm {

XLSTM_RULE bool is_float8(xlstm_dtype dtype) { return dtype == XLSTM_FLOAT8_E4M3FN || dtype == XLSTM_FLOAT8_E4M3FNUZ; }

// Ties go to even. A finite number beyond the largest float becomes the largest; infinities and NaN become NaN.
XLSTM_RULE uint8_t float8_of(float x, bool fnuz) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
  if (magnitude >= 0x7f800000) return uint8_t(fnuz ? 0x80 : sign | 0x7f);
  const uint32_t bias = fnuz ? 8 : 7, largest = fnuz ? 0x7f : 0x7e, least_normal = (128 - bias) << 23;
  uint32_t code;
  if (magnitude >= least_normal) {
    code = ((magnitude + 0x7ffff + (magnitude >> 20 & 1)) >> 20) - ((127 - bias) << 3);
  } else {  // adding 2^23 rounds to units of the smallest float
    const float units = __builtin_bit_cast(float, magnitude) * (fnuz ? 1024.0f : 512.0f) + 8388608.0f;
    code = __builtin_bit_cast(uint32_t, units) - 0x4b000000u;
  }
  if (code > largest) code = largest;
  return uint8_t(fnuz && code == 0 ? 0 : sign | code);
}

}  // namespace xlstm
