// SPDX-License-Identifier: Apache-2.0
#include "engine/linear/linear_plan.h"

#include "base/numbers.h"

namespace xlstm::gpu::engine {

LinearPlan plan_linear(const LinearShape& p, const Chip& chip) {
  LinearPlan plan{};
  if (!chip.hopper || p.rows < 1 || p.rows > kMostLinearRows) return plan;
  for (const int batch : kLinearBatch)
    if (plan.batch < p.rows) plan.batch = batch;
  plan.steps = ceil_div(p.columns, int64_t(kStepFeatures));
  plan.tiles = ceil_div(p.features, int64_t(kLinearRows));
  plan.passes = ceil_div(p.rows, int64_t(plan.batch));
  const LinearStage stage = linear_stage(p.bits, plan.batch, p.offsets);
  const int lds_bytes = linear_most_lds(p.bits, plan.batch, chip.lds_bytes);
  const int64_t places = int64_t(chip.compute_units) * linear_blocks_per_sm(p.bits, plan.batch);
  // As few parts as leave no place for a block empty, and whose scales fit.
  for (plan.parts = 1; plan.parts <= kMostLinearParts; plan.parts *= 2) {
    const int64_t steps = ceil_div(plan.steps, int64_t(plan.parts));
    plan.blocks = plan.tiles * plan.passes * plan.parts;
    plan.smem = linear_smem_within(stage, int(steps), p.group_size, p.offsets, lds_bytes);
    const bool may_split = plan.parts < kMostLinearParts && steps >= 2 * linear_stage_steps(p.bits);
    if (plan.smem.stages && (plan.blocks * 2 > places || !may_split)) return plan;
  }
  return {};
}

int64_t packed_linear_bytes(const LinearPlan& plan) {
  return plan.passes * plan.steps * linear_panel_bytes(plan.batch);
}
int64_t packed_linear_sums(const LinearPlan& plan) { return plan.passes * plan.steps * plan.batch; }

}  // namespace xlstm::gpu::engine
