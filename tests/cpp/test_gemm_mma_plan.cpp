// SPDX-License-Identifier: Apache-2.0
// Products of weights with few rows on matrix units: lanes read each feature of a row once; x's are in the slots that
// the stream operand of each family reads; and known GPUs have blocks for every product of xLSTM-7B.
#include <algorithm>
#include <vector>

#include "check.h"
#include "chips.h"
#include "engine/gemm_cdna/gemm_cdna_plan.h"
#include "engine/gemm_mma/gemm_mma_plan.h"
#include "engine/gemm_mma/gemm_stream_k_shape.h"

using namespace xlstm::gpu;
using namespace xlstm::gpu::engine;

namespace {

constexpr Family kFamilies[] = {Family::nvidia, Family::cdna, Family::rdna, Family::rdna4};

// The feature of element e in the vector `n` of eight features in a lane's load `load`, from the offset of its bytes in
// a row's step. 16 bytes of nibbles hold 32 features, the low nibbles first.
int feature_in_memory(Family f, int bits, int lane, int load, int n, int e) {
  const int offset = load_offset(f, bits, lane, load);
  if (bits == 16) return offset / 2 + e;
  if (bits == 8) return offset + 8 * n + vec8_feature(8, e);
  return offset / 16 * 32 + 16 * n + offset % 16 + vec8_feature(4, e);
}

void test_order() {
  for (const Family f : kFamilies)
    for (const int bits : {4, 8, 16}) {
      const int vec16s = chain_vec16s(f, 2);
      for (int row = 0; row < kStripColumns; ++row) {
        std::vector<int> seen(kStepFeatures);
        for (int lane = 0; lane < wave_size(f); ++lane)
          for (int vec8 = 0; vec8 < lane_vec8s(f); ++vec8)
            for (int j = 0; j < lane_rows(f); ++j) {
              if (row_of_lane(f, lane, j) != row) continue;
              if (f == Family::rdna && lane >= 16) continue;  // has the same as lane - 16
              const int load = vec8 / load_vec8s(bits), n = vec8 % load_vec8s(bits);
              // The chain operand has the vector in this unit, in an order of k that the stream operand shares.
              const int unit = vec8 / unit_vec8s(f), p = f == Family::rdna ? vec8 % 2 : lane_rows(f) == 1 ? 0 : j;
              CHECK(p < vec16s, "vector %d", p);
              const Vec16Position at = chain_vec16(f, 2, lane, p);
              CHECK(at.row == row, "row %d of a lane's vector, expected %d", at.row, row);
              for (int e = 0; e < kVec8; ++e) {
                const int feature = feature_in_memory(f, bits, lane, load, n, e);
                ++seen[size_t(feature)];
                const Vec8Coord coord = vec8_coord(f, bits, feature / kVec8);
                CHECK(coord.unit == unit && coord.vec16 == at.feature / kVec8,
                      "%d bits, feature %d: unit %d vector %d, expected %d %d", bits, feature, coord.unit, coord.vec16,
                      unit, at.feature / kVec8);
                CHECK(feature % kVec8 == vec8_feature(bits, e), "%d bits, feature %d is element %d", bits, feature, e);
              }
            }
        for (int k = 0; k < kStepFeatures; ++k)
          CHECK(seen[size_t(k)] == 1, "feature %d read %d times", k, seen[size_t(k)]);
      }
    }
}

// The vectors of a unit have different slots, and eight lanes that are served together access different banks, both
// when they read and when they store the vectors of one row's step.
void test_slots() {
  for (const Family f : kFamilies)
    for (int unit = 0; unit < 8; ++unit) {
      std::vector<int> taken(size_t(strip_slots(f)));
      for (int row = 0; row < 2 * split_rows(f); ++row)
        for (int vec16 = 0; vec16 < unit_features(f, 2) / kVec8; ++vec16)
          ++taken[size_t(slot_in_strip(f, unit, row, vec16))];
      for (const int n : taken) CHECK(n == 1, "a slot of %d vectors", n);
      for (int p = 0; p < stream_vec16s(f, 2); ++p)
        for (int group = 0; group < stream_slots(f) / 8; ++group) {
          std::vector<int> banks(8);
          for (int n = 0; n < 8; ++n) {
            // ds_read_b128 on CDNA serves lanes {0-3, 20-23}, {4-7, 16-19} together, and so on.
            const int lane = f == Family::cdna ? group / 4 * 32 + group % 4 * 4 + n % 4 +
                                                     (n < 4       ? 0
                                                      : group % 2 ? 12
                                                                  : 20)
                                               : group * 8 + n;
            const Vec16Position at = stream_vec16(f, 2, lane, p);
            ++banks[size_t(slot_in_strip(f, unit, at.row, at.feature / kVec8) % 8)];
          }
          for (const int n : banks) CHECK(n == 1, "family %d: %d lanes read one bank", int(f), n);
        }
    }
  for (const Family f : kFamilies)
    for (const int bits : {16, 8, 4})
      for (int row = 0; row < 2 * split_rows(f); ++row) {
        std::vector<int> banks(8), single(8);
        for (int n = 0; n < 8; ++n) {
          const Vec8Coord at = vec8_coord(f, bits, n);
          ++banks[size_t(slot_in_strip(f, at.unit, row, at.vec16) % 8)];
          ++single[size_t((at.unit * single_unit_slots(f) + single_slot(f, at.unit, row, at.vec16)) % 8)];
        }
        for (const int n : banks) CHECK(n == 1, "family %d, %d bits: %d lanes store to one bank", int(f), bits, n);
        for (const int n : single) CHECK(n == 1, "family %d, %d bits, one x: %d lanes to one bank", int(f), bits, n);
      }
}

// Packed x of NVIDIA: a lane finds the vectors that its matrix instructions multiply, and no two lie in one place.
void test_packed_slots() {
  for (const int rows : {16, 32, 64, 128}) {
    std::vector<int> taken(size_t(packed_step_bytes(rows) / kSlotBytes));
    for (int unit = 0; unit < 2; ++unit)
      for (int row = 0; row < rows; ++row)
        for (int half = 0; half < 2; ++half)
          for (int vec16 = 0; vec16 < 4; ++vec16)
            ++taken[size_t(packed_offset(rows, unit, row, half, vec16) / kSlotBytes)];
    for (const int n : taken) CHECK(n == 1, "%d rows: a place of %d vectors", rows, n);
  }
  for (int lane = 0; lane < 32; ++lane) {  // the B operand of NVIDIA's m16n8k16 has row lane / 4
    const Vec16Position at = stream_vec16(Family::nvidia, 2, lane, 0);
    CHECK(
        packed_offset(32, 1, 16 + at.row, 1, at.feature / kVec8) == packed_tile_offset(32, 1, 2, 1) + lane * kSlotBytes,
        "lane %d", lane);
  }
}

// CDNA's packed x: a row's eight features, in the order of a lane's weights, are in the lane of their row and of these
// weights; no two lie in one place; and what is in a step, its scales and sums too, is within it.
void test_packed_for_cdna() {
  for (const bool digits : {false, true})
    for (const int bits : {16, 8, 4})
      for (const int batch : kCdnaGemmBatch) {
        if (digits && bits == 16) continue;
        const int bytes = digits ? 8 : 16, parts = x_parts(digits);
        std::vector<int> taken(size_t(x_operand_bytes(digits, batch) / bytes));
        for (int row = 0; row < batch; ++row)
          for (int n = 0; n < kStepFeatures / kVec8; ++n)
            for (int part = 0; part < parts; ++part) {
              const Vec8Coord at = vec8_coord(Family::cdna, bits, n);
              const int offset = x_offset(digits, batch, at, row, part), rows = strip_rows(batch),
                        lane = offset / 16 % (4 * rows);
              ++taken[size_t(offset / bytes)];
              CHECK(lane % rows == row % rows && lane / rows == at.vec16, "%d bits: row %d in lane %d", bits, row,
                    lane);
            }
        for (const int n : taken) CHECK(n == 1, "%d bits: a place of %d vectors", bits, n);
        CHECK(x_step_bytes(digits, true, batch) == int(taken.size()) * bytes + batch * 8, "scales and sums");
      }
}

// CDNA: a lane that loads floats finds the features of its weights.
void test_vec8s() {
  for (const int bits : {16, 8, 4})
    for (int n = 0; n < 8; ++n) {
      const Vec8Coord at = vec8_coord(Family::cdna, bits, n);
      CHECK(vec8_at(bits, at.unit, at.vec16) == n, "%d bits, vec8 %d", bits, n);
    }
}

// NVIDIA: a stage's buffers do not overlap, and the warps' chains are a tile's rows, both sides of SwiGLU in one warp.
void test_stream_k() {
  for (const int bits : {16, 8, 4})
    for (const int batch : kStreamKBatch) {
      const StreamKStage at = stream_k_stage(bits, batch);
      const int steps = stage_steps(bits, batch), groups = bits < 16 ? steps * kStreamKRows * 4 : 0;
      CHECK(at.x == steps * kStreamKRows * kStepFeatures * bits / 8, "weights of %d bits", bits);
      CHECK(at.scales - at.x == steps * batch * kStepFeatures * 4, "x of %d rows", batch);
      CHECK(at.offsets - at.scales == groups && at.x_sums - at.offsets == groups, "groups of %d bits", bits);
      CHECK(at.bytes - at.x_sums == (bits < 16 ? steps * batch * 4 : 0) && at.bytes % 16 == 0, "sums of steps");
    }
  std::vector<int> taken(kStreamKRows / kStripColumns);
  for (int warp = 0; warp < kStreamKRowWarps; ++warp)
    for (int chain = 0; chain < kStreamKChains; ++chain) ++taken[size_t(stream_k_slot(warp, chain) / kStripColumns)];
  for (const int n : taken) CHECK(n == 1, "a chain of %d warps", n);
}

void check_batch(const char* name, const GemmShape& shape, const GemmMmaPlan& p, const Chip& chip) {
  const int linears = shape.swiglu ? 2 : 1, slots = kBatchChains * kStripColumns / linears;
  CHECK(chip.family == Family::cdna && p.shards >= 1 && shape.batch <= p.batch, "%s: %d shards", name, p.shards);
  CHECK(p.shards == 1 || shape.adds, "%s: what shares units adds to a residual", name);
  CHECK(p.row_waves * 64 <= kMostBatchThreads, "%s: %d waves", name, p.row_waves);
  CHECK(p.row_waves * p.wave_rows >= p.rows && (p.row_waves - 1) * p.wave_rows < p.rows && p.wave_rows <= slots,
        "%s: %d waves have %d rows of %d", name, p.row_waves, p.wave_rows, p.rows);
  const int64_t units = units_of(shape, p.rows * linears);
  CHECK(p.blocks % 8 == 0 && p.blocks >= units * p.shards && p.blocks < units * p.shards + 8,
        "%s: %d blocks for %d units", name, int(p.blocks), int(units));
  const PackedBytes bytes = packed_bytes(shape, p, chip);
  const int64_t waves = units * p.row_waves;
  CHECK(p.shards == 1 || bytes.arrivals >= waves, "%s: counters", name);
  CHECK(p.shards == 1 || bytes.partials >= waves * p.shards * 64 * p.batch * 4, "%s: partial sums", name);
  CHECK(p.lds_bytes == 0 || (p.lds_bytes >= shape.columns * 4 && p.lds_bytes <= kMostBatchLds),
        "%s: LDS for a norm's weights", name);
}

// The products that gemm_cdna takes.
void check_cdna(const char* name, const GemmShape& shape, const GemmCdnaPlan& p, const Chip& chip) {
  const int linears = shape.swiglu ? 2 : 1;
  CHECK(chip.family == Family::cdna && !gemm_mma_takes(shape, chip), "%s: gemm_mma has it", name);
  CHECK(p.batch >= std::min<int64_t>(shape.batch, 64) && (p.batch >= 16 || shape.integers), "%s: %d rows at once", name,
        p.batch);
  CHECK(p.waves >= kLeastCdnaGemmWaves && p.waves <= kMostCdnaGemmWaves, "%s: %d waves", name, p.waves);
  CHECK(p.waves * p.wave_rows >= p.rows && p.wave_rows * linears <= p.chains * kStripColumns,
        "%s: %d waves of %d chains have %d rows of %d", name, p.waves, p.chains, p.wave_rows, p.rows);
  CHECK(!shape.swiglu || p.chains == 2, "%s: a chain for each of SwiGLU's linears", name);
  const int64_t passes = (shape.batch + p.batch - 1) / p.batch, units = units_of(shape, p.rows * linears);
  CHECK(p.blocks % (8 * passes) == 0 && p.blocks >= units * passes * p.shards, "%s: %d blocks for %d units", name,
        int(p.blocks), int(units));
  CHECK(p.lds_bytes <= chip.lds_bytes, "%s: %d bytes of LDS", name, p.lds_bytes);
  const CdnaGemmBytes bytes = gemm_cdna_bytes(shape, p);
  const int64_t row_bytes = shape.columns * (shape.integers ? 3 : 4);
  CHECK(bytes.x[0] >= passes * p.batch * row_bytes && (bytes.x[1] > 0) == shape.gates, "%s: memory for x", name);
  CHECK(bytes.rms_factors == passes * p.batch * 4, "%s: memory for factors", name);
  const int64_t waves = units * passes * p.waves;
  CHECK(p.shards == 1 || bytes.arrivals >= waves, "%s: counters", name);
  CHECK(p.shards == 1 || bytes.partials >= waves * p.shards * p.chains * kStripColumns * std::max(p.batch, 16) * 4,
        "%s: partial sums", name);
  GemmShape alone = shape;
  alone.all_linears = false;
  CHECK(plan_gemm_cdna(alone, chip).shards == 1, "%s: no memory for sums of some of the linears", name);
  for (const int64_t batch : {9, 16, 17, 64, 200}) {
    GemmShape other = shape;
    other.batch = batch;
    const GemmCdnaPlan o = plan_gemm_cdna(other, chip);
    CHECK(o.rows == p.rows && o.shards == p.shards, "%s: the order of sums depends on the batch", name);
  }
}

// NVIDIA's many rows.
void check_packed(const char* name, const GemmShape& shape, const GemmMmaPlan& p, const Chip& chip) {
  const bool groups = shape.bits < 16;
  const PackedBytes bytes = packed_bytes(shape, p, chip);
  CHECK(chip.family == Family::nvidia, "%s: packed x", name);
  CHECK(bytes.x >= shape.batch * shape.columns * 4 && bytes.x % 16 == 0, "%s: memory for x", name);
  CHECK((bytes.step_sums > 0) == groups && bytes.step_sums % 16 == 0, "%s: memory for sums of steps", name);
  CHECK(p.lds_bytes <= chip.lds_bytes, "%s: %d bytes of LDS", name, p.lds_bytes);
  CHECK(shape.batch > 8 && p.batch >= std::min<int64_t>(shape.batch, groups ? 64 : 128), "%s: %d rows at once", name,
        p.batch);
  CHECK(p.stages >= 2 && p.lds_bytes == p.stages * stream_k_stage(shape.bits, p.batch).bytes, "%s: %d stages", name,
        p.stages);
  CHECK(p.blocks == chip.compute_units * ((shape.batch + p.batch - 1) / p.batch), "%s: %d blocks", name, int(p.blocks));
  CHECK(bytes.partials == p.blocks * 2 * p.batch * kStreamKRows * 4, "%s: memory for partial sums", name);
}

// What the shape is in each format of its bits.
void check_formats_for_cdna(const char* name, const GemmShape& of, const Chip& chip) {
  for (const bool integers : {false, true})
    for (const bool offsets : {false, true})
      for (const bool gates : {false, true}) {
        GemmShape shape = of;
        if (of.bits == 16 ? integers || offsets || gates : of.bits == 4 && !integers) continue;
        shape.integers = integers, shape.offsets = offsets, shape.gates = gates && of.linear_count == 6;
        const GemmCdnaPlan plan = plan_gemm_cdna(shape, chip);
        CHECK((plan.batch > 0) == !gemm_mma_takes(shape, chip), "%s: two kernels, or none", name);
        CHECK(shape.batch == 1 || (plan.batch > 0) == (shape.batch > 8 || integers || shape.columns > 12288),
              "%s: %d rows", name, int(shape.batch));
        if (plan.batch) check_cdna(name, shape, plan, chip);
      }
}

void test_plan() {
  const int64_t projections[] = {2048, 2048, 4096, 4096, 8, 8}, up[] = {10944, 10944}, down[] = {4096}, none[] = {0, 5};
  for (const auto& [name, chip] : known_chips()) {
    const Family f = chip.family;
    for (const int bits : {16, 8, 4})
      for (const int64_t batch : {1, 2, 8, 9, 17, 32, 33, 64, 100, 256})
        for (const GemmShape& shape : {GemmShape{batch, 4096, false, bits, bits < 16, 6, projections},
                                       GemmShape{batch, 10944, false, bits, bits < 16, 1, down, true},
                                       GemmShape{batch, 16384, false, bits, bits < 16, 1, down},
                                       GemmShape{batch, 4096, true, bits, bits < 16, 2, up},
                                       GemmShape{batch, 10944, false, bits, bits < 16, 1, down},
                                       GemmShape{batch, 64, false, bits, bits < 16, 1, down}}) {
          if (f == Family::cdna) check_formats_for_cdna(name, shape, chip);
          if (f == Family::cdna && !gemm_mma_takes(shape, chip)) continue;
          const GemmMmaPlan p = plan_gemm_mma(shape, chip);
          if (p.packed) {
            check_packed(name, shape, p, chip);
            continue;
          }
          if (p.shards) {
            check_batch(name, shape, p, chip);
            continue;
          }
          const int columns = int(shape.columns), b = int(batch);
          CHECK(has_gemm_mma(f, p.batch) && has_gemm_mma_rows(p.batch, p.rows), "%s: a kernel for %d rows by %d", name,
                p.batch, p.rows);
          CHECK(!shape.swiglu || p.rows > 16 || has_mixed_strip(f, bits, p.batch),
                "%s: both sides of SwiGLU in one strip", name);
          CHECK(p.batch >= batch || p.batch == most_unpacked(f), "%s: %d rows of %d at once", name, p.batch, b);
          const int64_t passes = (batch + p.batch - 1) / p.batch;
          CHECK(p.blocks % passes == 0 && p.blocks <= passes * units_of(shape, p.rows), "%s: %d blocks for %d passes",
                name, int(p.blocks), int(passes));
          CHECK(p.blocks <= std::max<int64_t>(chip.compute_units * gemm_mma_blocks_per_cu(f, p.batch), passes),
                "%s: %d blocks, more than are resident", name, int(p.blocks));
          CHECK(p.lds_bytes + norm_stats_bytes(p.batch) <= chip.lds_bytes, "%s: %d bytes of LDS", name, p.lds_bytes);
          const int tiles = tiles_of(f, columns), depth = gemm_mma_depth(f, bits, p.batch, p.rows);
          const bool in_turn =
              !has_ring(f, p.batch);  // the slots of steps are constants, so a stage is a number of rounds
          CHECK(p.stage_tiles >= 1 && (!in_turn || p.stage_tiles == tiles || p.stage_tiles % depth == 0),
                "%s: %d of %d tiles in LDS, %d on their way", name, p.stage_tiles, tiles, depth);
          CHECK(in_turn || depth >= 2, "%s: a ring of %d steps", name, depth);
          CHECK(p.batch > 1 || p.stage_tiles == tiles, "%s: a single x is complete in LDS", name);
        }
    const GemmShape long_x{1, 11272, false, 16, false, 1, down};
    const GemmMmaPlan of_long_x = plan_gemm_mma(long_x, chip);
    CHECK(of_long_x.packed || of_long_x.batch > 1, "%s: a single x that does not fit into LDS", name);
  }
  const Chip mi300x = known_chip("MI300X"), h200 = known_chip("H200");
  CHECK(plan_gemm_mma({1, 4096, false, 16, false, 2, none}, mi300x).blocks == 1, "linears without rows have no blocks");
  CHECK(plan_gemm_mma({1, 10944, false, 16, false, 1, down}, mi300x).blocks == 256, "few rows: a strip a block");
  CHECK(plan_gemm_mma({1, 4096, true, 16, false, 2, up}, h200).blocks == 264, "many rows: persistent blocks");
  CHECK(plan_gemm_mma({8, 4096, false, 16, false, 6, projections}, mi300x).rows == 41, "one round of 302 units");
  CHECK(plan_gemm_mma({8, 4096, true, 16, false, 2, up}, mi300x).rows == 36, "one round of 304 units");
  for (const bool offsets : {false, true}) {
    GemmShape widest{2, kMostCdnaGemmColumns, false, 4, true, 1, down, true, true, offsets};
    for (const bool all : {false, true}) {
      widest.all_linears = all;
      CHECK(plan_gemm_cdna(widest, mi300x).batch == 8, "LDS for scales of %d columns", kMostCdnaGemmColumns);
    }
  }
  const GemmMmaPlan shared = plan_gemm_mma({8, 10944, false, 16, false, 1, down, true}, mi300x);
  CHECK(shared.shards == kBatchShards && shared.rows == 54, "76 units, each of four blocks");
  CHECK(plan_gemm_cdna({8, 16384, false, 16, false, 1, down}, mi300x).batch == 16,
        "a norm's weights that LDS does not hold");
  CHECK(plan_gemm_cdna({100, 4096, false, 16, false, 1, down}, mi300x).batch == 64, "two passes");
  for (const bool integers : {false, true}) {
    GemmShape shape{64, 10944, false, integers ? 8 : 16, integers, 1, down, true, integers};
    const GemmCdnaPlan plan = plan_gemm_cdna(shape, mi300x);
    CHECK(plan.blocks >= 280 && plan.blocks <= 304, "%d blocks for 304 compute units", int(plan.blocks));
  }
  // A multiprocessor has 228 KB, of which the hardware reserves 1 KB for each block.
  const GemmMmaPlan one = plan_gemm_mma({1, 10944, false, 16, false, 1, down}, h200);
  CHECK(one.rows == 16 && one.blocks == 256, "all units at once, not half of them twice as long");
  CHECK(2 * (one.lds_bytes + norm_stats_bytes(1) + 1024) <= 228 << 10, "two blocks of one x fit");
  const Chip small{Family::nvidia, 84, 99 << 10, false};
  CHECK(plan_gemm_mma({1, 10944, false, 16, false, 1, down}, small).batch == 8, "where one x and a ring do not fit");
  const GemmMmaPlan batched = plan_gemm_mma({8, 4096, true, 16, false, 2, up}, h200);
  CHECK(batched.stage_tiles == 8, "8 rows of 4096 features are complete in LDS");
  CHECK(batched.rows == 16, "11 turns of 16 rows end before 6 of 32");
}

}  // namespace

int main() {
  test_order();
  test_slots();
  test_packed_slots();
  test_packed_for_cdna();
  test_vec8s();
  test_stream_k();
  test_plan();
  return finish();
}
