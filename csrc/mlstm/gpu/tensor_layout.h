// SPDX-License-Identifier: Apache-2.0
// How a call's tensors lie in memory: whether kernels can load them by vectors of 16 bytes, or by TMA.
#pragma once

#include "base/tensors.h"

namespace xlstm::gpu::mlstm {

// Whether the rows of x are aligned: each token's columns are a multiple of 16 bytes and begin at a multiple of 16
// bytes. Offsets within a chunk are 32-bit.
inline bool rows_aligned16(const xlstm_tensor& x, int64_t columns, const xlstm_mlstm& in) {
  const int64_t bytes = element_bytes(x), sizes[] = {in.batch, in.heads, in.length};
  bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && columns * bytes % 16 == 0 && x.stride[2] >= 0 &&
                 x.stride[2] * bytes < int64_t(1) << 26;
  for (int axis = 0; axis < 3; ++axis) aligned = aligned && (sizes[axis] == 1 || x.stride[axis] * bytes % 16 == 0);
  return aligned;
}

// Whether TMA can load x: bfloat16, aligned rows, and positive strides.
inline bool has_panels(const xlstm_tensor& x, int64_t columns, const xlstm_mlstm& in) {
  return x.dtype == XLSTM_BFLOAT16 && has_forward_strides(x, {in.batch, in.heads, in.length}) &&
         rows_aligned16(x, columns, in);
}

}  // namespace xlstm::gpu::mlstm
