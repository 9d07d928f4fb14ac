// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch: a kernel that is launched before the kernel before it has ended (Grid::early,
// arch/launch.h). Its blocks start while the last blocks of that kernel run, load what no earlier kernel writes, and
// wait before they touch anything else. Hopper supports it; elsewhere no launch is early, and both calls do nothing.
//
// A kernel ends only after those before it. So a kernel that may be launched early waits in every block that does any
// work.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

// The next kernel may start once all blocks of this one have called this, or have ended.
XLSTM_DEVICE void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Waits until all writes of earlier kernels are visible.
XLSTM_DEVICE void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Prefetches a line of memory to L2. L2 also receives all writes, so an earlier kernel may still be writing the line.
XLSTM_DEVICE void prefetch_l2_line([[maybe_unused]] const void* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

}  // namespace xlstm::gpu
