// SPDX-License-Identifier: Apache-2.0
// Kernels that begin before the one before them has ended (Grid::early, arch/launch.h): they take their places while
// its last blocks run, ask for what no kernel before them writes, and wait before they touch anything else. Hopper can;
// elsewhere nothing is early, and both calls are nothing.
//
// A kernel ends only after those before it: so one that may be launched early waits in every block that does anything.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

// The next kernel may begin once all blocks of this one have said so, or ended.
XLSTM_DEVICE void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// All that kernels before this one have written is there.
XLSTM_DEVICE void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A line of memory that will be read soon comes to L2. That is where writes meet, so it may be what others still write.
XLSTM_DEVICE void prefetch_l2_line([[maybe_unused]] const void* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

}  // namespace xlstm::gpu
