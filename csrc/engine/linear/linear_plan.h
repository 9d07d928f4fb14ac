// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel for y = x W^T of quantised weights, and its grid: pure functions of shapes and the chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "engine/linear/linear_shape.h"

namespace xlstm::gpu::engine {

struct LinearShape {
  int64_t rows, columns, features;  // of x; of W, which has `features` rows
  int bits, group_size;
  bool offsets;
};

struct LinearPlan {
  int batch;      // rows of x that a launch multiplies at a time; 0: no kernel takes the product
  int part_bits;  // 2^part_bits parts of the features: blocks of a cluster
  LinearSmem smem;
  int64_t steps, tiles, passes;  // of 64 features; of W's rows; of x's
  int64_t blocks;
};

LinearPlan plan_linear(const LinearShape&, const Chip&);

// x as a kernel packs it: bytes, and floats of its sums.
int64_t packed_linear_bytes(const LinearPlan&);
int64_t packed_linear_sums(const LinearPlan&);

}  // namespace xlstm::gpu::engine
