// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arch/lanes.h"

namespace xlstm::gpu {

// Exchanges the two halves of each row of sixteen lanes: AMD moves them without LDS (DPP).
XLSTM_DEVICE uint32_t exchange_halves_of_row(uint32_t x) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(~0u, x, 8);
#else
  constexpr int kRotateByEight = 0x128;
  return from_row<kRotateByEight>(x);
#endif
}

}  // namespace xlstm::gpu
