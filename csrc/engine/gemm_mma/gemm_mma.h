// SPDX-License-Identifier: Apache-2.0
// y = W x for up to kBatch x's on matrix units, with the prologue and the epilogue of a decode step
// (engine/gpu/prologue_epilogue.h).
//
// Maths, with x split into two bfloat16, x = upper + lower + e, |e| <= 2^-17 |x|, and sums in float:
//
//   bfloat16, float16   y = sum_k W upper + sum_k W lower       float16 weights are themselves the sum of two bfloat16
//   8 and 4 bits        y = sum over groups of  scale sum_k (q - kZero) x + (offset + kZero scale) sum_k x
//                       without offsets: scale sum_k (q - kZero) x + (kZero - kMiddle) scale sum_k x
//
// An RMS norm is a factor of each row of the batch: its squares are added up while x is loaded, and the factor is
// applied to sums.
//
// Who owns what: blocks are persistent. A block loads x into LDS once (engine/gemm_mma/gemm_mma_inputs.h), then takes
// units of kRows rows of W in turn, so that each weight is read from memory once. All waves of the block share a unit's
// rows and split its features, 64 at a time. Weights are loaded kDepth steps ahead of their use and on into the next
// unit (engine/gemm_mma/gemm_mma_weights.h), so that they keep coming while waves add up their sums. The first
// weights are loaded before the kernel waits for the kernel before it, and before x. If LDS does not hold all of x, it
// is loaded in stages, anew for each unit. Further passes over the batch are blocks of their own, which find the
// weights in L2. On CDNA this kernel takes one row of x alone, where gemm_row_cdna does not: features that are no
// multiple of 64, fewer than 256 or too many for LDS. Up to eight rows are gemm_batch.h's, others gemm_cdna's. On
// NVIDIA it takes up to eight; more are gemm_stream_k.h's.
//
// The order of a sum over features is the same for every kBatch and kRows, and in gemm_batch.h: a row of the batch has
// the same result in every batch that these kernels take.
//
// Barriers, all __syncthreads, all waves of the block:
//
//   in load_stage, first      all have read the stage of x that is overwritten next; not before a block's first stage
//   in load_stage, second     the stage of x is in LDS. If all of x fits, both happen once, before the first unit
//   in the epilogue           the sums of kWavesAtOnce waves are in their buffer. Two buffers take turns, so that one
//                             barrier for each round of waves is enough
//   between two products      all have left the quantised product's LDS, before the gates' product begins there
//   a wave's ring             the wave's own cp.async groups (NVIDIA), read by the wave alone: no barrier
//
// Timeline of a block; weights are on their way throughout:
//
//   weights  | steps 0..kDepth - 1 | step n + kDepth at the use of step n ........ | the next unit's first steps |
//   x        | pdl_wait, load      |                                               |                             |
//   waves    |            barrier  | products of unit 0, 64 features a wave a step | epilogue | products of unit 1 ..
//
// Floor: the bytes of the weights over the bandwidth of memory. Instructions stay below it: counted in executed gfx942
// code for an MI300X, batch 1 in units of 16 rows, bfloat16 weights take 58.8 us of memory and 6.2 us of vector
// instructions, int4 weights 29.9 and 14.3, since nibbles must become bfloat16 (docs/amd_roofline.md). On an H200 one
// row of bfloat16 is at 85 % of its bytes' time; the rest is each kernel's launch, x on its way through LDS, and the
// first wait for weights (docs/lab/decode-h200.md).
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "engine/gemm_mma/gemm_mma_sums.h"

namespace xlstm::gpu::engine {

template <int kBatch>
XLSTM_DEVICE int passes(const GemmParams& p) {
  return (p.batch + kBatch - 1) / kBatch;
}

template <class Weights, int kBatch, int kRows, int kMaxDepth = 64,
          class ShapeOf = GemmMmaShape<Weights, kBatch, kRows, kMaxDepth != 64>>
struct GemmMma {
  using E = BFloat16;
  using Shape = ShapeOf;
  static constexpr bool kSingle = Shape::kSingle;
  static constexpr int kChains = Shape::kChains, kStrips = Shape::kStrips, kUnits = Shape::kUnits;
  static constexpr int kSplit = Shape::kSplit, kColumns = Shape::kColumns, kSplitKWaves = Shape::kSplitKWaves;
  static constexpr int kDepth = Shape::kDepth < kMaxDepth ? Shape::kDepth : kMaxDepth;
  static constexpr bool kQuantised = Weights::kGroups;

  using Step = WeightStep<Weights, Shape>;
  using Rows = LaneRows<Weights, Shape>;
  using Sums = GemmSums<Weights, Shape>;

  const GemmParams& p;
  GemmMmaInputs<Weights, Shape> inputs;
  Sums sums;
  UnitRows unit_rows;  // of the unit that is multiplied

  XLSTM_DEVICE static int k_wave() { return Shape::k_wave(); }
  XLSTM_DEVICE static int first_row(const GemmParams& p) { return int(blockIdx.x) % passes<kBatch>(p) * kBatch; }
  XLSTM_DEVICE static int rows_from(const GemmParams& p, int first) {
    return p.batch - first < kBatch ? p.batch - first : kBatch;
  }

  XLSTM_DEVICE GemmMma(const GemmParams& params, typename Shape::NormStats& norm_stats, char* lds)
      : p(params),
        inputs(params, norm_stats, lds, first_row(params), rows_from(params, first_row(params))),
        sums(reinterpret_cast<float*>(lds + params.stage_tiles * x_tile_bytes(kFamily, kBatch, Weights::kGroups))) {}

  XLSTM_DEVICE EpilogueRows epilogue_rows() const {
    return {unit_rows, inputs.first, inputs.count, inputs.normed() ? inputs.rms_factors() : nullptr};
  }

  // ---- mainloop

  // Multiplies step `at` of those in LDS by weights whose groups have this format.
  XLSTM_DEVICE void multiply_step(const Step& step, const GroupFormat& groups, int at) {
    typename Sums::GroupSums part;
    if constexpr (Weights::kGroups)
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int s = 0; s < kStrips; ++s) part[c][s].zero();
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      typename Sums::ChainVec16s chain;
      Sums::dequantise_unit(step, u, chain);
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        Vec16 stream[kStreamVec16s<E>] = {};
        read_x(at, u, s, stream);
        sums.multiply_unit(chain, stream, s, part);
      }
      if constexpr (kFamily == Family::rdna && !Weights::kGroups) sums.materialise();
    }
    if constexpr (Shape::kLaneSharded)
      scale_lane_column(step, groups, part, inputs.step_sums(at));
    else if constexpr (Weights::kGroups)
      sums.scale_columns_of_groups(step, groups, part, [x_sums = inputs.step_sums(at)](int s, int, int row) {
        return x_sums[kSingle ? 0 : s * kSplit + row];
      });
  }
  // The stream operand of a unit: strip s of x.
  XLSTM_DEVICE void read_x(int at, int u, int s, Vec16 (&stream)[kStreamVec16s<E>]) const {
#pragma unroll
    for (int j = 0; j < Shape::kStreamReads; ++j) {
      const Vec16Position from = stream_vec16(kFamily, sizeof(E), lane_id(), j);
      stream[j] = read_vec16(inputs.slot_of_step(at, u, s, from.row, from.feature / kVec8));
    }
  }
  // At batch 1 on NVIDIA: this lane scales the sums of its one column, and adds them to its first two registers.
  XLSTM_DEVICE void scale_lane_column(const Step& step, const GroupFormat& groups, const typename Sums::GroupSums& part,
                                      const float* x_sums) {
    float upper = part[0][0].value[0], lower = part[0][0].value[1];
#pragma unroll
    for (int n = 1; n < Shape::kShardColumns; ++n) {
      const bool is_lane_column = n == Shape::shard_column();
      const float* const column_sums = part[n / kColumns][0].value + 2 * (n % kColumns);
      upper = is_lane_column ? column_sums[0] : upper, lower = is_lane_column ? column_sums[1] : lower;
    }
    const bool is_bfloat16 = groups.dtype == XLSTM_BFLOAT16;
    const auto number = [&](uint32_t bits) {
      return is_bfloat16 ? low_float(BFloat16{}, bits) : low_float(Float16{}, bits);
    };
    const float scale = number(step.scale[0][0]);
    const float above = groups.offsets ? Weights::kZero : Weights::kZero - Weights::kMiddle;
    const float offset = __builtin_fmaf(above, scale, groups.offsets ? number(step.offset[0][0]) : 0.0f);
    float(&lane_sums)[Strip<E>::kRegisters] = sums.sum[0][0].value;
    lane_sums[0] = __builtin_fmaf(scale, upper, lane_sums[0]);
    lane_sums[1] = __builtin_fmaf(scale, lower, lane_sums[1]);
    lane_sums[0] = __builtin_fmaf(offset, x_sums[0], lane_sums[0]);
  }
  // Units are taken in turn, beginning with the first blocks; reverse: with the last, which may have fewer units of
  // another kind.
  struct UnitRange {
    int begin, end, stride;
  };
  XLSTM_DEVICE UnitRange unit_range(bool reverse) const {
    const int blocks = p.blocks / passes<kBatch>(p), block = int(blockIdx.x) / passes<kBatch>(p);
    return {reverse ? blocks - 1 - block : block, units_of<kRows>(p, kQuantised), blocks};
  }
  XLSTM_DEVICE void run(bool reverse = false) {
    const UnitRange range = unit_range(reverse);
    if (range.begin >= range.end) return;
    if constexpr (Shape::kRing)
      run_from_ring(range);
    else if constexpr (kFamily == Family::cdna)
      run_single(range);
    else
      run_from_registers(range);
  }

  // Makes a stage's x ready in LDS, before a unit's products. before_barrier() runs before the barrier.
  template <class Ready>
  XLSTM_DEVICE void load_stage(int stage, int stages, bool first, bool more, Ready&& before_barrier) {
    if (!first && stages == 1) return;
    if (!first || stage) __syncthreads();  // all waves have read the stage before
    if (!Shape::kPrefetchesStage && !(first && stage == 0)) inputs.fetch_first(stage);
    inputs.store_stage(stage, first);
    before_barrier();
    __syncthreads();
    if (first) inputs.add_squares(stage);
    if (Shape::kPrefetchesStage && stages > 1 && (more || stage + 1 < stages))
      inputs.fetch_first(stage + 1 < stages ? stage + 1 : 0);
  }
  XLSTM_DEVICE void run_from_registers(const UnitRange& range) {
    const int tiles = tiles_of(kFamily, p.columns), stages = (tiles + p.stage_tiles - 1) / p.stage_tiles;
    Rows rows = Rows::at(p, range.begin);
    Step steps[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d)
      if (d < tiles) steps[d].fetch(p, rows, d);
    pdl_wait();
    inputs.fetch_first(0);
    for (int unit = range.begin; unit < range.end; unit += range.stride) {
      const bool first = unit == range.begin, more = unit + range.stride < range.end;
      const Rows next = Rows::at(p, more ? unit + range.stride : unit);
      unit_rows = rows.unit;
      sums.clear();
      for (int stage = 0; stage < stages; ++stage) {
        const int from = stage * p.stage_tiles, to = from + p.stage_tiles < tiles ? from + p.stage_tiles : tiles;
        load_stage(stage, stages, first, more, [] {});
        for (int round = from; round < to; round += kDepth) {
#pragma unroll
          for (int d = 0; d < kDepth; ++d) {
            const int tile = round + d;
            if (tile < to) {
              multiply_step(steps[d], GroupFormat::of(p.linear[unit_rows.linear]),
                            k_wave() + (tile - from) * kSplitKWaves);
              if (tile + kDepth < tiles)
                steps[d].fetch(p, rows, tile + kDepth);
              else if (more && d < tiles)
                steps[d].fetch(p, next, d);
            }
          }
        }
      }
      if (first) inputs.compute_rms_factors();
      sums.epilogue(p, epilogue_rows());
      rows = next;
    }
  }

  // One x, all of it in LDS. The loop has no branches: the compiler waits for all loads where paths join. A lane's slot
  // d of the pipeline is refilled with the unit's step d + kDepth, or with step d of the next unit.
  XLSTM_DEVICE void run_single(const UnitRange& range) {
    UnitSource source = UnitSource::of(p, range.begin);
    Step steps[kDepth];
    source.fetch_first(steps);
    inputs.fetch_first(0);
    load_stage(0, 1, true, false, [] {});
    multiply_units(range, steps, source, [&](bool more, int unit) {
      UnitSource next = UnitSource::of(p, more ? unit + range.stride : unit);
      if (!more) next.rows.stay();
      return next;
    });
  }
  // Where a unit's weights come from.
  struct UnitSource {
    Rows rows;
    UnitLinears linears;
    int full;  // steps of this wave

    XLSTM_DEVICE static UnitSource of(const GemmParams& p, int unit) {
      const Rows rows = Rows::at(p, unit);
      return {rows, UnitLinears::of(p, rows.unit), full_steps<Shape>(p.columns)};
    }
    XLSTM_DEVICE int clamped(int step) const { return step < full ? step : full - 1; }
    XLSTM_DEVICE void fetch_first(Step (&steps)[kDepth]) const {
      if (full > 0)
#pragma unroll
        for (int d = 0; d < kDepth; ++d) steps[d].fetch_inside(linears, rows, clamped(d));
    }
  };
  // All units of the range; `steps` are the first unit's. next_of(more, unit): what is loaded behind this unit, which
  // is the range's last if there are no more.
  template <class NextOf>
  XLSTM_DEVICE void multiply_units(const UnitRange& range, Step (&steps)[kDepth], UnitSource& source,
                                   NextOf&& next_of) {
    for (int unit = range.begin; unit < range.end; unit += range.stride) {
      const UnitSource next = next_of(unit + range.stride < range.end, unit);
      unit_rows = source.rows.unit;
      sums.clear();
      const GroupFormat groups = GroupFormat::of(p.linear[unit_rows.linear]);
      if (source.full > 0) multiply_full(steps, groups, source, next);
      if (source.full * Shape::kTileFeatures + k_wave() * kStepFeatures < p.columns) {
        Step step;
        step.fetch(p, source.rows, source.full);
        multiply_step(step, groups, k_wave() + source.full * kSplitKWaves);
      }
      if (unit == range.begin) inputs.compute_rms_factors();
      sums.epilogue(p, epilogue_rows());
      source = next;
    }
  }
  XLSTM_DEVICE void multiply_full(Step (&steps)[kDepth], const GroupFormat& groups, const UnitSource& source,
                                  const UnitSource& next) {
    const int full = source.full;
    const auto multiply_and_fetch = [&](int d, int step) {
      multiply_step(steps[d], groups, k_wave() + step * kSplitKWaves);
      sched_barrier();  // the compiler would move loads to their use
      const bool inside = step + kDepth < full;
      steps[d].fetch_inside(UnitLinears::either(inside, source.linears, next.linears),
                            Rows::either(inside, source.rows, next.rows), inside ? step + kDepth : next.clamped(d));
      sched_barrier();
    };
    int step = 0;
#pragma unroll 1
    for (; step + kDepth <= full; step += kDepth)
#pragma unroll
      for (int d = 0; d < kDepth; ++d) multiply_and_fetch(d, step + d);
#pragma unroll
    for (int d = 0; d < kDepth - 1; ++d)
      if (step + d < full) multiply_and_fetch(d, step + d);
  }

  XLSTM_DEVICE void run_from_ring(const UnitRange& range) {
    const int tiles = tiles_of(kFamily, p.columns), stages = (tiles + p.stage_tiles - 1) / p.stage_tiles;
    char* const ring_smem = reinterpret_cast<char*>(sums.buffers) + sum_buffer_bytes(kFamily, kBatch, kRows);
    inputs.fetch_weights(0, 0);  // before the ring's loads, since memory serves loads in their order
    WeightRing<Weights, Shape, kDepth> ring(p, ring_smem, range.begin, range.end, range.stride);
    pdl_wait();
    inputs.fetch_inputs(0, 0);
    for (int unit = range.begin; unit < range.end; unit += range.stride) {
      const bool first = unit == range.begin, more = unit + range.stride < range.end;
      unit_rows = rows_of_unit<kRows>(p, kQuantised, unit);
      ring.begin_unit(unit_rows.linear, unit + range.stride);
      sums.clear();
      for (int stage = 0; stage < stages; ++stage) {
        const int from = stage * p.stage_tiles, to = from + p.stage_tiles < tiles ? from + p.stage_tiles : tiles;
        load_stage(stage, stages, first, more, [&] { ring.first_arrived(); });
        for (int at = k_wave(), end = at + (to - from) * kSplitKWaves; at < end; at += kSplitKWaves) {
          Step step;
          ring.get(step);
          multiply_step(step, ring.kind, at);
          ring.done();
        }
      }
      ring.end_unit();
      if (first) inputs.compute_rms_factors();
      sums.epilogue(p, epilogue_rows());
    }
  }
};

template <class Weights, int kBatch, int kRows>
__global__ __launch_bounds__(kEngineThreads,
                             gemm_mma_blocks_per_cu(kFamily,
                                                    kBatch)) void gemm_mma_kernel(XLSTM_PARAM GemmParams kernel_arg) {
  if constexpr (has_gemm_mma(kFamily, kBatch) && has_gemm_mma_rows(kBatch, kRows)) {
    using Shape = GemmMmaShape<Weights, kBatch, kRows>;
    const GemmParams& p = *kernel_params(kernel_arg);
    __shared__ typename Shape::NormStats norm_stats;
    extern __shared__ __align__(128) char lds[];
    pdl_trigger();
    GemmMma<Weights, kBatch, kRows>(p, norm_stats, lds).run();
    if constexpr (Weights::kGroups) {
      using Gates = GemmMma<Bfloat16Weights, kBatch, kStripColumns, (Shape::kDepth < 2 ? 1 : 2)>;  // few rows
      static_assert(Shape::kRing || kBatch == 1 ||
                    Shape::kDepth % Gates::kDepth == 0);  // a stage is a multiple of both depths
      if (p.output != Output::store) return;
      __syncthreads();
      Gates(p, reinterpret_cast<typename Gates::Shape::NormStats&>(norm_stats), lds).run(true);
    }
  }
}

}  // namespace xlstm::gpu::engine
