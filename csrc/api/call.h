// SPDX-License-Identifier: Apache-2.0
// What every call of the C API does around its work: it looks at its structs and its workspace, and turns exceptions
// into a status and a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "xlstm_hip.h"

namespace xlstm {

template <class Struct>
const Struct& given(const Struct* p) {
  if (!p) throw std::invalid_argument("params, runtime: expected a struct, got NULL");
  return *p;
}

struct WorkspaceTooSmall : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The message of this thread's last call.
std::string& last_error();

// No exception leaves the C API.
template <class F>
xlstm_status guarded(F&& f) {
  try {
    f();
    last_error().clear();
    return XLSTM_OK;
  } catch (const std::invalid_argument& e) {
    last_error() = e.what();
    return XLSTM_INVALID_ARGUMENT;
  } catch (const WorkspaceTooSmall& e) {
    last_error() = e.what();
    return XLSTM_WORKSPACE_TOO_SMALL;
  } catch (const std::exception& e) {
    last_error() = e.what();
    return XLSTM_UNSUPPORTED;
  }
}

// Bytes of workspace, with room to align the block; 0 when the call failed.
inline constexpr size_t kWorkspaceAlignment = 256;
template <class F>
size_t counted(F&& f) {
  size_t bytes = 0;
  guarded([&] { bytes = f() + kWorkspaceAlignment; });
  return bytes;
}
// What the GPU calls of a library without GPU kernels answer.
inline xlstm_status no_gpu() {
  return guarded([] { throw std::runtime_error("this library was built without GPU kernels"); });
}
inline size_t no_gpu_bytes() {
  no_gpu();
  return 0;
}

inline void* aligned(void* p) {
  const uintptr_t last = kWorkspaceAlignment - 1;
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + last) & ~last);
}

// The block that a call works in, of `needed` bytes: the caller's own, or one that the caller allocates now.
void* workspace_block(void* workspace, size_t bytes, void* (*allocate)(void*, size_t), void* self, size_t needed);
template <class Runtime>
void* workspace_of(const Runtime& r, size_t needed) {
  return workspace_block(r.workspace, r.workspace_bytes, r.allocate, r.self, needed);
}

}  // namespace xlstm
