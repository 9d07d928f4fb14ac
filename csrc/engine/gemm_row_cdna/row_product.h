// SPDX-License-Identifier: Apache-2.0
// A product y = W x of one row on CDNA. x and y are tensors, or mailboxes: Between says so (BetweenLaunches in
// gemm_row_cdna.h, BetweenBlocks in engine/gpu/device_mailbox.h).
//
// Maths: gemm_mma's, and for weights of 8 and 4 bits that are integers q, with x as integers of a step (row_x.h)
//
//   y = sum over groups of  scale sum_k q x + offset sum_k x           without offsets: offset = -kMiddle scale
//
// Who owns what: a group of four waves takes units of rows of weights. A unit has kCdnaUnitSlots slots, columns of the
// matrix instruction, half of them for each of SwiGLU's linears. Where few rows fill few slots, a row has two or four
// slots, each for a slice of its features: step n of the product is slice n % slices of wave n / slices % 4. The other
// side of the instruction has 16 rows for one x, so that each slice has rows of its own: four lanes' rows are one
// slice's, and a lane's sums are useful where its slot has the same slice.
//
// Steps are as many for all waves, and fill the pipeline of kDepth steps. Behind the last feature x is zero, and a lane
// loads its row's first weights instead.
//
// Barriers, of the whole block: x is in LDS; the sums of all waves are in LDS, once for each unit. Two buffers of sums
// take turns. Behind the last unit's barrier LDS is free for the next x.
#pragma once

#include "arch/byte_products.h"
#include "engine/gemm_mma/gemm_mma_weights.h"
#include "engine/gemm_row_cdna/row_x.h"

namespace xlstm::gpu::engine {

// kUnits: which of the params' units.
template <class Weights, int kStepsAhead, CdnaUnits GemmParams::* kUnits, class Between>
struct CdnaProduct {
  using E = BFloat16;
  using X = CdnaX<Weights, Between>;
  using Load = typename Weights::Load;
  static constexpr int kDepth = kStepsAhead, kEarly = kDepth / 2, kChains = kCdnaUnitSlots / kStripColumns;
  static constexpr int kLoads = lane_loads(Family::cdna, Weights::kBits), kLoadVec8s = load_vec8s(Weights::kBits);
  static constexpr int kWeightBytes = kStepFeatures * Weights::kBits / 8;  // of a row's step
  static constexpr int kGroupChains = Weights::kGroups ? kChains : 1;

  XLSTM_DEVICE static int k_wave() { return uniform(wave_id() % kCdnaWaves); }
  XLSTM_DEVICE static int group() { return uniform(wave_id() / kCdnaWaves); }
  XLSTM_DEVICE static int thread() { return int(threadIdx.x) % kGemmMmaThreads; }
  XLSTM_DEVICE static int quarter() { return lane_id() / kStripColumns; }
  // The bits of a slot's place among those of a slice and a linear.
  XLSTM_DEVICE static int row_bits(const GemmParams& p) {
    return (p.output == Output::swiglu ? kCdnaSlotBits - 1 : kCdnaSlotBits) - (p.*kUnits).slice_bits;
  }
  XLSTM_DEVICE static int slice_of(const GemmParams& p, int slot) {
    const int slots = p.output == Output::swiglu ? kCdnaUnitSlots / 2 : kCdnaUnitSlots;
    return (slot & (slots - 1)) >> row_bits(p);
  }

  // What a lane multiplies in one step.
  struct Step {
    Load load[kChains][kLoads];
    uint32_t scale[kGroupChains], offset[kGroupChains];

    // Waits until the step's weights have arrived. Loads that paths have left in flight in different orders would make
    // the compiler wait for all loads in each iteration of a loop behind them.
    XLSTM_DEVICE void arrive() {
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
#pragma unroll
        for (int l = 0; l < kLoads; ++l)
#pragma unroll
          for (uint32_t& word : load[c][l].word) word = opaque(word);
      }
    }
  };

  // Where a unit's weights come from.
  struct Source {
    UnitRows unit;
    UnitLinears linears;
    int slice_bits, full;                   // full: steps of this wave whose slices all have features
    uint32_t from[kChains], edge[kChains];  // bytes to the lane's first weights, and to those of step `full`
    uint32_t groups_from[kGroupChains], groups_edge[kGroupChains];

    XLSTM_DEVICE static Source of(const GemmParams& kernel_arg, int index) {
      const GemmParams& p = *reload_params(&kernel_arg);
      const CdnaUnits& units = p.*kUnits;
      Source source;
      source.unit = rows_of(units, index);
      source.linears = UnitLinears::of(p, source.unit);
      source.slice_bits = uniform(units.slice_bits);
      const int steps = p.columns / kStepFeatures;
      source.full = uniform(((steps >> units.slice_bits) - k_wave() + kCdnaWaves - 1) / kCdnaWaves);
#pragma unroll
      for (int c = 0; c < kChains; ++c) source.find_lane(p, units, steps, c);
      return source;
    }
    // Past the last unit, rows past the last row.
    XLSTM_DEVICE static UnitRows rows_of(const CdnaUnits& units, int index) {
      int linear = 0, first = 0;
#pragma unroll
      for (int j = 0; j < kMaxLinears; ++j) {
        const bool is_behind = index >= units.first[j];
        linear = is_behind ? j : linear, first = is_behind ? units.first[j] : first;
      }
      return {uniform(linear), uniform((index - first) * units.rows)};
    }
    XLSTM_DEVICE void find_lane(const GemmParams& p, const CdnaUnits& units, int steps, int c) {
      const bool is_swiglu = p.output == Output::swiglu;
      const int slot = c * kStripColumns + lane_id() % kStripColumns;
      const DeviceLinear& w = p.linear[is_swiglu ? c : unit.linear];
      const int slot_row = slot & ((1 << row_bits(p)) - 1), slice = slice_of(p, slot);
      int row = unit.first + (slot_row < units.rows ? slot_row : units.rows - 1);
      row = row < w.rows ? row : w.rows - 1;
      const int first = (k_wave() << units.slice_bits) + slice;
      const int stride = full * (kCdnaWaves << units.slice_bits);
      const bool inside = first + stride < steps;
      const uint32_t at =
          uint32_t(row) * uint32_t(w.row_bytes) + uint32_t(load_offset(Family::cdna, Weights::kBits, lane_id(), 0));
      from[c] = opaque(at + uint32_t(first * kWeightBytes));
      edge[c] = opaque(at + uint32_t(inside ? (first + stride) * kWeightBytes : 0));
      if constexpr (Weights::kGroups) {
        const uint32_t groups_at = uint32_t(row) * uint32_t(w.groups);
        groups_from[c] = opaque((groups_at + uint32_t(first >> linears.group_shift)) * 2);
        groups_edge[c] = opaque((groups_at + uint32_t(inside ? (first + stride) >> linears.group_shift : 0)) * 2);
      }
    }
    // Of values: the choice of an address would keep both in memory.
    XLSTM_DEVICE static uint32_t chosen(bool first, uint32_t a, uint32_t b) { return first ? a : b; }
    XLSTM_DEVICE int index_of(int step) const { return step < full ? step * (kCdnaWaves << slice_bits) : 0; }
    XLSTM_DEVICE void fetch_weights(Step& to, int step) const {
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        const char* const base = linears.weights[c] + int64_t(index_of(step)) * kWeightBytes;
        const uint32_t at = chosen(step < full, from[c], edge[c]);
#pragma unroll
        for (int l = 0; l < kLoads; ++l)
          to.load[c][l] = load_weights<Load>(base + l * load_offset(Family::cdna, Weights::kBits, 0, 1), at);
      }
    }
    XLSTM_DEVICE void fetch_groups(Step& to, int step) const {
      if constexpr (Weights::kGroups)
#pragma unroll
        for (int c = 0; c < kChains; ++c) {
          const int64_t groups = int64_t(index_of(step) >> linears.group_shift) * 2;
          const uint32_t at = chosen(step < full, groups_from[c], groups_edge[c]);
          to.scale[c] = load_bits<uint16_t>(linears.scales[c] + groups, at);
          to.offset[c] = load_bits<uint16_t>(linears.offsets[c] + groups, at);
        }
    }
    XLSTM_DEVICE void fetch(Step& to, int step) const {
      fetch_weights(to, step);
      fetch_groups(to, step);
    }
    // A unit's first steps: what a block loads ahead of x, and the rest. Scales are of the rest: words made of 2 bytes,
    // they would be waited for where a loop over products carries them.
    XLSTM_DEVICE void fetch_early(Step (&steps)[kDepth]) const {
#pragma unroll
      for (int d = 0; d < kEarly; ++d) fetch_weights(steps[d], d);
    }
    XLSTM_DEVICE void fetch_late(Step (&steps)[kDepth]) const {
#pragma unroll
      for (int d = 0; d < kEarly; ++d) fetch_groups(steps[d], d);
#pragma unroll
      for (int d = kEarly; d < kDepth; ++d) fetch(steps[d], d);
    }
  };
  static_assert(kChains == 2);  // SwiGLU's linears

  // Bits of a linear's groups: a branch would cost the loop more than both conversions.
  struct Format {
    uint32_t bfloat16, offsets;  // masks

    XLSTM_DEVICE static Format of(const DeviceLinear& w) {
      const auto mask_of = [](bool x) { return uint32_t(uniform(x ? -1 : 0)); };
      return {mask_of(w.dtype == XLSTM_BFLOAT16), mask_of(w.offsets != nullptr)};
    }
    XLSTM_DEVICE float number(uint32_t bits) const {
      return as_float((bits << 16 & bfloat16) | (as_bits(low_float(Float16{}, bits)) & ~bfloat16));
    }
  };

  struct Groups {
    int begin, end, stride;  // units
  };

  const GemmParams& p;
  X x;
  float* sum_buffers;      // of this group
  int steps, stride;       // of each wave, and from one to its next
  int x_at[2], scales_at;  // the lane's bytes of step 0 in x, by unit of features; and its number in x.scales
  float factor;            // of the RMS norm
  int turn = 0;            // of the buffers
  Strip<E> strip[kChains];
  float sum[kChains];  // of quantised weights

  // fetch_more: see CdnaX::prepare().
  template <class Fetch>
  XLSTM_DEVICE CdnaProduct(const GemmParams& params, char* lds, float* squares, float* buffers, Fetch&& fetch_more)
      : p(params), sum_buffers(buffers) {
    const int slice_bits = (p.*kUnits).slice_bits;
    steps = uniform(cdna_wave_steps(p.columns, slice_bits, kDepth));
    stride = uniform(kCdnaWaves << slice_bits);
    const int all = steps * stride;
    x = X::at(lds, squares, all);
    x.prepare(p, all, fetch_more);
    __syncthreads();
    factor = x.rms_factor(p);
    const int row = lane_id() % kStripColumns;
    const int step = (k_wave() << slice_bits) + (row / 4 & ((1 << slice_bits) - 1));
    const int part = Weights::kIntegers && row % 4 == kXDigits ? kXDigits - 1 : X::part_of_lane();
#pragma unroll
    for (int u = 0; u < 2; ++u) x_at[u] = X::offset(step, u, part, quarter());
    scales_at = 2 * ((k_wave() << slice_bits) + (quarter() & ((1 << slice_bits) - 1)));
  }

  // ---- mainloop

  XLSTM_DEVICE void multiply(const Step& step, const Format& format, int at) {
    const int index = at * stride;
    const char* const x_step = x.lds + index * X::kStepBytes;
    float part[kChains];
    if constexpr (Weights::kIntegers)
      multiply_integers(step, x_step, part);
    else
      multiply_parts(step, x_step, part);
    if constexpr (Weights::kGroups) {
      const float x_scale = x.scales[scales_at + 2 * index], x_sum = x.scales[scales_at + 2 * index + 1];
      constexpr float kZero = Weights::kIntegers ? 0 : Weights::kZero, kWithout = kZero - Weights::kMiddle;
      const float zero = as_float((as_bits(kZero) & format.offsets) | (as_bits(kWithout) & ~format.offsets));
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        // Opaque: the compiler would pair numbers of two chains, and so copy them where they are still on their way.
        const float scale = format.number(opaque(step.scale[c]));
        const float offset = as_float(as_bits(format.number(opaque(step.offset[c]))) & format.offsets);
        sum[c] = __builtin_fmaf(scale * x_scale, part[c], sum[c]);
        sum[c] = __builtin_fmaf(__builtin_fmaf(zero, scale, offset), x_sum, sum[c]);
      }
    }
  }
  XLSTM_DEVICE void multiply_integers(const Step& step, const char* x_step, float (&part)[kChains]) const {
    const Vec16 digits = read_vec16(x_step + x_at[0]);
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      ByteSums sums{};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t weights[2];
        Weights::to_bytes(step.load[c][0], h, weights);
        const uint32_t stream[2] = {digits.word[2 * h], digits.word[2 * h + 1]};
        multiply_bytes(sums, stream, weights);
      }
      part[c] = __builtin_fmaf(float(sums.value[0]), 65536.0f, float((sums.value[1] << 8) + sums.value[2]));
    }
  }
  XLSTM_DEVICE void multiply_parts(const Step& step, const char* x_step, float (&sums)[kChains]) {
    if constexpr (Weights::kGroups)
#pragma unroll
      for (Strip<E>& s : strip) s.zero();
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const Vec16 x_vec16s[kStreamVec16s<E>] = {read_vec16(x_step + x_at[u])};
      const StreamOperand<E> stream = stream_of<E>(x_vec16s, 0);
#pragma unroll
      for (int c = 0; c < kChains; ++c) {
        Vec16 parts[Weights::kParts];
        Weights::to_bfloat16(step.load[c][u / kLoadVec8s], u % kLoadVec8s, parts);
#pragma unroll
        for (const Vec16& part : parts) {
          const Vec16 chain[kChainVec16s<E>] = {part};
          xlstm::gpu::multiply<true>(strip[c], stream, chain_of_vec16s<E>(chain, 0));
        }
      }
    }
    if constexpr (Weights::kGroups)
#pragma unroll
      for (int c = 0; c < kChains; ++c) sums[c] = sum_of_parts(c);
  }
  XLSTM_DEVICE float sum_of_parts(int c) const { return strip[c].value[0] + strip[c].value[1]; }

  // All units of the range; `first` are the first unit's steps. next_of(more, unit): whose early steps are loaded
  // behind this unit, which is the range's last if there are no more.
  template <class NextOf>
  XLSTM_DEVICE void multiply_units(const Groups& range, Step (&first)[kDepth], Source& source, NextOf&& next_of) {
    for (int unit = range.begin; unit < range.end; unit += range.stride) {
      const bool more = unit + range.stride < range.end;
      Source next = source;
      if (Between::kLoadsBehind || more) next = next_of(more, unit);
      const Format format = Format::of(p.linear[source.unit.linear]);
      const float residual = residual_of(source.unit);
#pragma unroll
      for (int c = 0; c < kChains; ++c) strip[c].zero(), sum[c] = 0;
#pragma unroll
      for (int d = 0; d < kEarly; ++d) first[d].arrive();
#pragma unroll 1
      for (int at = 0; at + kDepth < steps; at += kDepth)
#pragma unroll
        for (int d = 0; d < kDepth; ++d) {
          multiply(first[d], format, at + d);
          sched_barrier();  // the compiler would move loads to their use
          source.fetch(first[d], at + kDepth + d);
          sched_barrier();
        }
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        multiply(first[d], format, steps - kDepth + d);
        sched_barrier();
        if ((d < kEarly && Between::kLoadsBehind) || more) next.fetch_weights(first[d], d);
        if (more) next.fetch_groups(first[d], d);
        sched_barrier();
      }
      epilogue(source.unit, residual);
      source = next;
    }
  }

  // ---- epilogue: adds up the sums of waves and slices, in their order

  // Loaded ahead of the products, without a branch: the residual of this thread's row.
  XLSTM_DEVICE float residual_of(const UnitRows& unit) const {
    const int row = unit.first + thread(), rows = p.linear[0].rows;
    const bool adds = p.output == Output::add && thread() < (p.*kUnits).rows && row < rows;
    return Between::load_residual(global(p.residual), rows, row, adds);
  }
  XLSTM_DEVICE void epilogue(const UnitRows& unit, float residual) {
    const GemmParams& of = *reload_params(&p);
    const int slice_bits = (of.*kUnits).slice_bits, linear = uniform(unit.linear);
    float* const buffer = sum_buffers + turn * (kCdnaWaves * kCdnaUnitSlots);
    turn ^= 1;
#pragma unroll
    for (int c = 0; c < kChains; ++c) {
      const int slot = c * kStripColumns + lane_id() % kStripColumns;
      if (quarter() == slice_of(of, slot))
        buffer[k_wave() * kCdnaUnitSlots + slot] = Weights::kGroups ? sum[c] : sum_of_parts(c);
    }
    __syncthreads();
    const int row = unit.first + thread();
    if (thread() >= (of.*kUnits).rows || row >= of.linear[linear].rows) return;
    const bool is_swiglu = of.output == Output::swiglu;
    const auto total_of = [&](int of_linear, int first_slot) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < kCdnaWaves; ++w)
#pragma unroll
        for (int s = 0; s < (1 << kCdnaMostSliceBits); ++s) {
          const bool is_slice = s < (1 << slice_bits);
          const float part = buffer[w * kCdnaUnitSlots + first_slot + (is_slice ? s << row_bits(of) : 0) + thread()];
          total += is_slice ? part : 0.0f;
        }
      const DeviceLinear& w = of.linear[of_linear];
      const float y = total * factor;
      return w.bias.data ? y + value_of({global(w.bias.data), w.bias.dtype}, row) : y;
    };
    float y = total_of(linear, 0);
    if (is_swiglu)
      y = swiglu(y, total_of(1, kCdnaUnitSlots / 2));
    else if (of.output == Output::add)
      y += residual;
    else
      y = cap_and_mask(of, linear, 0, y);
    Between::store(global(of.to[linear]) + row, y);
  }
};

}  // namespace xlstm::gpu::engine
