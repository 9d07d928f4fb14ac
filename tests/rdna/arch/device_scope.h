// SPDX-License-Identifier: Apache-2.0
// csrc/arch/device_scope.h for the emulator: CDNA's kernels alone hand over between blocks.
#pragma once

#include <stdexcept>

#include "arch/compiler.h"

namespace xlstm::gpu {

[[noreturn]] inline void no_hand_over() { throw std::logic_error("a kernel of CDNA runs on RDNA"); }

inline void store_device_scope(float*, float) { no_hand_over(); }
inline void store_device_scope(uint32_t*, uint32_t) { no_hand_over(); }
inline float load_device_scope(const float*) { no_hand_over(); }
inline uint64_t load_device_scope(const uint64_t*) { no_hand_over(); }
inline void spin_pause() { no_hand_over(); }
inline uint32_t add_device_scope(uint32_t*, uint32_t) { no_hand_over(); }
inline void add_device_scope(char*, uint32_t, float) { no_hand_over(); }
inline void wait_for_stores() { no_hand_over(); }

}  // namespace xlstm::gpu
