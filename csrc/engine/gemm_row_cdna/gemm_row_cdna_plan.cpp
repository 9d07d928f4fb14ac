// SPDX-License-Identifier: Apache-2.0
#include "engine/gemm_row_cdna/gemm_row_cdna_plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm::gpu::engine {

namespace {

constexpr int kLeastRows = 4;             // of a unit of a launch: fewer do not pay for a block's x
constexpr int kStaticLdsBytes = 1 << 10;  // squares of a norm
constexpr int kLeastFeatures = 4 * kStepFeatures;
constexpr int kUnitSteps = 2;   // steps' time that a unit's epilogue takes
constexpr int kGateShare = 16;  // at most one in so many blocks multiplies gates

}  // namespace

int64_t cdna_units_with(const GemmShape& p, int rows) { return units_of(p, p.swiglu ? 2 * rows : rows); }

// Units of the slices that take the fewest steps. For some slices: the fewest rounds, and in these the fewest rows.
CdnaUnits cdna_units_for(const GemmShape& p, int64_t groups, int depth) {
  CdnaUnits best{};
  int least = 0;
  for (int bits = 0; bits <= kCdnaMostSliceBits; ++bits) {
    const int most = (p.swiglu ? kCdnaUnitSlots / 2 : kCdnaUnitSlots) >> bits;
    const int rounds = int(ceil_div(cdna_units_with(p, most), groups));
    const int steps = rounds * (cdna_wave_steps(int(p.columns), bits, depth) + kUnitSteps);
    if (least && steps >= least) continue;
    int rows = most;
    while (rows > 1 && cdna_units_with(p, rows - 1) <= rounds * groups) --rows;
    best = {rows, bits, rounds, {}}, least = steps;
  }
  number_units(p.swiglu ? 1 : p.linear_count, best.rows, [&](int j) { return p.rows[j]; }, best.first);
  return best;
}

bool cdna_row_fits(const GemmShape& p) {
  return p.columns % kStepFeatures == 0 && p.columns >= kLeastFeatures && p.columns <= kMaxSingleFeatures;
}
// LDS of a product's x in any slices.
int cdna_row_x_bytes(const GemmShape& p) {
  const int steps = cdna_wave_steps(int(p.columns), kCdnaMostSliceBits, kCdnaDepth) << kCdnaMostSliceBits;
  return steps * kCdnaWaves * (cdna_step_bytes(false) + (p.bits < 16 ? 2 * int(sizeof(float)) : 0));
}

// The fewest rows of gates for each group, which all blocks wait for: they are to be there before the projections.
int cdna_gate_blocks(const GemmShape& gates, int64_t blocks) {
  return int(std::min(ceil_div(cdna_units_with(gates, 1), kCdnaGroups), std::max<int64_t>(1, blocks / kGateShare)));
}

GemmRowCdnaPlan plan_gemm_row_cdna(const GemmShape& p, const GemmShape& gates, const Chip& chip) {
  if (chip.family != Family::cdna || p.batch != 1 || !cdna_row_fits(p)) return {};
  GemmRowCdnaPlan plan{};
  plan.sums_at = cdna_row_x_bytes(p);
  plan.lds_bytes = plan.sums_at + kCdnaGroups * kCdnaSumBytes;
  if (plan.lds_bytes + kStaticLdsBytes > chip.lds_bytes) return {};
  const int64_t units = cdna_units_with(p, p.swiglu ? kLeastRows / 2 : kLeastRows);
  plan.gate_blocks = cdna_gate_blocks(gates, chip.compute_units);
  const int64_t blocks = std::min<int64_t>(chip.compute_units - plan.gate_blocks, ceil_div(units, kCdnaGroups));
  if (blocks <= 0) return {};
  plan.blocks = blocks + plan.gate_blocks;
  plan.units = cdna_units_for(p, blocks * kCdnaGroups, kCdnaDepth);
  if (plan.gate_blocks) plan.gate_units = cdna_units_for(gates, plan.gate_blocks * kCdnaGroups, kCdnaGateDepth);
  if (plan.gate_units.rounds > 1) return {};  // more than gates stayed bfloat16
  return plan;
}

}  // namespace xlstm::gpu::engine
