// SPDX-License-Identifier: Apache-2.0
// Properties of a tensor's layout that the GPU calls of every family ask for.
#pragma once

#include <cstdint>

#include "base/float8.h"
#include "xlstm_hip.h"

namespace xlstm::gpu {

inline int element_bytes(const xlstm_tensor& x) { return is_float8(x.dtype) ? 1 : x.dtype == XLSTM_FLOAT32 ? 4 : 2; }

// Whether no axis is empty and every axis of two or more elements has a positive stride, as TMA requires.
inline bool has_forward_strides(const xlstm_tensor& x, const int64_t (&sizes)[3]) {
  bool forward = true;
  for (int axis = 0; axis < 3; ++axis)
    forward = forward && (sizes[axis] == 1 || (sizes[axis] > 1 && x.stride[axis] > 0));
  return forward;
}

}  // namespace xlstm::gpu
