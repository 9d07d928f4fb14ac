// SPDX-License-Identifier: Apache-2.0
// The frame of every call of the C API: checks of its structs and its workspace, and exceptions turned into a status
// and a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "xlstm_hip.h"

namespace xlstm {

template <class Struct>
const Struct& not_null(const Struct* p) {
  if (!p) throw std::invalid_argument("params, runtime: expected a struct, got NULL");
  return *p;
}

struct WorkspaceTooSmall : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The message of this thread's last call.
std::string& last_error();

// Runs f and turns its exceptions into a status: no exception leaves the C API.
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

// The bytes of workspace that f returns, plus the bytes for aligning the block; 0 when f throws.
inline constexpr size_t kWorkspaceAlignment = 256;
template <class F>
size_t counted(F&& f) {
  size_t bytes = 0;
  guarded([&] { bytes = f() + kWorkspaceAlignment; });
  return bytes;
}
// The result of GPU calls in a library without GPU kernels.
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

// The block of `needed` bytes that a call works in: the caller's block, or one that the caller's `allocate` returns.
void* workspace_block(void* workspace, size_t bytes, void* (*allocate)(void*, size_t), void* self, size_t needed);
template <class Runtime>
void* workspace_of(const Runtime& r, size_t needed) {
  return workspace_block(r.workspace, r.workspace_bytes, r.allocate, r.self, needed);
}

}  // namespace xlstm
