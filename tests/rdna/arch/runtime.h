// SPDX-License-Identifier: Apache-2.0
// csrc/arch/runtime.h for the emulator: a launch runs the kernel here.
#pragma once

#include <type_traits>

#include "arch/compiler.h"

namespace xlstm::gpu {

using Stream = void*;
enum Status { kSuccess };
inline const char* status_text(Status) { return "no error"; }
inline Status last_status() { return kSuccess; }

template <class Kernel>
Status allow_lds(Kernel*, int bytes) {
  if (bytes > 64 << 10) throw std::runtime_error("more LDS than a block of RDNA may have");
  return kSuccess;
}
template <class... Params>
Status start(void (*kernel)(Params...), uint32_t blocks, int threads, int lds_bytes, bool, int, bool, Stream,
             const std::type_identity_t<Params>&... arguments) {
  emulator::launch(int(blocks), threads, lds_bytes, 1, false, [&] { kernel(arguments...); });
  return kSuccess;
}

}  // namespace xlstm::gpu
