// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

// read_vec16() of LDS where each word is used alone: clang 19 would read the words one by one, and their banks collide.
XLSTM_DEVICE Vec16 read_vec16_at_once(const void* from) {
#if defined(__CUDACC__)
  return read_vec16(from);
#else
  Halves vec = *reinterpret_cast<const Halves*>(from);
  asm("" : "+v"(vec));
  return __builtin_bit_cast(Vec16, vec);
#endif
}

}  // namespace xlstm::gpu
