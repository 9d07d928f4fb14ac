// SPDX-License-Identifier: Apache-2.0
// y = W x on CDNA for more than eight rows of x, and for integer weights for more than one. Weights go from memory to
// registers as they are; x, packed by pack_cdna_kernel, goes through LDS, where all waves read it.
//
// Maths: for 16-bit weights and floats of 8 bits gemm_mma's, x as two bfloat16. Integers are multiplied as bytes, with
// x in three digits (engine/gpu/x_digits.h):
//
//   y = sum over steps of  scale_w scale_x sum_k q x  +  offset sum_k x        without offsets: offset = -kMiddle scale
//
// Who owns what: a block has a unit of p.unit_rows rows of weights (for SwiGLU of each linear), which its waves divide,
// and all rows of x up to kBatch; with shards, an equal part of the features. A wave has kChains strips of 16 rows of
// weights, and of SwiGLU one of each linear.
//
// Timeline of a wave; a line is 128 bytes of each row of weights, a buffer of x buffer_steps() steps of 64 features.
// Loads come in their order, so what is needed first is asked for first: x, scales, weights.
//
//   weights   | kLinesAhead lines | a line behind each that is used up ............... |
//   x         | buffers 0, 1      | buffer 1 to LDS, buffer 2's loads | 2 to LDS, ...  |
//   products  |                   | step 0 | 1 | ...                                   | shards, y |
//
// A barrier for each buffer: behind it the next one is in LDS, and nobody reads the one before. Two buffers are in LDS,
// one more on its way in registers.
//
// The order of an output's sums is that of steps, then of shards; it does not depend on the other rows of x.
//
// Floor: the bytes of the weights over the bandwidth of memory. What binds (predicted): in the loop, memory and the
// misses that L1 has under way, of which a line of x, from L2, takes a third to a half of the time of one of weights.
// So units are large: x is loaded once for all of a unit's rows. With 64 rows an eighth of the time is the last shard's
// sums of the others, 12 KB for each 16 rows of weights.
#pragma once

#include "arch/byte_products.h"
#include "arch/memory_range.h"
#include "arch/unrolled.h"
#include "engine/gemm_cdna/gemm_cdna_shape.h"
#include "engine/gemm_mma/gemm_mma_weights.h"
#include "engine/gpu/add_shards.h"
#include "engine/gpu/output_range.h"

namespace xlstm::gpu::engine {

// Which rows, features and rows of x a block has.
struct CdnaGemmBlock {
  UnitRows unit;
  int shard, first, count, sums;  // of x: the first row, and how many; sums: the block's number among the unit's
};

template <class Load>
XLSTM_DEVICE Load load_within(const MemoryRange& range, uint32_t at) {
  if constexpr (sizeof(Load) == 16)
    return load_vec16(range, at);
  else
    return __builtin_bit_cast(Load, load_vec8(range, at));
}

template <class Weights, int kBatch, int kChains>
struct GemmCdna {
  static constexpr int kBits = Weights::kBits, kStripRows = strip_rows(kBatch), kStrips = kBatch / kStripRows;
  static constexpr bool kGroups = Weights::kGroups, kDigits = has_digits(kBits, Weights::kIntegers);
  static constexpr int kLoads = lane_loads(Family::cdna, kBits), kLoadVec8s = load_vec8s(kBits);
  static constexpr int kLoadBytes = load_bytes(kBits), kLineSteps = line_steps(kBits), kLineLoads = kLineSteps * kLoads;
  static constexpr int kLinesAhead = lines_ahead(kBits, kBatch);
  static constexpr int kStepBytes = x_step_bytes(kDigits, kGroups, kBatch), kBufferSteps = buffer_steps(kBatch);
  static constexpr int kBufferBytes = kBufferSteps * kStepBytes, kBody = body_steps(kBits, kBatch);
  static constexpr int kCopies = (kBufferBytes + 16 * kCdnaGemmLoaders - 1) / (16 * kCdnaGemmLoaders);
  // A strip has two accumulators, of 16 rows of x each; with 16 rows of x only the first counts.
  static constexpr int kPairs = (kStrips + 1) / 2;
  static constexpr int kOperandBytes = x_operand_bytes(kDigits, kBatch), kSums = kChains * kStrips * 4;
  using E = BFloat16;
  using Load = typename Weights::Load;

  struct Line {
    Load load[kChains][kLineLoads];
  };

  const GemmParams& p;
  char* const lds;
  const CdnaGemmBlock& at;
  const UnitRows unit;
  UnitLinears linears;
  const char* x;                           // of this pass, from this shard's first step on
  int first_line, lines, full;             // of this shard; and of a row that are full
  int steps, first_group, scale_row;       // of this shard; bytes from group to group of scales in LDS
  uint32_t from[kChains];                  // bytes to the lane's first weights
  int lane_column[kGroups ? kChains : 1];  // of its scales
  uint32_t beyond[kLineLoads];  // of a row's last line: kNowhere for the lane's loads behind the row's end, else 0
  uint32_t linear_bytes;
  uint32_t bfloat16 = 0, offsets = 0;  // masks: of the scales' dtype; whether there are offsets
  uint32_t copied[kCopies];            // bytes of a buffer that this thread copies
  Strip<E> sum[kChains][kPairs];

  XLSTM_DEVICE GemmCdna(const GemmParams& kernel_arg, char* shared, const CdnaGemmBlock& block, const char* packed)
      : p(kernel_arg), lds(shared), at(block), unit(block.unit) {
    linears = UnitLinears::of(p, unit);
    const DeviceLinear& w = p.linear[unit.linear];
    const int all = lines_of(kBits, p.columns);
    first_line = uniform(all * block.shard >> p.shard_bits);
    lines = uniform(all * (block.shard + 1) >> p.shard_bits) - first_line;
    steps = lines * kLineSteps;
    full = uniform(int(w.row_bytes) / 128);
    linear_bytes = uint32_t(uniform(int(uint32_t(w.rows) * uint32_t(w.row_bytes))));
    const int64_t first_step =
        int64_t(block.first / kBatch) * packed_x_steps(kBits, p.columns) + first_line * kLineSteps;
    x = uniform(packed + first_step * kStepBytes);
    const int linear_count = p.output == Output::swiglu ? 2 : 1;
    scale_row = scale_row_bytes(uniform(int(blockDim.x) / kWave) * p.wave_rows * linear_count);
    first_group = (first_line * kLineSteps) >> linears.group_shift;
    const int lane_byte = lane_id() / kStripColumns * kLoadBytes;
#pragma unroll
    for (int c = 0; c < kChains; ++c)
      from[c] = opaque(uint32_t(row_of(c, lane_id() % kStripColumns)) * uint32_t(w.row_bytes) + uint32_t(lane_byte));
#pragma unroll
    for (int l = 0; l < kLineLoads; ++l) {
      const bool inside = full * 128 + l * 4 * kLoadBytes + lane_byte < int(w.row_bytes);
      beyond[l] = opaque(inside ? 0 : kNowhere);
    }
    if constexpr (kGroups) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) lane_column[c] = scale_column(c, lane_id() % kStripColumns);
      bfloat16 = uint32_t(uniform(w.dtype == XLSTM_BFLOAT16 ? -1 : 0));
      offsets = uint32_t(uniform(w.offsets ? -1 : 0));
    }
  }
  // A slot's row, of the wave's; past the last, that one again. And of its linear.
  XLSTM_DEVICE int row_of_wave(int chain, int slot) const {
    const int row = slot + (p.output == Output::swiglu ? 0 : chain * kStripColumns);
    return row < p.wave_rows ? row : p.wave_rows - 1;
  }
  XLSTM_DEVICE int row_of(int chain, int slot) const {
    int row = wave_id() * p.wave_rows + row_of_wave(chain, slot);
    row = unit.first + (row < p.unit_rows ? row : p.unit_rows - 1);
    const int rows = p.linear[unit.linear].rows;
    return row < rows ? row : rows - 1;
  }

  // The lane whose bytes of a strip of x this one multiplies, and the first of its four sums' rows.
  static constexpr int kXLanes = 4 * kStripRows;
  XLSTM_DEVICE static int x_lane() { return lane_id() / 16 * kStripRows + lane_id() % kStripRows; }
  XLSTM_DEVICE static int lane_row() { return lane_id() / 16 * 4 % kStripRows; }

  // Of a strip of 16 rows of x.
  XLSTM_DEVICE float& sum_of(int c, int s, int r) { return sum[c][s / 2].value[s % 2 * 4 + r]; }

  // ---- on their way: weights to registers, x to LDS

  // Behind a row's end, and behind the shard's last line, zeros, which are not loaded.
  XLSTM_DEVICE void fetch(Line& to, int line) const {
    const int index = first_line + line;
    const uint32_t inside = line < lines ? linear_bytes - uint32_t(index) * 128 : 0, last = index >= full ? ~0u : 0u;
#pragma unroll
    for (int l = 0; l < kLineLoads; ++l)
#pragma unroll
      for (int c = 0; c < kChains; ++c)
        to.load[c][l] = load_within<Load>({linears.weights[side_of(c)] + int64_t(index) * 128, inside},
                                          (from[c] + l * 4 * kLoadBytes) | (beyond[l] & last));
  }
  XLSTM_DEVICE static constexpr int side_of(int chain) { return kChains == 2 ? chain : 0; }
  XLSTM_DEVICE void find_copied() {
    const bool copies = wave_id() < kLeastCdnaGemmWaves;
#pragma unroll
    for (int n = 0; n < kCopies; ++n) {
      const int byte = (int(threadIdx.x) + n * kCdnaGemmLoaders) * 16;
      copied[n] = opaque(copies && byte < kBufferBytes ? uint32_t(byte) : kNowhere);
    }
  }
  // Behind the shard's last step, and for waves that copy nothing, nothing is loaded.
  XLSTM_DEVICE void fetch_x(Vec16 (&to)[kCopies], int buffer) const {
    const int left = steps * kStepBytes - buffer * kBufferBytes;
    const MemoryRange range{x + int64_t(buffer) * kBufferBytes, uint32_t(left > 0 ? left : 0)};
#pragma unroll
    for (int n = 0; n < kCopies; ++n) to[n] = load_vec16(range, copied[n]);
  }
  XLSTM_DEVICE void store_x(const Vec16 (&from_registers)[kCopies], int buffer) const {
    if (wave_id() >= kLeastCdnaGemmWaves) return;
#pragma unroll
    for (int n = 0; n < kCopies; ++n) {
      const bool is_full = (n + 1) * kCdnaGemmLoaders * 16 <= kBufferBytes;
      if (is_full || copied[n] != kNowhere)
        *reinterpret_cast<Vec16*>(lds + buffer * kBufferBytes + copied[n]) = from_registers[n];
    }
  }
  // In LDS, by group, wave, linear and row: scales, and offsets.
  XLSTM_DEVICE char* scales_at(int which) const {
    return lds + 2 * kBufferBytes + which * most_groups_of(steps) * scale_row;
  }
  XLSTM_DEVICE int scale_column(int chain, int slot) const {
    const bool is_swiglu = p.output == Output::swiglu;
    return ((wave_id() * (is_swiglu ? 2 : 1) + (is_swiglu ? chain : 0)) * p.wave_rows + row_of_wave(chain, slot)) * 2;
  }
  // Scales of this wave's rows, or offsets: a lane has a group.
  struct Scales {
    uint16_t of_row[kGroups ? kChains : 1][kStripColumns];
  };
  // which: 0 scales, 1 offsets. first: group of the shard.
  XLSTM_DEVICE void fetch_scales(Scales& to, int which, int first) const {
    const DeviceLinear& w = p.linear[unit.linear];
    const int index = first_group + first + lane_id();
    const uint32_t column = uint32_t(index < w.groups ? index : w.groups - 1) * 2;
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const char* const base = which ? linears.offsets[side_of(c)] : linears.scales[side_of(c)];
      // Opaque: the compiler would keep all rows' offsets in scalar registers.
      const uint32_t row_at = opaque(uint32_t(row_of(c, lane_id() % kStripColumns) * w.groups) * 2);
#pragma unroll
      for (int n = 0; n < kStripColumns; ++n) to.of_row[c][n] = load_bits<uint16_t>(base, of_lane(row_at, n) + column);
    }
  }
  XLSTM_DEVICE void store_scales(const Scales& from_registers, int which, int first) const {
    const int group = first + lane_id();
    if (group >= most_groups_of(steps)) return;
    char* const to = scales_at(which) + group * scale_row;
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int n = 0; n < kStripColumns; ++n)
        *reinterpret_cast<uint16_t*>(to + scale_column(c, n)) = from_registers.of_row[c][n];
  }
  // The first wave's groups are asked for ahead of weights, which they would wait for; the others behind.
  XLSTM_DEVICE void store_all_scales(const Scales (&first)[2]) const {
    store_scales(first[0], 0, 0);
    if (offsets) store_scales(first[1], 1, 0);
#pragma unroll 1
    for (int which = 0; which < (offsets ? 2 : 1); ++which)
#pragma unroll 1
      for (int group = kWave; group < most_groups_of(steps); group += kWave) {
        Scales scales;
        fetch_scales(scales, which, group);
        store_scales(scales, which, group);
      }
  }

  // ---- mainloop

  XLSTM_DEVICE float number(uint32_t bits) const {
    return as_float((bits << 16 & bfloat16) | (as_bits(low_float(Float16{}, bits)) & ~bfloat16));
  }
  // What a step's sums are multiplied by, and its sum of x.
  struct Scale {
    float scale[kChains], offset[kChains];
  };
  XLSTM_DEVICE Scale scale_of(int step) const {
    constexpr float kZero = kDigits ? 0 : Weights::kZero, kWithout = kZero - Weights::kMiddle;
    const float zero = as_float((as_bits(kZero) & offsets) | (as_bits(kWithout) & ~offsets));
    const int at_group = (((first_line * kLineSteps + step) >> linears.group_shift) - first_group) * scale_row;
    const char *const scales = scales_at(0) + at_group, *const offsets_or_scales =
                                                            scales_at(offsets ? 1 : 0) + at_group;
    Scale of;
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      of.scale[c] = number(*reinterpret_cast<const uint16_t*>(scales + lane_column[c]));
      const float offset = number(*reinterpret_cast<const uint16_t*>(offsets_or_scales + lane_column[c]));
      of.offset[c] = __builtin_fmaf(zero, of.scale[c], as_float(as_bits(offset) & offsets));
    }
    return of;
  }
  // j: of the line's steps.
  template <int j>
  XLSTM_DEVICE void multiply_step_of_line(const Line& line, const char* x_step, int step) {
    if constexpr (kDigits)
      multiply_digits(line, j, x_step, scale_of(step));
    else
      multiply_parts(line, j, x_step, step);
  }
  XLSTM_DEVICE void multiply_digits(const Line& line, int j, const char* x_step, const Scale& scale) {
    uint32_t weights[kChains][2][2];
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int h = 0; h < 2; ++h) Weights::to_bytes(line.load[c][j], h, weights[c][h]);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      Vec16 digits[kXDigits];
#pragma unroll
      for (int n = 0; n < kXDigits; ++n)
        digits[n] = read_vec16(x_step + ((s * kXDigits + n) * kXLanes + x_lane()) * 16);
      ByteSums part[kChains][kXDigits] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int n = 0; n < kXDigits; ++n)
#pragma unroll
          for (int c = 0; c < kChains; ++c) {
            const uint32_t stream[2] = {digits[n].word[2 * h], digits[n].word[2 * h + 1]};
            multiply_bytes(part[c][n], stream, weights[c][h]);
          }
      add_scaled(x_step, s, scale, [&](int c, int r) {
        return __builtin_fmaf(float(part[c][0].value[r]), 65536.0f,
                              float((part[c][1].value[r] << 8) + part[c][2].value[r]));
      });
    }
  }
  template <class PartOf>
  XLSTM_DEVICE void add_scaled(const char* x_step, int s, const Scale& scale, PartOf&& part_of) {
    const char* const rows = x_step + kOperandBytes + (s * 16 + lane_row()) * 4;
    const Vec16 scales = read_vec16(rows), x_sums = read_vec16(rows + kBatch * 4);
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float& total = sum_of(c, s, r);
        float to = total;
        to = __builtin_fmaf(scale.scale[c] * as_float(scales.word[r]), part_of(c, r), to);
        total = __builtin_fmaf(scale.offset[c], as_float(x_sums.word[r]), to);
      }
  }
  template <int kColumns, int kRows>
  XLSTM_DEVICE static void clear(Strip<E> (&strips)[kColumns][kRows]) {
#pragma unroll
    for (auto& column : strips)
#pragma unroll
      for (Strip<E>& strip : column) strip.zero();
  }
  // The x's of a strip, one part of them, for a unit of features.
  XLSTM_DEVICE static StreamOperand<E> read_parts(const char* x_step, int n) {
    const int h = n % 2, pair = n / 2 % kPairs, u = n / (2 * kPairs);
    Vec16 rows[kStreamVec16s<E>] = {};
#pragma unroll
    for (int j = 0; j < (kStrips > 1 ? 2 : 1); ++j)
      rows[j] = read_vec16(x_step + (((u * kStrips + 2 * pair + j) * 2 + h) * kXLanes + x_lane()) * 16);
    return stream_of<E>(rows, 0);
  }
  XLSTM_DEVICE void multiply_parts(const Line& line, int j, const char* x_step, int step) {
    constexpr int kReads = 2 * kPairs * 2;  // units, pairs of strips, parts
    Strip<E> part[kGroups ? kChains : 1][kGroups ? kPairs : 1];
    if constexpr (kGroups) clear(part);
    Vec16 chain[kChains][Weights::kParts];
    StreamOperand<E> stream[2] = {read_parts(x_step, 0)};
    each_of<kReads>([&](auto n) {
      constexpr int pair = n / 2 % kPairs, u = n / (2 * kPairs);
      if constexpr (n % (2 * kPairs) == 0)
#pragma unroll
        for (int c = 0; c < kChains; ++c)
          Weights::to_bfloat16(line.load[c][j * kLoads + u / kLoadVec8s], u % kLoadVec8s, chain[c]);
      if constexpr (n + 1 < kReads) stream[(n + 1) % 2] = read_parts(x_step, n + 1);  // while these are multiplied
      sched_barrier();
      const auto to = [&](int c) -> Strip<E>& {
        if constexpr (kGroups)
          return part[c][pair];
        else
          return sum[c][pair];
      };
#pragma unroll
      for (int of = 0; of < Weights::kParts; ++of)
        multiply_strip(stream[n % 2], to, [&](int c) {
          const Vec16 weights[kChainVec16s<E>] = {chain[c][of]};
          return chain_of_vec16s<E>(weights, 0);
        });
    });
    if constexpr (kGroups) {
      const Scale scale = scale_of(step);
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
        add_scaled(x_step, s, scale, [&](int c, int r) { return part[c][s / 2].value[s % 2 * 4 + r]; });
    }
  }
  template <class SumOf, class ChainOf>
  XLSTM_DEVICE static void multiply_strip(const StreamOperand<E>& stream, SumOf&& to, ChainOf&& weights) {
    if constexpr (kStrips > 1)
      multiply_each<kChains, true, true>(stream, to, weights, [](auto) {});
    else
#pragma unroll
      for (int c = 0; c < kChains; ++c) xlstm::gpu::multiply<true, true>(to(c), stream, weights(c));
  }

  XLSTM_DEVICE void multiply() {
    Line line[kLinesAhead];
    Vec16 copy[kCopies];
    clear(sum);
    find_copied();
    fetch_x(copy, 0);
    Scales scales[2];
    if constexpr (kGroups) {
      fetch_scales(scales[0], 0, 0);
      if (offsets) fetch_scales(scales[1], 1, 0);
    }
    keep_order_of_loads();
#pragma unroll
    for (int n = 0; n < kLinesAhead; ++n) fetch(line[n], n);
    keep_order_of_loads();
    if constexpr (kGroups) store_all_scales(scales);
    store_x(copy, 0);
    fetch_x(copy, 1);
    __syncthreads();
    // The loop's body is made in full: behind the last step nothing is loaded or multiplied. Where paths with other
    // loads in flight join, the compiler would wait for all of them.
    for (int step = 0, buffer = 1; step < steps; step += kBody, buffer += kBody / kBufferSteps)
      each_of<kBody>([&](auto i) {
        constexpr int n = i / kLineSteps % kLinesAhead, b = i / kBufferSteps;
        if (i == 0 || step + i < steps)
          multiply_step_of_line<i % kLineSteps>(line[n], lds + b % 2 * kBufferBytes + i % kBufferSteps * kStepBytes,
                                                step + i);
        sched_barrier();  // the compiler would move loads to their use
        if constexpr (i % kLineSteps == kLineSteps - 1)
          fetch(line[n], step / kLineSteps + i / kLineSteps + kLinesAhead);
        if constexpr (i % kBufferSteps == kBufferSteps - 1) {
          store_x(copy, (b + 1) % 2);
          fetch_x(copy, buffer + b + 1);
          sched_barrier();
          __syncthreads();
        }
      });
  }

  // ---- epilogue

  XLSTM_DEVICE void run() {
    multiply();
    const int wave = at.sums * (int(blockDim.x) / kWave) + wave_id();
    if (p.shard_bits > 0) {
      float all[kSums];
      each_sum([&](int c, int s, int r, int n) { all[n] = sum_of(c, s, r); });
      const ShardSums of_wave{p.packed.partials + (int64_t(wave) << p.shard_bits) * kSums * kWave,
                              p.packed.arrived + wave};
      if (!add_shards(of_wave, at.shard, 1 << p.shard_bits, all)) return;
      each_sum([&](int c, int s, int r, int n) { sum_of(c, s, r) = all[n]; });
    }
    store_outputs();
  }
  template <class F>
  XLSTM_DEVICE static void each_sum(F&& f) {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int r = 0; r < 4; ++r) f(c, s, r, (c * kStrips + s) * 4 + r);
  }
  XLSTM_DEVICE void store_outputs() {
    const GemmParams& q = *reload_params(&p);
    const bool is_swiglu = q.output == Output::swiglu;
    const OutputRange to = OutputRange::of(q, unit.linear, at.first, at.count);
    const float* const factors = q.input == Input::rms ? global(q.packed.rms_factors) + at.first : nullptr;
    const int first_row = lane_id() / 16 * 4;  // of a strip's sums, also behind the batch
    uint32_t from_lane[kChains];
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int of_wave = lane_id() % kStripColumns + (is_swiglu ? 0 : c * kStripColumns);
      const int of_unit = wave_id() * q.wave_rows + of_wave, row = unit.first + of_unit;
      const bool inside = of_wave < q.wave_rows && of_unit < q.unit_rows && row < q.linear[unit.linear].rows;
      from_lane[c] = to.offset(first_row, row, inside && !(is_swiglu && c > 0));
      const DeviceVector bias = q.linear[is_swiglu ? c : unit.linear].bias;
      const float add = as_float(opaque(as_bits(bias.data && inside ? value_of(bias, row) : 0.0f)));
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        float factor[4] = {1, 1, 1, 1};
        if (factors)
#pragma unroll
          for (int r = 0; r < 4; ++r) factor[r] = factors[s * 16 + lane_row() + r];
#pragma unroll
        for (int r = 0; r < 4; ++r) sum_of(c, s, r) = sum_of(c, s, r) * factor[r] + add;
      }
    }
    float y[kSums];
    each_sum([&](int c, int s, int r, int n) {
      y[n] = is_swiglu && c == 0 ? swiglu(sum_of(c, s, r), sum_of(kChains - 1, s, r)) : sum_of(c, s, r);
    });
    const auto row_of = [](int n) { return n / 4 % kStrips * 16 + n % 4; };  // of the lane's rows of x
    engine::store_outputs(
        q, unit.linear, to, y, [&](int n) { return from_lane[n / (4 * kStrips)] + uint32_t(row_of(n)) * to.row_bytes; },
        [&](int n) { return at.first + first_row + row_of(n); });
  }
};

// Blocks: 8 neighbours, which are of the eight XCDs, have one unit each, or with shards several a part of its features;
// the next 8 have the same for the batch's next rows.
template <class Weights, int kBatch, int kChains>
__global__ __launch_bounds__(kMostCdnaGemmWaves* kWave, 1) void gemm_cdna_kernel(XLSTM_PARAM GemmParams kernel_arg) {
  if constexpr (kFamily == Family::cdna) {
    const GemmParams& p = *kernel_params(kernel_arg);
    extern __shared__ __align__(128) char lds[];
    const uint32_t passes = uint32_t(p.batch + kBatch - 1) / kBatch;
    const int eight = int(blockIdx.x) / 8, pass = passes == 1 ? 0 : eight % int(passes);
    const int of_shards = int(blockIdx.x) % 8, side_by_side = 8 >> p.shard_bits;
    const int unit = (passes == 1 ? eight : eight / int(passes)) * side_by_side + of_shards % side_by_side;
    const int first = pass * kBatch, left = p.batch - first;
    if (unit >= p.units_of_all) return;
    int linear = 0;
    if (p.output != Output::swiglu)
#pragma unroll
      for (int j = 1; j < kMaxLinears; ++j) linear = unit >= p.first_unit[j] ? j : linear;
    const CdnaGemmBlock block{{linear, (unit - p.first_unit[linear]) * p.unit_rows},
                              of_shards >> (3 - p.shard_bits),
                              first,
                              left < kBatch ? left : kBatch,
                              pass * p.units_of_all + unit};
    if (!Weights::kGroups || p.linear[linear].bits)
      GemmCdna<Weights, kBatch, kChains>(p, lds, block, p.packed.x[0]).run();
    else if constexpr (Weights::kGroups)
      GemmCdna<Bfloat16Weights, kBatch, kChains>(p, lds, block, p.packed.x[1]).run();
  }
}

}  // namespace xlstm::gpu::engine
