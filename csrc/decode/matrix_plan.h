// SPDX-License-Identifier: Apache-2.0
// Which kernel makes a product of a step on a GPU, and in how many blocks: pure functions of shapes and the chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "decode/matrix_shape.h"

namespace xlstm::gpu {

// Weights that are multiplied in one launch: their rows one after the other, or for SwiGLU those of two side by side.
struct ProductShape {
  int64_t batch, columns;
  bool swiglu, converted;  // converted: weights that are not bfloat16
  int pieces;
  const int64_t* rows;  // of each piece
};

struct MatrixPlan {
  int batch, rows;  // of the batch and of weights that a block makes
  int lds_bytes;
  int64_t blocks;  // the batch's passes over the same weights follow each other
};

int64_t blocks_of(const ProductShape&, int rows);
MatrixPlan plan_matrix(const ProductShape&, const Chip&);

}  // namespace xlstm::gpu
