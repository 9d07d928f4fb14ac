// SPDX-License-Identifier: Apache-2.0
#include "engine/gemm_mma/gemm_mma_plan.h"

#include <algorithm>

#include "base/numbers.h"
#include "engine/gemm_mma/gemm_stream_k_shape.h"

namespace xlstm::gpu::engine {

int64_t units_of(const GemmShape& p, int rows) {
  const int rows_per_linear = p.swiglu ? rows / 2 : rows;
  int64_t units = 0;
  for (int j = 0; j < (p.swiglu ? 1 : p.linear_count); ++j) units += ceil_div(p.rows[j], rows_per_linear);
  return units;
}

int64_t packed_rows(int64_t batch, int plan_batch) { return ceil_div(batch, plan_batch) * plan_batch; }

PackedBytes packed_bytes(const GemmShape& p, const GemmMmaPlan& plan, const Chip& chip) {
  PackedBytes bytes{};
  if (plan.packed) {
    const int64_t rows = packed_rows(p.batch, plan.batch), steps = packed_steps(chip.family, int(p.columns));
    bytes.x = steps * packed_step_bytes(int(rows));
    bytes.step_sums = p.bits < 16 ? steps * rows * 4 : 0;
    bytes.rms_factors = rows * 4;
  }
  if (plan.stages) bytes.partials = 2 * plan.blocks * stream_k_tile_floats(plan.batch) * 4;
  if (plan.shards > 1) {
    bytes.arrivals = plan.blocks / plan.shards * plan.row_waves;
    const int64_t shard_floats = kBatchChains * kStripColumns * 2 * plan.batch;
    bytes.partials = bytes.arrivals * plan.shards * shard_floats * 4;
  }
  return bytes;
}

namespace {

// A compute unit has so many lines on their way, of weights and of x alike; those of x come from L2 and are there
// sooner. The same number of bytes that come from memory stands for the way of four blocks' sums to the last of them.
constexpr int kBytesOfShards = 40 << 10;

struct BatchUnits {
  int rows;
  int64_t rounds, bytes;  // bytes: of the busiest compute unit
};
// The fewest rounds of units, and in these the fewest rows.
BatchUnits batch_units(const GemmShape& p, const GemmMmaPlan& plan, int shards, const Chip& chip) {
  const int linears = p.swiglu ? 2 : 1, slots = kBatchChains * kStripColumns / linears;
  const int64_t slots_of_chip = chip.compute_units / (ceil_div(p.batch, plan.batch) * shards);
  const auto units = [&](int rows) { return units_of(p, rows * linears); };
  BatchUnits best{slots * (kMostBatchThreads / 64), 0, 0};
  const int64_t chip_units = std::max<int64_t>(1, slots_of_chip);
  best.rounds = ceil_div(units(best.rows), chip_units);
  while (best.rows > 1 && units(best.rows - 1) <= best.rounds * chip_units) --best.rows;
  best.bytes = best.rounds * (best.rows * linears * p.bits / 8 + plan.batch * 2) * p.columns / shards;
  if (shards > 1) best.bytes += kBytesOfShards;
  return best;
}

GemmMmaPlan plan_batch(const GemmShape& p, const Chip& chip) {
  GemmMmaPlan plan{};
  plan.lds_bytes = batch_lds_bytes(chip.family, int(p.columns));
  plan.batch = kMostBatchRows;
  plan.shards = 1;
  BatchUnits units = batch_units(p, plan, 1, chip);
  if (p.adds) {
    const BatchUnits shared = batch_units(p, plan, kBatchShards, chip);
    if (shared.bytes < units.bytes) units = shared, plan.shards = kBatchShards;
  }
  if (plan.shards > 1) plan.lds_bytes = 0;
  plan.rows = units.rows;
  const int linears = p.swiglu ? 2 : 1;
  plan.row_waves = int(ceil_div(plan.rows * linears, kBatchChains * kStripColumns));
  plan.wave_rows = int(ceil_div(plan.rows, plan.row_waves));
  const int side_by_side = 8 / plan.shards;  // blocks of eight neighbours that have different units
  plan.blocks = ceil_div(units_of(p, plan.rows * linears), side_by_side) * 8 * ceil_div(p.batch, plan.batch);
  return plan;
}

bool fits_single(const GemmShape& p, const Chip& chip) {
  const int columns = int(p.columns);
  return columns <= kMaxSingleFeatures && gemm_mma_stage_tiles(chip.family, p.bits, 1, 32, columns, chip.lds_bytes) > 0;
}

void add_stages(GemmMmaPlan& plan, int bits, const Chip& chip) {
  plan.stages = stream_k_stages(bits, plan.batch, chip.lds_bytes);
  plan.lds_bytes = plan.stages * stream_k_stage(bits, plan.batch).bytes;
}
// A block for each multiprocessor, whatever the batch: parts decide the order of sums.
GemmMmaPlan plan_stream_k(const GemmShape& p, const Chip& chip) {
  GemmMmaPlan plan{};
  plan.packed = true;
  for (const int batch : kStreamKBatch)
    if (plan.batch < p.batch && batch <= most_stream_k_batch(p.converted)) plan.batch = batch;
  plan.rows = kStreamKRows;
  add_stages(plan, p.bits, chip);
  plan.early_launch = chip.hopper;
  plan.blocks = chip.compute_units * ceil_div(p.batch, plan.batch);
  return plan;
}

}  // namespace

bool gemm_mma_takes(const GemmShape& p, const Chip& chip) {
  if (p.batch == 1 && fits_single(p, chip)) return true;
  return p.batch <= kMostBatchRows && !p.integers && batch_lds_bytes(chip.family, int(p.columns)) <= kMostBatchLds;
}

// A unit has as many rows as possible, since its rows share the cost of x, while at least seven in eight of the slots
// for blocks still get a unit.
GemmMmaPlan plan_gemm_mma(const GemmShape& p, const Chip& chip) {
  const Family f = chip.family;
  const int columns = int(p.columns);
  if (f == Family::cdna && (p.batch > 1 || !fits_single(p, chip))) return plan_batch(p, chip);
  if (f == Family::nvidia && p.batch > most_unpacked(f)) return plan_stream_k(p, chip);
  GemmMmaPlan plan{};
  for (const int batch : kGemmMmaBatch) {
    constexpr int kRows = 32;  // the maximum for kernels whose weights are in a ring
    const bool fits = has_gemm_mma(f, batch) && (batch > 1 || columns <= kMaxSingleFeatures) &&
                      gemm_mma_stage_tiles(f, p.bits, batch, kRows, columns, chip.lds_bytes) > 0;
    if (fits && plan.batch < p.batch) plan.batch = batch;
  }
  const int64_t passes = ceil_div(p.batch, plan.batch);
  const int64_t slots = int64_t(chip.compute_units) * gemm_mma_blocks_per_cu(f, plan.batch);
  const auto rounds = [&](int rows) { return (units_of(p, rows) * passes + slots - 1) / slots; };
  for (const int rows : kGemmMmaRows) {
    if (!has_gemm_mma_rows(plan.batch, rows)) continue;
    if (p.swiglu && rows == kStripColumns && !has_mixed_strip(f, p.bits, plan.batch)) continue;
    if (plan.rows && has_ring(f, plan.batch)) {  // x costs little: all blocks should end at the same time
      if (rounds(rows) * rows > rounds(plan.rows) * plan.rows) break;
    } else if (plan.rows && units_of(p, rows) * passes * 8 < slots * 7) {
      break;
    }
    plan.rows = rows;
  }
  plan.stage_tiles = gemm_mma_stage_tiles(f, p.bits, plan.batch, plan.rows, columns, chip.lds_bytes);
  plan.lds_bytes = gemm_mma_lds_bytes(f, p.bits, plan.batch, plan.rows, columns, chip.lds_bytes);
  const int64_t blocks_per_cu =
      std::min<int64_t>(gemm_mma_blocks_per_cu(f, plan.batch),
                        std::max(1, chip.lds_bytes / (plan.lds_bytes + norm_stats_bytes(plan.batch))));
  const int64_t max_blocks = std::max<int64_t>(1, chip.compute_units * blocks_per_cu / passes);
  plan.early_launch = chip.hopper;
  plan.blocks = std::min(units_of(p, plan.rows), max_blocks) * passes;
  return plan;
}

GemmMmaPlan plan_gates(const GemmMmaPlan& of_weights, const Chip& chip) {
  GemmMmaPlan plan = of_weights;
  add_stages(plan, 16, chip);
  return plan;
}

}  // namespace xlstm::gpu::engine
