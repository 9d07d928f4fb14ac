// SPDX-License-Identifier: Apache-2.0
// x's on their way into LDS for products on matrix units: normed and gated, split into two bfloat16, and laid out as
// the stream operand reads them (decode/matrix_shape.h). A thread has eight features of every eighth row of the batch.
#pragma once

#include "decode/matrix_weights_gpu.h"
#include "decode/rows_gpu.h"
#include "tile/columns.h"

namespace xlstm::gpu {

static_assert(kMatrixThreads == kProductThreads);

// What a kernel for kBatch rows of the batch and kRows of weights is made of.
template <class Weights, int kBatch, int kRows>
struct MatrixShape {
  using E = BFloat16;
  static constexpr bool kWhole = kBatch == 1;  // all of the one x lies in LDS
  static constexpr int kChains = kRows / kStripColumns, kStrips = matrix_strips(kFamily, kBatch);
  static constexpr int kSplit = split_rows(kFamily), kSides = 2 * kSplit * kStrips;  // rows of strips
  static constexpr int kLaneRows = lane_rows(kFamily), kLoads = lane_loads(kFamily, Weights::kBits);
  static constexpr int kColumns = Columns::kEach;
  static constexpr int kAlong = waves_along(kFamily), kTileFeatures = tile_features(kFamily);
  static constexpr int kTileChunks = kTileFeatures / kChunkFeatures;
  static constexpr int kUnits = kStepFeatures / unit_features(kFamily, 2);  // of a step
  static constexpr int kStepBytes = kStepFeatures * Weights::kBits / 8;     // of a row
  static constexpr int kDepth = matrix_depth(kFamily, Weights::kBits, kBatch, kRows);
  // A thread brings kEights eights of x's at a time: of kEach rows of a chunk, or of one x of as many chunks.
  static constexpr bool kTight = kFamily == Family::rdna || kRows == 64;  // on registers
  static constexpr int kEights = kWhole || kTight ? 2 : 4;
  static constexpr int kEach = kWhole ? 1 : kBatch == 8 && kTight ? 2 : 4, kRowGroups = kBatch / kEach;
  static constexpr int kRowEights = kChunkFeatures / kEight, kChunkLanes = kMatrixThreads / kRowEights / kRowGroups;
  // Whether the first of the next stage are asked for before this one's products: that takes registers.
  static constexpr bool kAhead = !kWhole && !kTight;
  static constexpr int kStageChunks =
      kWhole ? kMostWholeFeatures / kChunkFeatures : kMostStageBytes / (kBatch * 4 * kChunkFeatures);
  // Whether weights on their way have most of the registers.
  static constexpr bool kHolds = kBatch == 1 || (kBatch == 8 && kRows == 32);
  // What a row's sums of steps, and a wave's sums, take.
  static constexpr int kSumRows = kWhole ? 2 : kSides;
  static constexpr int kTogether = waves_together(kFamily, kBatch, kRows);

  struct Facts {
    float squares[kBatch][kStageChunks];
    Spread spread[kBatch * kMostMatrixHeads];
  };
  static_assert(sizeof(Facts) <= matrix_fact_bytes(kBatch));
};

template <class Weights, class Shape>
struct MatrixInputs {
  using E = BFloat16;
  static constexpr bool kWhole = Shape::kWhole;
  static constexpr int kEights = Shape::kEights, kEach = Shape::kEach, kRowEights = Shape::kRowEights;
  static constexpr int kChunkLanes = Shape::kChunkLanes, kSplit = Shape::kSplit, kBatch = kEach * Shape::kRowGroups;
  static constexpr int kChunks = kEights > kEach ? kEights / kEach : 1;  // of a thread at a time

  const ProductParams& p;
  typename Shape::Facts& facts;
  char* memory;      // x's, then the sums of their steps
  int first, count;  // rows of the batch
  // On their way: x's, of which the second half are gates where there are any; norm's weights, 8 halves or floats.
  float x[kEights][kEight];
  Piece weight[kChunks][2];
  float squares;  // of the row that this thread adds up

  XLSTM_DEVICE MatrixInputs(const ProductParams& params, typename Shape::Facts& lds, char* x_memory, int first_row,
                            int rows)
      : p(params), facts(lds), memory(x_memory), first(first_row), count(rows), squares(0) {}

  // An RMS norm is then a factor of sums.
  XLSTM_DEVICE bool late() const { return p.input == Input::rms && !p.bias.data; }
  XLSTM_DEVICE void measure_rows() const {
    constexpr int kTogether = Shape::kHolds ? 1 : 2;
    if (p.input == Input::heads)
      measure<Input::heads, kTogether>(p, first, count, facts.spread);
    else if (p.input == Input::rms && !late())
      measure<Input::rms, kTogether>(p, first, count, facts.spread);
    if (!late()) __syncthreads();
  }
  // The squares of a stage that is stored, and then the factor of each row where norms are late.
  XLSTM_DEVICE void add_squares(int stage) {
    if (!late() || int(threadIdx.x) >= kBatch) return;
    const int chunks = tiles_in(stage) * Shape::kTileChunks;
    for (int chunk = 0; chunk < chunks; ++chunk) squares += facts.squares[threadIdx.x][chunk];
  }
  XLSTM_DEVICE float* inverses() const { return &facts.spread[0].mean; }
  XLSTM_DEVICE void make_inverses() const {
    if (late() && int(threadIdx.x) < kBatch)
      inverses()[threadIdx.x] = 1 / __builtin_sqrtf(squares / float(p.columns) + p.norm_eps);
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
  XLSTM_DEVICE static void read_eight(const float* from, float (&to)[kEight]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Piece four = read_piece(from + 4 * h);
#pragma unroll
      for (int e = 0; e < 4; ++e) to[4 * h + e] = as_float(four.word[e]);
    }
  }
  // ---- a stage of x's: as many tiles of features as LDS holds, burst after burst

  // Item i of a burst: which chunk of the stage and which row of the batch. With gates a burst has half as many items.
  template <bool kGates>
  static constexpr int kItems = kGates ? kEights / 2 : kEights;
  template <bool kGates>
  static constexpr int kBursts = kEach > kItems<kGates> ? kEach / kItems<kGates> : 1;  // of one chunk's rows
  template <bool kGates>
  XLSTM_DEVICE static int chunk_of(int burst, int i) {
    constexpr int kOnce = kItems<kGates> > kEach ? kItems<kGates> / kEach : 1;
    return (burst / kBursts<kGates> * kOnce + i / kEach) * kChunkLanes + own_group() % kChunkLanes;
  }
  template <bool kGates>
  XLSTM_DEVICE static int row_of(int burst, int i) {
    return own_group() / kChunkLanes * kEach + burst % kBursts<kGates> * kItems<kGates> + i % kEach;
  }
  template <bool kGates>
  XLSTM_DEVICE void fetch(int stage, int burst) {
    const int begin = stage * p.stage_tiles * Shape::kTileChunks;
#pragma unroll
    for (int i = 0; i < kItems<kGates>; ++i) {
      const int k = (begin + chunk_of<kGates>(burst, i)) * kChunkFeatures + own_eight() * kEight;
      const bool inside = k < p.columns;
      const int b = row_of<kGates>(burst, i);
      const int64_t at = inside && b < count ? int64_t(first + b) * p.columns + k : 0;
      read_eight(p.x + at, x[i]);
      if constexpr (kGates) read_eight(p.gate + at, x[i + kEights / 2]);
      if (i % kEach || p.input == Input::plain) continue;
      const bool floats = p.weight.dtype == XLSTM_FLOAT32;
      const char* const from = static_cast<const char*>(p.weight.data) + (inside ? k : 0) * (floats ? 4 : 2);
      weight[i / kEach][0] = read_piece(from);
      weight[i / kEach][1] = read_piece(from + (floats ? 16 : 0));
    }
  }
  // f(whether there are gates), known when compiled.
  template <class F>
  XLSTM_DEVICE void with_gates(F&& f) const {
    if (p.input == Input::heads)
      f(std::true_type{});
    else
      f(std::false_type{});
  }
  XLSTM_DEVICE void fetch_first(int stage) {
    with_gates([&](auto gates) { fetch<decltype(gates)::value>(stage, 0); });
  }
  // All of it, the first burst of which is on its way.
  XLSTM_DEVICE void store_stage(int stage) {
    with_gates([&](auto gates) {
      constexpr bool kGates = decltype(gates)::value;
      constexpr int kOnce = kItems<kGates> > kEach ? kItems<kGates> / kEach : 1;
      const int chunks = tiles_in(stage) * Shape::kTileChunks;
      const int bursts = (chunks + kOnce * kChunkLanes - 1) / (kOnce * kChunkLanes) * kBursts<kGates>;
      for (int burst = 0; burst < bursts; ++burst) {
        if (burst) fetch<kGates>(stage, burst);
#pragma unroll
        for (int i = 0; i < kItems<kGates>; ++i)
          if (chunk_of<kGates>(burst, i) < chunks)
            store<kGates>(stage, chunk_of<kGates>(burst, i), row_of<kGates>(burst, i), i);
      }
    });
  }
  XLSTM_DEVICE void norm_weights(const Piece (&weight)[2], float (&to)[kEight]) const {
    if (p.weight.dtype == XLSTM_FLOAT32) {
#pragma unroll
      for (int e = 0; e < kEight; ++e) to[e] = as_float(weight[e / 4].word[e % 4]);
      return;
    }
    const bool brain = p.weight.dtype == XLSTM_BFLOAT16;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t both = weight[0].word[w];
      to[2 * w] = brain ? low_float(BFloat16{}, both) : low_float(Float16{}, both);
      to[2 * w + 1] = brain ? high_float(BFloat16{}, both) : high_float(Float16{}, both);
    }
  }
  // Item i: of row b of the batch, of a chunk of the stage.
  template <bool kGates>
  XLSTM_DEVICE void store(int stage, int chunk, int b, int i) {
    constexpr int kStepEights = kStepFeatures / kEight;
    const int k = (stage * p.stage_tiles * Shape::kTileChunks + chunk) * kChunkFeatures + own_eight() * kEight;
    const bool there = b < count && k < p.columns;
    const EightPlace at = eight_place(kFamily, Weights::kBits, own_eight() % kStepEights);
    const int step = chunk * (kChunkFeatures / kStepFeatures) + own_eight() / kStepEights;
    float y[kEight];
#pragma unroll
    for (int e = 0; e < kEight; ++e) y[e] = there ? x[i][e] : 0.0f;
    if (late()) {
      const float own = over_lanes<kRowEights>(sum_of_products(y, y));
      if (own_eight() == 0) facts.squares[b][chunk] = own;
    }
    if (p.input != Input::plain && there) {
      float by[kEight];
      norm_weights(weight[i / kEach], by);
      if (late()) {
#pragma unroll
        for (int e = 0; e < kEight; ++e) y[e] *= by[e];
      } else {
        normalise<kGates>(y, x[kGates ? i + kEights / 2 : 0], b, k, by);
      }
    }
    Piece upper, lower;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float low = y[eight_feature(Weights::kBits, 2 * w)], high = y[eight_feature(Weights::kBits, 2 * w + 1)];
      upper.word[w] = pack(E{}, low, high);
      lower.word[w] = pack(E{}, low - low_float(E{}, upper.word[w]), high - high_float(E{}, upper.word[w]));
    }
    const int unit = step * Shape::kUnits + at.unit;
    *reinterpret_cast<Piece*>(slot(unit, b / kSplit, b % kSplit, at.piece)) = upper;
    *reinterpret_cast<Piece*>(slot(unit, b / kSplit, kSplit + b % kSplit, at.piece)) = lower;
    if constexpr (Weights::kGroups) {
      const float ones[kEight] = {1, 1, 1, 1, 1, 1, 1, 1};
      const float all = over_lanes<kStepEights>(sum_of_products(y, ones));
      if (own_eight() % kStepEights == 0) step_sums(step)[b] = all;
    }
  }
  XLSTM_DEVICE static float sum_of_products(const float (&a)[kEight], const float (&b)[kEight]) {
    float sum = 0;
#pragma unroll
    for (int e = 0; e < kEight; ++e) sum = __builtin_fmaf(a[e], b[e], sum);
    return sum;
  }
  template <int kLanes>
  XLSTM_DEVICE static float over_lanes(float x) {
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  // Where a piece of a row of a strip lies.
  XLSTM_DEVICE char* slot(int unit, int strip, int row, int piece) const {
    if constexpr (kWhole)
      return memory + (unit * whole_unit_slots(kFamily) + whole_slot(kFamily, unit, row, piece)) * kSlotBytes;
    return memory +
           ((unit * Shape::kStrips + strip) * strip_slots(kFamily) + slot_in_strip(kFamily, unit, row, piece)) *
               kSlotBytes;
  }
  template <bool kHeads>
  XLSTM_DEVICE void normalise(float (&y)[kEight], const float (&gate)[kEight], int b, int k,
                              const float (&by)[kEight]) const {
    const int size = kHeads ? p.columns / p.heads : p.columns;
    int head = k / size, rest = k % size;
    const Spread* const spread = facts.spread + b * (kHeads ? p.heads : 1);
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      const Spread s = spread[head];
      y[e] = (y[e] - s.mean) * s.inverse * by[e];
      if (p.bias.data) y[e] += value_of(p.bias, k + e);
      if (kHeads) y[e] *= sigmoid_of(gate[e]);
      if (++rest == size) ++head, rest = 0;
    }
  }
};

}  // namespace xlstm::gpu
