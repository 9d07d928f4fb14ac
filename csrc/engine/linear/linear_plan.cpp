// SPDX-License-Identifier: Apache-2.0
#include "engine/linear/linear_plan.h"

#include "base/numbers.h"

namespace xlstm::gpu::engine {

namespace {

// Whether a grid needs no further parts, as measured on an H200 (docs/lab/decode-h200.md): where blocks share a
// multiprocessor each of them gets one; where they do not, half of them, since sums of 64 rows and more are dear to
// exchange. And the last round of blocks leaves few of them idle.
bool is_enough(int64_t blocks, bool shared, const Chip& chip) {
  const int64_t units = chip.compute_units;
  return blocks * 16 >= units * (shared ? 14 : 7) &&
         (blocks <= units || blocks * 10 >= ceil_div(blocks, units) * units * 7);
}

}  // namespace

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
  const bool shared = linear_blocks_per_sm(p.bits, plan.batch) == 2 || plan.passes > 1;
  // As few parts as are enough, and whose scales fit.
  for (; 1 << plan.part_bits <= kMostLinearParts; ++plan.part_bits) {
    const int64_t steps = ceil_div(plan.steps, int64_t(1) << plan.part_bits);
    plan.blocks = plan.tiles * plan.passes << plan.part_bits;
    plan.smem = linear_smem_within(stage, int(steps), p.group_size, p.offsets, lds_bytes);
    const bool may_split = 1 << plan.part_bits < kMostLinearParts && steps >= 2 * linear_stage_steps(p.bits);
    if (plan.smem.stages && (is_enough(plan.blocks, shared, chip) || !may_split)) return plan;
  }
  return {};
}

int64_t packed_linear_bytes(const LinearPlan& plan) {
  return plan.passes * plan.steps * linear_panel_bytes(plan.batch);
}
int64_t packed_linear_sums(const LinearPlan& plan) { return plan.passes * plan.steps * plan.batch; }

}  // namespace xlstm::gpu::engine
