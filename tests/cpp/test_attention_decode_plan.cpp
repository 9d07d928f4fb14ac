// SPDX-License-Identifier: Apache-2.0
// The split-KV plans of decode and MLA on known GPUs: every multiprocessor has work at batch 1, parts are long enough
// to pay for their combination, a caller's number of parts is used, and LDS suffices.
#include "attention/decode/decode_plan.h"
#include "attention/decode/short_last_part.h"
#include "attention/mla/mla_plan.h"
#include "check.h"
#include "chips.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::attention;

namespace {

double busy(int64_t blocks, int64_t at_once) {
  return double(blocks) / double((blocks + at_once - 1) / at_once * at_once);
}

AttentionCall call(int64_t batch, int64_t hq, int64_t hk, int64_t queries, int64_t keys, int64_t d, int64_t dv,
                   int bytes) {
  return {batch, hq, hk, queries, keys, d, dv, bytes, false};
}

void test_decode() {
  for (const auto& [name, chip] : known_chips())
    for (int bytes : {2, 4})
      for (const HeadClass& head : kHeadClasses) {
        const AttentionCall any = call(1, 32, 8, 1, 1 << 17, head.dqk, head.dv, bytes);
        CHECK(has_few_rows(any, chip) == has_decode(chip.family, bytes, head), "%s: class of %d", name, head.dqk);
        if (!has_decode(chip.family, bytes, head)) continue;
        const DecodePlan one = plan_decode(call(1, 32, 8, 1, 1 << 17, head.dqk, head.dv, bytes), 0, chip);
        CHECK(one.head.dqk == head.dqk && one.head.dv == head.dv, "%s: class of %d", name, head.dqk);
        CHECK(one.shape.lds_bytes <= chip.lds_bytes, "%s: %d bytes of LDS", name, one.shape.lds_bytes);
        const int64_t at_once = int64_t(chip.compute_units) * one.shape.blocks;
        CHECK(busy(one.grid, at_once) >= 0.9, "%s: %d blocks", name, int(one.grid));
        CHECK((1 << 17) / one.splits >= 256, "%s: %d parts", name, int(one.splits));
        const DecodePlan full = plan_decode(call(4096, 32, 8, 1, 4096, head.dqk, head.dv, bytes), 0, chip);
        CHECK(full.splits == 1, "%s: %d parts of a full chip", name, int(full.splits));
        const DecodePlan brief = plan_decode(call(1, 32, 8, 1, 300, head.dqk, head.dv, bytes), 0, chip);
        CHECK(brief.splits == 1, "%s: %d parts of 300 keys", name, int(brief.splits));
        const DecodePlan named = plan_decode(call(3, 32, 8, 1, 300, head.dqk, head.dv, bytes), 7, chip);
        CHECK(named.splits == 7 && named.grid == 3 * 8 * 7, "%s: %d parts", name, int(named.splits));
      }
  const Chip mi300x = known_chip("MI300X");
  CHECK(has_few_rows(call(1, 32, 8, 8, 999, 128, 128, 2), mi300x), "32 rows of a key head are few");
  CHECK(!has_few_rows(call(1, 32, 8, 9, 999, 128, 128, 2), mi300x), "36 are not");
  CHECK(!has_few_rows(call(1, 8, 8, 1, 999, 264, 264, 2), mi300x), "head dims that there is no kernel for");
}

// Each tile is in one part, and the last part is about half as long as the others.
void test_short_last_part() {
  for (int tiles : {0, 1, 7, 128, 1 << 20})
    for (int parts : {2, 5, 256}) {
      const auto first = [&](int part) { return first_tile_of_part(tiles, part, parts, true); };
      CHECK(first(0) == 0 && first(parts) == tiles, "%d tiles, %d parts: not all of them", tiles, parts);
      for (int part = 0; part < parts; ++part)
        CHECK(first(part) <= first(part + 1), "%d tiles, %d parts: part %d", tiles, parts, part);
      const int last = tiles - first(parts - 1), before = first(parts - 1) - first(parts - 2);
      CHECK(2 * last <= before + 2, "%d tiles, %d parts: the last has %d of %d", tiles, parts, last, before);
    }
}

void test_mla() {
  for (const auto& [name, chip] : known_chips())
    for (int features : kMlaFeatures)
      for (int64_t heads : {8, 16, 32, 128}) {
        const MlaPlan p = plan_mla(call(1, heads, 1, 1, 1 << 17, features, 512, 2), 0, chip);
        const int rows_of_many = chip.family == Family::cdna && heads > 64 ? kMlaCdnaRows : 64;
        CHECK(p.rows == (heads > 16 && !is_rdna(chip.family) ? rows_of_many : 16), "%s: %d rows", name, p.rows);
        CHECK(p.shape.lds_bytes <= chip.lds_bytes, "%s: %d bytes of LDS", name, p.shape.lds_bytes);
        const bool fits = mla_shape(chip.family, p.rows, features, true).lds_bytes <= chip.lds_bytes;
        CHECK(p.hopper == (chip.hopper && p.rows == 64), "%s: Hopper's own kernel or not", name);
        CHECK(p.ahead == (chip.family == Family::nvidia && p.rows == 64 && fits && !p.hopper),
              "%s: tiles overlap or not", name);
        CHECK(p.blocks == (heads + p.rows - 1) / p.rows, "%s: %d blocks", name, int(p.blocks));
        CHECK(busy(p.grid, chip.compute_units) >= 0.9, "%s: %d blocks for %d heads", name, int(p.grid), int(heads));
        const MlaPlan named = plan_mla(call(2, heads, 1, 3, 500, features, 512, 2), 5, chip);
        CHECK(named.splits == 5 && named.grid == 2 * 5 * named.blocks, "%s: %d parts", name, int(named.splits));
      }
  Chip h200 = known_chip("H200");
  const AttentionCall benchmark = call(64, 128, 1, 1, 8192, 576, 512, 2);
  const MlaPlan hopper_plan = plan_mla(benchmark, 0, h200);
  CHECK(hopper_plan.hopper && hopper_plan.shape.threads == 384 && hopper_plan.shape.lds_bytes == 230488 &&
            hopper_plan.grid == 128,
        "H200: its own kernel, %d bytes of LDS", hopper_plan.shape.lds_bytes);
  h200.lds_bytes = hopper_plan.shape.lds_bytes - 1;
  CHECK(!plan_mla(benchmark, 0, h200).hopper, "LDS does not suffice");
  h200 = known_chip("H200"), h200.hopper = false;
  const MlaPlan common = plan_mla(benchmark, 0, h200);
  CHECK(common.ahead && !common.hopper && common.grid == 128, "H200, common schedule: tiles overlap");
  const MlaPlan few_rows = plan_mla(call(64, 16, 1, 1, 8192, 576, 512, 2), 0, known_chip("MI300X"));
  CHECK(few_rows.splits == 4, "MI300X, 16 rows: %d parts, and not one round of blocks", int(few_rows.splits));
  const MlaPlan many_rows = plan_mla(benchmark, 0, known_chip("MI300X"));
  CHECK(many_rows.rows == kMlaCdnaRows && many_rows.splits == 5 && many_rows.last_is_short,
        "MI300X, 128 rows: %d parts, the last one short", int(many_rows.splits));
  CHECK(plan_mla(benchmark, 5, known_chip("MI300X")).last_is_short, "MI300X: as many parts by name");
  CHECK(!plan_mla(benchmark, 4, known_chip("MI300X")).last_is_short, "MI300X: fewer parts are equal");
  AttentionCall float8 = benchmark;
  float8.float8 = true, float8.element_bytes = 1;
  const MlaPlan bytes = plan_mla(float8, 0, known_chip("MI300X"));
  CHECK(bytes.shape.keys == 64 && bytes.shape.lds_bytes <= 64 << 10, "MI300X, 8 bits: %d keys", bytes.shape.keys);
  bool refused = false;
  try {
    plan_mla(call(1, 128, 1, 1, 500, 576, 512, 2), 0, {Family::nvidia, 46, 48 << 10, false});
  } catch (const std::invalid_argument& e) {
    refused = std::string(e.what()).find("head_dim_v: ") == 0;
  }
  CHECK(refused, "a chip with less LDS than a tile");
}

}  // namespace

int main() {
  test_decode();
  test_short_last_part();
  test_mla();
  return finish();
}
