// SPDX-License-Identifier: Apache-2.0
// csrc/arch/sync_wave.h for the emulator, whose lanes wait for each other.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

inline void sync_wave() { emulator::sync_warp(); }

}  // namespace xlstm::gpu
