// SPDX-License-Identifier: Apache-2.0
// Which rows of weights a unit of a product on matrix units is, and where a lane reads them.
#pragma once

#include "engine/gemm_mma/gemm_mma_inputs.h"

namespace xlstm::gpu::engine {

// The weights of a unit: kRows of a piece, or half of them of each of the first two.
struct UnitRows {
  int piece, first;
};
// Pieces are of two kinds: quantised, and gates that stayed as they were beside such.
XLSTM_DEVICE bool of_kind(const DeviceLinear& w, bool quantised) { return (w.bits != 0) == quantised; }
template <int kRows>
XLSTM_DEVICE int units_of(const ProductParams& p, bool quantised) {
  if (p.output == Output::swiglu) return (p.linear[0].rows + kRows / 2 - 1) / (kRows / 2);
  int units = 0;
  for (int piece = 0; piece < p.pieces; ++piece)
    if (of_kind(p.linear[piece], quantised)) units += (p.linear[piece].rows + kRows - 1) / kRows;
  return units;
}
template <int kRows>
XLSTM_DEVICE UnitRows rows_of_unit(const ProductParams& p, bool quantised, int unit) {
  if (p.output == Output::swiglu) return {0, unit * (kRows / 2)};
  int piece = 0, last = 0;
  for (; piece < p.pieces; ++piece) {
    if (!of_kind(p.linear[piece], quantised)) continue;
    const int units = (p.linear[piece].rows + kRows - 1) / kRows;
    last = piece;
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
  static constexpr bool kGroups = Weights::kGroups && !Shape::kRing;  // those of a ring are the block's

  UnitRows unit;
  uint32_t from[kChains][kLaneRows];  // bytes from the weights' begin to a lane's first
  uint32_t groups_at[kGroups ? kChains : 1][kColumns];

  // Where a row of a unit is: beyond a piece's last, the last again.
  struct Place {
    int piece, row;
  };
  XLSTM_DEVICE static Place slot_vec16(const ProductParams& p, const UnitRows& unit, int slot) {
    const bool both = p.output == Output::swiglu;
    const int of = both ? slot / (kRows / 2) : unit.piece, row = unit.first + (both ? slot % (kRows / 2) : slot);
    const int rows = p.linear[of].rows;
    return {of, row < rows ? row : rows - 1};
  }
  XLSTM_DEVICE static LaneRows at(const ProductParams& given, int unit) {
    const ProductParams& p = *reload_params(&given);
    LaneRows rows;
    rows.unit = rows_of_unit<kRows>(p, Weights::kGroups, unit);
    const int lane = lane_id();
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int slot = c * kStripColumns;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const Place row = slot_vec16(p, rows.unit, slot + row_of_lane(kFamily, lane, j));
        const DeviceLinear& w = p.linear[row.piece];
        const int first_load = wave_id() * Shape::kStepBytes + load_offset(kFamily, Weights::kBits, lane, 0);
        rows.from[c][j] = opaque(uint32_t(row.row) * uint32_t(w.row_bytes) + uint32_t(first_load));
      }
      if constexpr (kGroups)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const Place row = slot_vec16(p, rows.unit, slot + Columns::position(j));
          rows.groups_at[c][j] = opaque(uint32_t(row.row) * uint32_t(p.linear[row.piece].groups));
        }
    }
    return rows;
  }

  // The piece that a chain's rows are of: the same in every lane.
  XLSTM_DEVICE const DeviceLinear& linear_of(const ProductParams& p, int chain) const {
    const bool second = p.output == Output::swiglu && chain * kStripColumns >= kRows / 2;
    return p.linear[second ? 1 : unit.piece];
  }
  // f(chain, row of the lane, load, base, bytes from it) for each load of a tile's step.
  template <class F>
  XLSTM_DEVICE void each_load(const ProductParams& p, int tile, F&& f) const {
    constexpr int kTileBytes = Shape::kAlong * Shape::kStepBytes;
    const DeviceLinear& w = p.linear[unit.piece];
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
          if (!all) {  // what lies beyond the columns is met by zeros: the row's first weights stand in for it
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
