// SPDX-License-Identifier: Apache-2.0
// Calls that have no GPU kernel say so. (Each function leaves this file when its kernel is there.)
#include "attention/kernels_gpu.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include <stdexcept>

namespace xlstm::gpu {
#define XLSTM_PENDING(name, params)                                                                              \
  size_t name##_workspace(const params&, const Chip&) { throw std::runtime_error(#name ": no GPU kernel yet"); } \
  void name(const params&, const Chip&, void*, void*) { throw std::runtime_error(#name ": no GPU kernel yet"); }

XLSTM_PENDING(attention_backward, xlstm_attention_backward)
}  // namespace xlstm::gpu
#endif
