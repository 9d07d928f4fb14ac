// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arch/compiler.h"

namespace xlstm::gpu {

// Exchanges the two halves of each row of sixteen lanes: AMD moves them without LDS (DPP).
XLSTM_DEVICE uint32_t exchange_halves_of_row(uint32_t x) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(~0u, x, 8);
#else
  constexpr int kRotateByEight = 0x128;
  return uint32_t(__builtin_amdgcn_update_dpp(0, int(x), kRotateByEight, 0xf, 0xf, true));
#endif
}

}  // namespace xlstm::gpu
