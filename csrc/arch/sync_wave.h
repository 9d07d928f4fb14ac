// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

// What lanes have written to LDS, the others of their wave read after this point. AMD executes a wave's accesses in
// order, so there it binds the compiler alone.
XLSTM_DEVICE void sync_wave() {
#if defined(__CUDACC__)
  __syncwarp();
#else
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#endif
}

}  // namespace xlstm::gpu
