// SPDX-License-Identifier: Apache-2.0
#include "engine/megakernel/megakernel_plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm::gpu::engine {

namespace {

int align16(int64_t bytes) { return int(ceil_div(bytes, 16)) * 16; }
int groups_of(const MegakernelPlan& plan) { return plan.blocks >> plan.cluster_bits; }
int items_of_group(const MegakernelPlan& plan, const PhasePlan& s) { return int(ceil_div(s.items, groups_of(plan))); }

// What both kernels have behind their sums.
void add_tables(MegakernelSmem& smem, const MegakernelPlan& plan, int64_t dqk) {
  int items = 0;
  for (const PhasePlan& s : plan.phase) items += items_of_group(plan, s);
  smem.parts = smem.items + items * kItemBytes;
  smem.step = smem.parts + kPhases * kMegakernelWarps * kPartBytes;
  smem.token = smem.step + tiles_at_once(plan.rows, dqk) * kStepBytes;
  smem.received = smem.token + tiles_at_once(plan.rows, dqk) * token_bytes(dqk);
  smem.bytes = smem.received + 16;
}

MegakernelSmem smem_of_row(const MegakernelPlan& plan, int bits, int64_t dqk) {
  int steps = 0, sums = kStepSumBytes;
  for (const PhasePlan& s : plan.phase) {
    steps = std::max(steps, s.steps);
    sums = std::max(sums, items_of_group(plan, s) * s.parts() * kItemRows * 4);
  }
  MegakernelSmem smem{};
  smem.x = smem.ring + kMegakernelWarps * megakernel_slots(bits, plan.rows) * megakernel_slot_bytes(bits);
  smem.x_scales = smem.x + steps * kStepFeatures * 4;
  smem.squares = smem.x_scales + steps * kXScaleBytes;
  smem.factor = smem.squares + steps * 4;
  smem.partial_sums = align16(smem.factor + 4);
  smem.residual = smem.partial_sums + sums;
  smem.items = smem.residual + items_of_group(plan, plan.phase[int(Phase::output)]) * kItemRows * 4;
  add_tables(smem, plan, dqk);
  return smem;
}

// most_owned: of all phases.
MegakernelSmem smem_of_rows(const MegakernelPlan& plan, int bits, int64_t dqk, int most_owned) {
  int steps = 0, sums = kStepSumBytes;
  for (const PhasePlan& s : plan.phase) {
    steps = std::max(steps, s.part_steps);
    const int owned = std::min(most_owned, int(ceil_div(items_of_group(plan, s), 1 << plan.cluster_bits)));
    sums = std::max(sums, owned * s.parts() * kItemRows * plan.rows * 4);
  }
  const bool few = plan.rows <= 4;
  const int x_bytes = bits == 16 || few ? 4 : kXDigits;  // of a feature
  MegakernelSmem smem{};
  smem.x = smem.ring + kMegakernelWarps * megakernel_slots(bits, plan.rows) * megakernel_slot_bytes(bits);
  smem.x_scales = smem.x + steps * kStepFeatures * x_bytes * plan.rows;
  smem.squares = smem.x_scales + (bits == 16 ? 0 : steps * plan.rows * (few ? 16 : 8));
  smem.factor = smem.squares + steps * plan.rows * 4;
  smem.partial_sums = align16(smem.factor + (plan.rows * 4 << kMaxPartBits));
  smem.residual = smem.partial_sums + sums;
  const int added = items_of_group(plan, plan.phase[int(Phase::output)]);
  smem.items = smem.residual + int(ceil_div(added, 1 << plan.cluster_bits)) * kItemRows * plan.rows * 4;
  add_tables(smem, plan, dqk);
  return smem;
}

// As many items in a round as shared memory has space for, alike in all rounds of a phase. Returns false where there is
// none.
bool plan_rounds(MegakernelPlan& plan, int bits, int64_t dqk, const Chip& chip) {
  const auto owned_of = [&](const PhasePlan& s) {
    return int(ceil_div(items_of_group(plan, s), 1 << plan.cluster_bits));
  };
  int most = 1;
  for (const PhasePlan& s : plan.phase) most = std::max(most, owned_of(s));
  while (most > 1 && smem_of_rows(plan, bits, dqk, most).bytes > chip.lds_bytes) --most;
  plan.smem = smem_of_rows(plan, bits, dqk, most);
  for (PhasePlan& s : plan.phase) {
    const int owned = owned_of(s), rounds = int(ceil_div(owned, most));
    s.owned = int(ceil_div(owned, rounds));
  }
  return plan.smem.bytes <= chip.lds_bytes;
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
  if (plan.rows > 1) return items - gates;  // a cluster's warps have several items each: gates are the first
  const int target = plan.blocks + items % plan.blocks;
  return items < 2 * plan.blocks ? 0 : (2 * items - gates - target) % items;
}

}  // namespace

Mailboxes mailboxes_of(int64_t batch, int64_t dim, int64_t heads, int64_t dqk, int64_t dhv, int64_t ffn) {
  constexpr int kLineFloats = 32;  // so that no two outputs share a line
  Mailboxes mailboxes{};
  const auto take = [&](int64_t floats) {
    const int at = mailboxes.block;
    mailboxes.block += int(ceil_div(batch * floats, kLineFloats)) * kLineFloats;
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
  const bool fits =
      chip.hopper && p.suits && p.batch <= kMegakernelRows && p.blocks <= kMaxMegakernelBlocks && step_fits;
  if (!fits) return {};
  MegakernelPlan plan{};
  plan.rows = megakernel_rows_of(p.batch);
  for (int s = 0; s < kPhases; ++s) {
    if (p.phase[s].columns % kStepFeatures != 0) return {};
    plan.phase[s] = plan_phase(p.phase[s]);
    if (p.batch > 1) plan.cluster_bits = std::max(plan.cluster_bits, plan.phase[s].part_bits);
  }
  plan.blocks = p.batch == 1 ? chip.compute_units : clusters_at_once(chip, 1 << plan.cluster_bits) << plan.cluster_bits;
  int table = 0;
  for (int s = 0; s < kPhases; ++s) {
    plan.phase[s].table = table;
    if (Phase(s) == Phase::projections) plan.phase[s].first_item = rotation_to_gates(p, plan);
    table += items_of_group(plan, plan.phase[s]);
  }
  plan.mailboxes = mailboxes_of(p.batch, p.phase[int(Phase::projections)].columns, p.heads, p.dqk, p.dhv,
                                p.phase[int(Phase::down)].columns);
  if (p.batch == 1) plan.smem = smem_of_row(plan, p.bits, p.dqk);
  const bool has_memory = p.batch == 1 ? plan.smem.bytes <= chip.lds_bytes : plan_rounds(plan, p.bits, p.dqk, chip);
  return has_memory ? plan : MegakernelPlan{};
}

}  // namespace xlstm::gpu::engine
