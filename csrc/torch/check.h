// SPDX-License-Identifier: Apache-2.0
// The layer between torch's tensors and the C API: views, checks, memory and threads. checks.py checks the ops'
// arguments with messages for users; the checks of this file keep a direct call of torch.ops from reading outside a
// tensor.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <exception>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "torch/library.h"
#include "xlstm_hip.h"

// Only a torch with a GPU has this function, and one library serves every torch.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream) __attribute__((weak));

namespace xlstm::torch_ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline xlstm_dtype dtype_of(const char* name, ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return XLSTM_FLOAT32;
    case ScalarType::BFloat16:
      return XLSTM_BFLOAT16;
    case ScalarType::Half:
      return XLSTM_FLOAT16;
    case ScalarType::Double:
      return XLSTM_FLOAT64;
    default:
      STD_TORCH_CHECK(false, name, ": expected float32, bfloat16, float16 or float64");
  }
}
inline xlstm_dtype dtype_of(const char* name, const Tensor& x) { return dtype_of(name, x.scalar_type()); }

inline ScalarType wide_dtype(const Tensor& q) {
  return q.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline void check_shape(const char* name, const Tensor& x, std::initializer_list<int64_t> shape) {
  bool same = x.dim() == int64_t(shape.size());
  int64_t axis = 0;
  for (int64_t size : shape) same = same && x.size(axis++) == size;
  if (same) return;  // before any text is built: the checks are most of a small call's time
  std::string expected, got;
  for (int64_t size : shape) expected.append(" ").append(std::to_string(size));
  for (int64_t j = 0; j < x.dim(); ++j) got.append(" ").append(std::to_string(x.size(j)));
  STD_TORCH_CHECK(false, name, ": expected shape (", expected, " ), got (", got, " )");
}

// A new tensor on q's device. On the CPU a large tensor asks for huge pages: the kernel writes it once, and with pages
// of 4 KB the first touch costs more than the write (a quarter of the forward's time at 33 MB of output).
inline Tensor new_tensor(const Tensor& q, torch::headeronly::IntHeaderOnlyArrayRef shape, ScalarType dtype) {
  Tensor x = torch::stable::new_empty(q, shape, dtype);
#if defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHuge = uintptr_t(2) << 20;
  const int64_t bytes = x.numel() * (dtype == ScalarType::Double ? 8 : dtype == ScalarType::Float ? 4 : 2);
  const uintptr_t first = (reinterpret_cast<uintptr_t>(x.data_ptr()) + kHuge - 1) / kHuge * kHuge;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(x.data_ptr()) + uintptr_t(bytes)) / kHuge * kHuge;
  if (x.is_cpu() && last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // advice only
#endif
  return x;
}

inline void check_device(const char* name, const Tensor& x, const Tensor& q) {
  STD_TORCH_CHECK(x.is_cpu() == q.is_cpu() && x.get_device_index() == q.get_device_index(), name,
                  ": expected a tensor on q's device");
}

// The view of a tensor with axes batch, head, token (if any) and, unless it is a gate, contiguous features.
inline xlstm_tensor view(const char* name, const Tensor& x, const Tensor& q, std::initializer_list<int64_t> shape,
                         bool features) {
  check_shape(name, x, shape);
  check_device(name, x, q);
  if (features)
    STD_TORCH_CHECK(x.stride(x.dim() - 1) == 1 || x.size(x.dim() - 1) == 1, name,
                    ": expected the last dimension to be contiguous");
  const int64_t axes = x.dim() - (features ? 1 : 0);
  xlstm_tensor t{x.data_ptr(), dtype_of(name, x), {0, 0, 0}};
  for (int64_t j = 0; j < axes && j < 3; ++j) t.stride[j] = x.stride(j);
  return t;
}

// The data of a contiguous tensor.
inline void* contiguous(const char* name, const Tensor& x, const Tensor& q, std::initializer_list<int64_t> shape) {
  check_shape(name, x, shape);
  check_device(name, x, q);
  STD_TORCH_CHECK(x.is_contiguous(), name, ": expected a contiguous tensor");
  return x.data_ptr();
}

// The data of a contiguous tensor of the wide dtype: states, their gradients, l.
inline void* wide(const char* name, const Tensor& x, const Tensor& q, std::initializer_list<int64_t> shape) {
  void* data = contiguous(name, x, q, shape);
  STD_TORCH_CHECK(x.scalar_type() == wide_dtype(q), name,
                  ": expected the accumulation dtype (float32, or float64 with float64)");
  return data;
}
inline void* wide(const char* name, const OptionalTensor& x, const Tensor& q, std::initializer_list<int64_t> shape) {
  return x ? wide(name, *x, q, shape) : nullptr;
}

inline void check_status(xlstm_status status) {
  STD_TORCH_CHECK(status == XLSTM_OK, "xlstm_hip: ", xlstm_last_error());
}

// One call of the C API on either device.
template <class Params>
struct Call {
  xlstm_status (*cpu)(const Params*, const xlstm_runtime*);
  xlstm_status (*gpu)(const Params*, const xlstm_gpu*);
};

// A call's workspace, which the call allocates by this object: a tensor, so that it is torch's memory on the current
// stream.
struct Workspace {
  const Tensor& q;  // on the call's device
  Tensor block;

  // No exception may pass through the C API: allocate stores it and returns NULL, and check rethrows it.
  std::exception_ptr error;
  static void* allocate(void* self, size_t bytes) {
    auto& workspace = *static_cast<Workspace*>(self);
    try {
      workspace.block = torch::stable::new_empty(workspace.q, {int64_t(bytes)}, ScalarType::Byte);
      return workspace.block.data_ptr();
    } catch (...) {
      workspace.error = std::current_exception();
      return nullptr;
    }
  }
  void check(xlstm_status status) const {
    if (error) std::rethrow_exception(error);
    check_status(status);
  }
};

// Runs a call on torch's threads, with workspace from torch.
template <class Params>
void run_cpu(const Tensor& q, const Params& params, const Call<Params>& call) {
  Workspace workspace{q, {}, {}};
  xlstm_runtime runtime{};
  runtime.threads = int32_t(torch::stable::get_num_threads());
  runtime.parallel = [](void*, int32_t workers, void (*body)(void*, int32_t), void* arg) {
    torch::stable::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) body(arg, int32_t(w));
    });
  };
  runtime.self = &workspace;
  runtime.allocate = Workspace::allocate;
  workspace.check(call.cpu(&params, &runtime));
}

// Runs a call on torch's current stream of q's device.
template <class Params>
void run_gpu(const Tensor& q, const Params& params, const Call<Params>& call) {
  const int32_t device = int32_t(q.get_device_index());
  const torch::stable::accelerator::DeviceGuard guard(device);
  Workspace workspace{q, {}, {}};
  xlstm_gpu gpu{};
  STD_TORCH_CHECK(aoti_torch_get_current_cuda_stream != nullptr, "xlstm_hip: this torch has no GPU streams");
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &gpu.stream));
  gpu.self = &workspace;
  gpu.allocate = Workspace::allocate;
  workspace.check(call.gpu(&params, &gpu));
}

template <class Params>
void run(const Tensor& q, const Params& params, const Call<Params>& call) {
  q.is_cpu() ? run_cpu(q, params, call) : run_gpu(q, params, call);
}

}  // namespace xlstm::torch_ops
