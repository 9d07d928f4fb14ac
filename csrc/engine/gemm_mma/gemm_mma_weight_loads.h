// SPDX-License-Identifier: Apache-2.0
// The pipeline of weights, some steps deep: in a lane's registers (WeightStep alone), or in a ring in LDS together with
// the scales and offsets of two units (WeightRing). arch/nvidia/cp_async_ring.h says which GPUs have which, and why.
#pragma once

#include "arch/nvidia/cp_async_ring.h"
#include "engine/gemm_mma/gemm_mma_weight_rows.h"

namespace xlstm::gpu::engine {

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
    const int group = (tile * Shape::kSplitKWaves + wave_id()) >> (w.group_size > kStepFeatures ? 1 : 0);
    return group < w.groups ? group : 0;
  }
  XLSTM_DEVICE void fetch(const GemmParams& p, const LaneRows<Weights, Shape>& rows, int tile) {
    rows.for_each_load(p, tile, [&](int c, int j, int l, const char* base, uint32_t at) {
      if constexpr (sizeof(load[c][j][l]) == 16)
        load[c][j][l] = load_vec16(base, at);
      else
        load[c][j][l] =
            __builtin_bit_cast(typename Weights::Load, *reinterpret_cast<const uint64_t*>(global(base) + at));
    });
    if constexpr (Weights::kGroups) {
      const DeviceLinear& w = p.linear[rows.unit.linear];
      const int group = group_of(w, tile);
      with_dtype(w.dtype, [&](auto element) {
        using T = decltype(element);
#pragma unroll
        for (int c = 0; c < kChains; ++c)
#pragma unroll
          for (int j = 0; j < kColumns; ++j) {
            const DeviceLinear& chain_linear = rows.linear_of(p, c);
            const uint32_t at = rows.groups_at[c][j] + uint32_t(group);
            scale[c][j] = element_bits(global(static_cast<const T*>(chain_linear.scales))[at]);
            if (chain_linear.offsets)
              offset[c][j] = element_bits(global(static_cast<const T*>(chain_linear.offsets))[at]);
          }
      });
    }
  }
};

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
