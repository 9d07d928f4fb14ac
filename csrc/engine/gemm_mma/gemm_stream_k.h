// SPDX-License-Identifier: Apache-2.0
// gemm_mma for more than eight rows of x on NVIDIA: y = W x, where pack_kernel has split x and laid it out in memory
// (engine/gemm_mma/pack_inputs.h). Stream-K: one block on each multiprocessor, and all have equally many steps.
//
// Who owns what: a tile is 128 rows of weights by kBatch rows of the batch. A product's tiles, each with all steps of
// 64 features, stand one after the other; part i of P has steps T i / P to T (i + 1) / P of them all, so it begins and
// ends within tiles. Four warps have 32 rows of a tile each, and two halves of the batch: a weight becomes bfloat16
// once for half of the batch. The parts of a tile are summed in their order by the block that is the last to finish
// one; a tile of one part needs no memory. Batches above kBatch take passes, whose blocks find the weights in L2.
//
//   part       |      0      |      1      |      2      |
//   tile       |    0    |    1    |    2    |    3    |
//   partials   |         | 0 and 1 | 1 and 2 |         |
//
// Order of sums: a part's steps in turn, upper before lower bfloat16 of x, into one accumulator; then parts. Parts
// follow from the shape and the chip, not from the batch, so a row of the batch has the same result beside any eight or
// more others. Up to eight rows, gemm_mma_kernel and clusters have other orders.
//
// Barriers: one __syncthreads a stage. Before it a thread waits for its own copies of the stage; behind it all have
// left the stage before, whose slot is filled again.
//
// Timeline of a block; a stage of the ring has weights and x of 64 or 128 features:
//
//   weights  | first stages | next stage behind each barrier ................................ |
//   x        |  pdl_wait    | the same                                                        |
//   warps    |              | products of tile 0's last steps | partials | products of tile 1 | y ..
//
// Floor: the bytes of the weights over the bandwidth of memory; from about 64 rows on, tensor cores, which multiply x's
// two parts. A block reads kBatch * 4 bytes of x from L2 a feature, beside 128 rows of weights.
#pragma once

#include "arch/nvidia/dependent_launch.h"
#include "engine/gemm_mma/gemm_mma_weights.h"
#include "engine/gemm_mma/gemm_stream_k_shape.h"
#include "engine/gpu/weight_formats.h"

namespace xlstm::gpu::engine {

template <class Weights, int kBatch>
struct GemmStreamK {
  using E = BFloat16;
  static constexpr int kBits = Weights::kBits, kChains = kStreamKChains, kStageSteps = stage_steps(kBits, kBatch);
  static constexpr StreamKStage kStage = stream_k_stage(kBits, kBatch);
  static constexpr int kTiles = kBatch / 8 / kStreamKBatchWarps, kTilesAtOnce = kTiles < 4 ? kTiles : 4;
  static constexpr int kUnits = kStepFeatures / unit_features(Family::nvidia, 2), kLoads = lane_loads(kFamily, kBits);
  static constexpr int kRowBytes = kStepFeatures * kBits / 8, kRowVec16s = kRowBytes / 16;  // of a step
  static constexpr int kRowsPerFetch = kStreamKThreads / kRowVec16s, kFetches = kStreamKRows / kRowsPerFetch;
  using Load = typename Weights::Load;

  // Consecutive steps of one tile.
  struct Segment {
    int unit, from, to;
  };
  // A place in the block's steps.
  struct Cursor {
    Segment segment;
    int step;
  };
  // What a thread copies of a unit's weights, scales and offsets: its 16 bytes of rows, and one word of a group.
  struct Source {
    const char* row[kFetches];
    int row_bytes;  // from the thread's first byte on
    const char* groups;
    int first_group, group_count, group_shift, group_bytes;
  };

  const GemmParams& p;
  char* const lds;
  uint32_t* const arrived_before;  // in shared memory
  const int passes, pass, units, steps, parts, part, begin, end;
  const char* const x;
  const char* const x_sums;
  Cursor next_weights, next_x;
  Source source;
  float sum[kChains][kTiles][4];

  // ---- the parts of a launch

  XLSTM_DEVICE static int parts_of(int total_steps, int blocks) {
    const int most = total_steps / kLeastPartSteps;
    return blocks < most ? blocks : most < 1 ? 1 : most;
  }
  XLSTM_DEVICE int begin_of(int of) const { return int(int64_t(units * steps) * of / parts); }
  // The part that has this step.
  XLSTM_DEVICE int part_of(int step) const { return int((int64_t(step + 1) * parts - 1) / (units * steps)); }
  XLSTM_DEVICE Segment segment_at(int step) const {
    const int unit = step / steps, from = step - unit * steps, left = end - step;
    return {unit, from, left < steps - from ? from + left : steps};
  }

  XLSTM_DEVICE GemmStreamK(const GemmParams& params, char* shared, uint32_t* before)
      : p(params),
        lds(shared),
        arrived_before(before),
        passes((params.batch + kBatch - 1) / kBatch),
        pass(int(blockIdx.x) % passes),
        units(units_of<kStreamKRows>(params, Weights::kGroups)),
        steps((params.columns + kStepFeatures - 1) / kStepFeatures),
        parts(parts_of(units * steps, params.blocks / passes)),
        part(int(blockIdx.x) / passes),
        begin(begin_of(part)),
        end(begin_of(part + 1)),
        x(params.packed.x[0] + int64_t(pass) * packed_steps(kFamily, params.columns) * packed_step_bytes(kBatch)),
        x_sums(reinterpret_cast<const char*>(params.packed.step_sums) +
               int64_t(pass) * packed_steps(kFamily, params.columns) * (kBatch * 4)) {}

  XLSTM_DEVICE bool has_work() const { return part < parts; }
  XLSTM_DEVICE void run() {
    next_weights = next_x = {segment_at(begin), 0};
    next_weights.step = next_x.step = next_x.segment.from;
    begin_source();
    for (int d = 0; d < p.stages - 1; ++d) fetch_weights(d);
    pdl_wait();
    for (int d = 0; d < p.stages - 1; ++d) {
      fetch_x(d);
      cp_async_commit();
    }
    int slot = 0;
    for (int step = begin; step < end;) {
      const Segment segment = segment_at(step);
      clear();
      const DeviceLinear& w = p.linear[rows_of_unit<kStreamKRows>(p, Weights::kGroups, segment.unit).linear];
#pragma unroll 1
      for (int k = segment.from; k < segment.to; k += kStageSteps) {
        wait_for_all_but(p.stages - 2);
        __syncthreads();
        const int free_slot = slot == 0 ? p.stages - 1 : slot - 1;
        fetch_weights(free_slot);
        fetch_x(free_slot);
        cp_async_commit();
#pragma unroll
        for (int s = 0; s < kStageSteps; ++s)
          if (k + s < segment.to) multiply_step(w, lds + slot * kStage.bytes, s, k + s);
        slot = slot + 1 == p.stages ? 0 : slot + 1;
      }
      finish(segment);
      step += segment.to - segment.from;
    }
  }

  // ---- from memory to the ring

  // Behind a cursor's stage; returns whether another segment begins.
  XLSTM_DEVICE bool advance(Cursor& at) const {
    at.step += kStageSteps;
    if (at.step < at.segment.to) return false;
    const int next = at.segment.unit * steps + at.segment.to;
    at.segment = next < end ? segment_at(next) : Segment{units, 0, 0};  // or no steps
    at.step = at.segment.from;
    return next < end;
  }
  XLSTM_DEVICE void begin_source() {
    const UnitRows unit = rows_of_unit<kStreamKRows>(p, Weights::kGroups, next_weights.segment.unit);
    const int thread = int(threadIdx.x), first = thread % kRowVec16s * 16;
#pragma unroll
    for (int n = 0; n < kFetches; ++n) {
      const auto [linear, row] = row_of_slot(unit, thread / kRowVec16s + n * kRowsPerFetch);
      const DeviceLinear& w = p.linear[linear];
      source.row[n] = static_cast<const char*>(w.data) + row * w.row_bytes + first;
    }
    source.row_bytes = int(p.linear[unit.linear].row_bytes) - first;
    if constexpr (Weights::kGroups) {
      const auto [linear, row] = row_of_slot(unit, thread % kStreamKRows);
      const DeviceLinear& w = p.linear[linear];
      source.groups = static_cast<const char*>(thread < kStreamKRows ? w.scales : w.offsets);
      source.first_group = row * w.groups, source.group_count = w.groups;
      source.group_shift = w.group_size > kStepFeatures ? 1 : 0, source.group_bytes = w.rows * w.groups * 2;
    }
  }
  // The linear and row of a slot of the tile; past the last row, the last row again.
  struct RowCoord {
    int linear, row;
  };
  XLSTM_DEVICE RowCoord row_of_slot(const UnitRows& unit, int slot) const {
    const bool is_swiglu = p.output == Output::swiglu;
    const int linear = is_swiglu ? slot / kStripColumns % 2 : unit.linear,
              row = unit.first + (is_swiglu ? slot / (2 * kStripColumns) * kStripColumns + slot % kStripColumns : slot);
    return {linear, row < p.linear[linear].rows ? row : p.linear[linear].rows - 1};
  }
  // Two rows of bfloat16 that are read together are in different halves of a line.
  XLSTM_DEVICE static int slot_vec16(int row, int vec16) { return kRowVec16s == 8 ? vec16 ^ row % 2 * 4 : vec16; }

  XLSTM_DEVICE void fetch_weights(int slot) {
    char* const stage = lds + slot * kStage.bytes;
    const int thread = int(threadIdx.x), row = thread / kRowVec16s;
#pragma unroll
    for (int s = 0; s < kStageSteps; ++s) {
      const int step = next_weights.step + s;
      if (step >= next_weights.segment.to) continue;
      const int at = step * kRowBytes;
#pragma unroll
      for (int n = 0; n < kFetches; ++n) {
        char* const to = stage + (s * kStreamKRows + row + n * kRowsPerFetch) * kRowBytes;
        cp_async_line(lds_address(to + slot_vec16(row, thread % kRowVec16s) * 16), source.row[n] + at,
                      at < source.row_bytes ? 16 : 0);
      }
      if constexpr (Weights::kGroups) fetch_group(stage + s * kStreamKRows * 4, step);
    }
    if (advance(next_weights)) begin_source();
  }
  // A group's scale or offset has two bytes: the word that it is half of.
  XLSTM_DEVICE void fetch_group(char* stage, int step) const {
    if (!source.groups) return;
    const int group = step >> source.group_shift, from = (source.first_group + group) * 2 & ~3,
              left = source.group_bytes - from;
    const int row = int(threadIdx.x) % kStreamKRows;
    char* const to = stage + (threadIdx.x < kStreamKRows ? kStage.scales : kStage.offsets) + row * 4;
    cp_async_4(lds_address(to), source.groups + from, group >= source.group_count ? 0 : left < 4 ? left : 4);
  }
  XLSTM_DEVICE void fetch_x(int slot) {
    constexpr int kStepBytes = packed_step_bytes(kBatch), kSumBytes = kBatch * 4;
    char* const stage = lds + slot * kStage.bytes;
    const int first = int(threadIdx.x) * 16;
#pragma unroll
    for (int s = 0; s < kStageSteps; ++s) {
      const int step = next_x.step + s;
      if (step >= next_x.segment.to) continue;
      const char* const from = x + int64_t(step) * kStepBytes + first;
#pragma unroll
      for (int n = 0; n < kStepBytes; n += kStreamKThreads * 16)
        cp_async_16(lds_address(stage + kStage.x + s * kStepBytes + first + n), from + n, 16);
      if (Weights::kGroups && first < kSumBytes)
        cp_async_16(lds_address(stage + kStage.x_sums + s * kSumBytes + first),
                    x_sums + int64_t(step) * kSumBytes + first, 16);
    }
    advance(next_x);
  }
  XLSTM_DEVICE static void wait_for_all_but(int stages) {
    switch (stages) {
      case 0:
        return cp_async_wait_group<0>();
      case 1:
        return cp_async_wait_group<1>();
      case 2:
        return cp_async_wait_group<2>();
      case 3:
        return cp_async_wait_group<3>();
      case 4:
        return cp_async_wait_group<4>();
      case 5:
        return cp_async_wait_group<5>();
      default:
        return cp_async_wait_group<kMostStages - 2>();
    }
  }

  // ---- mainloop

  XLSTM_DEVICE static int row_warp() { return wave_id() / kStreamKBatchWarps; }
  XLSTM_DEVICE static int batch_warp() { return wave_id() % kStreamKBatchWarps; }

  XLSTM_DEVICE void clear() {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int r = 0; r < 4; ++r) sum[c][t][r] = 0;
  }
  // Step s of a stage, which is this step of the features.
  XLSTM_DEVICE void multiply_step(const DeviceLinear& w, const char* stage, int s, int step) {
    Load load[kChains][2][kLoads];
    read_weights(stage + s * kStreamKRows * kRowBytes, load);
    const char* const x_at = stage + kStage.x + s * packed_step_bytes(kBatch);
    if constexpr (Weights::kGroups) {
      float part_sum[kChains][kTiles][4] = {};
      multiply_units(load, x_at, part_sum);
      add_groups(w, stage, s, step, part_sum);
    } else {
      multiply_units(load, x_at, sum);
    }
  }
  XLSTM_DEVICE static void read_weights(const char* weights, Load (&load)[kChains][2][kLoads]) {
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = stream_k_slot(row_warp(), c) + row_of_lane(Family::nvidia, lane_id(), j);
#pragma unroll
        for (int l = 0; l < kLoads; ++l) {
          const int byte = load_offset(Family::nvidia, kBits, lane_id(), l);
          const char* const from = weights + row * kRowBytes + slot_vec16(row, byte / 16) * 16 + byte % 16;
          if constexpr (sizeof(Load) == 16)
            load[c][j][l] = read_vec16(from);
          else
            load[c][j][l] = __builtin_bit_cast(Load, *reinterpret_cast<const uint64_t*>(from));
        }
      }
  }
  XLSTM_DEVICE static void multiply_units(const Load (&load)[kChains][2][kLoads], const char* x_at,
                                          float (&to)[kChains][kTiles][4]) {
    constexpr int kLoadVec8s = load_vec8s(kBits);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      Vec16 chain[kChains][Weights::kParts][2];
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          Vec16 of_load[Weights::kParts];
          Weights::to_bfloat16(load[c][j][u / kLoadVec8s], u % kLoadVec8s, of_load);
#pragma unroll
          for (int h = 0; h < Weights::kParts; ++h) chain[c][h][j] = of_load[h];
        }
#pragma unroll
      for (int first = 0; first < kTiles; first += kTilesAtOnce) multiply_tiles(chain, x_at, u, first, to);
    }
  }
  // Products whose sums do not depend on each other follow each other.
  XLSTM_DEVICE static void multiply_tiles(const Vec16 (&chain)[kChains][Weights::kParts][2], const char* x_at, int u,
                                          int first, float (&to)[kChains][kTiles][4]) {
    Vec16 stream[kTilesAtOnce][2];
#pragma unroll
    for (int t = 0; t < kTilesAtOnce; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        stream[t][half] = read_vec16(x_at + lane_id() * kSlotBytes +
                                     packed_tile_offset(kBatch, u, batch_warp() * kTiles + first + t, half));
#pragma unroll
    for (int k = 0; k < kUnitSteps<E>; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int h = 0; h < Weights::kParts; ++h)
#pragma unroll
          for (int t = 0; t < kTilesAtOnce; ++t)
#pragma unroll
            for (int c = 0; c < kChains; ++c) {
              const ChainOperand<E> a = chain_of_vec16s<E>(chain[c][h], k);
              mma_bfloat16(to[c][first + t], a.word, stream[t][half].word[2 * k], stream[t][half].word[2 * k + 1]);
            }
  }
  // Adds a step's products of a group to the sums.
  XLSTM_DEVICE void add_groups(const DeviceLinear& w, const char* stage, int s, int step,
                               const float (&part_sum)[kChains][kTiles][4]) {
    const int group = step >> (w.group_size > kStepFeatures ? 1 : 0);
    const int shift = ((lane_id() / 4 & w.groups) ^ group) % 2 * 16;  // a tile's first row is even
    float scale[kChains][2], offset[kChains][2];
    with_dtype(w.dtype, [&](auto element) {
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int row = s * kStreamKRows + stream_k_slot(row_warp(), c) + row_of_lane(Family::nvidia, lane_id(), j);
          const auto number = [&](int at) {
            return low_float(element, *reinterpret_cast<const uint32_t*>(stage + at + row * 4) >> shift);
          };
          scale[c][j] = number(kStage.scales);
          offset[c][j] = w.offsets ? __builtin_fmaf(Weights::kZero, scale[c][j], number(kStage.offsets))
                                   : (Weights::kZero - Weights::kMiddle) * scale[c][j];
        }
    });
    const bool has_offsets = w.offsets || Weights::kZero != Weights::kMiddle;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      float step_sum[2] = {};
      if (has_offsets)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          step_sum[e] = *reinterpret_cast<const float*>(stage + kStage.x_sums + (s * kBatch + batch_row(t, e)) * 4);
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          float& to = sum[c][t][r];
          to = __builtin_fmaf(scale[c][r / 2], part_sum[c][t][r], to);
          if (has_offsets) to = __builtin_fmaf(offset[c][r / 2], step_sum[r % 2], to);
        }
    }
  }
  // The row of the batch, within the pass, of register r of an accumulator.
  XLSTM_DEVICE static int batch_row(int tile, int r) {
    return (batch_warp() * kTiles + tile) * 8 + lane_id() % 4 * 2 + r % 2;
  }

  // ---- epilogue

  XLSTM_DEVICE void finish(const Segment& segment) {
    if (segment.to - segment.from < steps) {
      store_partial(segment);
      if (!is_last_part(segment)) return;
      add_partials(segment);
    }
    store_outputs(segment);
  }
  // A part has partial sums of its first and of its last tile.
  XLSTM_DEVICE float* partial(int of, int unit) const {
    const int slot = begin_of(of) > unit * steps ? 0 : 1;
    return p.packed.partials + ((int64_t(pass) * parts + of) * 2 + slot) * stream_k_tile_floats(kBatch) +
           int(threadIdx.x) * 4;
  }
  static constexpr int kPartialStride = kStreamKThreads * 4;
  XLSTM_DEVICE void store_partial(const Segment& segment) const {
    float* const to = partial(part, segment.unit);
#pragma unroll
    for (int c = 0; c < kChains; ++c)
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        Vec16 vec;
#pragma unroll
        for (int r = 0; r < 4; ++r) vec.word[r] = as_bits(sum[c][t][r]);
        *reinterpret_cast<Vec16*>(to + (c * kTiles + t) * kPartialStride) = vec;
      }
  }
  // Counts this part of the tile; the last to come leaves zero for the next launch.
  XLSTM_DEVICE bool is_last_part(const Segment& segment) const {
    const int first = segment.unit * steps, count = part_of(first + steps - 1) - part_of(first) + 1;
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t* const arrived = p.packed.arrived + pass * units + segment.unit;
      *arrived_before = add_acq_rel_gpu(arrived, 1);
      if (int(*arrived_before) + 1 == count) *arrived = 0;
    }
    __syncthreads();
    return int(*arrived_before) + 1 == count;
  }
  XLSTM_DEVICE void add_partials(const Segment& segment) {
    const int first = segment.unit * steps, last = part_of(first + steps - 1);
    clear();
    for (int of = part_of(first); of <= last; ++of) {
      const float* const from = partial(of, segment.unit);
#pragma unroll
      for (int c = 0; c < kChains; ++c)
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const Vec16 vec = read_vec16(from + (c * kTiles + t) * kPartialStride);
#pragma unroll
          for (int r = 0; r < 4; ++r) sum[c][t][r] += as_float(vec.word[r]);
        }
    }
  }
  XLSTM_DEVICE void store_outputs(const Segment& segment) {
    const UnitRows unit = rows_of_unit<kStreamKRows>(p, Weights::kGroups, segment.unit);
    const bool is_swiglu = p.output == Output::swiglu, is_normed = p.input == Input::rms;
    const int rows = p.linear[unit.linear].rows, left = p.batch - pass * kBatch;
    const auto row_of = [&](int c, int r) {
      const int slot = is_swiglu ? row_warp() * kStripColumns : stream_k_slot(row_warp(), c);
      return unit.first + slot + lane_id() / 4 + r / 2 * 8;
    };
    const auto for_each = [&](auto&& f) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          if (batch_row(t, r) < left)
#pragma unroll
            for (int c = 0; c < kChains; ++c)
              if (row_of(c, r) < rows) f(c, t, r, row_of(c, r), pass * kBatch + batch_row(t, r));
    };
    for_each([&](int c, int t, int r, int row, int b) {
      const DeviceLinear& w = p.linear[is_swiglu ? c : unit.linear];
      if (is_normed) sum[c][t][r] *= p.packed.rms_factors[b];
      if (w.bias.data) sum[c][t][r] += value_of(w.bias, row);
    });
    if (p.output == Output::add) {  // all loads before the first store
      float* const to = p.to[unit.linear];
      for_each([&](int c, int t, int r, int row, int b) { sum[c][t][r] += to[int64_t(b) * rows + row]; });
      for_each([&](int c, int t, int r, int row, int b) { to[int64_t(b) * rows + row] = sum[c][t][r]; });
    } else {
      for_each([&](int c, int t, int r, int row, int b) {
        if (!is_swiglu)
          store_output(p, Output::store, unit.linear, row, b, sum[c][t][r]);
        else if (c == 0)
          store_output(p, Output::swiglu, unit.linear, row, b, swiglu(sum[0][t][r], sum[1][t][r]));
      });
    }
  }
};

template <class Weights, int kBatch>
__global__ __launch_bounds__(kStreamKThreads, 1) void gemm_stream_k_kernel(XLSTM_PARAM GemmParams kernel_arg) {
  extern __shared__ __align__(128) char lds[];
  __shared__ uint32_t arrived_before;
  pdl_trigger();
  GemmStreamK<Weights, kBatch> product(*kernel_params(kernel_arg), lds, &arrived_before);
  if (product.has_work()) product.run();
}

}  // namespace xlstm::gpu::engine
