// SPDX-License-Identifier: Apache-2.0
// The sums of a unit of gemm_mma in a wave's accumulators: dequantised weights are multiplied into them, groups are
// scaled, and the epilogue adds up the sums of the waves that split the features.
#pragma once

#include "engine/gemm_mma/gemm_mma_weights.h"

namespace xlstm::gpu::engine {

// What an epilogue stores: a unit's rows of weights, for `count` rows of the batch from `first` on.
struct EpilogueRows {
  UnitRows unit;
  int first, count;
  const float* rms_factors;  // of these rows of the batch; null without an RMS norm
};

template <class Weights, class Shape>
struct GemmSums {
  using E = BFloat16;
  using Step = WeightStep<Weights, Shape>;
  static constexpr bool kSingle = Shape::kSingle;
  static constexpr int kChains = Shape::kChains, kStrips = Shape::kStrips, kRows = kChains * kStripColumns;
  static constexpr int kSplit = Shape::kSplit, kSumRows = Shape::kSumRows, kBatch = Shape::kBatchRows;
  static constexpr int kLaneRows = Shape::kLaneRows, kColumns = Shape::kColumns, kSplitKWaves = Shape::kSplitKWaves;

  float* buffers;  // in LDS: kSumBuffers buffers for the sums of kWavesAtOnce waves
  int turn = 0;    // of the buffers
  Strip<E> sum[kChains][kStrips];

  XLSTM_DEVICE explicit GemmSums(float* lds = nullptr) : buffers(lds) {}  // null: without an epilogue

  // Sums of one group's products, scaled and added to `sum` at the end of a step; without groups, products are added to
  // `sum` at once.
  static constexpr int kPartChains = Weights::kGroups ? kChains : 1, kPartStrips = Weights::kGroups ? kStrips : 1;
  using GroupSums = Strip<E>[kPartChains][kPartStrips];
  using ChainVec16s = Vec16[kChains][Weights::kParts][kChainVec16s<E>];

  XLSTM_DEVICE void clear() {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s) sum[c][s].zero();
  }
  // The compiler would delay a unit's products until after the next step's branches, and RDNA has no registers for the
  // operands of all units.
  XLSTM_DEVICE void materialise() {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s) sum[c][s].materialise();
  }
  // The chain operands of a unit of features: this lane's weights as bfloat16.
  XLSTM_DEVICE static void dequantise_unit(const Step& step, int u, ChainVec16s& chain) {
    constexpr int kLoadVec8s = load_vec8s(Weights::kBits);
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int j = 0; j < kChainVec16s<E>; ++j) {
        const int row = kLaneRows == 1 ? 0 : j, vec8 = u * unit_vec8s(kFamily) + (kLaneRows == 1 ? j : 0);
        Vec16 parts[Weights::kParts];
        Weights::to_bfloat16(step.load[c][row][vec8 / kLoadVec8s], vec8 % kLoadVec8s, parts);
#pragma unroll
        for (int h = 0; h < Weights::kParts; ++h) chain[c][h][j] = parts[h];
      }
  }
  XLSTM_DEVICE void multiply_unit(const ChainVec16s& chain, const Vec16 (&stream)[kStreamVec16s<E>], int s,
                                  GroupSums& part) {
#pragma unroll
    for (int k = 0; k < kUnitSteps<E>; ++k) {
      const StreamOperand<E> b = stream_of<E>(stream, k);
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int h = 0; h < Weights::kParts; ++h) {
          const ChainOperand<E> a = chain_of_vec16s<E>(chain[c][h], k);
          if constexpr (Weights::kGroups)
            multiply<Shape::kHalf>(part[c][s], b, a);
          else
            multiply<Shape::kHalf>(sum[c][s], b, a);
        }
    }
  }
  // Adds a step's products of groups to the sums. x_sum(s, r, row): the sum of a step's x for register r of strip s,
  // which is of this row of the strip.
  template <class XSum>
  XLSTM_DEVICE void scale_columns_of_groups(const Step& step, const GroupFormat& groups, const GroupSums& part,
                                            XSum&& x_sum) {
    if constexpr (kSingle && kFamily == Family::cdna) return add_parts_of_any_format(step, groups, part, x_sum);
    with_dtype(groups.dtype, [&](auto element) {
      const auto number = [&](uint32_t bits) { return low_float(element, bits); };
      constexpr float kZero = Weights::kZero, kWithout = Weights::kZero - Weights::kMiddle;
      if (groups.offsets)
        add_parts<true>(step, part, x_sum, number,
                        [&](float scale, uint32_t bits) { return __builtin_fmaf(kZero, scale, number(bits)); });
      else
        add_parts<kWithout != 0>(step, part, x_sum, number, [&](float scale, uint32_t) { return kWithout * scale; });
    });
  }
  // Without a branch, which would cost the loop of a single x more than both conversions.
  template <class XSum>
  XLSTM_DEVICE void add_parts_of_any_format(const Step& step, const GroupFormat& groups, const GroupSums& part,
                                            XSum&& x_sum) {
    const auto mask_of = [](bool x) { return uint32_t(uniform(x ? -1 : 0)); };
    const uint32_t bfloat16 = mask_of(groups.dtype == XLSTM_BFLOAT16), offsets = mask_of(groups.offsets);
    constexpr float kZero = Weights::kZero, kWithout = Weights::kZero - Weights::kMiddle;
    const float zero = as_float((as_bits(kZero) & offsets) | (as_bits(kWithout) & ~offsets));
    const auto number = [&](uint32_t bits) {
      return as_float((bits << 16 & bfloat16) | (as_bits(low_float(Float16{}, bits)) & ~bfloat16));
    };
    add_parts<true>(step, part, x_sum, number, [&](float scale, uint32_t bits) {
      return __builtin_fmaf(zero, scale, as_float(as_bits(number(bits)) & offsets));
    });
  }

  // number(bits): of a scale; offset_of(scale, bits): what a step's sum of x is multiplied by, if kOffsets.
  template <bool kOffsets, class XSum, class Number, class OffsetOf>
  XLSTM_DEVICE void add_parts(const Step& step, const GroupSums& part, XSum&& x_sum, Number&& number,
                              OffsetOf&& offset_of) {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const float scale = number(step.scale[c][j]);
        const float offset = offset_of(scale, step.offset[c][j]);
#pragma unroll
        for (int s = 0; s < kStrips; ++s)
#pragma unroll
          for (int r = 0; r < Shape::kRegisters; ++r) {
            if (Columns::of(r) != j) continue;
            float& to = sum[c][s].value[r];
            to = __builtin_fmaf(scale, part[c][s].value[r], to);
            const int row = Shape::part_row(Strip<E>::position(r).row);
            const bool upper =
                kSingle ? single_part(kFamily, row) == 0 : row < kSplit;  // the offset is added to the upper parts only
            if (kOffsets && upper) to = __builtin_fmaf(offset, x_sum(s, r, row), to);
          }
      }
  }

  // ---- epilogue: adds up the sums of the waves, in their order, and stores y

  static constexpr int kOutputs = (kRows * kBatch + Shape::kThreads - 1) / Shape::kThreads;  // of a thread
  // An output of a thread: the row within the unit, and the row of the batch.
  struct Coord {
    int slot, b;
  };
  XLSTM_DEVICE static Coord output_coord(int n, bool is_swiglu) {
    const int at = Shape::thread() + n * Shape::kThreads;
    return {is_swiglu ? at % (kRows / 2) : at % kRows, is_swiglu ? at / (kRows / 2) : at / kRows};
  }

  XLSTM_DEVICE void epilogue(const GemmParams& kernel_arg, const EpilogueRows& rows) {
    constexpr int kWavesAtOnce = Shape::kWavesAtOnce;
    const GemmParams& p = *reload_params(&kernel_arg);
    const bool is_swiglu = p.output == Output::swiglu;
    float total[2][kOutputs][2] = {};  // of the linear, and of SwiGLU's up linear; upper and lower parts
#pragma unroll 1
    for (int wave = 0; wave < kSplitKWaves; wave += kWavesAtOnce) {
      float* const buffer = buffers + turn * (kWavesAtOnce * kSumRows * kRows);
      if (Shape::kSumBuffers == 2) turn ^= 1;
      if (Shape::k_wave() >= wave && Shape::k_wave() < wave + kWavesAtOnce)
        store_wave_sums(buffer + (Shape::k_wave() - wave) * (kSumRows * kRows));
      __syncthreads();
      add_wave_sums(buffer, rows.count, is_swiglu, total);
      if (Shape::kSumBuffers == 1) __syncthreads();
    }
    store_outputs(p, rows, is_swiglu, total);
  }
  XLSTM_DEVICE void store_wave_sums(float* wave_sums) const {
    if constexpr (Shape::kLaneSharded) {
      const int row = Shape::row_of_column(Shape::shard_column());
      if (lane_in_row(kFamily, lane_id()) < Shape::kShardColumns)
        wave_sums[row] = sum[0][0].value[0], wave_sums[kRows + row] = sum[0][0].value[1];
    }
#pragma unroll
    for (int c = 0; c < (Shape::kLaneSharded ? 0 : kChains); ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int r = 0; r < Shape::kRegisters; ++r) {
          const StripPosition at = Strip<E>::position(r);
          const int part = single_part(kFamily, at.row),
                    row = kSingle ? part : Shape::first_sum_row() + s * 2 * kSplit + Shape::part_row(at.row);
          if (!kSingle || at.row == single_row(kFamily, part))
            wave_sums[row * kRows + c * kStripColumns + at.column] = sum[c][s].value[r];
        }
  }
  XLSTM_DEVICE void add_wave_sums(const float* buffer, int count, bool is_swiglu,
                                  float (&total)[2][kOutputs][2]) const {
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      const auto [slot, b] = output_coord(n, is_swiglu);
      if (b >= count) continue;
      const int row = kSingle ? 0 : b / kSplit * (2 * kSplit) + b % kSplit;
#pragma unroll
      for (int w = 0; w < Shape::kWavesAtOnce; ++w)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const float* const from = buffer + ((w * kSumRows) + row + part * (kSingle ? 1 : kSplit)) * kRows + slot;
          total[0][n][part] += from[0];
          if (is_swiglu) total[1][n][part] += from[kRows / 2];
        }
    }
  }
  XLSTM_DEVICE void store_outputs(const GemmParams& p, const EpilogueRows& rows, bool is_swiglu,
                                  const float (&total)[2][kOutputs][2]) const {
#pragma unroll
    for (int n = 0; n < kOutputs; ++n) {
      const Coord at = output_coord(n, is_swiglu);
      const int b = at.b, row = rows.unit.first + at.slot;
      if (b >= rows.count || row >= p.linear[rows.unit.linear].rows) continue;
      const float factor = rows.rms_factors ? rows.rms_factors[b] : 1.0f;
      const auto linear_output = [&](int linear, const float(&parts)[2]) {
        const DeviceLinear& w = p.linear[linear];
        const float y = (parts[0] + parts[1]) * factor;
        return w.bias.data ? y + value_of(w.bias, row) : y;
      };
      const float y = linear_output(rows.unit.linear, total[0][n]);
      const float output = is_swiglu ? swiglu(y, linear_output(1, total[1][n])) : y;
      store_output(p, p.output, rows.unit.linear, row, rows.first + b, output);
    }
  }
};

}  // namespace xlstm::gpu::engine
