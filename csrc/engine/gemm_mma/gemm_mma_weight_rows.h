// SPDX-License-Identifier: Apache-2.0
// The units of work of gemm_mma: which rows of which linear a unit has, and the bytes where a lane reads them.
#pragma once

#include "engine/gemm_mma/gemm_mma_inputs.h"

namespace xlstm::gpu::engine {

// A unit: kRows rows of a linear, or half as many of each of the first two (SwiGLU).
struct UnitRows {
  int linear, first;
};
// A launch's linears are of two kinds: quantised, and gates that stayed bfloat16.
XLSTM_DEVICE bool matches_kind(const DeviceLinear& w, bool quantised) { return (w.bits != 0) == quantised; }
template <int kRows>
XLSTM_DEVICE int units_of(const GemmParams& p, bool quantised) {
  if (p.output == Output::swiglu) return (p.linear[0].rows + kRows / 2 - 1) / (kRows / 2);
  int units = 0;
  for (int linear = 0; linear < p.linear_count; ++linear)
    if (matches_kind(p.linear[linear], quantised)) units += (p.linear[linear].rows + kRows - 1) / kRows;
  return units;
}
template <int kRows>
XLSTM_DEVICE UnitRows rows_of_unit(const GemmParams& p, bool quantised, int unit) {
  if (p.output == Output::swiglu) return {0, unit * (kRows / 2)};
  int linear = 0, last = 0;
  for (; linear < p.linear_count; ++linear) {
    if (!matches_kind(p.linear[linear], quantised)) continue;
    const int units = (p.linear[linear].rows + kRows - 1) / kRows;
    last = linear;
    if (unit < units) break;
    unit -= units;
  }
  return {last, unit * kRows};
}

// A unit's rows, and where this lane reads them.
template <class Weights, class Shape>
struct LaneRows {
  static constexpr int kChains = Shape::kChains, kRows = kChains * kStripColumns;
  static constexpr int kLaneRows = Shape::kLaneRows, kColumns = Shape::kColumns;
  static constexpr bool kGroups = Weights::kGroups && !Shape::kRing;  // a ring's scales and offsets belong to the block

  UnitRows unit;
  uint32_t from[kChains][kLaneRows];  // bytes from the beginning of the weights to the lane's first load
  uint32_t groups_at[kGroups ? kChains : 1][kColumns];

  // The linear and row of one of a unit's slots for rows; past the last row, the last row again.
  struct RowCoord {
    int linear, row;
  };
  XLSTM_DEVICE static RowCoord row_of_slot(const GemmParams& p, const UnitRows& unit, int slot) {
    const bool is_swiglu = p.output == Output::swiglu;
    const int of = is_swiglu ? slot / (kRows / 2) : unit.linear,
              row = unit.first + (is_swiglu ? slot % (kRows / 2) : slot);
    const int rows = p.linear[of].rows;
    return {of, row < rows ? row : rows - 1};
  }
  XLSTM_DEVICE static LaneRows at(const GemmParams& kernel_arg, int unit) {
    const GemmParams& p = *reload_params(&kernel_arg);
    LaneRows rows;
    rows.unit = rows_of_unit<kRows>(p, Weights::kGroups, unit);
    const int lane = lane_id();
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int slot = c * kStripColumns;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const RowCoord row = row_of_slot(p, rows.unit, slot + row_of_lane(kFamily, lane, j));
        const DeviceLinear& w = p.linear[row.linear];
        const int first_load = wave_id() * Shape::kStepBytes + load_offset(kFamily, Weights::kBits, lane, 0);
        rows.from[c][j] = opaque(uint32_t(row.row) * uint32_t(w.row_bytes) + uint32_t(first_load));
      }
      if constexpr (kGroups)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const RowCoord row = row_of_slot(p, rows.unit, slot + Columns::position(j));
          rows.groups_at[c][j] = opaque(uint32_t(row.row) * uint32_t(p.linear[row.linear].groups));
        }
    }
    return rows;
  }

  // The linear that a chain's rows are of: uniform across the wave.
  XLSTM_DEVICE const DeviceLinear& linear_of(const GemmParams& p, int chain) const {
    const bool second = p.output == Output::swiglu && chain * kStripColumns >= kRows / 2;
    return p.linear[second ? 1 : unit.linear];
  }
  // Calls f(chain, row of the lane, load, base, bytes from base) for each load of a tile's step.
  template <class F>
  XLSTM_DEVICE void for_each_load(const GemmParams& p, int tile, F&& f) const {
    constexpr int kTileBytes = Shape::kSplitKWaves * Shape::kStepBytes;
    const DeviceLinear& w = p.linear[unit.linear];
    const bool all = (tile + 1) * Shape::kTileFeatures <= p.columns;
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const char* const base = static_cast<const char*>(linear_of(p, c).data);
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j)
#pragma unroll
        for (int l = 0; l < Shape::kLoads; ++l) {
          constexpr int kNext = load_offset(kFamily, Weights::kBits, 0, 1);
          uint32_t at = from[c][j] + uint32_t(tile * kTileBytes + l * kNext);
          if (!all) {  // x is zero past the columns: the row's first weights are read instead
            const int first = wave_id() * Shape::kStepBytes + load_offset(kFamily, Weights::kBits, lane_id(), 0);
            const bool inside = first + tile * kTileBytes + l * kNext < int(w.row_bytes);
            at = inside ? at : from[c][j] - uint32_t(first);
          }
          f(c, j, l, base, at);
        }
    }
  }
};

}  // namespace xlstm::gpu::engine
