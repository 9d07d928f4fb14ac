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
  static constexpr bool kWhole = kBatch == 1;  // x lies in LDS as a whole, and waves wait for nobody
  static constexpr int kChains = chains(kFamily, kRows), kStrips = matrix_strips(kFamily, kBatch);
  static constexpr int kSplit = split_rows(kFamily), kSides = 2 * kSplit * kStrips;  // rows of strips
  static constexpr int kLaneRows = lane_rows(kFamily), kLoads = lane_loads(kFamily, Weights::kBits);
  static constexpr int kColumns = Columns::kEach;
  static constexpr int kTileBytes = kTileFeatures * 2 * kBatch * 2;
  static constexpr int kBuffers = kTileBytes <= 8 << 10 ? 2 : 1;
  // Weights on their way to a lane, in registers: steps ahead.
  // AMD's waves of 64 have twice the bytes, and RDNA's operands are held twice.
  static constexpr bool kFew = kRows > 32 || kFamily == Family::rdna || (Weights::kGroups && kFamily == Family::cdna);
  static constexpr int kHeld = kFew ? 32 : 64;
  static constexpr int kStepWords =
      kChains * (kLaneRows * kLoads * int(sizeof(typename Weights::Load)) / 4 + (Weights::kGroups ? 2 * kColumns : 0));
  static constexpr int kFit = kHeld / kStepWords;
  static constexpr int kDepth = kFit >= 8 ? 8 : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  static constexpr int kRowEights = kTileFeatures / kEight;
  static constexpr int kEach = kWhole ? 1 : kBatch / (kProductThreads / kRowEights);  // eights of x's of a thread
  static constexpr int kTileSteps = kTileFeatures / kStepFeatures, kUnits = tile_units(kFamily) / kTileSteps;
  static constexpr int kStepBytes = kStepFeatures * Weights::kBits / 8;  // of a row
  static constexpr int kMostTiles = kWhole ? kMostWholeFeatures / kTileFeatures : 1;

  struct Memory {
    alignas(16) char tile[kWhole ? 16 : kBuffers * kTileBytes];
    float sums[kWhole ? 1 : kBuffers][Weights::kGroups ? kMostTiles * kTileSteps : 1][kWhole ? 1 : kSides];  // of steps
    float squares[kMostTiles];
    Spread spread[kBatch * kMostMatrixHeads];
  };
  static_assert(kWhole || kRows * kSides * 4 <= kBuffers * kTileBytes);
};

template <class Weights, class Shape>
struct MatrixInputs {
  using E = BFloat16;
  static constexpr bool kWhole = Shape::kWhole;
  static constexpr int kEach = Shape::kEach, kRowEights = Shape::kRowEights, kSplit = Shape::kSplit;

  const ProductParams& p;
  typename Shape::Memory& facts;
  char* memory;      // x's; in the end sums
  int first, count;  // rows of the batch
  float x[kEach][kEight], gate[kEach][kEight], squares[kEach];

  XLSTM_DEVICE MatrixInputs(const ProductParams& params, typename Shape::Memory& lds, char* whole, int first_row,
                            int rows)
      : p(params), facts(lds), memory(kWhole ? whole : lds.tile), first(first_row), count(rows) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) squares[j] = 0;
  }

  // An RMS norm is then a factor of sums.
  XLSTM_DEVICE bool late() const { return p.input == Input::rms && !p.bias.data; }
  XLSTM_DEVICE void measure_rows() const {
    constexpr int kTogether = kWhole ? 1 : 4;
    if (p.input == Input::heads)
      measure<Input::heads, kTogether>(p, first, count, facts.spread);
    else if (p.input == Input::rms && !late())
      measure<Input::rms, kTogether>(p, first, count, facts.spread);
    if (!late()) __syncthreads();
  }
  // The factor of each row, where norms are late.
  XLSTM_DEVICE float* inverses() const { return &facts.spread[0].mean; }
  XLSTM_DEVICE void make_inverses() const {
    if (!late() || own_eight() != 0 || (kWhole && threadIdx.x != 0)) return;
    for (int j = 0; j < kEach; ++j) {
      float x = squares[j];
      if constexpr (kWhole)
        for (int tile = 0; tile < tiles_of(p.columns); ++tile) x += facts.squares[tile];
      inverses()[own_row(j)] = 1 / __builtin_sqrtf(x / float(p.columns) + p.norm_eps);
    }
  }
  // The sums of a step's x's.
  XLSTM_DEVICE const float* step_sums(int buffer, int step) const { return facts.sums[buffer][step]; }

  XLSTM_DEVICE static int own_eight() { return int(threadIdx.x) % kRowEights; }
  XLSTM_DEVICE static int own_row(int j) {
    return kWhole ? 0 : int(threadIdx.x) / kRowEights + j * (kProductThreads / kRowEights);
  }
  XLSTM_DEVICE static void read_eight(const float* from, float (&to)[kEight]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Piece four = read_piece(from + 4 * h);
#pragma unroll
      for (int e = 0; e < 4; ++e) to[4 * h + e] = as_float(four.word[e]);
    }
  }
  XLSTM_DEVICE static void read_eight(const DeviceVector& from, int k, float (&to)[kEight]) {
    if (from.dtype == XLSTM_FLOAT32) return read_eight(static_cast<const float*>(from.data) + k, to);
    const Piece eight = read_piece(static_cast<const uint16_t*>(from.data) + k);
    const bool brain = from.dtype == XLSTM_BFLOAT16;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      to[2 * w] = brain ? low_float(BFloat16{}, eight.word[w]) : low_float(Float16{}, eight.word[w]);
      to[2 * w + 1] = brain ? high_float(BFloat16{}, eight.word[w]) : high_float(Float16{}, eight.word[w]);
    }
  }
  XLSTM_DEVICE void fetch(int tile) {
    const int k = tile * kTileFeatures + own_eight() * kEight;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const bool there = own_row(j) < count && k < p.columns;
      const int64_t at = there ? int64_t(first + own_row(j)) * p.columns + k : 0;
      read_eight(p.x + at, x[j]);
      if (p.input == Input::heads) read_eight(p.gate + at, gate[j]);
    }
  }
  XLSTM_DEVICE void store(int tile, int buffer) {
    constexpr int kStepEights = kStepFeatures / kEight;
    const int k = tile * kTileFeatures + own_eight() * kEight;
    const bool inside = k < p.columns;
    float weight[kEight];
    if (p.input != Input::plain && inside) read_eight(p.weight, k, weight);
    const EightPlace at = eight_place(kFamily, Weights::kBits, own_eight() % kStepEights);
    const int step = (kWhole ? tile * Shape::kTileSteps : 0) + own_eight() / kStepEights,
              unit = step * Shape::kUnits + at.unit;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int b = own_row(j);
      float y[kEight];
#pragma unroll
      for (int e = 0; e < kEight; ++e) y[e] = b < count && inside ? x[j][e] : 0.0f;
      if (late()) {
        const float own = over_lanes<kRowEights>(sum_of_products(y, y));
        if constexpr (kWhole)
          facts.squares[tile] = own;
        else
          squares[j] += own;
      }
      if (p.input != Input::plain && b < count && inside) {
        if (late()) {
#pragma unroll
          for (int e = 0; e < kEight; ++e) y[e] *= weight[e];
        } else {
          normalise(y, gate[j], b, k, weight);
        }
      }
      Piece upper, lower;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float low = y[eight_feature(Weights::kBits, 2 * w)], high = y[eight_feature(Weights::kBits, 2 * w + 1)];
        upper.word[w] = pack(E{}, low, high);
        lower.word[w] = pack(E{}, low - low_float(E{}, upper.word[w]), high - high_float(E{}, upper.word[w]));
      }
      *reinterpret_cast<Piece*>(slot(buffer, unit, b / kSplit, b % kSplit, at.piece)) = upper;
      *reinterpret_cast<Piece*>(slot(buffer, unit, b / kSplit, kSplit + b % kSplit, at.piece)) = lower;
      if constexpr (Weights::kGroups) {
        const float ones[kEight] = {1, 1, 1, 1, 1, 1, 1, 1};
        const float all = over_lanes<kStepEights>(sum_of_products(y, ones));
        float* const to = facts.sums[buffer][step];
        if constexpr (kWhole)
          to[0] = all;
        else
          to[b / kSplit * (2 * kSplit) + b % kSplit] = all;
      }
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
  XLSTM_DEVICE char* slot(int buffer, int unit, int strip, int row, int piece) const {
    if constexpr (kWhole)
      return memory + (unit * whole_unit_slots(kFamily) + whole_slot(kFamily, row, piece)) * kSlotBytes;
    return memory + buffer * Shape::kTileBytes +
           ((unit * Shape::kStrips + strip) * strip_slots(kFamily) + slot_in_strip(kFamily, row, piece)) * kSlotBytes;
  }
  XLSTM_DEVICE void normalise(float (&y)[kEight], const float (&gate)[kEight], int b, int k,
                              const float (&weight)[kEight]) const {
    const bool heads = p.input == Input::heads;
    const int size = heads ? p.columns / p.heads : p.columns;
    int head = k / size, rest = k % size;
    const Spread* const spread = facts.spread + b * (heads ? p.heads : 1);
#pragma unroll
    for (int e = 0; e < kEight; ++e) {
      const Spread s = spread[head];
      y[e] = (y[e] - s.mean) * s.inverse * weight[e];
      if (p.bias.data) y[e] += value_of(p.bias, k + e);
      if (heads) y[e] *= sigmoid_of(gate[e]);
      if (++rest == size) ++head, rest = 0;
    }
  }
};

}  // namespace xlstm::gpu
