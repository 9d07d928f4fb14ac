// SPDX-License-Identifier: Apache-2.0
// The megakernel's plan: every item of 16 rows belongs to one block and every feature to one part, the buffers in
// shared memory are large enough, and a model that the megakernel does not support has no plan.
#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "chips.h"
#include "engine/gemm_mma/gemm_mma_shape.h"
#include "engine/megakernel/megakernel_plan.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::engine;

namespace {

// xLSTM-7B.
MegakernelShape large(int bits) {
  return {1,   32,   8,    256,
          512, bits, true, {{4096, 514}, {4096, 256}, {4096, 256}, {4096, 1368}, {10944, 256}, {4096, 3144}}};
}

void test_plan() {
  for (const char* name : {"H200"})
    for (const int bits : {4, 8, 16}) {
      const Chip chip = known_chip(name);
      const MegakernelShape shape = large(bits);
      const MegakernelPlan p = plan_megakernel(shape, chip);
      CHECK(p.blocks == chip.compute_units, "%s, %d bits: %d blocks", name, bits, p.blocks);
      int table = 0;
      for (int s = 0; s < kPhases; ++s) {
        const PhasePlan& phase = p.phase[s];
        CHECK(phase.steps * kStepFeatures == shape.phase[s].columns, "%d: features", s);
        CHECK(phase.parts() * phase.part_steps >= phase.steps && (phase.parts() - 1) * phase.part_steps < phase.steps,
              "%d: parts of features", s);
        CHECK(phase.items == shape.phase[s].items && phase.table == table, "%d: items", s);
        table += (phase.items + p.blocks - 1) / p.blocks;
      }
      const PhasePlan& first = p.phase[int(Phase::projections)];
      for (const int gate : {512, 513}) {
        const int round_item = (gate - first.first_item + first.items) % first.items;
        CHECK(round_item / p.blocks == 1 && round_item % p.blocks >= first.items % p.blocks,
              "gates are turn %d: not the second of a block that has one less than others", round_item);
      }
      const MegakernelSmem& r = p.smem;
      const int steps = 10944 / kStepFeatures, slots = kMegakernelWarps * megakernel_slots(bits, 1);
      CHECK(r.ring == 0 && r.x - r.ring == slots * megakernel_slot_bytes(bits), "%d bits: the ring", bits);
      CHECK(r.x_scales - r.x == steps * 256 && r.squares - r.x_scales == steps * 16, "%d bits: x's", bits);
      CHECK(r.factor - r.squares == steps * 4 && r.partial_sums > r.factor, "%d bits: squares", bits);
      CHECK(r.residual - r.partial_sums >= 24 * 8 * kItemRows * 4, "%d bits: sums of 24 items", bits);
      CHECK(r.items - r.residual >= 2 * kItemRows * 4, "%d bits: the rows that are added to", bits);
      CHECK(r.parts - r.items == table * 16 && r.step - r.parts == kPhases * kMegakernelWarps * 32 &&
                r.bytes - r.token >= (2 * 256 + kStepColumns) * 4,
            "%d bits: tables", bits);
      for (const int at : {r.x, r.x_scales, r.partial_sums, r.items, r.parts, r.step, r.token})
        CHECK(at % 16 == 0, "a buffer at %d", at);
      CHECK(r.bytes <= chip.lds_bytes, "%d bits: %d bytes", bits, r.bytes);
    }
}

// Two to eight rows: buffers follow each other, rounds have all items, and a round's sums fit.
void test_rows() {
  for (const int bits : {4, 8, 16})
    for (const int batch : {2, 3, 4, 5, 8}) {
      const int rows = batch == 2 ? 2 : batch <= 4 ? 4 : 8, x_bytes = bits == 16 || rows <= 4 ? 4 : 3;
      MegakernelShape shape = large(bits);
      shape.batch = batch;
      const Chip chip = known_chip("H200");
      const MegakernelPlan p = plan_megakernel(shape, chip);
      CHECK(p.rows == rows && p.cluster_bits == 3 && p.blocks == 120, "%d bits: %d blocks", bits, p.blocks);
      const int clusters = p.blocks >> p.cluster_bits;
      const MegakernelSmem& r = p.smem;
      int table = 0;
      for (int s = 0; s < kPhases; ++s) {
        const PhasePlan& phase = p.phase[s];
        const int items = (phase.items + clusters - 1) / clusters, owned = (items + 7) / 8;
        CHECK(phase.table == table, "%d: items", s);
        table += items;
        const int rounds = (owned + phase.owned - 1) / phase.owned;
        CHECK(phase.owned >= 1 && phase.owned == (owned + rounds - 1) / rounds, "%d: rounds alike", s);
        CHECK(phase.owned * phase.parts() * kItemRows * rows * 4 <= r.residual - r.partial_sums,
              "%d bits, %d: sums of %d items", bits, s, phase.owned);
      }
      const PhasePlan& first = p.phase[int(Phase::projections)];
      CHECK(first.first_item == 512, "gates come first, not after item %d", first.first_item);
      const int steps = 22, slots = kMegakernelWarps * megakernel_slots(bits, rows);
      CHECK(r.x - r.ring == slots * megakernel_slot_bytes(bits), "%d bits: the ring", bits);
      CHECK(r.x_scales - r.x == steps * kStepFeatures * rows * x_bytes, "%d bits: x", bits);
      CHECK(r.squares - r.x_scales == (bits == 16 ? 0 : steps * rows * (rows <= 4 ? 16 : 8)), "%d bits: scales of x",
            bits);
      CHECK(r.factor - r.squares == steps * rows * 4, "%d bits: squares", bits);
      CHECK(r.partial_sums - r.factor >= 8 * rows * 4, "%d bits: squares of all parts", bits);
      CHECK(r.residual - r.partial_sums >= kStepSumBytes, "%d bits: sums of tiles", bits);
      CHECK(r.items - r.residual == 3 * kItemRows * rows * 4, "%d bits: the rows that are added to", bits);
      CHECK(r.parts - r.items == table * 16 && r.received - r.token == 2 * (2 * 256 + kStepColumns) * 4 &&
                r.token - r.step == 2 * kStepBytes && r.bytes - r.received >= 8,
            "%d bits: tables", bits);
      for (const int at : {r.x, r.x_scales, r.partial_sums, r.items, r.parts, r.step, r.token, r.received})
        CHECK(at % 16 == 0, "a buffer at %d", at);
      CHECK(r.bytes <= chip.lds_bytes, "%d bits: %d bytes", bits, r.bytes);
    }
}

// Every mailbox is separate and aligned to a line of memory, and a phase reads from the mailboxes that another writes.
void test_passed(int batch) {
  const Mailboxes p = mailboxes_of(batch, 4096, 8, 256, 512, 10944);
  struct Mailbox {
    int at, floats;
  };
  const auto to = [&](Phase phase, int linear) { return p.to[int(phase)][linear]; };
  const auto from = [&](Phase phase) { return p.from[int(phase)]; };
  const Phase first = Phase::projections;
  const std::vector<Mailbox> mailboxes = {{from(first), 4096},
                                          {to(first, 0), 2048},
                                          {to(first, 1), 2048},
                                          {to(first, 2), 4096},
                                          {to(Phase::gate, 3), 4096},
                                          {to(first, kFirstGate), 8},
                                          {to(first, kFirstGate + 1), 8},
                                          {from(Phase::output), 4096},
                                          {from(Phase::up), 4096},
                                          {from(Phase::down), 10944}};
  int end = 0;
  for (const Mailbox& mailbox : mailboxes) {
    CHECK(mailbox.at >= end && mailbox.at % 32 == 0, "a mailbox at %d, the previous one ends at %d", mailbox.at, end);
    end = mailbox.at + batch * mailbox.floats;
  }
  CHECK(p.x == batch * 4096 && p.block >= end && p.block % 32 == 0, "a block of %d floats", p.block);
  CHECK(to(Phase::output, 0) == from(Phase::up) && to(Phase::up, 0) == from(Phase::down), "made and read elsewhere");
  CHECK(to(Phase::down, 0) == p.block && from(first) == 0, "the next block's x");
  CHECK(from(Phase::gate) == 0 && from(Phase::head) == 0, "x of the gate of h and of the head");
  CHECK(p.floats(32) == 32 * int64_t(p.block) + batch * 4096, "all of them");
}

void refused(const char* why, void (*change)(MegakernelShape&)) {
  MegakernelShape shape = large(8);
  change(shape);
  CHECK(plan_megakernel(shape, known_chip("H200")).blocks == 0, "%s", why);
}

void test_refusals() {
  refused("nine rows", [](MegakernelShape& s) { s.batch = 9; });
  refused("tensors that do not suit", [](MegakernelShape& s) { s.suits = false; });
  refused("more blocks than params hold", [](MegakernelShape& s) { s.blocks = kMaxMegakernelBlocks + 1; });
  refused("an incomplete step", [](MegakernelShape& s) { s.phase[4].columns = 10950; });
  refused("keys that a block does not hold", [](MegakernelShape& s) { s.dqk = 520; });
  refused("keys that are not complete vectors", [](MegakernelShape& s) { s.dqk = 252; });
  refused("values that a warp does not hold", [](MegakernelShape& s) { s.dhv = 576; });
  refused("a vocabulary whose sums do not fit", [](MegakernelShape& s) { s.phase[5].items = 20000; });
  for (const char* name : {"A100", "MI300X", "RX 7900 XTX"})
    CHECK(plan_megakernel(large(8), known_chip(name)).blocks == 0, "%s", name);
}

void test_items() {
  GemmParams p{};
  p.linear_count = kMaxLinears;
  const int rows[kMaxLinears] = {40, 16, 24, 16, 8, 8};
  for (int j = 0; j < kMaxLinears; ++j) p.linear[j].rows = rows[j];
  const ClusterItems first = phase_items(p, Phase::projections), gate = phase_items(p, Phase::gate);
  CHECK((std::vector<int>(first.linear, first.linear + first.count) == std::vector<int>{0, 1, 2, 4, 5}), "linears");
  CHECK((std::vector<int>(first.end, first.end + 5) == std::vector<int>{3, 4, 6, 7, 8}), "items");
  CHECK(gate.count == 1 && gate.linear[0] == kOutputGate && gate.total() == 1, "the gate of h");
  p.output = Output::swiglu, p.linear_count = 2, p.linear[0].rows = p.linear[1].rows = 20;
  CHECK(phase_items(p, Phase::up).count == 1 && phase_items(p, Phase::up).total() == 3,
        "8 rows of either side are an item");
}

// Lanes that are served together read from all banks: vectors of 16 bytes of two rows, or of 8 bytes of four rows. The
// copying lanes write each vector of a row's 256 bytes once.
void test_banks() {
  for (const int bits : {4, 8, 16}) {
    const int each = bits == 4 ? 8 : 16, lanes = 128 / each, segment = megakernel_segment_bytes(bits);
    for (int first = 0; first < 32; first += lanes)
      for (int step = 0; step < segment; step += 4 * each) {
        std::vector<int> banks(32);
        for (int lane = first; lane < first + lanes; ++lane)
          for (int word = 0; word < each / 4; ++word) {
            const int row = lane / 4, at = (step + lane % 4 * each) ^ segment_swizzle(bits, row);
            ++banks[size_t((row * segment + at) / 4 + word) % 32];
          }
        for (const int n : banks) CHECK(n == 1, "%d bits: %d lanes read one bank", bits, n);
      }
    for (int row = 0; row < kItemRows; ++row) {
      std::vector<bool> seen(size_t(segment / 16));
      for (int at = 0; at < segment; at += 16) seen[size_t((at ^ segment_swizzle(bits, row)) / 16)] = true;
      CHECK(std::count(seen.begin(), seen.end(), true) == segment / 16, "%d bits: a row's vectors", bits);
    }
  }
  // Of the scales of sixteen rows, two bytes each, at most two rows share a bank.
  for (int group = 0; group < 16; group += 2) {
    std::vector<int> banks(32);
    for (int row = 0; row < kItemRows; ++row)
      ++banks[size_t(row * kGroupBytes + (group ^ group_swizzle(row))) / 4 % 32];
    CHECK(*std::max_element(banks.begin(), banks.end()) <= 2, "scales of more than two rows in a bank");
  }
}

}  // namespace

int main() {
  test_plan();
  for (const int batch : {1, 2, 7, 8}) test_passed(batch);
  test_rows();
  test_refusals();
  test_items();
  test_banks();
  return finish();
}
