// SPDX-License-Identifier: Apache-2.0
// Threads for callers of the C API that pass no `parallel`: started per call, joined before it returns. Fewer than
// `workers` may start; body takes tasks until none is left.
#pragma once

#include <cstdint>

namespace xlstm {

int32_t hardware_threads();
void run_on_new_threads(void* self, int32_t workers, void (*body)(void* arg, int32_t worker), void* arg);

// Waits after the tries-th look at memory that another thread is about to change: at first by a pause instruction,
// after about 100 us by yielding the processor to other threads.
void spin_or_yield(int64_t tries);

}  // namespace xlstm
