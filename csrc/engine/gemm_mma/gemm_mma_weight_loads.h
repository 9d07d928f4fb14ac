// SPDX-License-Identifier: Apache-2.0
// A lane's weights on their way from memory, steps ahead of their use: held in registers, or in a ring in LDS with the
// scales and offsets of whole units beside it (arch/nvidia/cp_async_ring.h says who has which).
#pragma once

#include "arch/nvidia/cp_async_ring.h"
#include "engine/gemm_mma/gemm_mma_weight_rows.h"

namespace xlstm::gpu::engine {

// How scales and offsets of a piece's groups lie in memory, if there are any.
struct GroupKind {
  xlstm_dtype dtype;
  bool offsets;

  XLSTM_DEVICE static GroupKind of(const DeviceLinear& w) { return {w.dtype, w.offsets != nullptr}; }
};

// What a lane multiplies at a time: kStepFeatures of its rows.
template <class Weights, class Shape>
struct MatrixStep {
  static constexpr int kChains = Shape::kChains, kColumns = Shape::kColumns;

  typename Weights::Load load[kChains][Shape::kLaneRows][Shape::kLoads];
  uint32_t scale[Weights::kGroups ? kChains : 1][kColumns], offset[Weights::kGroups ? kChains : 1][kColumns];

  // The group that a wave's features of a tile are of.
  XLSTM_DEVICE static int group_of(const DeviceLinear& w, int tile) {
    const int group = (tile * Shape::kAlong + wave_id()) >> (w.group_size > kStepFeatures ? 1 : 0);
    return group < w.groups ? group : 0;
  }
  XLSTM_DEVICE void fetch(const ProductParams& p, const LaneRows<Weights, Shape>& rows, int tile) {
    rows.each_load(p, tile, [&](int c, int j, int l, const char* base, uint32_t at) {
      if constexpr (sizeof(load[c][j][l]) == 16)
        load[c][j][l] = load_vec16(base, at);
      else
        load[c][j][l] =
            __builtin_bit_cast(typename Weights::Load, *reinterpret_cast<const uint64_t*>(global(base) + at));
    });
    if constexpr (Weights::kGroups) {
      const DeviceLinear& w = p.linear[rows.unit.piece];
      const int group = group_of(w, tile);
      with_dtype(w.dtype, [&](auto element) {
        using T = decltype(element);
#pragma unroll
        for (int c = 0; c < kChains; ++c)
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            const DeviceLinear& of = rows.linear_of(p, c);
            const uint32_t at = rows.groups_at[c][j] + uint32_t(group);
            scale[c][j] = element_bits(global(static_cast<const T*>(of.scales))[at]);
            if (of.offsets) offset[c][j] = element_bits(global(static_cast<const T*>(of.offsets))[at]);
          }
      });
    }
  }
};

// Steps of one unit after another, kDepth of them on their way to LDS.
template <class Weights, class Shape, int kDepth>
struct MatrixRing {
  using Load = typename Weights::Load;
  static constexpr int kChains = Shape::kChains, kLaneRows = Shape::kLaneRows, kLoads = Shape::kLoads;
  static constexpr int kRows = kChains * kStripColumns, kTileBytes = Shape::kAlong * Shape::kStepBytes;
  static constexpr int kLag = kDepth - 1 < 7 ? kDepth - 1 : 7;  // steps that may be late where a unit ends
  using Places = CpAsyncRing<Shape::kStepBytes, kRows, kDepth, kMatrixThreads>;
  static constexpr int kRowsPerLoad = Places::kRowsPerLoad, kFetches = Places::kFetches;
  static constexpr int kSides = kFetches > 1 ? 2 : 1, kSideFetches = kFetches / kSides;

  const ProductParams& p;
  Places places;
  char* groups;  // of two units, scales and offsets
  int tiles, units, stride;
  // Of the step that is fetched next: which it is, where this lane's piece of either half of the unit's rows is, how
  // many rows there are from there, how far it is to the next one that this lane brings, and what is left of a row.
  int unit, tile, left, distance;
  const char* side[kSides];
  int rows[kSides];
  int place = 0;  // of the step that is multiplied next, and then of the one fetched in its stead
  // Of the unit that is multiplied: where its groups are, where this lane's first scale is and how far it is from there
  // to the next step's, the next row's and the offset.
  int turn = 0;
  GroupKind kind{};
  int step_distance, row_distance, offset_distance;
  const char *scales, *last_scale;

  XLSTM_DEVICE MatrixRing(const ProductParams& params, char* lds, int first, int end, int step)
      : p(params),
        places(lds),
        groups(lds + Places::kBytes),
        tiles(tiles_of(kFamily, params.columns)),
        units(end),
        stride(step),
        unit(first) {
    begin_rows();
    fetch_groups(first, 0);
#pragma unroll 1
    for (int d = 0; d < kDepth; ++d) fetch_next(d);
  }

  XLSTM_DEVICE void begin_rows() {
    const UnitRows at = rows_of_unit<kRows>(p, Weights::kGroups, unit);
    const bool both = p.output == Output::swiglu;
    const int from = wave_id() * Shape::kStepBytes + Places::lane_vec16() * 16;
#pragma unroll
    for (int s = 0; s < kSides; ++s) {
      const int slot = s * (kRows / 2) + Places::lane_row(), second = both && slot >= kRows / 2 ? 1 : 0;
      const DeviceLinear& w = p.linear[second ? 1 : at.piece];
      const int row = at.first + slot - second * (kRows / 2);
      side[s] = static_cast<const char*>(w.data) + row * w.row_bytes + from;
      rows[s] = w.rows - row;
    }
    tile = 0;
    left = int(p.linear[at.piece].row_bytes) - from;
    distance = int(p.linear[at.piece].row_bytes) * kRowsPerLoad;
  }
  // Beyond a row's end and a piece's last row there is nothing to read: zeros.
  XLSTM_DEVICE void fetch_next(int to) {
    if (unit < units) {
#pragma unroll
      for (int n = 0; n < kFetches; ++n) {
        const int s = n / kSideFetches, m = n % kSideFetches;
        places.fetch(to, n, side[s] + m * distance, left > 0 && m * kRowsPerLoad < rows[s] ? 16 : 0);
      }
#pragma unroll
      for (int s = 0; s < kSides; ++s) side[s] += kTileBytes;
      left -= kTileBytes;
      if (++tile == tiles) {
        unit += stride;
        if (unit < units) begin_rows();
      }
    }
    Places::sent();
  }

  // ---- scales and offsets: rows of a unit lie one after the other, so a unit's are whole pieces

  XLSTM_DEVICE int group_bytes() const { return unit_group_bytes(kRows, most_groups(p.columns)); }
  XLSTM_DEVICE char* group_memory(int turn, int which) const { return groups + (turn * 2 + which) * group_bytes(); }
  XLSTM_DEVICE void fetch_groups([[maybe_unused]] int unit, [[maybe_unused]] int turn) const {
    if constexpr (Weights::kGroups) {
      const UnitRows at = rows_of_unit<kRows>(p, true, unit);
      const bool both = p.output == Output::swiglu;
      const int count = both ? kRows / 2 : kRows;
      for (int of = 0; of < (both ? 2 : 1); ++of) {
        const DeviceLinear& w = p.linear[both ? of : at.piece];
        const int row_bytes = w.groups * 2, there = (w.rows - at.first) * row_bytes, bytes = count * row_bytes;
        for (int which = 0; which < (w.offsets ? 2 : 1); ++which) {
          const char* const from =
              static_cast<const char*>(which ? w.offsets : w.scales) + int64_t(at.first) * row_bytes;
          char* const to = group_memory(turn, which) + of * bytes;
          for (int n = int(threadIdx.x) * 16; n < bytes; n += kMatrixThreads * 16) {
            const int left = there - n < 0 ? 0 : there - n < 16 ? there - n : 16;  // zeros for rows that are not there
            Places::fetch_for_block(to + n, from + (left ? n : 0), left);
          }
        }
      }
    }
  }
  // Where a unit begins: its own groups are there, the next one's are asked for.
  XLSTM_DEVICE void begin_unit([[maybe_unused]] int piece, int next) {
    if constexpr (Weights::kGroups) {
      const DeviceLinear& w = p.linear[piece];
      const int shift = w.group_size > kStepFeatures ? 1 : 0, row_bytes = w.groups * 2;
      kind = GroupKind::of(w);
      offset_distance = group_bytes();
      step_distance = 2 * Shape::kAlong >> shift, row_distance = row_bytes * (kStripColumns / Shape::kColumns);
      const int row = Shape::row_of_column(Shape::kDealt ? Shape::own_column() : 0);
      const char* const first = group_memory(turn, 0) + row * row_bytes;
      scales = first + 2 * (wave_id() >> shift), last_scale = first + row_bytes - 2;
    }
    if (next < units) fetch_groups(next, turn ^ 1);
  }
  // Before the barrier behind which a unit ends: what this thread brought of the next one's groups is there.
  XLSTM_DEVICE void end_unit() {
    if constexpr (Weights::kGroups) {
      if (tiles > kLag)
        Places::template arrived<kLag>();
      else
        Places::template arrived<0>();
    }
    turn ^= 1;
  }
  // Before the first barrier: the first unit's.
  XLSTM_DEVICE static void first_arrived() { Places::template arrived<kDepth - 1>(); }

  // The next step of the unit that is multiplied.
  XLSTM_DEVICE void get(MatrixStep<Weights, Shape>& step) {
    Places::template wait_for_wave<kDepth - 1>();
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j)
#pragma unroll
        for (int l = 0; l < kLoads; ++l)
          step.load[c][j][l] = places.template get<Load>(place, c * kStripColumns, row_of_lane(kFamily, lane_id(), j),
                                                         load_offset(kFamily, Weights::kBits, lane_id(), l));
    if constexpr (Weights::kGroups) {
      const char* const own = scales < last_scale ? scales : last_scale;  // a row's end: zeros are scaled
      scales += step_distance;
#pragma unroll
      for (int n = 0; n < (Shape::kDealt ? 1 : kChains * Shape::kColumns); ++n) {
        const char* const scale = own + n * row_distance;
        const int c = n / Shape::kColumns, j = n % Shape::kColumns;
        step.scale[c][j] = *reinterpret_cast<const uint16_t*>(scale);
        if (kind.offsets) step.offset[c][j] = *reinterpret_cast<const uint16_t*>(scale + offset_distance);
      }
    }
  }
  XLSTM_DEVICE void done() {
    Places::release_by_wave();
    fetch_next(place);
    place = place + 1 == kDepth ? 0 : place + 1;
  }
};

}  // namespace xlstm::gpu::engine
