// SPDX-License-Identifier: Apache-2.0
// The params of the kernels of y = x W^T for quantised weights. CUDA libraries only.
#pragma once

#include <cuda.h>

#include "engine/gpu/params.h"
#include "engine/linear/linear_shape.h"

namespace xlstm::gpu::engine {

struct PackLinearParams {
  const void* x;  // (rows, columns) of bfloat16
  int64_t stride;
  int rows, columns, batch, steps, passes;  // batch: rows of a pass
  // By passes and steps of features: a panel of x, and each row's sum, which offsets are multiplied by.
  char* panels;
  float* sums;
};

struct LinearParams {
  CUtensorMap weights;  // rows of bytes, as elements of two
  DeviceLinear w;
  int rows;                      // of x
  int steps, part_bits, passes;  // 2^part_bits parts
  LinearSmem smem;
  const char* panels;
  const float* sums;
  void* y;  // (rows, w.rows) of bfloat16
  int64_t stride;
};

}  // namespace xlstm::gpu::engine
