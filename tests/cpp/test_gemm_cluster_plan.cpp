// SPDX-License-Identifier: Apache-2.0
// Products of quantised weights by clusters: every item of 16 rows belongs to one block and every feature to one part,
// the buffers in shared memory are large enough, and a row's sums consist of the same parts in every batch.
#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "chips.h"
#include "engine/gemm_cluster/gemm_cluster_plan.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::engine;

namespace {

// The buffers in shared memory do not overlap, are large enough, and are aligned to their accesses.
void test_smem() {
  for (const int bits : {4, 8, 16})
    for (const int batch : kClusterBatch)
      for (const int steps : {1, 8, 22})
        for (const int owned : {1, 12}) {
          const int parts = 8;
          const ClusterSmem r = cluster_smem(bits, batch, parts, steps, owned);
          const int ring = cluster_warps(batch) * kSlots * slot_bytes(bits);
          // One x has four planes of digits, one of which is zero; several x's have three planes each and a scale.
          CHECK(r.x - r.ring == ring && r.x_scales - r.x >= steps * kStepFeatures * (batch == 1 ? 4 : 3) * batch,
                "%d bits, %d rows: the ring or x's", bits, batch);
          CHECK(r.squares - r.x_scales == steps * (batch == 1 ? 16 : batch * 8) &&
                    r.all_squares - r.squares == steps * batch * 4,
                "%d bits, %d rows: scales and squares of steps", bits, batch);
          CHECK(r.received - r.all_squares >= parts * batch * 4, "%d bits, %d rows: squares of all parts", bits, batch);
          CHECK(r.bytes - r.received == owned * parts * kItemRows * batch * 4, "%d bits, %d rows: sums", bits, batch);
          for (const int at : {r.ring, r.x, r.received}) CHECK(at % 16 == 0, "a buffer at %d", at);
          CHECK(slot_bytes(bits) % 16 == 0 && segment_stride(bits) % 16 == 0, "vectors in a slot of %d bits", bits);
        }
}

// Lanes that are served together read from all banks: vectors of 16 bytes of two rows, or of 8 bytes of four rows.
void test_banks() {
  for (const int bits : {4, 8, 16}) {
    const int each = bits == 4 ? 8 : 16, lanes = 128 / each;
    std::vector<int> banks(32);
    for (int lane = 0; lane < lanes; ++lane)
      for (int word = 0; word < each / 4; ++word)
        ++banks[size_t((lane / 4 * segment_stride(bits) + lane % 4 * each) / 4 + word) % 32];
    for (const int n : banks) CHECK(n == 1, "%d bits: %d lanes read one bank", bits, n);
  }
}

void test_items() {
  GemmParams p{};
  p.linear_count = kMaxLinears;
  const int rows[kMaxLinears] = {40, 0, 24, 16, 8, 8};
  for (int j = 0; j < kMaxLinears; ++j) p.linear[j].rows = rows[j], p.linear[j].bits = j < kFirstGate ? 4 : 0;
  const ClusterItems with_gates = cluster_items(p);
  const std::vector<int> linears(with_gates.linear, with_gates.linear + with_gates.count);
  CHECK((linears == std::vector<int>{0, 2, 3, 4, 5}) && with_gates.gates_from == 3, "weights, then gates");
  CHECK((std::vector<int>(with_gates.end, with_gates.end + 5) == std::vector<int>{3, 5, 6, 7, 8}), "where items end");
  CHECK(with_gates.total() == 8, "%d items", with_gates.total());
  p.output = Output::add;
  CHECK(cluster_items(p).total() == 6, "weights that are not quantised are another launch's");
  p.output = Output::swiglu, p.linear_count = 2, p.linear[0].rows = p.linear[1].rows = 20;
  CHECK(cluster_items(p).count == 1 && cluster_items(p).total() == 3, "8 rows of either side are an item");
  CHECK(cluster_items({}).total() == 0, "without linears there are no items");
  for (const Output output : {Output::store, Output::add}) {
    GemmParams plain{};
    plain.output = output, plain.linear_count = 2, plain.linear[0].rows = 40, plain.linear[1].rows = 8;
    CHECK(cluster_items(plain).total() == 4 && cluster_items(plain).gates_from == 2, "bfloat16 alone has no gates");
  }
}

void test_suits() {
  GemmParams p{};
  p.linear_count = 1, p.columns = 128, p.linear[0].rows = 24, p.linear[0].groups = 2;
  CHECK(suits_clusters(p), "96 bytes of scales are copied");
  p.columns = 96;
  CHECK(!suits_clusters(p), "an incomplete step");
  p.columns = 128, p.linear[0].rows = 25;
  CHECK(!suits_clusters(p), "100 bytes of scales are not complete vectors");
  p.linear[0].rows = 4;
  CHECK(!suits_clusters(p), "16 bytes of scales: fewer than a slot takes");
  p.linear[0].rows = 1 << 29;
  CHECK(!suits_clusters(p), "scales beyond what 32 bits count");
}

void test_plan() {
  const int64_t projections[] = {2048, 2048, 4096, 4096, 8, 8}, up[] = {10944, 10944}, down[] = {4096};
  const Chip h200 = known_chip("H200");
  for (const int bits : {8, 4})
    for (const GemmShape& base_shape :
         {GemmShape{1, 4096, false, bits, true, 6, projections}, GemmShape{1, 4096, true, bits, true, 2, up},
          GemmShape{1, 10944, false, bits, true, 1, down}, GemmShape{1, 64, false, bits, true, 1, down}}) {
      const ClusterPlan single = plan_cluster(base_shape, true, h200);
      for (const int64_t batch : {1, 2, 3, 8, 9, 16, 17, 32}) {
        if (batch > (bits == 8 ? 16 : 32)) continue;
        GemmShape shape = base_shape;
        shape.batch = batch;
        const ClusterPlan p = plan_cluster(shape, true, h200);
        const std::string at =
            std::to_string(bits) + " bits, " + std::to_string(batch) + " by " + std::to_string(shape.columns);
        CHECK(p.batch >= std::min<int64_t>(batch, 16) && p.passes * p.batch >= batch, "%s: a kernel for %d", at.c_str(),
              p.batch);
        CHECK(p.part_bits == single.part_bits && p.part_steps == single.part_steps, "%s: other parts than alone",
              at.c_str());
        CHECK(p.parts() >= 2 && p.parts() * p.part_steps * kStepFeatures >= shape.columns, "%s: features", at.c_str());
        CHECK(p.clusters * p.passes * p.parts() <= std::max(123, p.passes * p.parts()),
              "%s: %d clusters, a second wave", at.c_str(), p.clusters);
        const ClusterSmem smem = cluster_smem(bits, p.batch, p.parts(), p.part_steps, p.owned);
        CHECK(smem.bytes <= p.lds_bytes && p.lds_bytes <= h200.lds_bytes, "%s: %d bytes", at.c_str(), p.lds_bytes);
        CHECK(2 * (p.lds_bytes + 1024) > 228 << 10, "%s: two blocks share a multiprocessor", at.c_str());
        CHECK(p.owned >= 1, "%s: rounds without items", at.c_str());
      }
    }
  const ClusterPlan long_way = plan_cluster({1, 4096, true, 4, true, 2, up}, true, h200);
  CHECK(long_way.parts() == 8 && long_way.clusters == 15 && long_way.owned == 12, "all items of %d clusters at once",
        long_way.clusters);

  const GemmShape one{1, 4096, false, 4, true, 1, down};
  CHECK(!plan_cluster(one, false, h200).batch, "what copies cannot take");
  for (const int bits : {4, 8})
    CHECK(!plan_cluster({bits == 4 ? 33 : 17, 4096, false, bits, true, 1, down}, true, h200).batch,
          "more rows than clusters are for");
  for (const int64_t batch : {1, 2, 8, 9})
    CHECK((plan_cluster({batch, 4096, false, 16, false, 1, down}, true, h200).batch == 8) == (batch == 2 || batch == 8),
          "bfloat16 beside %d rows", int(batch));
  CHECK(!plan_cluster({8, 4096, false, 16, true, 1, down}, true, h200).batch, "float16");
  for (const char* name : {"A100", "MI300X", "RX 7900 XTX"})
    CHECK(!plan_cluster(one, true, known_chip(name)).batch, "%s has no clusters", name);
  Chip small = h200;
  small.lds_bytes = 120 << 10;
  CHECK(!plan_cluster(one, true, small).batch, "a ring that does not fit");
  // The sums of a row are the same in a batch and alone, so a shape without a kernel for 8 rows has none for one row.
  CHECK(!plan_cluster({1, 1 << 17, false, 4, true, 1, down}, true, h200).batch, "x's of a batch that do not fit");
}

}  // namespace

int main() {
  test_smem();
  test_banks();
  test_items();
  test_suits();
  test_plan();
  return finish();
}
