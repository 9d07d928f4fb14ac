// SPDX-License-Identifier: Apache-2.0
#include "engine/megakernel_cdna/megakernel_cdna_plan.h"

#include <algorithm>

#include "base/numbers.h"
#include "mlstm/recurrent/recurrent_plan.h"

namespace xlstm::gpu::engine {

namespace {

constexpr int kLeastRows = 8;             // of a unit, in the product with the most: fewer do not pay for a block's x
constexpr int kStaticLdsBytes = 2 << 10;  // the mLSTM step's sums and gates, squares of a norm

bool step_fits(const MegakernelCdnaCall& p) {
  return p.dqk % mlstm::kRecurrentRows == 0 && p.dhv % kCdnaStepColumns == 0 &&
         p.dqk / mlstm::kRecurrentRows * (kCdnaStepColumns / mlstm::kRecurrentColumns) <= kRowCdnaThreads;
}

}  // namespace

MegakernelCdnaPlan plan_megakernel_cdna(const MegakernelCdnaCall& p, const Chip& chip) {
  if (chip.family != Family::cdna || !p.suits || !step_fits(p)) return {};
  MegakernelCdnaPlan plan{};
  int64_t most_units = 0;
  int x_bytes = int(2 * p.dqk + kCdnaStepColumns) * 4;  // q, k and a tile's v lie in its place
  for (const GemmShape& product : p.product) {
    if (!cdna_row_fits(product)) return {};
    most_units = std::max(most_units, cdna_units_with(product, product.swiglu ? kLeastRows / 2 : kLeastRows));
    x_bytes = std::max(x_bytes, cdna_row_x_bytes(product));
  }
  plan.sums_at = int(ceil_div(x_bytes, 16)) * 16;
  plan.lds_bytes = plan.sums_at + kCdnaGroups * kCdnaSumBytes;
  if (plan.lds_bytes + kStaticLdsBytes > chip.lds_bytes) return {};
  plan.blocks = std::min<int64_t>(chip.compute_units, ceil_div(most_units, kCdnaGroups));
  plan.gate_blocks = cdna_gate_blocks(p.gates, plan.blocks);
  if (plan.gate_blocks >= plan.blocks) return {};
  for (int n = 0; n <= kCdnaProducts; ++n)
    plan.units[n] =
        cdna_units_for(p.product[n], (plan.blocks - (n == 0 ? plan.gate_blocks : 0)) * kCdnaGroups, kCdnaDepth);
  if (plan.gate_blocks) plan.gate_units = cdna_units_for(p.gates, plan.gate_blocks * kCdnaGroups, kCdnaGateDepth);
  return plan;
}

}  // namespace xlstm::gpu::engine
