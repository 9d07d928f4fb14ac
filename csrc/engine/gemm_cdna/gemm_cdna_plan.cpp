// SPDX-License-Identifier: Apache-2.0
#include "engine/gemm_cdna/gemm_cdna_plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm::gpu::engine {

namespace {

// By predicted times: a byte of x, which comes from L2, takes so many hundredths of the time of one of weights, a byte
// of another block's sums so many; and what the last of a unit's blocks waits for stands for so many bytes.
constexpr int64_t kXPercent = 60, kSumPercent = 90, kBytesOfShards = 24 << 10;
// Rows of x for which units are chosen, whatever the batch: the order of sums depends on shards.
constexpr int kRowsPlannedFor = 64;

int most_rows(bool swiglu) { return kMostCdnaGemmWaves * kStripColumns * (swiglu ? 1 : 2); }
int steps_of_shard(const GemmShape& p, int shards) {
  return int(ceil_div(int64_t(lines_of(p.bits, int(p.columns))), int64_t(shards))) * line_steps(p.bits);
}
int lds_bytes(const GemmShape& p, int batch, int shards, int waves, int wave_rows) {
  const int slots = waves * wave_rows * (p.swiglu ? 2 : 1);
  const int bytes = gemm_cdna_lds_bytes(p.integers, p.bits < 16, batch, slots, steps_of_shard(p, shards), p.offsets);
  return p.gates ? std::max(bytes, gemm_cdna_lds_bytes(false, false, batch, slots, 0, false)) : bytes;
}

void divide_rows(GemmCdnaPlan& plan, const GemmShape& p, int rows, int shards) {
  const int most = kStripColumns * (p.swiglu ? 1 : 2);
  plan.rows = rows, plan.shards = shards;
  plan.waves = std::max(int(ceil_div(rows, most)), kLeastCdnaGemmWaves);
  plan.wave_rows = int(ceil_div(rows, plan.waves));
  plan.chains = p.swiglu || plan.wave_rows > kStripColumns ? 2 : 1;
  plan.lds_bytes = lds_bytes(p, plan.batch, shards, plan.waves, plan.wave_rows);
}

// What stands for the time of the busiest compute unit, in bytes of weights.
int64_t cost_of(const GemmShape& p, int rows, int shards, int64_t rounds) {
  const int64_t linears = p.swiglu ? 2 : 1, x = kRowsPlannedFor * (p.integers ? 3 : 4);
  const int64_t loaded = (rows * linears * p.bits / 8 + x * kXPercent / 100) * p.columns / shards;
  const int64_t added =
      shards > 1 ? kBytesOfShards + rows * linears * kRowsPlannedFor * 4 * (shards - 1) * kSumPercent / 100 : 0;
  return rounds * (loaded + added);
}

}  // namespace

GemmCdnaPlan plan_gemm_cdna(const GemmShape& p, const Chip& chip) {
  GemmCdnaPlan plan{};
  if (chip.family != Family::cdna || gemm_mma_takes(p, chip)) return plan;
  for (const int batch : kCdnaGemmBatch)
    if (plan.batch < p.batch && (batch >= 16 || p.integers)) plan.batch = batch;
  const int linears = p.swiglu ? 2 : 1;
  const auto units = [&](int rows) { return units_of(p, rows * linears); };
  int64_t least = 0;
  int rows_of_least = 0, shards_of_least = 0;
  for (const int shards : kCdnaGemmShards) {
    if (shards > 1 && !p.all_linears) break;
    const int64_t at_once = std::max(1, chip.compute_units / shards);
    int rows = most_rows(p.swiglu);
    const auto fits = [&] {
      GemmCdnaPlan tried = plan;
      tried.batch = kRowsPlannedFor;
      divide_rows(tried, p, rows, shards);
      return tried.lds_bytes <= chip.lds_bytes;
    };
    while (rows > 1 && !fits()) --rows;
    const int64_t rounds = ceil_div(units(rows), at_once);
    while (rows > 1 && units(rows - 1) <= rounds * at_once) --rows;
    const int64_t cost = cost_of(p, rows, shards, rounds);
    if (rows_of_least && cost >= least) continue;
    least = cost, rows_of_least = rows, shards_of_least = shards;
  }
  divide_rows(plan, p, rows_of_least, shards_of_least);
  if (plan.lds_bytes > chip.lds_bytes) return {};
  const int64_t passes = ceil_div(p.batch, int64_t(plan.batch));
  plan.blocks = ceil_div(units(plan.rows), int64_t(8 / plan.shards)) * 8 * passes;
  return plan;
}

CdnaGemmBytes gemm_cdna_bytes(const GemmShape& p, const GemmCdnaPlan& plan) {
  CdnaGemmBytes bytes{};
  if (!plan.batch) return bytes;
  const int64_t passes = ceil_div(p.batch, int64_t(plan.batch));
  const auto x_bytes = [&](int bits, bool digits) {
    const int64_t ahead = 2 * buffer_steps(plan.batch);  // loaded behind the last step
    return (passes * packed_x_steps(bits, int(p.columns)) + ahead) * x_step_bytes(digits, bits < 16, plan.batch);
  };
  bytes.x[0] = x_bytes(p.bits, p.integers);
  bytes.x[1] = p.gates ? x_bytes(16, false) : 0;
  bytes.rms_factors = passes * plan.batch * 4;
  if (plan.shards > 1) {
    bytes.arrivals = plan.blocks / plan.shards * plan.waves;
    bytes.partials = bytes.arrivals * plan.shards * plan.chains * kStripColumns * std::max(plan.batch, 16) * 4;
  }
  return bytes;
}

}  // namespace xlstm::gpu::engine
