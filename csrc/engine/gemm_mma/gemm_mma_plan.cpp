// SPDX-License-Identifier: Apache-2.0
#include "engine/gemm_mma/gemm_mma_plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm::gpu::engine {

int64_t units_of(const ProductShape& p, int rows) {
  const int each = p.swiglu ? rows / 2 : rows;
  int64_t units = 0;
  for (int j = 0; j < (p.swiglu ? 1 : p.pieces); ++j) units += ceil_div(p.rows[j], each);
  return units;
}

// Units have many rows, which share what x's cost, where seven in eight of the places for blocks have one even so.
MatrixPlan plan_matrix(const ProductShape& p, const Chip& chip) {
  const Family f = chip.family;
  const bool groups = p.bits < 16;
  const int columns = int(p.columns);
  MatrixPlan plan{};
  for (const int batch : kMatrixBatch) {
    constexpr int kRows = 32;  // the most of a kernel whose weights are in a ring
    const bool fits = has_matrix_kernel(f, batch, p.converted) && (batch > 1 || columns <= kMostWholeFeatures) &&
                      matrix_stage_tiles(f, p.bits, batch, kRows, columns, chip.lds_bytes) > 0;
    if (fits && plan.batch < p.batch) plan.batch = batch;
  }
  const int64_t passes = ceil_div(p.batch, plan.batch);
  const int64_t places = int64_t(chip.compute_units) * matrix_blocks_of_cu(f, plan.batch);
  const auto rounds = [&](int rows) { return (units_of(p, rows) * passes + places - 1) / places; };
  for (const int rows : kMatrixRows) {
    if (!has_matrix_rows(f, plan.batch, rows, groups)) continue;
    if (p.swiglu && rows == kStripColumns && !has_mixed_strip(f, p.bits, plan.batch)) continue;
    if (plan.rows && has_ring(f, plan.batch)) {  // x's cost little: what counts is that all blocks end together
      if (rounds(rows) * rows > rounds(plan.rows) * plan.rows) break;
    } else if (plan.rows && units_of(p, rows) * passes * 8 < places * 7) {
      break;
    }
    plan.rows = rows;
  }
  plan.stage_tiles = matrix_stage_tiles(f, p.bits, plan.batch, plan.rows, columns, chip.lds_bytes);
  plan.lds_bytes = matrix_lds_bytes(f, p.bits, plan.batch, plan.rows, columns, chip.lds_bytes);
  const int64_t together =
      std::min<int64_t>(matrix_blocks_of_cu(f, plan.batch),
                        std::max(1, chip.lds_bytes / (plan.lds_bytes + matrix_fact_bytes(plan.batch))));
  const int64_t most = std::max<int64_t>(1, chip.compute_units * together / passes);
  plan.early = chip.hopper;
  plan.blocks = std::min(units_of(p, plan.rows), most) * passes;
  return plan;
}

}  // namespace xlstm::gpu::engine
