// SPDX-License-Identifier: Apache-2.0
// Products of weights with few rows on matrix units: what lanes read of a row is all of it, once; x's lie where the
// stream operand of each family looks for them; and known GPUs have blocks for every product of xLSTM-7B.
#include <vector>

#include "check.h"
#include "chips.h"
#include "decode/matrix_plan.h"

using namespace xlstm::gpu;

namespace {

constexpr Family kFamilies[] = {Family::nvidia, Family::cdna, Family::rdna};

// The feature that element e of the eight `n` of a lane's load `load` is, from where its bytes lie in a row's step: of
// nibbles 16 bytes hold 32 features, the low halves first.
int feature_in_memory(Family f, int bits, int lane, int load, int n, int e) {
  const int offset = load_offset(f, bits, lane, load);
  if (bits == 16) return offset / 2 + e;
  if (bits == 8) return offset + 8 * n + e;
  return offset / 16 * 32 + 16 * n + offset % 16 + eight_feature(4, e);
}

void test_order() {
  for (const Family f : kFamilies)
    for (const int bits : {4, 8, 16}) {
      const int pieces = chain_pieces(f, 2);
      for (int row = 0; row < kStripColumns; ++row) {
        std::vector<int> seen(kStepFeatures);
        for (int lane = 0; lane < wave_size(f); ++lane)
          for (int eight = 0; eight < lane_eights(f); ++eight)
            for (int j = 0; j < lane_rows(f); ++j) {
              if (row_of_lane(f, lane, j) != row) continue;
              if (f == Family::rdna && lane >= 16) continue;  // has what lane - 16 has
              const int load = eight / load_eights(bits), n = eight % load_eights(bits);
              // Where the chain operand has it: the piece of a unit, whose k the stream shares.
              const int unit = eight / unit_eights(f), p = f == Family::rdna ? eight % 2 : lane_rows(f) == 1 ? 0 : j;
              CHECK(p < pieces, "piece %d", p);
              const PiecePosition at = chain_piece(f, 2, lane, p);
              CHECK(at.row == row, "row %d of a lane's piece, expected %d", at.row, row);
              for (int e = 0; e < kEight; ++e) {
                const int feature = feature_in_memory(f, bits, lane, load, n, e);
                ++seen[size_t(feature)];
                const EightPlace place = eight_place(f, bits, feature / kEight);
                CHECK(place.unit == unit && place.piece == at.feature / kEight,
                      "%d bits, feature %d: unit %d piece %d, expected %d %d", bits, feature, place.unit, place.piece,
                      unit, at.feature / kEight);
                CHECK(feature % kEight == eight_feature(bits, e), "%d bits, feature %d is element %d", bits, feature,
                      e);
              }
            }
        for (int k = 0; k < kStepFeatures; ++k)
          CHECK(seen[size_t(k)] == 1, "feature %d read %d times", k, seen[size_t(k)]);
      }
    }
}

void test_slots() {
  for (const Family f : kFamilies)
    for (int lane = 0; lane < wave_size(f); ++lane)
      for (int p = 0; p < stream_pieces(f, 2); ++p) {
        const PiecePosition at = stream_piece(f, 2, lane, p);
        const int slot = p * stream_slots(f) + lane % stream_slots(f);
        CHECK(slot_in_strip(f, at.row, at.feature / kEight) == slot, "lane %d piece %d", lane, p);
      }
}

void test_plan() {
  const int64_t projections[] = {2048, 2048, 4096, 4096, 8, 8}, up[] = {10944, 10944}, down[] = {4096}, none[] = {0, 5};
  for (const auto& [name, chip] : known_chips()) {
    for (const int64_t batch : {1, 2, 8, 9, 17, 32, 33, 64, 100}) {
      const MatrixPlan p = plan_matrix({batch, 4096, false, false, 6, projections}, chip);
      CHECK(has_matrix_kernel(chip.family, p.batch, false), "%s: a kernel for %d rows", name, p.batch);
      CHECK(p.batch >= batch || p.batch == (chip.family == Family::rdna ? 16 : 32), "%s: %d rows of %d at once", name,
            p.batch, int(batch));
      const int64_t passes = (batch + p.batch - 1) / p.batch;
      CHECK(p.blocks == passes * blocks_of({batch, 4096, false, false, 6, projections}, p.rows), "%s: %d blocks", name,
            int(p.blocks));
    }
    const MatrixPlan wide = plan_matrix({8, 4096, true, false, 2, up}, chip),
                     narrow = plan_matrix({8, 10944, false, true, 1, down}, chip);
    CHECK(plan_matrix({32, 4096, true, true, 2, up}, chip).batch == 16, "%s: converted weights of a full batch", name);
    const MatrixPlan one = plan_matrix({1, 10944, false, false, 1, down}, chip);
    CHECK(one.batch == 1 && one.lds_bytes == 43 * 256 * 4, "%s: %d bytes of LDS", name, one.lds_bytes);
    CHECK(plan_matrix({1, 11272, false, false, 1, down}, chip).batch > 1, "%s: an x that is not kept whole", name);
    CHECK(wide.rows == 64 && wide.blocks == 342, "%s: %d blocks of %d rows", name, int(wide.blocks), wide.rows);
    CHECK(narrow.rows == (chip.compute_units > 64 ? 32 : 64), "%s: %d rows", name, narrow.rows);
  }
  CHECK(plan_matrix({1, 4096, false, false, 2, none}, known_chip("MI300X")).blocks == 1,
        "pieces without rows have no blocks");
}

}  // namespace

int main() {
  test_order();
  test_slots();
  test_plan();
  return finish();
}
