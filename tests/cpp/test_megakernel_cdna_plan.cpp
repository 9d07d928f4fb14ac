// SPDX-License-Identifier: Apache-2.0
// The plans of CDNA's megakernel and of its product as a launch: every row of weights has a group, in as few rows of a
// group as possible, LDS holds x, and a model that it does not support has no plan.
#include <algorithm>

#include "base/numbers.h"
#include "check.h"
#include "chips.h"
#include "engine/megakernel_cdna/megakernel_cdna_plan.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::engine;

namespace {

// xLSTM-7B.
constexpr int64_t kProjections[] = {2048, 2048, 4096, 4096, 8, 8}, kDim[] = {4096}, kFeed[] = {10944, 10944},
                  kWords[] = {50304};
MegakernelCdnaCall large() {
  return {true,
          8,
          256,
          512,
          {{1, 4096, false, 16, false, 6, kProjections},
           {1, 4096, false, 16, false, 1, kDim},
           {1, 4096, true, 16, false, 2, kFeed},
           {1, 10944, false, 16, false, 1, kDim},
           {1, 4096, false, 16, false, 1, kWords}},
          {1, 4096, false, 16, false, 0, nullptr}};
}
// The same in int8, whose gates stayed bfloat16.
constexpr int64_t kQuantised[] = {2048, 2048, 4096, 4096, 0, 0}, kGates[] = {0, 0, 0, 0, 8, 8};
MegakernelCdnaCall quantised() {
  MegakernelCdnaCall call = large();
  for (GemmShape& product : call.product) product.bits = 8, product.converted = true;
  call.product[0].rows = kQuantised;
  call.gates = {1, 4096, false, 16, false, 6, kGates};
  return call;
}

void test_units(const MegakernelCdnaCall& call, int gate_blocks) {
  const Chip chip = known_chip("MI300X");
  const MegakernelCdnaPlan p = plan_megakernel_cdna(call, chip);
  CHECK(p.blocks == chip.compute_units, "%d blocks", int(p.blocks));
  const int x_bytes =
      12 * kCdnaWaves * 4 * cdna_step_bytes(false);  // 171 steps, filled up to 12 of each wave and slice
  CHECK(p.lds_bytes <= chip.lds_bytes && p.sums_at >= x_bytes, "%d bytes", p.lds_bytes);
  const CdnaUnits& down = p.units[3];
  CHECK(down.rows == 7 && down.slice_bits == 2 && down.rounds == 1, "%d rows in %d slices", down.rows,
        1 << down.slice_bits);
  CHECK(p.gate_blocks == gate_blocks, "%d blocks of gates", p.gate_blocks);
  const int64_t gate_groups = p.gate_blocks * kCdnaGroups;
  CHECK(units_of(call.gates, p.gate_units.rows) <= gate_groups * p.gate_units.rounds, "gates without a group");
  for (int n = 0; n <= kCdnaProducts; ++n) {
    const GemmShape& shape = call.product[n];
    const CdnaUnits& units = p.units[n];
    const int rows = units.rows, slice_bits = units.slice_bits, rounds = units.rounds;
    const int64_t groups = p.blocks * kCdnaGroups - (n == 0 ? gate_groups : 0);
    const int sides = shape.swiglu ? 2 : 1;
    CHECK(rows >= 1 && (rows << slice_bits) * sides <= kCdnaUnitSlots, "product %d: %d rows", n, rows);
    CHECK(units_of(shape, rows * sides) <= groups * rounds, "product %d: rows without a group", n);
    int before = 0;  // units of the linears before
    for (int j = 0; j < kMaxLinears; ++j) {
      const int64_t of_linear = j < (shape.swiglu ? 1 : shape.linear_count) ? shape.rows[j] : 0;
      CHECK(units.first[j] == (of_linear ? before : kNoUnit), "product %d: linear %d begins at unit %d", n, j,
            units.first[j]);
      before += int(xlstm::ceil_div(of_linear, int64_t(rows)));
    }
    CHECK(before == units_of(shape, rows * sides), "product %d: %d units", n, before);
    int64_t all = 0;
    for (int j = 0; j < shape.linear_count / sides; ++j) all += shape.rows[j];
    const int64_t least = xlstm::ceil_div(all, groups);
    CHECK(rows * rounds <= least + rounds + 1, "product %d: %d rows of a group instead of %d", n, rows * rounds,
          int(least));
  }
}

void test_steps() {
  for (int bits = 0; bits <= kCdnaMostSliceBits; ++bits)
    for (int columns = kStepFeatures; columns <= kMaxSingleFeatures; columns += kStepFeatures) {
      const int steps = cdna_wave_steps(columns, bits, kCdnaDepth),
                features = steps * kStepFeatures * kCdnaWaves << bits;
      const int most = kCdnaMostVec8s * kRowCdnaThreads * kVec8;
      CHECK(steps % kCdnaDepth == 0 && features >= columns, "%d features in %d steps", columns, steps);
      CHECK(features <= most, "%d features for the threads' %d", features, most);
    }
}

// One product as a launch: every row has a group, on all compute units.
void test_a_launch() {
  const GemmShape no_gates{1, 4096, false, 16, false, 0, nullptr};
  const MegakernelCdnaCall models[] = {large(), quantised()};
  for (const char* name : {"MI300X", "MI250X"})
    for (const MegakernelCdnaCall& call : models)
      for (int n = 0; n <= kCdnaProducts; ++n) {
        const Chip chip = known_chip(name);
        const GemmShape& shape = call.product[n];
        const GemmRowCdnaPlan p = plan_gemm_row_cdna(shape, n == 0 ? call.gates : no_gates, chip);
        CHECK(p.blocks > 0 && p.blocks <= chip.compute_units && p.blocks >= chip.compute_units * 4 / 5,
              "%s: product %d: %d blocks", name, n, int(p.blocks));
        CHECK(p.lds_bytes <= chip.lds_bytes && p.sums_at >= shape.columns * cdna_step_bytes(false) / kStepFeatures,
              "%s: product %d: %d bytes", name, n, p.lds_bytes);
        const int64_t groups = (p.blocks - p.gate_blocks) * kCdnaGroups;
        CHECK(units_of(shape, p.units.rows * (shape.swiglu ? 2 : 1)) <= groups * p.units.rounds,
              "%s: product %d: rows without a group", name, n);
        CHECK((p.gate_blocks > 0) == (n == 0 && call.gates.linear_count > 0), "%s: product %d: gates", name, n);
        CHECK(units_of(call.gates, p.gate_blocks ? p.gate_units.rows : 1) <= p.gate_blocks * kCdnaGroups || n > 0,
              "%s: gates without a group", name);
      }
  const Chip chip = known_chip("MI300X");
  const GemmShape down{1, 10944, false, 16, false, 1, kDim}, wide_gates{1, 4096, false, 16, false, 1, kDim};
  const auto takes = [&](auto&& change, const Chip& on) {
    GemmShape shape = down;
    change(shape);
    return plan_gemm_row_cdna(shape, no_gates, on).blocks > 0;
  };
  CHECK(takes([](GemmShape&) {}, chip), "down");
  CHECK(!takes([](GemmShape&) {}, known_chip("RX 7900 XTX")), "another family");
  CHECK(!takes([](GemmShape& p) { p.batch = 2; }, chip), "two rows of x");
  for (const int columns : {192, 4100, 11328})
    CHECK(!takes([&](GemmShape& p) { p.columns = columns; }, chip), "%d", columns);
  GemmShape quantised_q = large().product[0];
  quantised_q.bits = 8, quantised_q.rows = kQuantised;
  CHECK(!plan_gemm_row_cdna(quantised_q, wide_gates, chip).blocks, "more than gates in bfloat16");
}

void test_what_has_no_plan() {
  const Chip chip = known_chip("MI300X");
  const auto blocks = [&](auto&& change, const Chip& on) {
    MegakernelCdnaCall call = large();
    change(call);
    return plan_megakernel_cdna(call, on).blocks;
  };
  const auto none = [](MegakernelCdnaCall&) {};
  CHECK(blocks(none, chip) > 0 && blocks(none, known_chip("MI250X")) > 0, "xLSTM-7B");
  CHECK(!blocks(none, known_chip("H200")) && !blocks(none, known_chip("RX 7900 XTX")), "another family");
  CHECK(!blocks([](auto& call) { call.suits = false; }, chip), "tensors that do not suit");
  CHECK(!blocks([](auto& call) { call.dhv = 520; }, chip), "values that are no tiles");
  CHECK(!blocks([](auto& call) { call.dqk = 2048; }, chip), "more keys than threads");
  for (const int columns : {192, 4100, 11328})
    CHECK(!blocks([&](auto& call) { call.product[1].columns = columns; }, chip), "%d features", columns);
}

}  // namespace

int main() {
  test_units(large(), 0);
  test_units(quantised(), 8);
  test_steps();
  test_a_launch();
  test_what_has_no_plan();
  return finish();
}
