// SPDX-License-Identifier: Apache-2.0
// The shape of gemm_batch_kernel, and x on its way to its matrix instructions: up to 8 rows of floats, which each wave
// splits itself.
#pragma once

#include "arch/row_halves.h"
#include "arch/unrolled.h"
#include "engine/gemm_mma/gemm_mma_sums.h"

namespace xlstm::gpu::engine {

// kSets: the sums of each output, to which steps of features are added in turn; with 1 a block has every fourth step.
template <class Weights, int kSets>
struct GemmBatchShape {
  static constexpr bool kSingle = false, kHalf = true, kRing = false, kLaneSharded = false;
  static constexpr int kBatchRows = kMostBatchRows, kThreads = kWave, kSumRows = 2 * kBatchRows;
  static constexpr int kChains = kBatchChains, kSplit = kBatchRows, kStrips = 1, kRegisters = 4;
  static constexpr int kLaneRows = lane_rows(kFamily), kLoads = lane_loads(kFamily, Weights::kBits);
  static constexpr int kColumns = Columns::kEach, kOrderOfSets = kSets;
  static constexpr int kSplitKWaves = kBatchShards / kSets, kTileFeatures = kSplitKWaves * kStepFeatures;
  static constexpr int kUnits = kStepFeatures / unit_features(kFamily, 2);
  static constexpr int kStepBytes = kStepFeatures * Weights::kBits / 8;

  XLSTM_DEVICE static int k_wave() { return kSets == 1 ? int(blockIdx.x) % 8 / (8 / kBatchShards) : 0; }
  // Of the unit's rows: the wave's first.
  XLSTM_DEVICE static int first_row(const GemmParams& p) { return uniform(wave_id() * p.wave_rows); }
  XLSTM_DEVICE static int unit_rows(const GemmParams& p) { return p.unit_rows; }
  // The row that a slot of the wave loads: past its last row, the last row again.
  XLSTM_DEVICE static int row_in_unit(const GemmParams& p, int slot) {
    const int row = first_row(p) + (slot < p.wave_rows ? slot : p.wave_rows - 1);
    return row < p.unit_rows ? row : p.unit_rows - 1;
  }
  // The row of x's parts that a strip's row is: of half a strip, the row of its matrix instruction.
  static constexpr int part_row(int row) { return row / 8 * 4 + row % 4; }
};

// ---- x
//
// The 16 rows of a matrix instruction are the 8 rows' upper parts, then their lower parts, so two lanes have the same 8
// features of a row. Each of the two loads and splits four of them, and gives the other lane the parts that this one
// multiplies. Sums over features have the order of GemmMmaInputs, whose threads have 8 features each: four by four in
// one lane, then the other, which then has the sum.

// A norm's weights as floats in LDS; ones without a norm, zeros past the columns.
XLSTM_DEVICE void load_norm_weights(const GemmParams& p, float* to) {
  constexpr int kAtOnce = 4;
  const int vec8s = packed_steps(kFamily, p.columns) * (kStepFeatures / kVec8);
  const bool normed = p.input == Input::rms;
#pragma unroll 1
  for (int first = int(threadIdx.x); first < vec8s; first += int(blockDim.x) * kAtOnce) {
    NormVec8 weights[kAtOnce];
    if (normed)
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int k = (first + n * int(blockDim.x)) * kVec8;
        weights[n].fetch(p.weight, k < p.columns ? k : 0);
      }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int v = first + n * int(blockDim.x);
      if (v >= vec8s) continue;
      float y[kVec8];
#pragma unroll
      for (float& value : y) value = v * kVec8 < p.columns ? 1.0f : 0.0f;
      if (normed) weights[n].multiply(p.weight.dtype, y);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<Vec16*>(to + v * kVec8 + 4 * h) = {
            {as_bits(y[4 * h]), as_bits(y[4 * h + 1]), as_bits(y[4 * h + 2]), as_bits(y[4 * h + 3])}};
    }
  }
}

template <class Weights, class Shape>
struct FloatInputs {
  using E = BFloat16;
  static constexpr int kUnits = Shape::kUnits, kSets = Shape::kOrderOfSets, kRows = 8, kBits = Weights::kBits;
  static constexpr bool kNormed = kSets > 1;  // or the norm's weights are ones

  struct Step {
    Vec16 x[kUnits];  // four features
  };
  struct Operands {
    Vec16 x[kUnits];
    float sums[4];

    XLSTM_DEVICE void read(int u, int, Vec16 (&stream)[kStreamVec16s<E>]) const { stream[0] = x[u]; }
    XLSTM_DEVICE float sum(int, int r) const { return sums[r]; }
  };

  const char* x;
  const float* weights;  // of the norm, in LDS
  int columns;
  bool normed, second;  // second: of the two lanes that have the same features
  uint32_t lane_at;     // bytes from a step's first feature in the first row to this lane's
  int vec8[kUnits];     // of a step
  float norm_eps;
  float square_sum = 0, square_pair = 0, square_pairs = 0;
  float pending[kUnits] =
      {};  // squares of the step before, whose way to other lanes takes as long as a step's products
  Vec16 norm_weights[kUnits];  // of the next step

  XLSTM_DEVICE FloatInputs(const GemmParams& p, const float* norm_weights)
      : weights(norm_weights), columns(p.columns), normed(p.input == Input::rms), norm_eps(p.norm_eps) {
    const int lane = lane_id(), row = lane % kRows, last = p.batch - 1;
    second = lane % 16 >= kRows;
    x = reinterpret_cast<const char*>(p.x);
    lane_at = uint32_t((row < last ? row : last) * columns + (second ? 4 : 0)) * 4;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) vec8[u] = vec8_at(kBits, u, lane / 16);
  }
  // The norm's weights are in LDS.
  XLSTM_DEVICE void begin() {
    if constexpr (!kNormed) return;
    __syncthreads();
    fetch_norm_weights(0);
  }
  XLSTM_DEVICE void fetch_norm_weights(int step) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
      norm_weights[u] = read_vec16(weights + step * kStepFeatures + vec8[u] * kVec8 + (second ? 4 : 0));
  }
  XLSTM_DEVICE void fetch(Step& to, int step) const {
    const char* const from = x + int64_t(step) * (kStepFeatures * 4);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) to.x[u] = load_vec16(from, lane_at + uint32_t(vec8[u] * (kVec8 * 4)));
  }
  // A step that reaches beyond the columns: zeros there.
  XLSTM_DEVICE void fetch_last(Step& to, int step) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int k = step * kStepFeatures + vec8[u] * kVec8;
      const Vec16 loaded = load_vec16(x, lane_at + uint32_t(k < columns ? k : 0) * 4);
#pragma unroll
      for (int w = 0; w < 4; ++w) to.x[u].word[w] = k < columns ? loaded.word[w] : 0;
    }
  }

  // A step's x as operands; adds its squares, of the chunk's step kSet.
  template <int kSet>
  XLSTM_DEVICE Operands operands(const Step& step, int at) {
    Operands of;
    float squares[kUnits], sums[kUnits];
    if constexpr (kNormed) add_pending<kSet>();
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      // Opaque: the compiler would join floats of two vectors, or of two steps, in registers side by side, and so wait
      // for all loads at the loop's end.
      Vec16 loaded = step.x[u];
      arrive_at(loaded);
      float y[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) y[e] = as_float(loaded.word[e]);
      if constexpr (kNormed) {
        squares[u] = sum_of_eight([&](float sum) {
#pragma unroll
          for (int e = 0; e < 4; ++e) sum = __builtin_fmaf(y[e], y[e], sum);
          return sum;
        });
        // Opaque: one instruction that multiplies and subtracts the upper part would not round as elsewhere.
#pragma unroll
        for (int e = 0; e < 4; ++e) loaded.word[e] = as_bits(y[e] * as_float(norm_weights[u].word[e]));
        arrive_at(loaded);
#pragma unroll
        for (int e = 0; e < 4; ++e) y[e] = as_float(loaded.word[e]);
      }
      uint32_t upper[2], lower[2];
#pragma unroll
      for (int w = 0; w < 2; ++w)
        split_bfloat16(y[vec8_feature(kBits, 2 * w)], y[vec8_feature(kBits, 2 * w + 1)], upper[w], lower[w]);
      if constexpr (Weights::kGroups)
        sums[u] = sum_of_eight([&](float sum) {
#pragma unroll
          for (int w = 0; w < 2; ++w)
            sum += (low_float(E{}, upper[w]) + low_float(E{}, lower[w])) +
                   (high_float(E{}, upper[w]) + high_float(E{}, lower[w]));
          return sum;
        });
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const uint32_t others = exchange_halves_of_row(second ? upper[w] : lower[w]);
        of.x[u].word[w] = second ? others : upper[w];
        of.x[u].word[2 + w] = second ? lower[w] : others;
      }
    }
    if constexpr (kNormed) {
      fetch_norm_weights(at + 1);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) pending[u] = as_float(opaque(as_bits(squares[u])));
    }
    if constexpr (Weights::kGroups) {
      const float sum = sum_of_step(sums);
#pragma unroll
      for (int r = 0; r < 4; ++r) of.sums[r] = shuffle_from(sum, kRows + (lane_id() / 16 * 4 + r) % kRows, kWave);
    }
    return of;
  }
  // add(sum) adds this lane's four features to a sum. The result of all eight is in the second lane.
  template <class Add>
  XLSTM_DEVICE static float sum_of_eight(Add&& add) {
    return add(as_float(exchange_halves_of_row(as_bits(add(0.0f)))));
  }
  // Over a step's eight vec8s, neighbours first: which lanes and units have neighbours depends on the format.
  XLSTM_DEVICE static float sum_of_step(float (&of)[kUnits]) {
    static_assert(kUnits == 2);
    if constexpr (kBits == 8) return over_lanes<32>(over_lanes<16>(of[0] + of[1]));
    if constexpr (kBits == 4) return over_lanes<32>(over_lanes<16>(of[0]) + over_lanes<16>(of[1]));
    return over_lanes<32>(over_lanes<16>(of[0])) + over_lanes<32>(over_lanes<16>(of[1]));
  }
  template <int kMask>
  XLSTM_DEVICE static float over_lanes(float x) {
    return x + shuffle_xor(x, kMask);
  }
  // Four steps are a chunk, whose sum is that of two pairs.
  template <int kSet>
  XLSTM_DEVICE void add_squares(float step) {
    if constexpr (kSet == 0) square_pair = step;
    if constexpr (kSet == 1) square_pairs = square_pair + step;
    if constexpr (kSet == 2) square_pair = step;
    if constexpr (kSet == 3) square_sum += square_pairs + (square_pair + step);
  }
  // Of the step before that with kSet.
  template <int kSet>
  XLSTM_DEVICE void add_pending() {
    add_squares<(kSet + kSets - 1) % kSets>(sum_of_step(pending));
  }
  // A step of the last chunk that lies beyond the columns.
  template <int kSet>
  XLSTM_DEVICE void skip() {
    if constexpr (!kNormed) return;
    add_pending<kSet>();
#pragma unroll
    for (float& square : pending) square = 0;
  }
  // Behind the last step.
  XLSTM_DEVICE void end() {
    if constexpr (kNormed) add_pending<0>();
  }
  XLSTM_DEVICE float factor(int b) const {
    if constexpr (!kNormed) return 1.0f;
    const float of_row = 1 / __builtin_sqrtf(square_sum / float(columns) + norm_eps);
    return shuffle_from(normed ? of_row : 1.0f, kRows + b, kWave);
  }
};

}  // namespace xlstm::gpu::engine
