// SPDX-License-Identifier: Apache-2.0
#include "shared_storage.h"

#include "block.h"

// What kernels declare as `extern __shared__ char lds[]`: one block of memory, under the name that each family's
// namespace gives it.
#define XLSTM_SAME_LDS __attribute__((alias("_ZN5xlstm3gpu3ldsE")))
namespace xlstm::gpu {
alignas(1024) thread_local char lds[emulator::kMostDynamic];
namespace attention {
extern thread_local char lds[emulator::kMostDynamic] XLSTM_SAME_LDS;
}
namespace engine {
extern thread_local char lds[emulator::kMostDynamic] XLSTM_SAME_LDS;
}
namespace mlstm {
extern thread_local char lds[emulator::kMostDynamic] XLSTM_SAME_LDS;
}
}  // namespace xlstm::gpu

char* emulator::dynamic_shared() { return xlstm::gpu::lds; }
