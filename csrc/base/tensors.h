// SPDX-License-Identifier: Apache-2.0
// What GPU calls ask of a tensor's layout, whatever family they are of.
#pragma once

#include <cstdint>

#include "xlstm_hip.h"

namespace xlstm::gpu {

inline int element_bytes(const xlstm_tensor& x) { return x.dtype == XLSTM_FLOAT32 ? 4 : 2; }

// Whether every axis has something, and goes forward where it has more than one: what Hopper's bulk copies ask.
inline bool has_forward_strides(const xlstm_tensor& x, const int64_t (&sizes)[3]) {
  bool forward = true;
  for (int axis = 0; axis < 3; ++axis)
    forward = forward && (sizes[axis] == 1 || (sizes[axis] > 1 && x.stride[axis] > 0));
  return forward;
}

}  // namespace xlstm::gpu
