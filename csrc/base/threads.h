// SPDX-License-Identifier: Apache-2.0
// Threads for callers of the C API that bring none: started per call, joined before it returns. Fewer than `workers`
// may start; body takes tasks until none is left.
#pragma once

#include <cstdint>

namespace xlstm {

int32_t hardware_threads();
void run_on_new_threads(void* self, int32_t workers, void (*body)(void* arg, int32_t worker), void* arg);

// For the tries-th look at a memory that another thread is about to change: a pause at first, then the processor is
// left to others.
void spin_or_yield(int64_t tries);

}  // namespace xlstm
