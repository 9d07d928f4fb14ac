// SPDX-License-Identifier: Apache-2.0
// gemm_mma for two to eight rows of x on CDNA: y = W x. The maths, and the order of every sum, are those of gemm_mma.h:
// steps of 64 features are added to four sums in turn, which are then added up. Integer weights of more than one row
// are gemm_cdna's (engine/gemm_cdna/gemm_cdna.h).
//
// Who owns what: a block has p.unit_rows rows of weights, as many as give all compute units the same. A wave has up to
// 32 of them (for SwiGLU 16 of each linear), and adds up all features. With kSets 1 four blocks share a unit's rows,
// each with a quarter of the features: fewer lines of x for each line of weights. The last of the four adds up their
// sums.
//
// A lane loads weights and x, both operands of its matrix instructions, from memory to registers, kDepth steps ahead of
// their use; each wave splits x (engine/gemm_mma/gemm_batch_inputs.h). The loop has no barrier and no branch. The waves
// of a block load the same lines at about the same time, so that the others find them in L1.
//
// Floor: the bytes of the weights over the bandwidth of memory. x comes from L2: its bytes are 32 of each feature
// beside unit_rows * 2 of weights.
#pragma once

#include "engine/gemm_mma/gemm_batch_inputs.h"
#include "engine/gpu/add_shards.h"
#include "engine/gpu/output_range.h"

namespace xlstm::gpu::engine {

template <class Weights, int kSets>
struct GemmBatch {
  using E = BFloat16;
  using Shape = GemmBatchShape<Weights, kSets>;
  using Sums = GemmSums<Weights, Shape>;
  using Rows = LaneRows<Weights, Shape>;
  using Inputs = FloatInputs<Weights, Shape>;
  static constexpr int kDepth = batch_depth(Weights::kBits, kSets);
  static constexpr int kUnits = Shape::kUnits, kStrips = Shape::kStrips, kChains = Shape::kChains;
  static constexpr int kRegisters = Shape::kRegisters, kStored = kRegisters / 2;  // of a strip, by each half of a wave
  static constexpr int kTotals = kChains * kStrips * kRegisters;
  static_assert(kBatchUnroll % kDepth == 0 && kBatchUnroll % kSets == 0 && kBatchShards <= kMostShards);

  // A step of weights and x in a lane's registers.
  struct Stage {
    WeightStep<Weights, Shape> weights;
    typename Inputs::Step x;
  };

  const GemmParams& p;
  Inputs inputs;
  Sums sums[kSets];

  XLSTM_DEVICE GemmBatch(const GemmParams& params, const float* norm_weights)
      : p(params), inputs(params, norm_weights) {}

  XLSTM_DEVICE void fetch(Stage& stage, const Rows& rows, const UnitLinears& linears, int tile) const {
    stage.weights.fetch_inside(linears, rows, tile);
    inputs.fetch(stage.x, tile * Shape::kSplitKWaves + Shape::k_wave());
  }
  template <int kSet>
  XLSTM_DEVICE void multiply_stage(const Stage& stage, const GroupFormat& groups, int tile) {
    Sums& to = sums[kSet % kSets];
    typename Sums::GroupSums part;
    if constexpr (Weights::kGroups)
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int s = 0; s < kStrips; ++s) part[c][s].zero();
    const auto operands = inputs.template operands<kSet>(stage.x, tile * Shape::kSplitKWaves + Shape::k_wave());
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      typename Sums::ChainVec16s chain;
      Sums::dequantise_unit(stage.weights, u, chain);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        Vec16 stream[kStreamVec16s<E>] = {};
        operands.read(u, s, stream);
        to.multiply_unit(chain, stream, s, part);
      }
    }
    if constexpr (Weights::kGroups)
      to.scale_columns_of_groups(stage.weights, groups, part, [&](int s, int r, int) { return operands.sum(s, r); });
  }

  // block: of the launch's units.
  XLSTM_DEVICE void run(int unit, int block) {
    const Rows rows = Rows::at(p, unit);
    const GroupFormat groups = GroupFormat::of(p.linear[rows.unit.linear]);
#pragma unroll
    for (int n = 0; n < kSets; ++n) sums[n].clear();
    multiply_steps(rows, groups);
    float total[kTotals];
    add_sets(total);
    if constexpr (kSets == 1) {
      const int wave = block * (int(blockDim.x) / kWave) + wave_id();
      const ShardSums of_wave{p.packed.partials + int64_t(wave) * (kBatchShards * kTotals * kWave),
                              p.packed.arrived + wave};
      if (!add_shards(of_wave, Shape::k_wave(), kBatchShards, total)) return;
    }
    store_outputs(rows.unit, total);
  }

  // Steps that lie within the columns; behind them perhaps one that does not.
  XLSTM_DEVICE void multiply_steps(const Rows& rows, const GroupFormat& groups) {
    const int full = full_steps<Shape>(p.columns);
    const int all = full + (full * Shape::kTileFeatures + Shape::k_wave() * kStepFeatures < p.columns);
    const UnitLinears linears = UnitLinears::of(p, rows.unit);
    const auto clamped = [&](int tile) { return tile < full ? tile : full - 1; };
    Stage stages[kDepth];
    if (full > 0)
#pragma unroll
      for (int d = 0; d < kDepth; ++d) fetch(stages[d], rows, linears, clamped(d));
    inputs.begin();
    int tile = 0;
#pragma unroll 1
    for (; tile + kBatchUnroll <= full; tile += kBatchUnroll)
      each_of<kBatchUnroll>([&](auto d) {
        Stage& stage = stages[d % kDepth];
        multiply_stage<d>(stage, groups, tile + d);
        sched_barrier();  // the compiler would move loads to their use
        fetch(stage, rows, linears, clamped(tile + d + kDepth));
        sched_barrier();
      });
    each_of<kBatchUnroll>([&](auto d) {
      if (tile + d < full) {
        multiply_stage<d>(stages[d % kDepth], groups, tile + d);
        if constexpr (d + kDepth < kBatchUnroll - 1)
          fetch(stages[d % kDepth], rows, linears, clamped(tile + d + kDepth));
      } else if (tile + d < all) {
        Stage last;
        last.weights.fetch(p, rows, full);
        inputs.fetch_last(last.x, full * Shape::kSplitKWaves + Shape::k_wave());
        multiply_stage<d>(last, groups, full);
      } else {
        inputs.template skip<d>();
      }
    });
    inputs.end();
  }

  // ---- epilogue

  static constexpr int total_at(int c, int s, int r) { return (c * kStrips + s) * kRegisters + r; }
  XLSTM_DEVICE void add_sets(float (&total)[kTotals]) const {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int r = 0; r < kRegisters; ++r) {
          float sum = 0;
#pragma unroll
          for (int n = 0; n < kSets; ++n) sum += sums[n].sum[c][s].value[r];
          total[total_at(c, s, r)] = sum;
        }
  }
  // Upper and lower parts of x are in the two halves of a wave, each of which stores half of the sums.
  XLSTM_DEVICE void store_outputs(const UnitRows& unit, const float (&total)[kTotals]) const {
    const GemmParams& q = *reload_params(&p);
    const bool is_swiglu = q.output == Output::swiglu, second = lane_id() >= kWave / 2;
    const int slot = lane_id() % kStripColumns;
    float sum[kChains][kStrips][kStored];
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int r = 0; r < kStored; ++r) {
          const float of_low = total[total_at(c, s, r)], of_high = total[total_at(c, s, kStored + r)];
          const float low = of_low + shuffle_xor(of_low, kWave / 2);
          const float high = of_high + shuffle_xor(of_high, kWave / 2);
          sum[c][s][r] = second ? high : low;
        }
    // Of the strip's rows of the batch: the first that this lane stores.
    const int row_of_batch = lane_id() / 16 % 2 * kRegisters + (second ? kStored : 0);
    const OutputRange to = OutputRange::of(q, unit.linear, 0, q.batch);
    float factor[kStrips][kStored], y[kChains * kStrips * kStored];
    uint32_t from_lane[kChains];
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int r = 0; r < kStored; ++r) factor[s][r] = inputs.factor(s * Shape::kSplit + row_of_batch + r);
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int in_wave = c % (is_swiglu ? kChains / 2 : kChains) * kStripColumns + slot;
      const int row = unit.first + Shape::row_in_unit(q, in_wave);
      const bool inside =
          in_wave < q.wave_rows && Shape::first_row(q) + in_wave < q.unit_rows && row < q.linear[unit.linear].rows;
      const bool is_up = is_swiglu && c >= kChains / 2;
      from_lane[c] = to.offset(row_of_batch, row, inside && !is_up);
      const DeviceVector bias = q.linear[is_up ? 1 : unit.linear].bias;
      const float add = as_float(opaque(as_bits(bias.data && inside ? value_of(bias, row) : 0.0f)));
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int r = 0; r < kStored; ++r) sum[c][s][r] = sum[c][s][r] * factor[s][r] + add;
    }
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int r = 0; r < kStored; ++r)
          y[(c * kStrips + s) * kStored + r] =
              is_swiglu && c < kChains / 2 ? swiglu(sum[c][s][r], sum[c + kChains / 2][s][r]) : sum[c][s][r];
    const auto row_of = [](int n) { return n / kStored % kStrips * Shape::kSplit + n % kStored; };
    engine::store_outputs(
        q, unit.linear, to, y,
        [&](int n) { return from_lane[n / (kStrips * kStored)] + uint32_t(row_of(n)) * to.row_bytes; },
        [&](int n) { return row_of_batch + row_of(n); });
  }
};

// Blocks: one unit each; where four blocks share a unit, each two of 8 neighbours, which are of the eight XCDs, have a
// quarter of the features.
template <class Weights, int kSets>
__global__ __launch_bounds__(kMostBatchThreads, 2) void gemm_batch_kernel(XLSTM_PARAM GemmParams kernel_arg) {
  if constexpr (kFamily == Family::cdna) {
    const GemmParams& p = *kernel_params(kernel_arg);
    extern __shared__ __align__(128) char lds[];
    float* const norm_weights = reinterpret_cast<float*>(lds);
    constexpr int kSideBySide = kSets == 1 ? 8 / kBatchShards : 8;
    const int unit = int(blockIdx.x) / 8 * kSideBySide + int(blockIdx.x) % kSideBySide;
    const int units = units_of(p, Weights::kGroups, p.unit_rows);
    if (unit < units) {
      if constexpr (kSets > 1) load_norm_weights(p, norm_weights);
      GemmBatch<Weights, kSets>(p, norm_weights).run(unit, unit);
    } else if constexpr (Weights::kGroups && kSets > 1) {
      if (p.output == Output::store && unit - units < units_of(p, false, p.unit_rows)) {
        load_norm_weights(p, norm_weights);
        GemmBatch<Bfloat16Weights, kSets>(p, norm_weights).run(unit - units, unit);
      }
    }
  }
}

}  // namespace xlstm::gpu::engine
