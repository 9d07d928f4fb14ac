// SPDX-License-Identifier: Apache-2.0
#include "engine/linear/linear_plan.h"

#include <cmath>

#include "base/numbers.h"

namespace xlstm::gpu::engine {

namespace {

constexpr double kPrologueSteps = 8;

// What a product takes, in steps of a block that is alone on its multiprocessor, as fitted to an H200
// (docs/lab/decode-h200.md). A block that shares one waits for the other's instructions, and hides its prologue.
double cost_of(const LinearPlan& plan, int64_t steps, bool shared, const Chip& chip) {
  const double units = chip.compute_units, blocks = double(plan.blocks);
  const double exchange = plan.part_bits ? plan.batch / 16.0 : 0;
  if (!shared) {
    // Clusters of four leave some multiprocessors of a GPC over.
    const double rounds = std::ceil(blocks / (plan.part_bits < 2 ? units : units * 0.94));
    return rounds * (double(steps) + kPrologueSteps + exchange);
  }
  const double at_once = 2 * units, one = (double(steps) + exchange) * (plan.batch <= 32 ? 1.45 : 1.9);
  if (blocks <= at_once) return one;
  return (blocks / at_once + 0.25) * (one + kPrologueSteps);
}

}  // namespace

LinearPlan plan_linear(const LinearShape& p, const Chip& chip) {
  LinearPlan plan{}, best{};
  if (!chip.hopper || p.rows < 1 || p.rows > kMostLinearRows) return best;
  for (const int batch : kLinearBatch)
    if (plan.batch < p.rows) plan.batch = batch;
  plan.steps = ceil_div(p.columns, int64_t(kStepFeatures));
  plan.tiles = ceil_div(p.features, int64_t(kLinearRows));
  plan.passes = ceil_div(p.rows, int64_t(plan.batch));
  const LinearStage stage = linear_stage(p.bits, plan.batch, p.offsets);
  double least = 0;
  for (; 1 << plan.part_bits <= kMostLinearParts && int64_t(1) << plan.part_bits <= plan.steps; ++plan.part_bits) {
    const int64_t steps = ceil_div(plan.steps, int64_t(1) << plan.part_bits);
    plan.blocks = plan.tiles * plan.passes << plan.part_bits;
    for (const bool shared : {false, true}) {
      if (shared && linear_blocks_per_sm(plan.batch) < 2) continue;
      plan.smem = linear_smem_within(stage, int(steps), p.group_size, p.offsets,
                                     shared ? half_lds(chip.lds_bytes) : chip.lds_bytes);
      // A block that is to be alone asks for so much that no other one fits.
      if (!shared && linear_blocks_per_sm(plan.batch) == 2 && plan.smem.bytes <= half_lds(chip.lds_bytes)) continue;
      const double cost = cost_of(plan, steps, shared, chip);
      if (plan.smem.stages && (!best.batch || cost < least)) best = plan, least = cost;
    }
  }
  return best;
}

int64_t packed_linear_bytes(const LinearPlan& plan) {
  return plan.passes * plan.steps * linear_panel_bytes(plan.batch);
}
int64_t packed_linear_sums(const LinearPlan& plan) { return plan.passes * plan.steps * plan.batch; }

}  // namespace xlstm::gpu::engine
