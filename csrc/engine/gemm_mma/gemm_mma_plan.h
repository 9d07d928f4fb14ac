// SPDX-License-Identifier: Apache-2.0
// Which kernel makes a product of a step on a GPU, and in how many blocks: pure functions of shapes and the chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "engine/gemm_mma/gemm_mma_shape.h"

namespace xlstm::gpu::engine {

// Weights that are multiplied in one launch: their rows one after the other, or for SwiGLU those of two side by side.
struct ProductShape {
  int64_t batch, columns;
  bool swiglu;
  int bits;        // of a weight
  bool converted;  // weights that are not bfloat16
  int pieces;
  const int64_t* rows;  // of each piece
};

struct MatrixPlan {
  int batch, rows;  // of the batch and of weights in a unit of work
  int stage_tiles;  // of x's features that LDS holds at once
  int lds_bytes;
  bool early;      // launched before the kernel before it has ended (arch/nvidia/dependent_launch.h)
  int64_t blocks;  // that stay and take units in turn; the batch's passes over the same weights are neighbours
};

int64_t units_of(const ProductShape&, int rows);
MatrixPlan plan_matrix(const ProductShape&, const Chip&);

}  // namespace xlstm::gpu::engine
