// SPDX-License-Identifier: Apache-2.0
#include "shared_storage.h"

#include "block.h"

namespace xlstm::gpu {
alignas(1024) thread_local char lds[emulator::kMostDynamic];  // what kernels declare as `extern __shared__`
}

char* emulator::dynamic_shared() { return xlstm::gpu::lds; }
