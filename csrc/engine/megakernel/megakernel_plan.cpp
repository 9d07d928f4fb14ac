// SPDX-License-Identifier: Apache-2.0
#include "engine/megakernel/megakernel_plan.h"

#include <algorithm>

#include "base/numbers.h"
#include "mlstm/recurrent/recurrent_plan.h"

namespace xlstm::gpu::engine {

namespace {

MegakernelSmem smem_of(const MegakernelPlan& plan, int bits, int64_t dqk) {
  int steps = 0, sums = kStepSumBytes, items = 0;
  for (const PhasePlan& s : plan.phase) {
    const int block_items = int(ceil_div(s.items, plan.blocks));
    steps = std::max(steps, s.steps);
    sums = std::max(sums, block_items * s.parts() * kItemRows * 4);
    items += block_items;
  }
  MegakernelSmem smem{};
  smem.x = smem.ring + kMegakernelWarps * megakernel_slots(bits) * megakernel_slot_bytes(bits);
  smem.x_scales = smem.x + steps * kStepFeatures * 4;
  smem.squares = smem.x_scales + steps * kXScaleBytes;
  smem.factor = smem.squares + steps * 4;
  smem.partial_sums = int(ceil_div(smem.factor + 4, 16)) * 16;
  smem.residual = smem.partial_sums + sums;
  smem.items = smem.residual + int(ceil_div(plan.phase[int(Phase::output)].items, plan.blocks)) * kItemRows * 4;
  smem.parts = smem.items + items * kItemBytes;
  smem.step = smem.parts + kPhases * kMegakernelWarps * kPartBytes;
  smem.token = smem.step + kStepBytes;
  smem.bytes = smem.token + int(2 * dqk + kStepColumns) * 4;
  return smem;
}

PhasePlan plan_phase(const PhaseShape& shape) {
  PhasePlan s{};
  s.steps = int(shape.columns / kStepFeatures);
  s.items = int(shape.items);
  s.part_bits = part_bits_of(s.steps);
  s.part_steps = int(ceil_div(s.steps, s.parts()));
  return s;
}

// Without a rotation, the gates, which are the last items of the projections and may have 2 bytes, the rest 8 or 4
// bits, would be the last items of some multiprocessor, and all the rest would wait for it. Rotated, they are in the
// second round, where they go to blocks that have one item less, each as the only item of one group of warps.
int rotation_to_gates(const MegakernelShape& p, const MegakernelPlan& plan) {
  const int items = plan.phase[int(Phase::projections)].items, gates = 2 * int(ceil_div(p.heads, kItemRows));
  const int target = plan.blocks + items % plan.blocks;
  return items < 2 * plan.blocks ? 0 : (2 * items - gates - target) % items;
}

}  // namespace

Mailboxes mailboxes_of(int64_t dim, int64_t heads, int64_t dqk, int64_t dhv, int64_t ffn) {
  constexpr int kLineFloats = 32;  // so that no two outputs share a line
  Mailboxes mailboxes{};
  const auto take = [&](int64_t floats) {
    const int at = mailboxes.block;
    mailboxes.block += int(ceil_div(floats, kLineFloats)) * kLineFloats;
    return at;
  };
  const auto add_mailboxes = [&](Phase producer, int linear, int64_t floats) {
    return mailboxes.to[int(producer)][linear] = take(floats);
  };
  const int64_t keys = heads * dqk, values = heads * dhv;
  int* const from = mailboxes.from;  // x, but for the phases that are set below
  take(dim);
  mailboxes.x = mailboxes.block;
  const int64_t rows[kMaxLinears] = {keys, keys, values, values, heads, heads};
  for (int j = 0; j < kMaxLinears; ++j) add_mailboxes(j == kOutputGate ? Phase::gate : Phase::projections, j, rows[j]);
  from[int(Phase::output)] = take(values);
  from[int(Phase::up)] = add_mailboxes(Phase::output, 0, dim);
  from[int(Phase::down)] = add_mailboxes(Phase::up, 0, ffn);
  mailboxes.to[int(Phase::down)][0] = mailboxes.block;  // the next block's x
  return mailboxes;
}

ClusterItems phase_items(const GemmParams& p, Phase phase) {
  const bool is_swiglu = p.output == Output::swiglu;
  ClusterItems items{};
  int end = 0;
  for (int j = 0; j < (is_swiglu ? 1 : p.linear_count); ++j) {
    if (!is_swiglu && phase == (j == kOutputGate ? Phase::projections : Phase::gate)) continue;
    items.linear[items.count] = j;
    items.end[items.count++] = end += int(ceil_div(p.linear[j].rows, is_swiglu ? kItemRows / 2 : kItemRows));
  }
  return items;
}

MegakernelPlan plan_megakernel(const MegakernelShape& p, const Chip& chip) {
  const bool step_fits =
      p.dqk % mlstm::kRecurrentRows == 0 &&
      p.dqk / mlstm::kRecurrentRows * (kStepColumns / mlstm::kRecurrentColumns) <= kMegakernelThreads &&
      p.dhv % kStepFeatures == 0 && p.dhv <= 32 * kMaxHeadVec8s * kVec8;
  const bool fits = chip.hopper && p.suits && p.batch == 1 && p.blocks <= kMaxMegakernelBlocks && step_fits;
  if (!fits) return {};
  MegakernelPlan plan{};
  plan.blocks = chip.compute_units;
  int table = 0;
  for (int s = 0; s < kPhases; ++s) {
    if (p.phase[s].columns % kStepFeatures != 0) return {};
    plan.phase[s] = plan_phase(p.phase[s]);
    plan.phase[s].table = table;
    if (Phase(s) == Phase::projections) plan.phase[s].first_item = rotation_to_gates(p, plan);
    table += int(ceil_div(plan.phase[s].items, plan.blocks));
  }
  plan.smem = smem_of(plan, p.bits, p.dqk);
  plan.mailboxes =
      mailboxes_of(p.phase[int(Phase::projections)].columns, p.heads, p.dqk, p.dhv, p.phase[int(Phase::down)].columns);
  if (plan.smem.bytes > chip.lds_bytes) return {};
  return plan;
}

}  // namespace xlstm::gpu::engine
