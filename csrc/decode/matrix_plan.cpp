// SPDX-License-Identifier: Apache-2.0
#include "decode/matrix_plan.h"

namespace xlstm::gpu {

int64_t blocks_of(const ProductShape& p, int rows) {
  const int each = p.swiglu ? rows / 2 : rows;
  int64_t blocks = 0;
  for (int j = 0; j < (p.swiglu ? 1 : p.pieces); ++j) blocks += (p.rows[j] + each - 1) / each;
  return blocks;
}

// Every block reads the batch's x's anew, so blocks have many rows where there are enough of them for every CU.
MatrixPlan plan_matrix(const ProductShape& p, const Chip& chip) {
  MatrixPlan plan{};
  for (const int batch : kMatrixBatch) {
    const bool fits =
        has_matrix_kernel(chip.family, batch, p.converted) && (batch > 1 || p.columns <= kMostWholeFeatures);
    if (fits && plan.batch < p.batch) plan.batch = batch;
  }
  const int few = kMatrixRows[0], many = kMatrixRows[1];
  plan.rows = blocks_of(p, many) >= chip.compute_units ? many : few;
  plan.lds_bytes = matrix_lds_bytes(chip.family, plan.batch, plan.rows, int(p.columns));
  plan.blocks = blocks_of(p, plan.rows) * ((p.batch + plan.batch - 1) / plan.batch);
  return plan;
}

}  // namespace xlstm::gpu
