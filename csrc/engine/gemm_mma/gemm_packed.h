// SPDX-License-Identifier: Apache-2.0
// gemm_mma for more than one row of x on CDNA: y = W x, where pack_kernel has split x and laid it out in memory
// (engine/gemm_mma/pack_inputs.h). The maths, and the order of every sum, are those of gemm_mma.h.
//
// Who owns what: a block has kRows rows of weights and kBatch rows of the batch. Four waves split the features, 64 at a
// time; for 64 rows of the batch, two waves have the same features, and the second finds the weights in L1. A lane
// loads weights and x, both operands of its matrix instructions, from memory to registers, kDepth steps ahead of their
// use; the loop has no barrier, no branch and no LDS. Passes over a larger batch are blocks of the same XCD, so that
// weights are read from memory once.
//
// Floor: the bytes of the weights over the bandwidth of memory. x comes from L2: its bytes are kBatch * 4 of each
// feature beside kRows * 2 of weights.
#pragma once

#include "engine/gemm_mma/gemm_mma_sums.h"

namespace xlstm::gpu::engine {

template <class Weights, int kBatch, int kRows>
struct GemmPackedShape : FullUnits<kRows> {
  static constexpr bool kSingle = false, kHalf = kBatch == 8, kRing = false, kLaneSharded = false;
  static constexpr int kBatchRows = kBatch, kThreads = packed_threads(kBatch), kWaveRows = packed_wave_rows(kBatch);
  static constexpr int kChains = kRows / kStripColumns, kSplit = kHalf ? kBatch : split_rows(kFamily),
                       kStrips = packed_strips(kWaveRows);
  static constexpr int kRegisters = kHalf ? 4 : Strip<BFloat16>::kRegisters;
  static constexpr int kLaneRows = lane_rows(kFamily), kLoads = lane_loads(kFamily, Weights::kBits);
  static constexpr int kColumns = Columns::kEach;
  static constexpr int kSplitKWaves = split_k_waves(kFamily), kTileFeatures = tile_features(kFamily);
  static constexpr int kUnits = kStepFeatures / unit_features(kFamily, 2);
  static constexpr int kStepBytes = kStepFeatures * Weights::kBits / 8;
  static constexpr int kSumRows = 2 * kBatch, kSumBuffers = packed_buffers(kBatch, kRows),
                       kWavesAtOnce = packed_waves_at_once(kFamily, kBatch, kRows);

  XLSTM_DEVICE static int k_wave() { return wave_id() % kSplitKWaves; }
  XLSTM_DEVICE static int batch_wave() { return wave_id() / kSplitKWaves; }
  // The row of x's parts that a strip's row is: of half a strip, the row of its matrix instruction.
  static constexpr int part_row(int row) { return kHalf ? row / 8 * 4 + row % 4 : row; }
  XLSTM_DEVICE static int first_sum_row() { return batch_wave() * 2 * kWaveRows; }
};

template <class Weights, int kBatch, int kRows>
struct GemmPacked {
  using E = BFloat16;
  using Shape = GemmPackedShape<Weights, kBatch, kRows>;
  using Sums = GemmSums<Weights, Shape>;
  using Rows = LaneRows<Weights, Shape>;
  static constexpr int kDepth = packed_depth(Weights::kBits, kBatch, kRows);
  static constexpr int kUnits = Shape::kUnits, kStrips = Shape::kStrips,
                       kStreams = kStreamVec16s<E> / (Shape::kHalf ? 2 : 1);
  static constexpr int kSumVec16s = Shape::kRegisters / 4;

  // A step of weights and x in a lane's registers.
  struct Stage {
    WeightStep<Weights, Shape> weights;
    Vec16 x[kUnits][kStrips][kStreams];
    Vec16 x_sums[Weights::kGroups ? kStrips : 1][kSumVec16s];
  };

  const GemmParams& p;
  const char* x;  // of this wave's rows
  const char* x_sums;
  Sums sums;

  XLSTM_DEVICE GemmPacked(const GemmParams& params, int pass, const char* packed, char* lds)
      : p(params), sums(reinterpret_cast<float*>(lds)) {
    const int64_t group = int64_t(pass) * (kBatch / Shape::kWaveRows) + Shape::batch_wave(),
                  step = group * packed_steps(kFamily, p.columns);
    x = uniform(packed + step * packed_step_bytes(Shape::kWaveRows));
    if constexpr (Weights::kGroups)
      x_sums = uniform(
          reinterpret_cast<const char*>(p.packed.step_sums + step * packed_sum_floats(kFamily, Shape::kWaveRows)));
  }

  // A step that lies within the columns.
  XLSTM_DEVICE void fetch(Stage& stage, const Rows& rows, const UnitLinears& linears, int tile) const {
    stage.weights.fetch_inside(linears, rows, tile);
    fetch_x(stage, tile * Shape::kSplitKWaves + Shape::k_wave());
  }
  XLSTM_DEVICE void fetch_x(Stage& stage, int step) const {
    const uint32_t lane = opaque_lane();
    const char* const from = global(x + int64_t(step) * packed_step_bytes(Shape::kWaveRows));
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int j = 0; j < kStreams; ++j)
          stage.x[u][s][j] = load_vec16(from + ((u * kStrips + s) * kStreams + j) * 1024, lane * kSlotBytes);
    if constexpr (Weights::kGroups) {
      const char* const sums_from = x_sums + int64_t(step) * (packed_sum_floats(kFamily, Shape::kWaveRows) * 4);
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int h = 0; h < kSumVec16s; ++h)
          stage.x_sums[s][h] = load_vec16(sums_from + s * 128 + h * 16, lane / 16 * (kSumVec16s * 16));
    }
  }
  XLSTM_DEVICE void multiply_stage(const Stage& stage, const GroupFormat& groups) {
    typename Sums::GroupSums part;
    if constexpr (Weights::kGroups)
#pragma unroll
      for (int c = 0; c < Shape::kChains; ++c)
#pragma unroll
        for (int s = 0; s < kStrips; ++s) part[c][s].zero();
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      typename Sums::ChainVec16s chain;
      Sums::dequantise_unit(stage.weights, u, chain);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        Vec16 stream[kStreamVec16s<E>] = {};
#pragma unroll
        for (int j = 0; j < kStreams; ++j) stream[j] = stage.x[u][s][j];
        sums.multiply_unit(chain, stream, s, part);
      }
    }
    if constexpr (Weights::kGroups)
      sums.scale_columns_of_groups(stage.weights, groups, part,
                                   [&](int s, int r, int) { return as_float(stage.x_sums[s][r / 4].word[r % 4]); });
  }

  XLSTM_DEVICE void run(int unit, int pass) {
    const Rows rows = Rows::at(p, unit);
    const GroupFormat groups = GroupFormat::of(p.linear[rows.unit.linear]);
    sums.clear();
    // Steps of this wave that lie within the columns; then one that may not.
    const int full = full_steps<Shape>(p.columns), tiles = tiles_of(kFamily, p.columns);
    if (full > 0) multiply_full(rows, groups, full);
    if (full < tiles) {
      Stage stage;
      stage.weights.fetch(p, rows, full);
      fetch_x(stage, full * Shape::kSplitKWaves + Shape::k_wave());
      multiply_stage(stage, groups);
    }
    const int first = pass * kBatch, left = p.batch - first;
    const bool normed = p.input == Input::rms;
    sums.epilogue(p,
                  {rows.unit, first, left < kBatch ? left : kBatch, normed ? p.packed.rms_factors + first : nullptr});
  }
  XLSTM_DEVICE void multiply_full(const Rows& rows, const GroupFormat& groups, int full) {
    Stage stages[kDepth];
    const UnitLinears linears = UnitLinears::of(p, rows.unit);
    const auto clamped = [&](int tile) { return tile < full ? tile : full - 1; };
#pragma unroll
    for (int d = 0; d < kDepth; ++d) fetch(stages[d], rows, linears, clamped(d));
    int tile = 0;
#pragma unroll 1
    for (; tile + kDepth <= full; tile += kDepth)
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        multiply_stage(stages[d], groups);
        sched_barrier();  // the compiler would move loads to their use
        fetch(stages[d], rows, linears, clamped(tile + d + kDepth));
        sched_barrier();
      }
#pragma unroll
    for (int d = 0; d < kDepth - 1; ++d)
      if (tile + d < full) multiply_stage(stages[d], groups);
  }
};

// Blocks: 8 neighbours, which are of the eight XCDs, have one unit each; the next 8 have the same units for the batch's
// next rows.
template <class Weights, int kBatch, int kRows>
__global__ __launch_bounds__(packed_threads(kBatch), 2) void gemm_packed_kernel(XLSTM_PARAM GemmParams kernel_arg) {
  if constexpr (kFamily == Family::cdna) {
    const GemmParams& p = *kernel_params(kernel_arg);
    extern __shared__ __align__(128) char lds[];
    const int passes = (p.batch + kBatch - 1) / kBatch, eight = int(blockIdx.x) / 8;
    const int pass = eight % passes, unit = eight / passes * 8 + int(blockIdx.x) % 8;
    const int units = units_of<kRows>(p, Weights::kGroups);
    if (unit < units) {
      GemmPacked<Weights, kBatch, kRows>(p, pass, p.packed.x[0], lds).run(unit, pass);
    } else if constexpr (Weights::kGroups) {
      if (p.output == Output::store && unit - units < units_of<kRows>(p, false))
        GemmPacked<Bfloat16Weights, kBatch, kRows>(p, pass, p.packed.x[1], lds).run(unit - units, pass);
    }
  }
}

}  // namespace xlstm::gpu::engine
