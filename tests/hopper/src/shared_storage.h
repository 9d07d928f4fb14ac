// SPDX-License-Identifier: Apache-2.0
// The shared memory that kernels declare.
#pragma once

namespace emulator {

// What a launch asks for, of the block whose thread calls: kernels.cpp defines it under the kernels' name for it.
char* dynamic_shared();

}  // namespace emulator
