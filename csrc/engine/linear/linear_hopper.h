// SPDX-License-Identifier: Apache-2.0
// y = x W^T on Hopper for few rows of x: bfloat16 x and y, quantised W. Weights go from memory to registers as they are
// and are wgmma's A operand there; x is its B operand in shared memory.
//
// Maths: y = sum over groups g of scale_g (q_g x_g) + offset_g sum(x_g). An integer is exact in bfloat16. Up to 32 rows
// of x, the sum of 64 features (a step) is one chain of four wgmmas, which is scaled in float and added to the running
// sums: a product has no roundings but those of float sums. For more rows the weights are scaled instead, and rounded
// to bfloat16, as those that `widened` writes to memory are: a weight is scaled once, a sum for each row of x.
//
// Who owns what: a cluster has a tile, 128 rows of weights by kBatch rows of x, and each of its blocks a part of the
// features. Two consumer warpgroups have 64 rows each; a producer warp loads weights and x by TMA; consumers load the
// scales and offsets of the block's groups once, by cp.async. At the end each block sums up an equal share of the rows:
// all blocks send it their partial sums, which it adds in the order of parts. Where registers allow it and there are
// more blocks than multiprocessors, two share one.
//
// Barriers:
//
//   which           who arrives                                who waits    phase
//   __syncthreads   all: mbarriers are initialised             all          once
//   bar 1           consumers: scales and offsets are there    consumers    once
//   full[stage]     the producer, with the bytes               consumers    once around the ring
//   empty[stage]    each consumer warp                         producer     once around the ring
//   cluster_sync    all: no block reads its stages any more    all          once; not for one part
//   bar 1           consumers: the block's sums are stored     consumers    once; not for one part
//   received        the producer, with the bytes of all parts  consumers    once; not for one part
//   bar 1           consumers: nothing of LDS is read now      consumers    once
//   bar 1           consumers: y is in LDS                     consumers    once
//   cluster_sync    all: no block is read from any more        all          once; not for one part
//
// Timeline of a block; a stage has 128 bytes of each row:
//
//   weights    | all stages of the ring | a stage behind each empty ........ |
//   x          |    pdl_wait (pack_linear_kernel) | as weights               |
//   consumers  | scales                 | stage 0 | 1 | 2 | ...              | cluster_sync, sums to owners, y |
//
// Floor: the bytes of the weights over the bandwidth of memory; a block reads 2 kBatch bytes of x from L2 a feature,
// beside 128 rows of weights. What binds is issue, 130 to 190 instructions of a warp and step at half of the slots:
// half of them convert weights (LOP3 at half rate), and few warps hide each other's latency.
#pragma once

#include "arch/hopper/hopper.h"
#include "arch/nvidia/dependent_launch.h"
#include "engine/gpu/prologue_epilogue.h"
#include "engine/gpu/weight_formats.h"
#include "engine/linear/linear_params.h"
#include "engine/linear/linear_shape.h"

namespace xlstm::gpu::engine {

// ---- packing x

constexpr int kPackLinearThreads = 256;

// Four neighbouring lanes pack a step of a row: each one instruction's 16 features, in the order of the weights.
template <int kBits>
struct LinearPacker {
  const PackLinearParams& p;

  XLSTM_DEVICE void run() const {
    const int at = int(blockIdx.x) * kPackLinearThreads + int(threadIdx.x);
    const int k16 = at % 4, step = at / 4 % p.steps, row = at / 4 / p.steps;  // the row counts those of all passes
    if (row >= p.passes * p.batch) return;                                    // whole quads of lanes
    Vec16 even, odd;
    float sum = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int k = step * kStepFeatures + linear_quad(kBits, t, k16) * 4;
      const bool inside = row < p.rows && k < p.columns;
      const uint64_t quad =
          inside ? *reinterpret_cast<const uint64_t*>(static_cast<const char*>(p.x) + (row * p.stride + k) * 2) : 0;
      const uint32_t low = uint32_t(quad), high = uint32_t(quad >> 32);
      even.word[t] = (low & 0xffffu) | high << 16, odd.word[t] = low >> 16 | (high & 0xffff0000u);
      sum += (low_float(BFloat16{}, low) + high_float(BFloat16{}, low)) +
             (low_float(BFloat16{}, high) + high_float(BFloat16{}, high));
    }
    const int row_of_pass = row % p.batch;
    const int64_t panel = int64_t(row / p.batch) * p.steps + step;
    char* const to = p.panels + panel * linear_panel_bytes(p.batch);
    *reinterpret_cast<Vec16*>(to + panel_vec16_offset(uint32_t(row_of_pass), uint32_t(2 * k16))) = even;
    *reinterpret_cast<Vec16*>(to + panel_vec16_offset(uint32_t(row_of_pass), uint32_t(2 * k16 + 1))) = odd;
    sum = sum_over_lanes<4>(sum);
    if (k16 == 0) p.sums[panel * p.batch + row_of_pass] = sum;
  }
};

template <int kBits>
__global__ __launch_bounds__(kPackLinearThreads) void pack_linear_kernel(XLSTM_PARAM PackLinearParams kernel_arg) {
  if constexpr (kHopper) {
    pdl_trigger();
    pdl_wait();
    LinearPacker<kBits>{kernel_arg}.run();
  }
}

// ---- the product

template <class Weights, int kBatch, bool kOffsets>
struct QuantisedLinear {
  static constexpr int kBits = Weights::kBits, kStageSteps = linear_stage_steps(kBits);
  static constexpr LinearStage kStage = linear_stage(kBits, kBatch, kOffsets);
  static constexpr int kPanelBytes = linear_panel_bytes(kBatch), kStepBytes = kStepFeatures * kBits / 8;
  static constexpr int kSums = kBatch / 2;  // registers of a thread
  static constexpr bool kScalesWeights = linear_scales_weights(kBatch), kXSums = linear_has_x_sums(kBatch, kOffsets);
  static constexpr uint32_t kZeros = 0x41c041c0u;    // 24 twice: what a nibble's zero and 16 are
  static constexpr int kLoadBytes = kStepBytes / 4;  // of a row and step, by a thread
  using Load = typename Weights::Load;

  const LinearParams& p;
  char* const lds;
  const uint32_t lds_at;
  const int part, tile, pass, first, steps;  // this block's steps, from `first` on

  XLSTM_DEVICE QuantisedLinear(const LinearParams& params, char* shared)
      : p(params),
        lds(shared),
        lds_at(lds_address(shared)),
        part(int(blockIdx.x) & ((1 << params.part_bits) - 1)),
        tile((int(blockIdx.x) >> params.part_bits) / params.passes),
        pass((int(blockIdx.x) >> params.part_bits) % params.passes),
        first(params.steps * part >> params.part_bits),
        steps((params.steps * (part + 1) >> params.part_bits) - first) {}

  XLSTM_DEVICE Mbarrier full(int slot) const { return {lds_at + uint32_t(p.smem.barriers + slot * 16)}; }
  XLSTM_DEVICE Mbarrier empty(int slot) const { return {full(slot).at + 8}; }
  XLSTM_DEVICE Mbarrier received() const { return {full(p.smem.stages).at}; }
  XLSTM_DEVICE int stages() const { return (steps + kStageSteps - 1) / kStageSteps; }

  // A stage's place in the ring; a slot's phase changes once around.
  struct Slot {
    int index = 0;
    uint32_t parity = 0;

    XLSTM_DEVICE void next(int stages) {
      if (++index < stages) return;
      index = 0, parity ^= 1;
    }
  };

  XLSTM_DEVICE void run() const {
    const bool produces = wave_id() == kLinearConsumers / 32;
    if (produces && lane_id() == 0) {
      prefetch(&p.weights);
      for (int s = 0; s < p.smem.stages; ++s) {
        full(s).init(1);
        empty(s).init(kLinearConsumers / 32);
      }
      received().init(1);
      fence_mbarrier_init();
      if (p.part_bits) received().arrive_expect_tx(uint32_t(kStage.tile_sums));  // of all parts, of this block's rows
    }
    __syncthreads();
    if (produces)
      produce();
    else
      consume();
  }

  // ---- scales and offsets

  XLSTM_DEVICE int group_shift() const { return p.w.group_size > kStepFeatures ? 1 : 0; }
  // The bytes of a row's first group from the beginning of all scales.
  XLSTM_DEVICE int first_group_byte(int row) const {
    const int at = tile * kLinearRows + row;
    return ((at < p.w.rows ? at : p.w.rows - 1) * p.w.groups + (first >> group_shift())) * 2;
  }
  XLSTM_DEVICE void load_groups(const void* groups, int to) const {
    const int vec16s = p.smem.scale_row / 16, all_bytes = p.w.rows * p.w.groups * 2;
    for (int at = int(threadIdx.x); at < kLinearRows * vec16s; at += kLinearConsumers) {
      const int row = at / vec16s, from = (first_group_byte(row) & ~15) + at % vec16s * 16, left = all_bytes - from;
      const int bytes = left < 0 ? 0 : left < 16 ? left : 16;
      cp_async_16(lds_address(lds + to + at * 16), static_cast<const char*>(groups) + (bytes ? from : 0), bytes);
    }
  }

  // ---- producer: one thread

  XLSTM_DEVICE void produce() const {
    if (lane_id() == 0) load_operands();
    __syncwarp();
    if (p.part_bits) {
      cluster_sync();
      cluster_sync();
    }
  }
  // Weights of the ring's first stages do not wait for the kernel that packs x.
  XLSTM_DEVICE void load_operands() const {
    const int early = stages() < p.smem.stages ? stages() : p.smem.stages;
    for (int n = 0; n < early; ++n) {
      announce(n, n);
      load_weights(n, n);
    }
    pdl_wait();
    for (int n = 0; n < early; ++n) load_x(n, n);
    Slot slot;
    for (int n = p.smem.stages; n < stages(); ++n) {
      empty(slot.index).wait(slot.parity);
      announce(n, slot.index);
      load_weights(n, slot.index);
      load_x(n, slot.index);
      slot.next(p.smem.stages);
    }
  }
  XLSTM_DEVICE int steps_of(int n) const {
    const int left = steps - n * kStageSteps;
    return left < kStageSteps ? left : kStageSteps;
  }
  XLSTM_DEVICE void announce(int n, int slot) const {
    const int x_bytes = steps_of(n) * (kPanelBytes + (kXSums ? kBatch * 4 : 0));
    full(slot).arrive_expect_tx(uint32_t(kLinearRows * kLinearRowBytes + x_bytes));
  }
  XLSTM_DEVICE void load_weights(int n, int slot) const {
    tma_load(lds_at + uint32_t(slot * kStage.bytes), &p.weights, (first + n * kStageSteps) * (kStepBytes / 2),
             tile * kLinearRows, 0, 0, full(slot));
  }
  XLSTM_DEVICE void load_x(int n, int slot) const {
    const int64_t panel = int64_t(pass) * p.steps + first + n * kStageSteps;
    const uint32_t stage = lds_at + uint32_t(slot * kStage.bytes);
    bulk_load(stage + kStage.x, p.panels + panel * kPanelBytes, uint32_t(steps_of(n) * kPanelBytes), full(slot));
    if constexpr (kXSums)
      bulk_load(stage + kStage.x_sums, p.sums + panel * kBatch, uint32_t(steps_of(n) * kBatch * 4), full(slot));
  }

  // ---- consumers

  XLSTM_DEVICE void consume() const {
    load_groups(p.w.scales, p.smem.scales);
    if constexpr (kOffsets) load_groups(p.w.offsets, p.smem.offsets);
    cp_async_commit();
    cp_async_wait_group<0>();
    barrier_sync(1, kLinearConsumers);
    float sum[kSums] = {};
    with_dtype(p.w.dtype, [&](auto element) { multiply(element, thread_rows(), sum); });
    if (p.part_bits) {
      cluster_sync();
      share_sums(sum);
      received().wait(0);
      add_parts(sum);
    }
    store_y(sum);
    if (p.part_bits) cluster_sync();  // a block that has ended could not be read from
  }

  // The first of a thread's two rows of the tile.
  XLSTM_DEVICE static int thread_row() { return wave_id() * 16 + linear_lane_row(lane_id() / 4); }

  // A thread's two rows in shared memory: their first bytes in a stage, and their scales from the block's first group.
  struct ThreadRows {
    uint32_t weights[2], groups[2];
  };
  XLSTM_DEVICE ThreadRows thread_rows() const {
    ThreadRows at;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = thread_row() + j, byte = lane_id() % 4 * kLoadBytes;
      at.weights[j] = panel_vec16_offset(uint32_t(row), uint32_t(byte / 16)) + uint32_t(byte % 16);
      at.groups[j] = uint32_t(row * p.smem.scale_row + first_group_byte(row) % 16);
    }
    return at;
  }

  // While a step's wgmmas run, the next step's weights are converted: those of the next stage, too. A step's sums are
  // the next terms of a thread's sums, where weights are scaled, or a chain of their own, which is scaled and added.
  template <class Element>
  XLSTM_DEVICE void multiply(Element element, const ThreadRows& at, float (&sum)[kSums]) const {
    uint32_t a[2][4][4];
    float step_sum[kScalesWeights ? 1 : kSums];
    const auto group_of = [&](int step) { return (first + step >> group_shift()) - (first >> group_shift()); };
    Slot slot;
    full(0).wait(0);
    read_weights(element, lds, 0, 0, at, a[0]);
#pragma unroll 1
    for (int k = 0; k < steps; k += kStageSteps) {
      const int at_slot = slot.index;
      const char* const stage = lds + at_slot * kStage.bytes;
      slot.next(p.smem.stages);
#pragma unroll
      for (int s = 0; s < kStageSteps; ++s) {
        if (k + s >= steps) break;
        const uint64_t x = k_major_descriptor(lds_address(stage) + kStage.x + s * kPanelBytes);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < 4; ++k16) {
          if constexpr (kScalesWeights)
            wgmma_rs<false>(sum, a[s % 2][k16], x + k16 * kNextKMajor);
          else
            wgmma_rs<false>(step_sum, a[s % 2][k16], x + k16 * kNextKMajor, k16 > 0);
        }
        wgmma_commit();
        if (s + 1 < kStageSteps) {
          read_weights(element, stage, s + 1, group_of(k + s + 1), at, a[(s + 1) % 2]);
        } else if (k + kStageSteps < steps) {
          full(slot.index).wait(slot.parity);
          read_weights(element, lds + slot.index * kStage.bytes, 0, group_of(k + kStageSteps), at, a[0]);
        }
        if constexpr (kScalesWeights) {
          wgmma_wait<0>(sum);
        } else {
          float scale[2], offset[2];
          read_groups(element, group_of(k + s), at, scale, offset);
          wgmma_wait<0>(step_sum);
          add_step(stage, s, step_sum, scale, offset, sum);
        }
      }
      empty(at_slot).arrive_once_per_warp();
    }
  }
  // A thread's 16 weights of two rows of a step, the stage's sth, as the operands of four instructions. The swizzle of
  // a row is an exclusive or, so a step's place is the first one's with other bits.
  template <class Element>
  XLSTM_DEVICE void read_weights(Element element, const char* stage, int s, int group, const ThreadRows& at,
                                 uint32_t (&a)[4][4]) const {
    float scale[2], offset[2];
    if constexpr (kScalesWeights) read_groups(element, group, at, scale, offset);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const char* const from = stage + (at.weights[j] ^ uint32_t(s * kStepBytes));
      Load load;
      if constexpr (kLoadBytes == 16)
        load = read_vec16(from);
      else
        load = __builtin_bit_cast(Load, *reinterpret_cast<const uint64_t*>(from));
      const WeightScale to_scale(scale[j], offset[j]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        Vec16 of_load[1];
        Weights::to_bfloat16(load, n, of_load);
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          uint32_t pair = of_load[0].word[w];
          if constexpr (kBits == 4 && !kOffsets) pair = subtract_bfloat16(pair, kZeros);
          a[2 * n + w / 2][w % 2 * 2 + j] = kScalesWeights ? to_scale.apply(pair) : pair;
        }
      }
    }
  }
  // A group's scale and offset as sums of two bfloat16, each twice in a register: a scaled weight is rounded as a float
  // would be.
  struct WeightScale {
    uint32_t scale, scale_rest, offset, offset_rest;

    XLSTM_DEVICE WeightScale(float scale_of, float offset_of) {
      if constexpr (kScalesWeights) split(scale_of, scale, scale_rest);
      if constexpr (kScalesWeights && kOffsets) split(offset_of, offset, offset_rest);
    }
    XLSTM_DEVICE static void split(float x, uint32_t& rounded, uint32_t& rest) {
      rounded = pack(BFloat16{}, x, x);
      const float left = x - low_float(BFloat16{}, rounded);
      rest = pack(BFloat16{}, left, left);
    }
    XLSTM_DEVICE uint32_t apply(uint32_t weights) const {
      const uint32_t rest = fma_bfloat16(weights, scale_rest, kOffsets ? offset_rest : 0);
      if constexpr (!kOffsets) return fma_bfloat16(weights, scale, rest);
      return add_bfloat16(fma_bfloat16(weights, scale, offset), rest);
    }
  };
  // A group's scales of a thread's two rows, and its offsets: what is added to weights, or what x's sum is multiplied
  // by, where a nibble counts from -16.
  template <class Element>
  XLSTM_DEVICE void read_groups(Element element, int group, const ThreadRows& at, float (&scale)[2],
                                float (&offset)[2]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const char* const row = lds + at.groups[j] + group * 2;
      scale[j] = low_float(element, *reinterpret_cast<const uint16_t*>(row + p.smem.scales));
      offset[j] = 0;
      if constexpr (kOffsets) offset[j] = low_float(element, *reinterpret_cast<const uint16_t*>(row + p.smem.offsets));
      if constexpr (kOffsets) offset[j] = __builtin_fmaf(Weights::kZero, scale[j], offset[j]);
    }
  }
  XLSTM_DEVICE static void add_step(const char* stage, int s, const float (&step_sum)[kSums], const float (&scale)[2],
                                    const float (&offset)[2], float (&sum)[kSums]) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      float2 x_sum;
      if constexpr (kOffsets)
        x_sum = *reinterpret_cast<const float2*>(stage + kStage.x_sums + (s * kBatch + i * 2 + lane_id() % 4 * 2) * 4);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        sum[i + r] = __builtin_fmaf(scale[r / 2], step_sum[i + r], sum[i + r]);
        if constexpr (kOffsets) sum[i + r] = __builtin_fmaf(offset[r / 2], r % 2 ? x_sum.y : x_sum.x, sum[i + r]);
      }
    }
  }

  // ---- epilogue
  //
  // Of a thread's sums, four at a time (a set) are of its two rows and of two rows of x. A block owns the rows of so
  // many threads: all, or the part's share. Its y goes to shared memory, where the ring was, and from there by rows.

  XLSTM_DEVICE int owner_bits() const { return 8 - p.part_bits; }
  XLSTM_DEVICE int share_bytes() const { return kSums * 4 << owner_bits(); }
  XLSTM_DEVICE int vec16_offset(int share, int set, int thread) const {
    return share * share_bytes() + ((set << owner_bits()) + thread) * 16;
  }
  XLSTM_DEVICE void share_sums(const float (&sum)[kSums]) const {
    const int at = int(threadIdx.x), owner = at >> owner_bits(), thread = at - (owner << owner_bits());
    char* const own = lds + kStage.tile_sums;
#pragma unroll
    for (int i = 0; i < kSums; i += 4)
      *reinterpret_cast<Vec16*>(own + vec16_offset(owner, i / 4, thread)) = {
          {as_bits(sum[i]), as_bits(sum[i + 1]), as_bits(sum[i + 2]), as_bits(sum[i + 3])}};
    fence_async_proxy();
    barrier_sync(1, kLinearConsumers);
    if (at < 1 << p.part_bits)
      bulk_copy_to_cta(uint32_t(at), lds_at + uint32_t(part * share_bytes()),
                       lds_address(own) + uint32_t(at * share_bytes()), uint32_t(share_bytes()), received());
  }
  // Of the block's share a thread has every 2^part_bits-th set. Adds the partial sums of all parts, which become the
  // thread's first ones.
  XLSTM_DEVICE int share_thread() const { return int(threadIdx.x) & ((1 << owner_bits()) - 1); }
  XLSTM_DEVICE int first_set() const { return int(threadIdx.x) >> owner_bits(); }
  XLSTM_DEVICE void add_parts(float (&sum)[kSums]) const {
#pragma unroll
    for (int n = 0; n < kSums / 8; ++n) {
      const int set = first_set() + (n << p.part_bits);
      if (set >= kSums / 4) break;
#pragma unroll
      for (int r = 0; r < 4; ++r) sum[4 * n + r] = 0;
      for (int of = 0; of < 1 << p.part_bits; ++of) {
        const Vec16 vec = read_vec16(lds + vec16_offset(of, set, share_thread()));
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[4 * n + r] += as_float(vec.word[r]);
      }
    }
  }

  // Rows of weights that the block owns, and its y in shared memory: by rows of x, 16 bytes more apart than they have,
  // for the banks.
  XLSTM_DEVICE int share_rows() const { return kLinearRows >> p.part_bits; }
  XLSTM_DEVICE int first_y_row() const { return tile * kLinearRows + part * share_rows(); }
  XLSTM_DEVICE char* y_row(int b) const { return lds + b * (share_rows() * 2 + 16); }

  XLSTM_DEVICE void store_y(const float (&sum)[kSums]) const {
    const int row = share_thread() / 32 * 16 + linear_lane_row(share_thread() % 32 / 4);
    const auto bias_of = [&](int r) { return p.w.bias.data && r < p.w.rows ? value_of(p.w.bias, r) : 0.0f; };
    const float bias[2] = {bias_of(first_y_row() + row), bias_of(first_y_row() + row + 1)};
    barrier_sync(1, kLinearConsumers);  // the ring, or what came from other blocks, has been read
#pragma unroll
    for (int n = 0; n < kSums / 4; ++n) {
      const int set = first_set() + (n << p.part_bits);
      if (set >= kSums / 4) break;
#pragma unroll
      for (int c = 0; c < 2; ++c)
        *reinterpret_cast<uint32_t*>(y_row(set * 8 + lane_id() % 4 * 2 + c) + row * 2) =
            pack(BFloat16{}, sum[4 * n + c] + bias[0], sum[4 * n + c + 2] + bias[1]);
    }
    barrier_sync(1, kLinearConsumers);
    const int left = p.w.rows - first_y_row(), rows = left < share_rows() ? left : share_rows();
    if (p.stride % 8 == 0 && rows % 8 == 0)
      store_y_rows<Vec16>(rows);
    else
      store_y_rows<uint16_t>(rows);
  }
  // Piece: what a thread stores at once.
  template <class Piece>
  XLSTM_DEVICE void store_y_rows(int rows) const {
    const int pieces = share_rows() * 2 / int(sizeof(Piece)), inside = rows * 2 / int(sizeof(Piece));
    for (int at = int(threadIdx.x); at < kBatch * pieces; at += kLinearConsumers) {
      const int b = at / pieces, piece = at % pieces, of_all = pass * kBatch + b;
      if (of_all >= p.rows || piece >= inside) continue;
      Piece* const to = reinterpret_cast<Piece*>(static_cast<uint16_t*>(p.y) + of_all * p.stride + first_y_row());
      to[piece] = reinterpret_cast<const Piece*>(y_row(b))[piece];
    }
  }
};

template <class Weights, int kBatch, bool kOffsets>
__global__ __launch_bounds__(kLinearThreads, linear_blocks_per_sm(kBatch)) void quantised_linear_kernel(
    XLSTM_PARAM LinearParams kernel_arg) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    pdl_trigger();
    QuantisedLinear<Weights, kBatch, kOffsets>(*kernel_params(kernel_arg), lds).run();
  }
}

}  // namespace xlstm::gpu::engine
