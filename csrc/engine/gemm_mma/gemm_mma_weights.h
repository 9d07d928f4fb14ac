// SPDX-License-Identifier: Apache-2.0
// The weights of gemm_mma on their way from memory: which rows of which linear a unit of work has, where a lane reads
// them, and the pipeline that loads them some steps ahead of their use. The pipeline is in a lane's registers
// (WeightStep), or in a ring in LDS together with the scales and offsets of two units (WeightRing).
// arch/nvidia/cp_async_ring.h says which GPUs have which, and why.
#pragma once

#include "arch/nvidia/cp_async_ring.h"
#include "engine/gemm_mma/gemm_mma_inputs.h"

namespace xlstm::gpu::engine {

// ---- units: rows of weights

// A unit: kRows rows of a linear, or half as many of each of the first two (SwiGLU).
struct UnitRows {
  int linear, first;
};
// A launch's linears are of two kinds: quantised, and gates that stayed bfloat16.
XLSTM_DEVICE bool matches_kind(const DeviceLinear& w, bool quantised) { return (w.bits != 0) == quantised; }
// unit_rows: of a linear.
XLSTM_DEVICE int units_of(const GemmParams& p, bool quantised, int unit_rows) {
  if (p.output == Output::swiglu) return (p.linear[0].rows + unit_rows - 1) / unit_rows;
  int units = 0;
  for (int linear = 0; linear < p.linear_count; ++linear)
    if (matches_kind(p.linear[linear], quantised)) units += (p.linear[linear].rows + unit_rows - 1) / unit_rows;
  return units;
}
template <int kRows>
XLSTM_DEVICE int units_of(const GemmParams& p, bool quantised) {
  return units_of(p, quantised, FullUnits<kRows>::unit_rows(p));
}
// Past the last unit, rows past the last row.
XLSTM_DEVICE UnitRows rows_of_unit(const GemmParams& p, bool quantised, int unit, int unit_rows) {
  if (p.output == Output::swiglu) return {0, unit * unit_rows};
  int linear = 0, last = 0, before = 0;
  for (; linear < p.linear_count; ++linear) {
    if (!matches_kind(p.linear[linear], quantised)) continue;
    const int units = (p.linear[linear].rows + unit_rows - 1) / unit_rows;
    last = linear;
    unit -= before;
    if (unit < units) break;
    before = units;
  }
  return {last, unit * unit_rows};
}
template <int kRows>
XLSTM_DEVICE UnitRows rows_of_unit(const GemmParams& p, bool quantised, int unit) {
  return rows_of_unit(p, quantised, unit, FullUnits<kRows>::unit_rows(p));
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
              row = unit.first + Shape::row_in_unit(p, is_swiglu ? slot % (kRows / 2) : slot);
    const int rows = p.linear[of].rows;
    return {of, row < rows ? row : rows - 1};
  }
  XLSTM_DEVICE static LaneRows at(const GemmParams& kernel_arg, int unit) {
    const GemmParams& p = *reload_params(&kernel_arg);
    LaneRows rows;
    rows.unit = rows_of_unit(p, Weights::kGroups, unit, Shape::unit_rows(p));
    const int lane = lane_id();
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int slot = c * kStripColumns;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const RowCoord row = row_of_slot(p, rows.unit, slot + row_of_lane(kFamily, lane, j));
        const DeviceLinear& w = p.linear[row.linear];
        const int first_load = Shape::k_wave() * Shape::kStepBytes + load_offset(kFamily, Weights::kBits, lane, 0);
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

  // Instead of the next unit's rows, where there is none: all lanes load the same bytes.
  XLSTM_DEVICE void stay() {
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) from[c][j] = 0;
      if constexpr (kGroups)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) groups_at[c][j] = 0;
    }
  }
  XLSTM_DEVICE static LaneRows either(bool first, const LaneRows& a, const LaneRows& b) {
    LaneRows rows = b;
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) rows.from[c][j] = first ? a.from[c][j] : b.from[c][j];
      if constexpr (kGroups)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) rows.groups_at[c][j] = first ? a.groups_at[c][j] : b.groups_at[c][j];
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
            const int first = Shape::k_wave() * Shape::kStepBytes + load_offset(kFamily, Weights::kBits, lane_id(), 0);
            const bool inside = first + tile * kTileBytes + l * kNext < int(w.row_bytes);
            at = inside ? at : from[c][j] - uint32_t(first);
          }
          f(c, j, l, base, at);
        }
    }
  }
};

// Where a unit's rows lie: the same in all lanes. SwiGLU's second linear has the second half of the chains.
struct UnitLinears {
  const char *weights[2], *scales[2], *offsets[2];
  int group_shift;

  XLSTM_DEVICE static UnitLinears of(const GemmParams& p, const UnitRows& unit) {
    UnitLinears all;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const DeviceLinear& w = p.linear[p.output == Output::swiglu ? h : unit.linear];
      all.weights[h] = uniform(static_cast<const char*>(w.data));
      all.scales[h] = uniform(static_cast<const char*>(w.scales));
      all.offsets[h] = w.offsets ? uniform(static_cast<const char*>(w.offsets)) : all.scales[h];  // always loaded
    }
    const DeviceLinear& w = p.linear[unit.linear];
    all.group_shift = uniform(w.group_size > kStepFeatures ? 1 : 0);
    return all;
  }

  XLSTM_DEVICE static UnitLinears either(bool first, const UnitLinears& a, const UnitLinears& b) {
    UnitLinears of;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      of.weights[h] = first ? a.weights[h] : b.weights[h];
      of.scales[h] = first ? a.scales[h] : b.scales[h];
      of.offsets[h] = first ? a.offsets[h] : b.offsets[h];
    }
    of.group_shift = first ? a.group_shift : b.group_shift;
    return of;
  }
};

// The steps of this wave that lie within the columns.
template <class Shape>
XLSTM_DEVICE int full_steps(int columns) {
  const int steps = columns / kStepFeatures - Shape::k_wave();
  return steps > 0 ? (steps + Shape::kSplitKWaves - 1) / Shape::kSplitKWaves : 0;
}

// ---- steps: what a lane loads of its rows at a time

// 16 or 8 bytes of weights, at a uniform base and an offset of each lane.
template <class Load>
XLSTM_DEVICE Load load_weights(const char* base, uint32_t at) {
  if constexpr (sizeof(Load) == 16)
    return load_vec16(base, at);
  else
    return __builtin_bit_cast(Load, load_bits<uint64_t>(base, at));
}

// The format of the scales and offsets of a linear's groups.
struct GroupFormat {
  xlstm_dtype dtype;
  bool offsets;

  XLSTM_DEVICE static GroupFormat of(const DeviceLinear& w) { return {w.dtype, w.offsets != nullptr}; }
};

// The weights that a lane multiplies in one step: kStepFeatures features of its rows.
template <class Weights, class Shape>
struct WeightStep {
  static constexpr int kChains = Shape::kChains, kColumns = Shape::kColumns;

  typename Weights::Load load[kChains][Shape::kLaneRows][Shape::kLoads];
  uint32_t scale[Weights::kGroups ? kChains : 1][kColumns], offset[Weights::kGroups ? kChains : 1][kColumns];

  // The group of this wave's features of a tile.
  XLSTM_DEVICE static int group_of(const DeviceLinear& w, int tile) {
    const int group = (tile * Shape::kSplitKWaves + Shape::k_wave()) >> (w.group_size > kStepFeatures ? 1 : 0);
    return group < w.groups ? group : 0;
  }
  XLSTM_DEVICE void fetch(const GemmParams& p, const LaneRows<Weights, Shape>& rows, int tile) {
    rows.for_each_load(p, tile, [&](int c, int j, int l, const char* base, uint32_t at) {
      load[c][j][l] = load_weights<typename Weights::Load>(base, at);
    });
    if constexpr (Weights::kGroups) {
      const int group = group_of(p.linear[rows.unit.linear], tile);
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        // Either dtype of scales has two bytes. Without offsets, scales are loaded instead: a branch would join here
        // with loads in flight.
        const DeviceLinear& w = rows.linear_of(p, c);
        const char* const scales = static_cast<const char*>(w.scales);
        const char* const offsets = w.offsets ? static_cast<const char*>(w.offsets) : scales;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const uint32_t at = (rows.groups_at[c][j] + uint32_t(group)) * 2;
          scale[c][j] = load_bits<uint16_t>(scales, at);
          offset[c][j] = load_bits<uint16_t>(offsets, at);
        }
      }
    }
  }
  // A step that lies within the columns: without a branch, where paths with other loads in flight would join.
  XLSTM_DEVICE void fetch_inside(const UnitLinears& linears, const LaneRows<Weights, Shape>& rows, int tile) {
    const int64_t tile_bytes = int64_t(tile) * (Shape::kSplitKWaves * Shape::kStepBytes);
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int side = c >= kChains / 2;
#pragma unroll
      for (int j = 0; j < Shape::kLaneRows; ++j)
#pragma unroll
        for (int l = 0; l < Shape::kLoads; ++l)
          load[c][j][l] = load_weights<typename Weights::Load>(
              linears.weights[side] + tile_bytes + l * load_offset(kFamily, Weights::kBits, 0, 1), rows.from[c][j]);
      if constexpr (Weights::kGroups) {
        const uint32_t group = uint32_t(tile * Shape::kSplitKWaves + Shape::k_wave()) >> linears.group_shift;
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          scale[c][j] = load_bits<uint16_t>(linears.scales[side] + group * 2, rows.groups_at[c][j] * 2);
          offset[c][j] = load_bits<uint16_t>(linears.offsets[side] + group * 2, rows.groups_at[c][j] * 2);
        }
      }
    }
  }
};

// ---- the ring

// A ring of kDepth steps that are on their way to LDS; it runs on from one unit to the next.
template <class Weights, class Shape, int kDepth>
struct WeightRing {
  using Load = typename Weights::Load;
  static constexpr int kChains = Shape::kChains, kLaneRows = Shape::kLaneRows, kLoads = Shape::kLoads;
  static constexpr int kRows = kChains * kStripColumns, kTileBytes = Shape::kSplitKWaves * Shape::kStepBytes;
  static constexpr int kLag = kDepth - 1 < 7 ? kDepth - 1 : 7;  // steps that may still be in flight where a unit ends
  using Ring = CpAsyncRing<Shape::kStepBytes, kRows, kDepth, kGemmMmaThreads>;
  static constexpr int kRowsPerLoad = Ring::kRowsPerLoad, kFetches = Ring::kFetches;
  static constexpr int kHalves = kFetches > 1 ? 2 : 1, kHalfFetches = kFetches / kHalves;

  const GemmParams& p;
  Ring ring;
  char* groups;  // two buffers of a unit's scales and offsets
  int tiles, units, stride;
  // The next step to fetch: its unit and tile; the address of this lane's 16 bytes in either half of the unit's rows;
  // how many rows are left from there; the distance to the lane's next row; how many bytes of a row are left.
  int unit, tile, bytes_left, rows_distance;
  const char* source[kHalves];
  int rows_left[kHalves];
  int slot = 0;  // the slot of the step that is multiplied next, then refilled
  // The unit that is multiplied: the buffer of its groups, the lane's first scale, and the distances from there to the
  // next step's, to the next row's and to the offset.
  int buffer = 0;
  GroupFormat kind{};
  int step_distance, row_distance, offset_distance;
  const char *scales, *last_scale;

  XLSTM_DEVICE WeightRing(const GemmParams& params, char* lds, int first, int end, int step)
      : p(params),
        ring(lds),
        groups(lds + Ring::kBytes),
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
    const bool is_swiglu = p.output == Output::swiglu;
    const int first_byte = wave_id() * Shape::kStepBytes + Ring::lane_vec16() * 16;
#pragma unroll
    for (int s = 0; s < kHalves; ++s) {
      const int unit_row = s * (kRows / 2) + Ring::lane_row(), second = is_swiglu && unit_row >= kRows / 2 ? 1 : 0;
      const DeviceLinear& w = p.linear[second ? 1 : at.linear];
      const int row = at.first + unit_row - second * (kRows / 2);
      source[s] = static_cast<const char*>(w.data) + row * w.row_bytes + first_byte;
      rows_left[s] = w.rows - row;
    }
    tile = 0;
    bytes_left = int(p.linear[at.linear].row_bytes) - first_byte;
    rows_distance = int(p.linear[at.linear].row_bytes) * kRowsPerLoad;
  }
  // Past a row's end and past a linear's last row, cp.async fills in zeros.
  XLSTM_DEVICE void fetch_next(int to) {
    if (unit < units) {
#pragma unroll
      for (int n = 0; n < kFetches; ++n) {
        const int s = n / kHalfFetches, m = n % kHalfFetches;
        ring.fetch(to, n, source[s] + m * rows_distance, bytes_left > 0 && m * kRowsPerLoad < rows_left[s] ? 16 : 0);
      }
#pragma unroll
      for (int s = 0; s < kHalves; ++s) source[s] += kTileBytes;
      bytes_left -= kTileBytes;
      if (++tile == tiles) {
        unit += stride;
        if (unit < units) begin_rows();
      }
    }
    Ring::sent();
  }

  // ---- scales and offsets: the rows of a unit are consecutive, so all of its scales are whole vec16s

  XLSTM_DEVICE int group_bytes() const { return unit_group_bytes(kRows, most_groups(p.columns)); }
  XLSTM_DEVICE char* group_buffer(int buffer, int which) const { return groups + (buffer * 2 + which) * group_bytes(); }
  XLSTM_DEVICE void fetch_groups([[maybe_unused]] int unit, [[maybe_unused]] int buffer) const {
    if constexpr (Weights::kGroups) {
      const UnitRows at = rows_of_unit<kRows>(p, true, unit);
      const bool is_swiglu = p.output == Output::swiglu;
      const int count = is_swiglu ? kRows / 2 : kRows;
      for (int of = 0; of < (is_swiglu ? 2 : 1); ++of) {
        const DeviceLinear& w = p.linear[is_swiglu ? of : at.linear];
        const int row_bytes = w.groups * 2, bytes_to_read = (w.rows - at.first) * row_bytes, bytes = count * row_bytes;
        for (int which = 0; which < (w.offsets ? 2 : 1); ++which) {
          const char* const from =
              static_cast<const char*>(which ? w.offsets : w.scales) + int64_t(at.first) * row_bytes;
          char* const to = group_buffer(buffer, which) + of * bytes;
          for (int n = int(threadIdx.x) * 16; n < bytes; n += kGemmMmaThreads * 16) {
            const int copied = bytes_to_read - n < 0    ? 0
                               : bytes_to_read - n < 16 ? bytes_to_read - n
                                                        : 16;  // zeros for rows past the last
            Ring::fetch_for_block(to + n, from + (copied ? n : 0), copied);
          }
        }
      }
    }
  }
  // At the beginning of a unit: its own groups have arrived; the next unit's are fetched.
  XLSTM_DEVICE void begin_unit([[maybe_unused]] int linear, int next) {
    if constexpr (Weights::kGroups) {
      const DeviceLinear& w = p.linear[linear];
      const int shift = w.group_size > kStepFeatures ? 1 : 0, row_bytes = w.groups * 2;
      kind = GroupFormat::of(w);
      offset_distance = group_bytes();
      step_distance = 2 * Shape::kSplitKWaves >> shift, row_distance = row_bytes * (kStripColumns / Shape::kColumns);
      const int row = Shape::row_of_column(Shape::kLaneSharded ? Shape::shard_column() : 0);
      const char* const first = group_buffer(buffer, 0) + row * row_bytes;
      scales = first + 2 * (wave_id() >> shift), last_scale = first + row_bytes - 2;
    }
    if (next < units) fetch_groups(next, buffer ^ 1);
  }
  // Before the last barrier of a unit: this thread's copies of the next unit's groups have arrived.
  XLSTM_DEVICE void end_unit() {
    if constexpr (Weights::kGroups) {
      if (tiles > kLag)
        Ring::template arrived<kLag>();
      else
        Ring::template arrived<0>();
    }
    buffer ^= 1;
  }
  // Before the first barrier: the first unit's groups have arrived.
  XLSTM_DEVICE static void first_arrived() { Ring::template arrived<kDepth - 1>(); }

  // Reads the next step of the unit that is multiplied.
  XLSTM_DEVICE void get(WeightStep<Weights, Shape>& step) {
    Ring::template wait_for_wave<kDepth - 1>();
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j)
#pragma unroll
        for (int l = 0; l < kLoads; ++l)
          step.load[c][j][l] = ring.template get<Load>(slot, c * kStripColumns, row_of_lane(kFamily, lane_id(), j),
                                                       load_offset(kFamily, Weights::kBits, lane_id(), l));
    if constexpr (Weights::kGroups) {
      const char* const step_scales =
          scales < last_scale ? scales : last_scale;  // past a row's end the weights are zeros, whatever their scale
      scales += step_distance;
#pragma unroll
      for (int n = 0; n < (Shape::kLaneSharded ? 1 : kChains * Shape::kColumns); ++n) {
        const char* const scale = step_scales + n * row_distance;
        const int c = n / Shape::kColumns, j = n % Shape::kColumns;
        step.scale[c][j] = *reinterpret_cast<const uint16_t*>(scale);
        if (kind.offsets) step.offset[c][j] = *reinterpret_cast<const uint16_t*>(scale + offset_distance);
      }
    }
  }
  XLSTM_DEVICE void done() {
    Ring::release_by_wave();
    fetch_next(slot);
    slot = slot + 1 == kDepth ? 0 : slot + 1;
  }
};

}  // namespace xlstm::gpu::engine
