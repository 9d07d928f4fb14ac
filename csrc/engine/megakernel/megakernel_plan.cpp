// SPDX-License-Identifier: Apache-2.0
#include "engine/megakernel/megakernel_plan.h"

#include <algorithm>

#include "base/numbers.h"
#include "mlstm/recurrent/recurrent_plan.h"

namespace xlstm::gpu::engine {

namespace {

WholeRoom room_of(const WholePlan& plan, int bits, int64_t dqk) {
  int steps = 0, sums = kStepSumBytes, items = 0;
  for (const PhasePlan& s : plan.phase) {
    const int own = int(ceil_div(s.items, plan.blocks));
    steps = std::max(steps, s.steps);
    sums = std::max(sums, own * s.parts() * kItemRows * 4);
    items += own;
  }
  WholeRoom room{};
  room.x = room.ring + kWholeWarps * whole_slots(bits) * whole_slot_bytes(bits);
  room.facts = room.x + steps * kStepFeatures * 4;
  room.squares = room.facts + steps * kFactBytes;
  room.factor = room.squares + steps * 4;
  room.received = int(ceil_div(room.factor + 4, 16)) * 16;
  room.residual = room.received + sums;
  room.items = room.residual + int(ceil_div(plan.phase[int(Phase::output)].items, plan.blocks)) * kItemRows * 4;
  room.parts = room.items + items * kItemBytes;
  room.step = room.parts + kPhases * kWholeWarps * kPartBytes;
  room.token = room.step + kStepBytes;
  room.bytes = room.token + int(2 * dqk + kStepColumns) * 4;
  return room;
}

PhasePlan plan_phase(const PhaseShape& shape) {
  PhasePlan s{};
  s.steps = int(shape.columns / kStepFeatures);
  s.items = int(shape.items);
  s.part_bits = part_bits_of(s.steps);
  s.part_steps = int(ceil_div(s.steps, s.parts()));
  return s;
}

// The gates, which are the last items of the projections and may be of 2 bytes beside 8 or 4 bits, would be the last of
// a multiprocessor and all others wait for it. In the second turn of those that have an item less than others they are
// one group of warps' only one.
int turned_to_gates(const WholeShape& p, const WholePlan& plan) {
  const int items = plan.phase[int(Phase::projections)].items, gates = 2 * int(ceil_div(p.heads, kItemRows));
  const int to = plan.blocks + items % plan.blocks;
  return items < 2 * plan.blocks ? 0 : (2 * items - gates - to) % items;
}

}  // namespace

WholePassed passed_of(int64_t dim, int64_t heads, int64_t dqk, int64_t dhv, int64_t ffn) {
  constexpr int kLine = 32;  // floats: no two results share a line
  WholePassed passed{};
  const auto take = [&](int64_t floats) {
    const int at = passed.block;
    passed.block += int(ceil_div(floats, kLine)) * kLine;
    return at;
  };
  const auto hand = [&](Phase maker, int piece, int64_t floats) { return passed.to[int(maker)][piece] = take(floats); };
  const int64_t keys = heads * dqk, values = heads * dhv;
  int* const from = passed.from;  // of those that are not set below, x
  take(dim);
  passed.x = passed.block;
  const int64_t rows[kMostPieces] = {keys, keys, values, values, heads, heads};
  for (int j = 0; j < kMostPieces; ++j) hand(j == kGateOfH ? Phase::gate : Phase::projections, j, rows[j]);
  from[int(Phase::output)] = take(values);
  from[int(Phase::up)] = hand(Phase::output, 0, dim);
  from[int(Phase::down)] = hand(Phase::up, 0, ffn);
  passed.to[int(Phase::down)][0] = passed.block;  // the next block's x
  return passed;
}

ClusterItems whole_items(const ProductParams& p, Phase phase) {
  const bool both = p.output == Output::swiglu;
  ClusterItems items{};
  int end = 0;
  for (int j = 0; j < (both ? 1 : p.pieces); ++j) {
    if (!both && phase == (j == kGateOfH ? Phase::projections : Phase::gate)) continue;
    items.piece[items.count] = j;
    items.end[items.count++] = end += int(ceil_div(p.linear[j].rows, both ? kItemRows / 2 : kItemRows));
  }
  return items;
}

WholePlan plan_whole(const WholeShape& p, const Chip& chip) {
  const bool step_fits = p.dqk % mlstm::kRecurrentRows == 0 &&
                         p.dqk / mlstm::kRecurrentRows * (kStepColumns / mlstm::kRecurrentColumns) <= kWholeThreads &&
                         p.dhv % kStepFeatures == 0 && p.dhv <= 32 * kMostHeadEights * kEight;
  const bool fits = chip.hopper && p.suits && p.batch == 1 && p.blocks <= kMostWholeBlocks && step_fits;
  if (!fits) return {};
  WholePlan plan{};
  plan.blocks = chip.compute_units;
  int table = 0;
  for (int s = 0; s < kPhases; ++s) {
    if (p.phase[s].columns % kStepFeatures != 0) return {};
    plan.phase[s] = plan_phase(p.phase[s]);
    plan.phase[s].table = table;
    if (Phase(s) == Phase::projections) plan.phase[s].transposed = turned_to_gates(p, plan);
    table += int(ceil_div(plan.phase[s].items, plan.blocks));
  }
  plan.room = room_of(plan, p.bits, p.dqk);
  plan.passed =
      passed_of(p.phase[int(Phase::projections)].columns, p.heads, p.dqk, p.dhv, p.phase[int(Phase::down)].columns);
  if (plan.room.bytes > chip.lds_bytes) return {};
  return plan;
}

}  // namespace xlstm::gpu::engine
