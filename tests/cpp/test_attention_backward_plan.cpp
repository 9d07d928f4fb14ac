// SPDX-License-Identifier: Apache-2.0
// attention/backward/backward_plan.h: properties of every plan, and plans that were worked out by hand.
#include <stdexcept>

#include "arch/devices.h"
#include "attention/backward/backward_plan.h"
#include "attention/gpu/tensor_layout.h"
#include "check.h"

using namespace xlstm;
using namespace xlstm::gpu;
using namespace xlstm::gpu::attention;

namespace {

Chip chip(const DeviceFacts& device) { return {family_of(device.arch), device.compute_units, device.lds_bytes, false}; }

void test_properties(const DeviceFacts& device, const AttentionBackwardCall& call) {
  const AttentionBackwardPlan p = plan_attention_backward(call, chip(device));
  const auto holds = [&](bool condition, const char* what) {
    CHECK(condition, "%s: %s: batch %d, heads %d and %d, %d queries, %d keys, head dims %d and %d, %d bytes",
          device.name, what, int(call.batch), int(call.heads_q), int(call.heads_k), int(call.queries), int(call.keys),
          int(call.dqk), int(call.dv), call.element_bytes);
  };
  holds(p.dqk >= call.dqk && p.dv >= call.dv, "the kernel holds the head dims");
  holds(p.has_score_mod || (!call.has_score_mod && call.element_bytes == 2),
        "modified scores take the kernel with modifications");
  for (const BackwardShape& s : {p.of_keys, p.of_queries}) {
    holds(s.lds_bytes <= device.lds_bytes, "LDS");
    holds(s.threads % device.wave_size == 0 && s.threads <= 1024, "complete waves");
    holds(s.tile % s.at_once == 0 && s.owned % s.tile == 0 && kStatsPad % s.owned == 0 && kStatsPad % s.tile == 0,
          "tiles divide blocks, and both divide the padding of row statistics");
    holds(s.columns % kStripColumns == 0 && s.owned % 8 == 0 && s.tile % 8 == 0,
          "complete strips, and complete blocks of dropout's random numbers");
  }
  holds(p.blocks_k * p.of_keys.owned >= call.keys && p.blocks_q * p.of_queries.owned >= call.queries, "all tokens");
  holds(p.slots % kStatsPad == 0 && p.slots >= (call.packed ? call.total_q : call.queries),
        "row statistics of all queries");
  holds(p.parts >= 1 && (p.parts > 1) == (p.sums > 0), "sums of parts");
  const int64_t heads = call.batch * call.heads_k, blocks = p.blocks_k * heads;
  holds(!p.whole_k && p.walks() == p.blocks_k * p.parts, "all blocks are divided alike");
  holds(p.parts == 1 || blocks * p.parts <= device.compute_units, "parts run at once");
  AttentionBackwardCall asked = call;
  asked.even = true;
  const AttentionBackwardPlan even = plan_attention_backward(asked, chip(device));
  holds(even.parts == p.parts || (even.parts > 1 && even.divided_k() > 0 && even.whole_k * heads < blocks),
        "with even work some blocks at most are divided");
  holds((even.parts > 1) == (even.sums > 0) &&
            (even.parts == 1 || even.sums == even.parts * even.divided_k() * heads * p.of_keys.owned * (p.dqk + p.dv)),
        "sums of the parts of divided blocks");
  asked.parts = 5;
  const AttentionBackwardPlan five = plan_attention_backward(asked, chip(device));
  holds(five.parts == (blocks ? 5 : 1), "parts that are asked for");
  holds(five.sums == (blocks ? 5 * blocks * p.of_keys.owned * (p.dqk + p.dv) : 0), "sums of parts that are asked for");
}

void test_parts(const char* device, const AttentionBackwardCall& call, int64_t parts) {
  for (const DeviceFacts& known : kKnownDevices)
    if (std::string(known.name) == device) {
      const int64_t got = plan_attention_backward(call, chip(known)).parts;
      CHECK(got == parts, "%s: expected %d parts, got %d", device, int(parts), int(got));
    }
}

// The tensors that TMA can load.
void test_panels() {
  alignas(16) static uint16_t memory[16];
  const xlstm_tensor rows{memory, XLSTM_BFLOAT16, {4096, 64, 512}};
  xlstm_attention in{};
  in.batch = 2, in.heads_q = in.heads_k = 8, in.length_q = in.length_k = 100;
  const auto takes = [&](auto&& change, int64_t features = 64) {
    xlstm_tensor x = rows;
    xlstm_attention call = in;
    change(x, call);
    return has_key_tma_layout(call, x, features);
  };
  CHECK(takes([](auto&, auto&) {}), "rows of complete vectors");
  CHECK(!takes([](auto&, auto&) {}, 60), "60 features");
  CHECK(!takes([](auto& x, auto&) { x.stride[1] = 0; }), "heads that are one, expanded");
  CHECK(!takes([](auto& x, auto&) { x.stride[2] = -512; }), "tokens backwards");
  CHECK(!takes([](auto& x, auto&) { x.stride[1] = 60; }), "heads at unaligned offsets");
  CHECK(!takes([](auto& x, auto&) { x.data = memory + 1; }), "an unaligned address");
  CHECK(!takes([](auto&, auto& call) { call.length_k = 0; }), "no tokens");
  CHECK(takes([](auto& x, auto& call) { call.batch = 1, x.stride[0] = 0; }), "an axis of one");
  static const int32_t indices[] = {0, 1};
  CHECK(!takes([](auto&, auto& call) { call.block_table = indices; }), "pages");
  CHECK(!takes([](auto&, auto& call) { call.cache_batch_idx = indices; }), "rows picked out of a cache");
  CHECK(!takes([](auto&, auto& call) { call.cu_seqlens_k = indices; }), "packed, of no tokens in all");
}

}  // namespace

int main() {
  test_panels();
  for (const DeviceFacts& device : kKnownDevices)
    for (int64_t batch : {1, 3})
      for (int64_t group : {1, 8})
        for (int64_t queries : {0, 1, 100, 8192})
          for (int64_t keys : {0, 1, 129, 8192})
            for (const auto& [dqk, dv] : {std::pair{64, 64}, {5, 3}, {128, 128}, {192, 128}, {128, 192}, {256, 256}})
              for (int bytes : {2, 4})
                for (bool packed : {false, true})
                  test_properties(device, {batch, 2 * group, 2, queries, keys, batch * queries, dqk, dv, packed, bytes,
                                           bytes == 2 && packed, true});

  // 8 heads of 64 blocks of keys fill any chip. A key head with 8 query heads is split into 304 / 16 = 19 parts of its
  // 8 x 64 tiles.
  test_parts("MI300X", {1, 8, 8, 8192, 8192, 0, 128, 128, false, 2, false, true}, 1);
  test_parts("MI300X", {1, 8, 1, 2048, 2048, 0, 128, 128, false, 2, false, true}, 19);
  test_parts("MI300X", {1, 1, 1, 64, 2048, 0, 128, 128, false, 2, false, true}, 1);  // two tiles: too few to share
  // The Hopper kernels are for 2-byte elements, scores without modification, complete panels, and enough blocks
  // to fill the chip.
  const Chip h200{Family::nvidia, 132, 227 << 10, true};
  const AttentionBackwardCall plain{8, 16, 16, 8192, 8192, 0, 128, 128, false, 2, false, true};
  const auto takes = [&](auto&& change, const Chip& chip) {
    AttentionBackwardCall call = plain;
    change(call);
    return plan_attention_backward(call, chip).hopper;
  };
  Chip other = h200;
  other.hopper = false;
  CHECK(takes([](auto&) {}, h200) && !takes([](auto&) {}, other), "what has Hopper's kernels takes them");
  CHECK(takes([](auto& c) { c.dqk = c.dv = 40, c.packed = true, c.total_q = 9000; }, h200), "head dims of 40, packed");
  CHECK(takes([](auto& c) { c.dqk = c.dv = 136; }, h200) && takes([](auto& c) { c.dqk = c.dv = 256; }, h200),
        "head dims of 136 and 256");
  CHECK(takes([](auto& c) { c.dqk = 192, c.dv = 200; }, h200), "head dims that 256 features hold");
  CHECK(!takes([](auto& c) { c.element_bytes = 4; }, h200), "float32");
  CHECK(!takes([](auto& c) { c.has_score_mod = true; }, h200), "modified scores");
  CHECK(takes([](auto& c) { c.dqk = 192; }, h200), "192 and 128");
  CHECK(!takes([](auto& c) { c.panels = false; }, h200), "rows that bulk copies cannot take");
  const auto few = [](auto& c) { c.batch = 1, c.heads_q = c.heads_k = 1, c.keys = 2048; };
  CHECK(!takes(few, h200), "several parts");
  CHECK(takes([&](auto& c) { few(c), c.parts = 1; }, h200), "one part, which is asked for");
  CHECK(!takes([](auto& c) { c.parts = 2; }, h200), "two parts, which are asked for");
  CHECK(!takes([](auto& c) { c.common_schedule = true; }, h200), "the common schedule, which is asked for");
  const Chip mi300x{Family::cdna, 304, 64 << 10, false};
  const auto one_pass = [&](auto&& change, const Chip& chip) {
    AttentionBackwardCall call = plain;
    call.vectors = true;
    change(call);
    return plan_attention_backward(call, chip);
  };
  const AttentionBackwardPlan atomics = one_pass([](auto&) {}, mi300x);
  CHECK(atomics.one_pass && atomics.dq_sums == 8 * 16 * 8192 * 128, "one pass, with a float for each of dq");
  CHECK(!one_pass([](auto&) {}, h200).one_pass, "CDNA alone");
  CHECK(!one_pass([](auto& c) { c.deterministic = true; }, mi300x).one_pass, "the same bits, which are asked for");
  CHECK(!one_pass([](auto& c) { c.deterministic = true; }, mi300x).dq_sums, "no sums of dq then");
  CHECK(!one_pass([](auto& c) { c.common_schedule = true; }, mi300x).one_pass, "the common schedule of CDNA");
  CHECK(!one_pass([](auto& c) { c.vectors = false; }, mi300x).one_pass, "rows that are no vectors");
  CHECK(!one_pass([](auto& c) { c.element_bytes = 4; }, mi300x).one_pass, "one pass of float32");
  CHECK(!one_pass([](auto& c) { c.has_score_mod = true; }, mi300x).one_pass, "one pass of modified scores");
  CHECK(!one_pass([](auto& c) { c.dv = 64; }, mi300x).one_pass, "one pass of other head dims");
  CHECK(one_pass([](auto& c) { c.dqk = c.dv = 64; }, mi300x).one_pass, "one pass of 64");
  // 1024 blocks of 128 tiles: 896 are whole, and 128 have two parts, 256 walks for the last of the 304 compute units.
  const auto last_round = [](auto& c) { c.batch = 2, c.queries = c.keys = 4096, c.even = true; };
  const AttentionBackwardPlan divided = one_pass(last_round, mi300x);
  CHECK(divided.parts == 2 && divided.whole_k == 28 && divided.walks() == 36, "the last round in two parts");
  for (const int features : {64, 128, 192, 256})
    for (const bool of_keys : {false, true}) {
      const HopperAttentionShape s = backward_hopper_shape(features, of_keys);
      CHECK(s.lds_bytes() <= h200.lds_bytes && kStatsPad % s.tile == 0, "%d features", features);
    }
  for (const auto& [dqk, dv] : {std::pair{257, 64}, {64, 300}}) {
    bool thrown = false;
    try {
      plan_attention_backward({1, 1, 1, 8, 8, 0, dqk, dv, false, 2, false, true}, chip(kKnownDevices[0]));
    } catch (const std::invalid_argument& error) {
      thrown = std::string(error.what()).find(dqk > 256 ? "q: " : "v: ") == 0;
    }
    CHECK(thrown, "head dims %d and %d are refused by name", dqk, dv);
  }
  return finish();
}
