// SPDX-License-Identifier: Apache-2.0
// The launches of y = x W^T for quantised weights, of each format: of pack_linear_kernel and quantised_linear_kernel.
// CUDA libraries only.
#pragma once

#include "arch/runtime.h"
#include "engine/gpu/params.h"
#include "engine/linear/linear_plan.h"

namespace xlstm::gpu::engine {

// A call's tensors, x packed among them.
struct LinearMemory {
  const void* x;
  int64_t x_stride;
  char* panels;
  float* sums;
  void* y;
  int64_t y_stride;
};

template <class Weights>
void launch_linear(const LinearPlan&, const DeviceLinear&, int rows, const LinearMemory&, Stream);

}  // namespace xlstm::gpu::engine
