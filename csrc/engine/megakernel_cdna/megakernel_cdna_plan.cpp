// SPDX-License-Identifier: Apache-2.0
#include "engine/megakernel_cdna/megakernel_cdna_plan.h"

#include <algorithm>

#include "base/numbers.h"
#include "mlstm/recurrent/recurrent_plan.h"

namespace xlstm::gpu::engine {

namespace {

constexpr int kLeastRows = 8;             // of a unit, in the product with the most: fewer do not pay for a block's x
constexpr int kStaticLdsBytes = 2 << 10;  // the mLSTM step's sums and gates, squares of a norm
constexpr int kLeastFeatures = 4 * kStepFeatures;
constexpr int kUnitSteps = 2;   // steps' time that a unit's epilogue takes
constexpr int kGateShare = 16;  // at most one in so many blocks multiplies gates

int64_t units_with(const GemmShape& p, int rows) { return units_of(p, p.swiglu ? 2 * rows : rows); }

// Units of the slices that take the fewest steps. For some slices: the fewest rounds, and in these the fewest rows.
CdnaUnits units_for(const GemmShape& p, int64_t groups, int depth) {
  CdnaUnits best{};
  int least = 0;
  for (int bits = 0; bits <= kCdnaMostSliceBits; ++bits) {
    const int most = (p.swiglu ? kCdnaUnitSlots / 2 : kCdnaUnitSlots) >> bits;
    const int rounds = int(ceil_div(units_with(p, most), groups));
    const int steps = rounds * (cdna_wave_steps(int(p.columns), bits, depth) + kUnitSteps);
    if (least && steps >= least) continue;
    int rows = most;
    while (rows > 1 && units_with(p, rows - 1) <= rounds * groups) --rows;
    best = {rows, bits, rounds}, least = steps;
  }
  return best;
}

bool product_fits(const GemmShape& p) {
  return p.columns % kStepFeatures == 0 && p.columns >= kLeastFeatures && p.columns <= kMaxSingleFeatures;
}
// LDS of a product's x in any slices.
int x_bytes_of(const GemmShape& p) {
  const int steps = cdna_wave_steps(int(p.columns), kCdnaMostSliceBits, kCdnaDepth) << kCdnaMostSliceBits;
  return steps * kCdnaWaves * (cdna_step_bytes(false) + (p.bits < 16 ? 2 * int(sizeof(float)) : 0));
}

// The fewest rows of gates for each group, which all blocks wait for: they are to be there before the projections.
int gate_blocks_for(const GemmShape& gates, int64_t blocks) {
  return int(std::min(ceil_div(units_with(gates, 1), kCdnaGroups), std::max<int64_t>(1, blocks / kGateShare)));
}

bool step_fits(const MegakernelCdnaCall& p) {
  return p.dqk % mlstm::kRecurrentRows == 0 && p.dhv % kCdnaStepColumns == 0 &&
         p.dqk / mlstm::kRecurrentRows * (kCdnaStepColumns / mlstm::kRecurrentColumns) <= kMegakernelCdnaThreads;
}

}  // namespace

MegakernelCdnaPlan plan_megakernel_cdna(const MegakernelCdnaCall& p, const Chip& chip) {
  if (chip.family != Family::cdna || !p.suits || !step_fits(p)) return {};
  MegakernelCdnaPlan plan{};
  int64_t most_units = 0;
  int x_bytes = int(2 * p.dqk + kCdnaStepColumns) * 4;  // q, k and a tile's v lie in its place
  for (const GemmShape& product : p.product) {
    if (!product_fits(product)) return {};
    most_units = std::max(most_units, units_with(product, product.swiglu ? kLeastRows / 2 : kLeastRows));
    x_bytes = std::max(x_bytes, x_bytes_of(product));
  }
  plan.sums_at = int(ceil_div(x_bytes, 16)) * 16;
  plan.lds_bytes = plan.sums_at + kCdnaGroups * kCdnaSumBytes;
  if (plan.lds_bytes + kStaticLdsBytes > chip.lds_bytes) return {};
  plan.blocks = std::min<int64_t>(chip.compute_units, ceil_div(most_units, kCdnaGroups));
  plan.gate_blocks = gate_blocks_for(p.gates, plan.blocks);
  if (plan.gate_blocks >= plan.blocks) return {};
  for (int n = 0; n <= kCdnaProducts; ++n)
    plan.units[n] = units_for(p.product[n], (plan.blocks - (n == 0 ? plan.gate_blocks : 0)) * kCdnaGroups, kCdnaDepth);
  if (plan.gate_blocks) plan.gate_units = units_for(p.gates, plan.gate_blocks * kCdnaGroups, kCdnaGateDepth);
  return plan;
}

}  // namespace xlstm::gpu::engine
