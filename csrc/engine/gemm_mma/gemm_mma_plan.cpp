// SPDX-License-Identifier: Apache-2.0
#include "engine/gemm_mma/gemm_mma_plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm::gpu::engine {

int64_t units_of(const GemmShape& p, int rows) {
  const int rows_per_linear = p.swiglu ? rows / 2 : rows;
  int64_t units = 0;
  for (int j = 0; j < (p.swiglu ? 1 : p.linear_count); ++j) units += ceil_div(p.rows[j], rows_per_linear);
  return units;
}

// A unit has as many rows as possible, since its rows share the cost of x, while at least seven in eight of the slots
// for blocks still get a unit.
GemmMmaPlan plan_gemm_mma(const GemmShape& p, const Chip& chip) {
  const Family f = chip.family;
  const bool groups = p.bits < 16;
  const int columns = int(p.columns);
  GemmMmaPlan plan{};
  for (const int batch : kGemmMmaBatch) {
    constexpr int kRows = 32;  // the maximum for kernels whose weights are in a ring
    const bool fits = has_gemm_mma(f, batch, p.converted) && (batch > 1 || columns <= kMaxSingleFeatures) &&
                      gemm_mma_stage_tiles(f, p.bits, batch, kRows, columns, chip.lds_bytes) > 0;
    if (fits && plan.batch < p.batch) plan.batch = batch;
  }
  const int64_t passes = ceil_div(p.batch, plan.batch);
  const int64_t slots = int64_t(chip.compute_units) * gemm_mma_blocks_per_cu(f, plan.batch);
  const auto rounds = [&](int rows) { return (units_of(p, rows) * passes + slots - 1) / slots; };
  for (const int rows : kGemmMmaRows) {
    if (!has_gemm_mma_rows(f, plan.batch, rows, groups)) continue;
    if (p.swiglu && rows == kStripColumns && !has_mixed_strip(f, p.bits, plan.batch)) continue;
    if (plan.rows && has_ring(f, plan.batch)) {  // x costs little: all blocks should end at the same time
      if (rounds(rows) * rows > rounds(plan.rows) * plan.rows) break;
    } else if (plan.rows && units_of(p, rows) * passes * 8 < slots * 7) {
      break;
    }
    plan.rows = rows;
  }
  plan.stage_tiles = gemm_mma_stage_tiles(f, p.bits, plan.batch, plan.rows, columns, chip.lds_bytes);
  plan.lds_bytes = gemm_mma_lds_bytes(f, p.bits, plan.batch, plan.rows, columns, chip.lds_bytes);
  const int64_t blocks_per_cu =
      std::min<int64_t>(gemm_mma_blocks_per_cu(f, plan.batch),
                        std::max(1, chip.lds_bytes / (plan.lds_bytes + norm_stats_bytes(plan.batch))));
  const int64_t max_blocks = std::max<int64_t>(1, chip.compute_units * blocks_per_cu / passes);
  plan.early_launch = chip.hopper;
  plan.blocks = std::min(units_of(p, plan.rows), max_blocks) * passes;
  return plan;
}

}  // namespace xlstm::gpu::engine
