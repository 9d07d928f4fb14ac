// SPDX-License-Identifier: Apache-2.0
// The prologue of gemm_mma: x on its way to LDS. It is split into two bfloat16 and laid out as the stream operand reads
// it (engine/gemm_mma/gemm_mma_shape.h). A thread handles 8 features of a few rows of the batch at a time.
#pragma once

#include "engine/gemm_mma/gemm_mma_shape.h"
#include "engine/gpu/prologue_epilogue.h"
#include "engine/gpu/weight_formats.h"
#include "tile/columns.h"

namespace xlstm::gpu::engine {

static_assert(kGemmMmaThreads == kEngineThreads);

// Units of kRows rows: for SwiGLU half of them, of each of two linears.
template <int kRows>
struct FullUnits {
  XLSTM_DEVICE static int unit_rows(const GemmParams& p) { return p.output == Output::swiglu ? kRows / 2 : kRows; }
  // The row that a slot loads.
  XLSTM_DEVICE static int row_in_unit(const GemmParams&, int slot) { return slot; }
  XLSTM_DEVICE static int thread() { return int(threadIdx.x); }  // of those that add up and store a unit's sums
};

// The constants of a kernel for kBatch rows of the batch and kRows rows of weights. kSharesRegisters: the kernel also
// contains another such loop, so registers are fewer.
template <class Weights, int kBatch, int kRows, bool kSharesRegisters = false>
struct GemmMmaShape : FullUnits<kRows> {
  using E = BFloat16;
  static constexpr bool kSingle = kBatch == 1;  // the single x lies in LDS as a whole
  static constexpr int kBatchRows = kBatch, kThreads = kGemmMmaThreads;
  static constexpr int kChains = kRows / kStripColumns, kStrips = batch_strips(kFamily, kBatch);
  static constexpr int kSplit = split_rows(kFamily), kStripRows = 2 * kSplit * kStrips;
  // What a lane reads of a strip's rows, and the registers of their sums.
  static constexpr bool kHalf = kSingle && single_in_half(kFamily);
  static constexpr int kStreamReads = kStreamVec16s<E> / (kHalf ? 2 : 1);
  static constexpr int kRegisters = kHalf ? 2 * Columns::kEach : Strip<E>::kRegisters;  // of both parts
  static constexpr int kLaneRows = lane_rows(kFamily), kLoads = lane_loads(kFamily, Weights::kBits);
  static constexpr int kColumns = Columns::kEach;
  static constexpr int kSplitKWaves = split_k_waves(kFamily), kTileFeatures = tile_features(kFamily);
  static constexpr int kTileChunks = kTileFeatures / kChunkFeatures;
  static constexpr int kUnits = kStepFeatures / unit_features(kFamily, 2);  // of a step
  static constexpr int kStepBytes = kStepFeatures * Weights::kBits / 8;     // of a row
  static constexpr int kDepth = gemm_mma_depth(kFamily, Weights::kBits, kBatch, kRows);
  static constexpr bool kRing = has_ring(kFamily, kBatch);
  // At batch 1, lanes that share a row of weights hold the same sums, of all of a strip's columns. With groups, each of
  // these lanes scales the sums of one column only, and keeps no others.
  static constexpr bool kLaneSharded = kHalf && kRing && Weights::kGroups;
  static constexpr int kShardColumns = kChains * kColumns;
  // A thread loads kBurstVec8s vec8s of x at a time: those of kChunkRows rows of a chunk, or at batch 1 of as many
  // chunks.
  static constexpr bool kFewRegisters = is_rdna(kFamily) || kRows == 64;  // registers are short
  static constexpr bool kManyInFlight =
      kRing && !kSingle;  // many loads in flight, since a ring's weights take no registers
  static constexpr bool kLongUnits =
      kRing && kSingle && kRows == 16 && !kSharesRegisters;  // units of few rows are long
  static constexpr int kBurstVec8s = kManyInFlight ? (kSharesRegisters || Weights::kGroups ? 8 : 16)
                                     : (kSingle && !kLongUnits) || kFewRegisters ? 2
                                                                                 : 4;
  static constexpr int kChunkRows = kSingle                        ? 1
                                    : kBatch == 8 && kFewRegisters ? 2
                                                                   : 4,
                       kRowGroups = kBatch / kChunkRows;
  static constexpr int kChunkVec8s = kChunkFeatures / kVec8, kChunkLanes = kGemmMmaThreads / kChunkVec8s / kRowGroups;
  // Whether the first loads of the next stage are issued before this stage's products: that takes registers.
  static constexpr bool kPrefetchesStage = !kSingle && !kFewRegisters && !kManyInFlight;
  static constexpr int kStageChunks =
      kSingle ? kMaxSingleFeatures / kChunkFeatures : kMaxStageBytes / (kBatch * 4 * kChunkFeatures);
  // Rows of sums in LDS, and the waves whose sums lie there at once.
  static constexpr int kSumRows = kSingle ? 2 : kStripRows, kSumBuffers = 2;
  static constexpr int kWavesAtOnce = waves_at_once(kFamily, kBatch, kRows);

  // The wave's place among those that split the features; the first of its rows of sums in LDS.
  XLSTM_DEVICE static int k_wave() { return wave_id(); }
  static constexpr int first_sum_row() { return 0; }
  // The row of x's parts that a strip's row is.
  static constexpr int part_row(int row) { return row; }
  XLSTM_DEVICE static int shard_column() { return lane_in_row(kFamily, lane_id()) % kShardColumns; }
  // The row, within a unit, of column n of a lane's kShardColumns.
  XLSTM_DEVICE static int row_of_column(int n) {
    return n / kColumns * kStripColumns + Columns::position(0) + n % kColumns * (kStripColumns / kColumns);
  }

  struct NormStats {
    float squares[kBatch][kStageChunks];
    float rms_factor[kBatch];
  };
  static_assert(sizeof(NormStats) <= norm_stats_bytes(kBatch));
  static_assert(!kLaneSharded || kShardColumns <= lanes_of_row(kFamily));
};

template <class Weights, class Shape>
struct GemmMmaInputs {
  using E = BFloat16;
  static constexpr bool kSingle = Shape::kSingle;
  static constexpr int kBurstVec8s = Shape::kBurstVec8s, kChunkRows = Shape::kChunkRows,
                       kChunkVec8s = Shape::kChunkVec8s;
  static constexpr int kChunkLanes = Shape::kChunkLanes, kSplit = Shape::kSplit,
                       kBatch = kChunkRows * Shape::kRowGroups;
  static constexpr int kChunks =
      kBurstVec8s > kChunkRows ? kBurstVec8s / kChunkRows : 1;  // that a thread loads in a burst

  const GemmParams& p;
  typename Shape::NormStats& norm_stats;
  char* x_smem;      // x, then the sums of its steps
  int first, count;  // rows of the batch
  // In flight: x, and a norm's weights.
  float x[kBurstVec8s][kVec8];
  NormVec8 weight[kChunks];
  float squares;     // of the row of the batch that this thread adds up
  int step_sums_at;  // bytes from x to the sums of its steps: params in memory would be read again for each step

  XLSTM_DEVICE GemmMmaInputs(const GemmParams& params, typename Shape::NormStats& lds, char* smem, int first_row,
                             int rows)
      : p(params),
        norm_stats(lds),
        x_smem(smem),
        first(first_row),
        count(rows),
        squares(0),
        step_sums_at(params.stage_tiles * (Shape::kTileFeatures * 4 * kBatch)) {}

  // An RMS norm is a factor of each row's sums. Its sums of squares are added up while x is loaded for the first time,
  // stage by stage.
  XLSTM_DEVICE bool normed() const { return p.input == Input::rms; }
  XLSTM_DEVICE void add_squares(int stage) {
    if (!normed() || int(threadIdx.x) >= kBatch) return;
    const int chunks = tiles_in(stage) * Shape::kTileChunks;
    for (int chunk = 0; chunk < chunks; ++chunk) squares += norm_stats.squares[threadIdx.x][chunk];
  }
  XLSTM_DEVICE const float* rms_factors() const { return norm_stats.rms_factor; }
  XLSTM_DEVICE void compute_rms_factors() const {
    if (normed() && int(threadIdx.x) < kBatch)
      norm_stats.rms_factor[threadIdx.x] = 1 / __builtin_sqrtf(squares / float(p.columns) + p.norm_eps);
  }
  // The sums of a step's x, by row of the batch.
  XLSTM_DEVICE float* step_sums(int step) const {
    return reinterpret_cast<float*>(x_smem + step_sums_at) + step * kBatch;
  }

  // On RDNA a stage's addresses are computed anew: in registers for as long as the kernel runs, they do not fit.
  XLSTM_DEVICE static int thread() { return is_rdna(kFamily) ? opaque_thread() : int(threadIdx.x); }
  XLSTM_DEVICE static int thread_vec8() { return thread() % kChunkVec8s; }
  XLSTM_DEVICE static int thread_group() { return thread() / kChunkVec8s; }
  XLSTM_DEVICE int tiles_in(int stage) const {
    const int left = tiles_of(kFamily, p.columns) - stage * p.stage_tiles;
    return left < p.stage_tiles ? left : p.stage_tiles;
  }
  // ---- a stage of x: as many tiles of features as LDS holds, loaded in bursts

  static constexpr int kBursts = kChunkRows > kBurstVec8s ? kChunkRows / kBurstVec8s : 1;  // of one chunk's rows
  // Item i of a burst: its chunk of the stage and its row of the batch.
  XLSTM_DEVICE static int chunk_of(int burst, int i) {
    return (burst / kBursts * kChunks + i / kChunkRows) * kChunkLanes + thread_group() % kChunkLanes;
  }
  XLSTM_DEVICE static int row_of(int burst, int i) {
    return thread_group() / kChunkLanes * kChunkRows + burst % kBursts * kBurstVec8s + i % kChunkRows;
  }
  XLSTM_DEVICE void fetch_inputs(int stage, int burst) {
    const int begin = stage * p.stage_tiles * Shape::kTileChunks;
#pragma unroll
    for (int i = 0; i < kBurstVec8s; ++i) {
      const int k = (begin + chunk_of(burst, i)) * kChunkFeatures + thread_vec8() * kVec8;
      const bool inside = k < p.columns;
      const int b = row_of(burst, i);
      read_vec8(p.x + (inside && b < count ? int64_t(first + b) * p.columns + k : 0), x[i]);
    }
  }
  // The weights of a norm. No kernel of a step writes them, so the first may be loaded before earlier kernels have
  // ended.
  XLSTM_DEVICE void fetch_weights(int stage, int burst) {
    if (!normed()) return;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int chunk = stage * p.stage_tiles * Shape::kTileChunks + chunk_of(burst, c * kChunkRows);
      const int k = chunk * kChunkFeatures + thread_vec8() * kVec8;
      weight[c].fetch(p.weight, k < p.columns ? k : 0);
    }
  }
  XLSTM_DEVICE void fetch(int stage, int burst) {
    fetch_inputs(stage, burst);
    fetch_weights(stage, burst);
  }
  XLSTM_DEVICE void fetch_first(int stage) { fetch(stage, 0); }
  // Stores a whole stage, whose first burst is in flight. needs_squares: also adds up squares.
  XLSTM_DEVICE void store_stage(int stage, bool needs_squares) {
    const int chunks = tiles_in(stage) * Shape::kTileChunks;
    const int bursts = (chunks + kChunks * kChunkLanes - 1) / (kChunks * kChunkLanes) * kBursts;
    for (int burst = 0; burst < bursts; ++burst) {
      if (burst) fetch(stage, burst);
#pragma unroll
      for (int i = 0; i < kBurstVec8s; ++i)
        if (chunk_of(burst, i) < chunks)
          store(stage, chunk_of(burst, i), row_of(burst, i), i, needs_squares && normed());
    }
  }
  // Stores item i: row b of the batch, of a chunk of the stage.
  XLSTM_DEVICE void store(int stage, int chunk, int b, int i, bool needs_squares) {
    constexpr int kStepVec8s = kStepFeatures / kVec8;
    const int k = (stage * p.stage_tiles * Shape::kTileChunks + chunk) * kChunkFeatures + thread_vec8() * kVec8;
    const bool is_inside = b < count && k < p.columns;
    const Vec8Coord at = vec8_coord(kFamily, Weights::kBits, thread_vec8() % kStepVec8s);
    const int step = chunk * (kChunkFeatures / kStepFeatures) + thread_vec8() / kStepVec8s;
    float y[kVec8];
#pragma unroll
    for (int e = 0; e < kVec8; ++e) y[e] = is_inside ? x[i][e] : 0.0f;
    if (needs_squares) {
      const float square_sum = sum_over_lanes<kChunkVec8s>(sum_of_squares(y));
      if (thread_vec8() == 0) norm_stats.squares[b][chunk] = square_sum;
    }
    if (normed() && is_inside) weight[i / kChunkRows].multiply(p.weight.dtype, y);
    Vec16 upper, lower;
#pragma unroll
    for (int w = 0; w < 4; ++w)
      split_bfloat16(y[vec8_feature(Weights::kBits, 2 * w)], y[vec8_feature(Weights::kBits, 2 * w + 1)], upper.word[w],
                     lower.word[w]);
    const int unit = step * Shape::kUnits + at.unit;
    const int lower_row = kSingle ? single_row(kFamily, 1) : kSplit + b % kSplit;
    *reinterpret_cast<Vec16*>(slot(unit, b / kSplit, b % kSplit, at.vec16)) = upper;
    *reinterpret_cast<Vec16*>(slot(unit, b / kSplit, lower_row, at.vec16)) = lower;
    if constexpr (Weights::kGroups) {  // of the rounded x: sums of shifted weights are the greater part of the result
      float partial = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w)
        partial += (low_float(E{}, upper.word[w]) + low_float(E{}, lower.word[w])) +
                   (high_float(E{}, upper.word[w]) + high_float(E{}, lower.word[w]));
      const float step_sum = sum_over_lanes<kStepVec8s>(partial);
      if (thread_vec8() % kStepVec8s == 0) step_sums(step)[b] = step_sum;
    }
  }
  // The address of a vec16 of a row of a strip.
  XLSTM_DEVICE char* slot(int unit, int strip, int row, int vec16) const {
    if constexpr (kSingle)
      return x_smem + (unit * single_unit_slots(kFamily) + single_slot(kFamily, unit, row, vec16)) * kSlotBytes;
    return x_smem +
           ((unit * Shape::kStrips + strip) * strip_slots(kFamily) + slot_in_strip(kFamily, unit, row, vec16)) *
               kSlotBytes;
  }
  // The same, by step and unit within it. At batch 1, x lies alike in every step: the part of the address that depends
  // on the lane is the same in all of them, which AMD's compiler does not find out.
  XLSTM_DEVICE char* slot_of_step(int step, int unit, int strip, int row, int vec16) const {
    static_assert(Shape::kUnits % (is_rdna(kFamily) ? 4 : 2) == 0);  // the period of single_slot's swizzle
    if constexpr (kSingle && kFamily != Family::nvidia)
      return slot(unit, strip, row, vec16) + step * (Shape::kUnits * single_unit_slots(kFamily) * kSlotBytes);
    return slot(step * Shape::kUnits + unit, strip, row, vec16);
  }
};

}  // namespace xlstm::gpu::engine
