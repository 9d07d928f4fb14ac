// SPDX-License-Identifier: Apache-2.0
// x's on their way into LDS for products on matrix units: split into two bfloat16, and laid out as the stream operand
// reads them (engine/gemm_mma/gemm_mma_shape.h). A thread has eight features of a few rows of the batch at a time.
#pragma once

#include "engine/gemm_mma/gemm_mma_weights.h"
#include "engine/gemm_mma/input_vectors.h"
#include "engine/prologue_epilogue.h"
#include "tile/columns.h"

namespace xlstm::gpu::engine {

static_assert(kMatrixThreads == kProductThreads);

// What a kernel for kBatch rows of the batch and kRows of weights is made of. kBeside: in the same kernel as another,
// whose registers are not for both.
template <class Weights, int kBatch, int kRows, bool kBeside = false>
struct MatrixShape {
  using E = BFloat16;
  static constexpr bool kWhole = kBatch == 1;  // all of the one x lies in LDS
  static constexpr int kChains = kRows / kStripColumns, kStrips = matrix_strips(kFamily, kBatch);
  static constexpr int kSplit = split_rows(kFamily), kSides = 2 * kSplit * kStrips;  // rows of strips
  // What a lane reads of a strip's rows, and holds of their sums.
  static constexpr bool kHalf = kWhole && whole_in_half(kFamily);
  static constexpr int kStreamReads = kStreamVec16s<E> / (kHalf ? 2 : 1);
  static constexpr int kRegisters = kHalf ? 2 * Columns::kEach : Strip<E>::kRegisters;  // of both parts
  static constexpr int kLaneRows = lane_rows(kFamily), kLoads = lane_loads(kFamily, Weights::kBits);
  static constexpr int kColumns = Columns::kEach;
  static constexpr int kAlong = waves_along(kFamily), kTileFeatures = tile_features(kFamily);
  static constexpr int kTileChunks = kTileFeatures / kChunkFeatures;
  static constexpr int kUnits = kStepFeatures / unit_features(kFamily, 2);  // of a step
  static constexpr int kStepBytes = kStepFeatures * Weights::kBits / 8;     // of a row
  static constexpr int kDepth = matrix_depth(kFamily, Weights::kBits, kBatch, kRows);
  static constexpr bool kRing = has_ring(kFamily, kBatch);
  // Of one x lanes that share a row of weights hold the same sums, of all of a strip's columns: with groups each scales
  // those of one of their columns, and keeps no others.
  static constexpr bool kDealt = kHalf && kRing && Weights::kGroups;
  static constexpr int kDealtColumns = kChains * kColumns;
  // A thread brings kEights eights of x's at a time: of kEach rows of a chunk, or of one x of as many chunks.
  static constexpr bool kTight = kFamily == Family::rdna || kRows == 64;  // on registers
  static constexpr bool kMany = kRing && !kWhole;  // many at a time: weights on their way take no registers
  static constexpr bool kLong = kRing && kWhole && kRows == 16 && !kBeside;  // units of few rows are long ones
  static constexpr int kEights = kMany ? (kBeside || Weights::kGroups ? 8 : 16) : (kWhole && !kLong) || kTight ? 2 : 4;
  static constexpr int kEach = kWhole ? 1 : kBatch == 8 && kTight ? 2 : 4, kRowGroups = kBatch / kEach;
  static constexpr int kRowEights = kChunkFeatures / kEight, kChunkLanes = kMatrixThreads / kRowEights / kRowGroups;
  // Whether the first of the next stage are asked for before this one's products: that takes registers.
  static constexpr bool kAhead = !kWhole && !kTight && !kMany;
  static constexpr int kStageChunks =
      kWhole ? kMostWholeFeatures / kChunkFeatures : kMostStageBytes / (kBatch * 4 * kChunkFeatures);
  // What a row's sums of steps, and a wave's sums, take.
  static constexpr int kSumRows = kWhole ? 2 : kSides;
  static constexpr int kTogether = waves_together(kFamily, kBatch, kRows);

  XLSTM_DEVICE static int own_column() { return place_in_row(kFamily, lane_id()) % kDealtColumns; }
  // Where column n of a lane's kDealtColumns is among the rows of a unit.
  XLSTM_DEVICE static int row_of_column(int n) {
    return n / kColumns * kStripColumns + Columns::position(0) + n % kColumns * (kStripColumns / kColumns);
  }

  struct Facts {
    float squares[kBatch][kStageChunks];
    float inverse[kBatch];
  };
  static_assert(sizeof(Facts) <= matrix_fact_bytes(kBatch));
  static_assert(!kDealt || kDealtColumns <= lanes_of_row(kFamily));
};

template <class Weights, class Shape>
struct MatrixInputs {
  using E = BFloat16;
  static constexpr bool kWhole = Shape::kWhole;
  static constexpr int kEights = Shape::kEights, kEach = Shape::kEach, kRowEights = Shape::kRowEights;
  static constexpr int kChunkLanes = Shape::kChunkLanes, kSplit = Shape::kSplit, kBatch = kEach * Shape::kRowGroups;
  static constexpr int kChunks = kEights > kEach ? kEights / kEach : 1;  // of a thread in a burst

  const ProductParams& p;
  typename Shape::Facts& facts;
  char* memory;      // x's, then the sums of their steps
  int first, count;  // rows of the batch
  // On their way: x's; a norm's weights.
  float x[kEights][kEight];
  NormEight weight[kChunks];
  float squares;  // of the row that this thread adds up

  XLSTM_DEVICE MatrixInputs(const ProductParams& params, typename Shape::Facts& lds, char* x_memory, int first_row,
                            int rows)
      : p(params), facts(lds), memory(x_memory), first(first_row), count(rows), squares(0) {}

  // An RMS norm is a factor of each row's sums: its squares are added up as x's go by for the first time, stage by
  // stage.
  XLSTM_DEVICE bool normed() const { return p.input == Input::rms; }
  XLSTM_DEVICE void add_squares(int stage) {
    if (!normed() || int(threadIdx.x) >= kBatch) return;
    const int chunks = tiles_in(stage) * Shape::kTileChunks;
    for (int chunk = 0; chunk < chunks; ++chunk) squares += facts.squares[threadIdx.x][chunk];
  }
  XLSTM_DEVICE const float* inverses() const { return facts.inverse; }
  XLSTM_DEVICE void make_inverses() const {
    if (normed() && int(threadIdx.x) < kBatch)
      facts.inverse[threadIdx.x] = 1 / __builtin_sqrtf(squares / float(p.columns) + p.norm_eps);
  }
  // The sums of a step's x's, by row of the batch.
  XLSTM_DEVICE float* step_sums(int step) const {
    return reinterpret_cast<float*>(memory + p.stage_tiles * (Shape::kTileFeatures * 4 * kBatch)) + step * kBatch;
  }

  XLSTM_DEVICE static int own_eight() { return int(threadIdx.x) % kRowEights; }
  XLSTM_DEVICE static int own_group() { return int(threadIdx.x) / kRowEights; }
  XLSTM_DEVICE int tiles_in(int stage) const {
    const int left = tiles_of(kFamily, p.columns) - stage * p.stage_tiles;
    return left < p.stage_tiles ? left : p.stage_tiles;
  }
  // ---- a stage of x's: as many tiles of features as LDS holds, burst after burst

  static constexpr int kBursts = kEach > kEights ? kEach / kEights : 1;  // of one chunk's rows
  // Item i of a burst: which chunk of the stage and which row of the batch.
  XLSTM_DEVICE static int chunk_of(int burst, int i) {
    return (burst / kBursts * kChunks + i / kEach) * kChunkLanes + own_group() % kChunkLanes;
  }
  XLSTM_DEVICE static int row_of(int burst, int i) {
    return own_group() / kChunkLanes * kEach + burst % kBursts * kEights + i % kEach;
  }
  XLSTM_DEVICE void fetch_inputs(int stage, int burst) {
    const int begin = stage * p.stage_tiles * Shape::kTileChunks;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const int k = (begin + chunk_of(burst, i)) * kChunkFeatures + own_eight() * kEight;
      const bool inside = k < p.columns;
      const int b = row_of(burst, i);
      read_eight(p.x + (inside && b < count ? int64_t(first + b) * p.columns + k : 0), x[i]);
    }
  }
  // Of a norm. No kernel of a step writes them, so the first may be asked for before others have ended.
  XLSTM_DEVICE void fetch_weights(int stage, int burst) {
    if (!normed()) return;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int chunk = stage * p.stage_tiles * Shape::kTileChunks + chunk_of(burst, c * kEach);
      const int k = chunk * kChunkFeatures + own_eight() * kEight;
      weight[c].fetch(p.weight, k < p.columns ? k : 0);
    }
  }
  XLSTM_DEVICE void fetch(int stage, int burst) {
    fetch_inputs(stage, burst);
    fetch_weights(stage, burst);
  }
  XLSTM_DEVICE void fetch_first(int stage) { fetch(stage, 0); }
  // All of it, the first burst of which is on its way. measured: whether squares are wanted.
  XLSTM_DEVICE void store_stage(int stage, bool measured) {
    const int chunks = tiles_in(stage) * Shape::kTileChunks;
    const int bursts = (chunks + kChunks * kChunkLanes - 1) / (kChunks * kChunkLanes) * kBursts;
    for (int burst = 0; burst < bursts; ++burst) {
      if (burst) fetch(stage, burst);
#pragma unroll
      for (int i = 0; i < kEights; ++i)
        if (chunk_of(burst, i) < chunks) store(stage, chunk_of(burst, i), row_of(burst, i), i, measured && normed());
    }
  }
  // Item i: of row b of the batch, of a chunk of the stage.
  XLSTM_DEVICE void store(int stage, int chunk, int b, int i, bool measured) {
    constexpr int kStepEights = kStepFeatures / kEight;
    const int k = (stage * p.stage_tiles * Shape::kTileChunks + chunk) * kChunkFeatures + own_eight() * kEight;
    const bool there = b < count && k < p.columns;
    const EightPlace at = eight_place(kFamily, Weights::kBits, own_eight() % kStepEights);
    const int step = chunk * (kChunkFeatures / kStepFeatures) + own_eight() / kStepEights;
    float y[kEight];
#pragma unroll
    for (int e = 0; e < kEight; ++e) y[e] = there ? x[i][e] : 0.0f;
    if (measured) {
      const float own = over_lanes<kRowEights>(sum_of_squares(y));
      if (own_eight() == 0) facts.squares[b][chunk] = own;
    }
    if (normed() && there) weight[i / kEach].multiply(p.weight.dtype, y);
    Vec16 upper, lower;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float low = y[eight_feature(Weights::kBits, 2 * w)], high = y[eight_feature(Weights::kBits, 2 * w + 1)];
      upper.word[w] = pack(E{}, low, high);
      lower.word[w] = pack(E{}, low - low_float(E{}, upper.word[w]), high - high_float(E{}, upper.word[w]));
    }
    const int unit = step * Shape::kUnits + at.unit;
    const int lower_row = kWhole ? whole_row(kFamily, 1) : kSplit + b % kSplit;
    *reinterpret_cast<Vec16*>(slot(unit, b / kSplit, b % kSplit, at.piece)) = upper;
    *reinterpret_cast<Vec16*>(slot(unit, b / kSplit, lower_row, at.piece)) = lower;
    if constexpr (Weights::kGroups) {  // of what is multiplied: sums of shifted weights are the greater part of it
      float own = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w)
        own += (low_float(E{}, upper.word[w]) + low_float(E{}, lower.word[w])) +
               (high_float(E{}, upper.word[w]) + high_float(E{}, lower.word[w]));
      const float all = over_lanes<kStepEights>(own);
      if (own_eight() % kStepEights == 0) step_sums(step)[b] = all;
    }
  }
  // Where a piece of a row of a strip lies.
  XLSTM_DEVICE char* slot(int unit, int strip, int row, int piece) const {
    if constexpr (kWhole)
      return memory + (unit * whole_unit_slots(kFamily) + whole_slot(kFamily, unit, row, piece)) * kSlotBytes;
    return memory +
           ((unit * Shape::kStrips + strip) * strip_slots(kFamily) + slot_in_strip(kFamily, unit, row, piece)) *
               kSlotBytes;
  }
  // The same of a unit of a step. One x lies in every step alike: what depends on the lane is the same in all of them,
  // which AMD's compiler does not find out.
  XLSTM_DEVICE char* slot_of_step(int step, int unit, int strip, int row, int piece) const {
    static_assert(Shape::kUnits % (kFamily == Family::rdna ? 4 : 2) == 0);  // whole_slot's turns
    if constexpr (kWhole && kFamily != Family::nvidia)
      return slot(unit, strip, row, piece) + step * (Shape::kUnits * whole_unit_slots(kFamily) * kSlotBytes);
    return slot(step * Shape::kUnits + unit, strip, row, piece);
  }
};

}  // namespace xlstm::gpu::engine
