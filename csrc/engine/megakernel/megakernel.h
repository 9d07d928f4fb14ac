// SPDX-License-Identifier: Apache-2.0
// A whole step of one row, from its embedding to logits, in one launch: engine/megakernel/megakernel_plan.h says who
// makes what.
//
// Every multiprocessor has a block that stays. Weights come to rings of its warps, which go on through all products
// (engine/megakernel/megakernel_weight_ring.h): while blocks wait for each other, 160 KB of each one's weights are on
// their way or there, and more are asked for into L2. x's of a product are what all blocks of the grid have made, five
// times for each of the model's: words in memory that begin as absent and tell by themselves when they are there
// (engine/megakernel/mailbox.h). Blocks run at once because the launch says so.
//
// A warp sums up 16 rows of weights over its part of the features; a block adds up the parts in their order, which is
// that of engine/gemm_cluster/gemm_cluster.h: quantised weights have the same products there and here, bit for bit.
//
// Floor: weights once from memory. What binds is in docs/design.md.
#pragma once

#include "arch/hopper/hopper.h"
#include "engine/gemm_cluster/gemm_cluster_bf16_sums.h"
#include "engine/megakernel/mailbox.h"
#include "engine/megakernel/megakernel_mlstm_step.h"
#include "engine/megakernel/megakernel_weight_ring.h"
#include "engine/prologue_epilogue.h"

namespace xlstm::gpu::engine {

template <class Weights>
struct WholeStep {
  static constexpr int kBits = Weights::kBits;
  using Sums = typename SumsOf<Weights, 1>::type;
  using Ring = WholeRing<kBits>;

  const WholeParams& p;
  char* lds;
  Ring ring;
  int slot = 0;  // of the ring: which is read next; the one before it is asked for anew

  XLSTM_DEVICE WholeStep(const WholeParams& params, char* memory) : p(params), lds(memory), ring(params, memory) {}

  // What this block has of all products, and of the token's x: the rows that it adds to. Then a barrier.
  XLSTM_DEVICE static void prepare(const WholeParams& p, char* lds) {
    const auto items_of = [&](Phase phase) { return WholePart(p.phase[int(phase)], 0).end; };
    for (int s = 0; s < kPhases; ++s) {
      const Phase phase = Phase(s);
      const int own = items_of(phase), thread = int(threadIdx.x);
      for (int n = thread; n < own; n += kWholeThreads)
        Ring::item_of(p, lds, phase, n) = WholeItem(p, phase, kBits, int(blockIdx.x) + n * int(gridDim.x));
      if (thread < kWholeWarps) Ring::part_of(p, lds, phase, thread) = WholePart(p.phase[s], thread);
    }
    const int added = items_of(Phase::output) * kItemRows, rows = p.phase[int(Phase::output)].product.linear[0].rows;
    for (int at = int(threadIdx.x); at < added; at += kWholeThreads) {
      const int row = (int(blockIdx.x) + at / kItemRows * int(gridDim.x)) * kItemRows + at % kItemRows;
      reinterpret_cast<float*>(lds + p.room.residual)[at] = row < rows ? p.passed[row] : 0.0f;
    }
  }

  XLSTM_DEVICE ClusterX x() const { return {lds + p.room.x, reinterpret_cast<float*>(lds + p.room.facts)}; }
  XLSTM_DEVICE float* floats(int at) const { return reinterpret_cast<float*>(lds + at); }

  // ---- x's

  // Eights of x, kBurst of a thread at a time; `weight`: of a norm, or none.
  template <bool kNormed, int kBurst>
  XLSTM_DEVICE void bring(Phase phase, int block, const DeviceVector& norm) {
    const ProductParams& product = p.phase[int(phase)].product;
    const float* const x_at = p.from(phase, block);
    const int eights = product.columns / kEight;
    const auto place = [&](int i) { return i * kWholeThreads + int(threadIdx.x); };
    const auto feature = [&](int i) { return place(i) < eights ? place(i) * kEight : 0; };
    NormEight weight[kBurst];
#pragma unroll
    for (int i = 0; kNormed && i < kBurst; ++i) weight[i].fetch(norm, feature(i));
    for (int begin = 0; begin * kWholeThreads < eights; begin += kBurst) {
      float y[kBurst][kEight];
      const float* eight[kBurst];
#pragma unroll
      for (int i = 0; i < kBurst; ++i) eight[i] = x_at + feature(begin + i);
      await_eights(eight, y, [&](int look) { ring.ask_beyond(look); });
      __syncwarp();  // lanes found theirs one after the other
#pragma unroll
      for (int i = 0; kNormed && i < kBurst; ++i)
        if (begin) weight[i].fetch(norm, feature(begin + i));
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const int at = place(begin + i), step = at / kStepEights;
        const bool there = at < eights;
        if constexpr (kNormed) {
          const float own = over_lanes<kStepEights>(sum_of_squares(y[i]));
          if (there && at % kStepEights == 0) floats(p.room.squares)[step] = own;
          weight[i].multiply(norm.dtype, y[i]);
        }
        Sums::store(x(), step, at % kStepEights, 0, y[i], there);
      }
    }
    __syncthreads();
    if (kNormed && ring.warp() + 1 == kWholeWarps) make_factor(product);
  }

  // What products of an RMS norm's x's are multiplied by, before the next barrier. A lane adds up a part of the
  // features, in the order of its steps; then parts in theirs.
  XLSTM_DEVICE void make_factor(const ProductParams& product) const {
    const int rank = lane_id(), steps = product.columns / kStepFeatures, bits = part_bits_of(steps);
    const int each = (steps + (1 << bits) - 1) >> bits, end = (rank + 1) * each < steps ? (rank + 1) * each : steps;
    float part = 0, sum = 0;
    for (int step = rank * each; rank < 1 << bits && step < end; ++step) part += floats(p.room.squares)[step];
#pragma unroll
    for (int j = 0; j < 1 << kMostPartBits; ++j) sum += shuffle_from(part, j, kWave);
    if (rank == 0) *floats(p.room.factor) = 1 / __builtin_sqrtf(sum / float(product.columns) + product.norm_eps);
  }

  // What the norm of heads makes of h, with its gate. A warp measures a head and brings 256 of its values: others do
  // the same with the others, which costs no time that one warp would not take.
  XLSTM_DEVICE void bring_heads(int block, const DeviceVector& norm) {
    static_assert(kMostHeadEights == 2);
    const ProductParams& product = p.phase[int(Phase::output)].product;
    const float *const h_at = p.from(Phase::output, block), *const gate_at = p.to(Phase::gate, kGateOfH, block);
    const int features = p.step.v.columns, eights = features / kEight, each = (eights + kWave - 1) / kWave;
    const auto feature = [&](int j) {
      const int n = lane_id() + j * kWave;
      return n < eights ? n * kEight : 0;
    };
    for (int turn = ring.warp(); turn < p.heads * each; turn += kWholeWarps) {
      const int head = turn / each, own = turn % each, begin = head * features;
      float h[kMostHeadEights + 1][kEight];
      const float* eight[kMostHeadEights + 1];
      NormEight weight;
      weight.fetch(norm, begin + feature(own));
#pragma unroll
      for (int j = 0; j < kMostHeadEights; ++j) eight[j] = h_at + begin + feature(j);  // beyond the last, the first
      eight[kMostHeadEights] = gate_at + begin + feature(own);
      // Twice as many lines as elsewhere, for this wait is the longest.
      await_eights(eight, h, [&](int look) { ring.ask_beyond(2 * look), ring.ask_beyond(2 * look + 1); });
      __syncwarp();
      const auto& gate = h[kMostHeadEights];
      const auto sum_of = [&](auto&& f) {
        float sum = 0;
#pragma unroll
        for (int j = 0; j < kMostHeadEights; ++j)
          if (lane_id() + j * kWave < eights)
#pragma unroll
            for (int e = 0; e < kEight; ++e) sum += f(h[j][e]);
        return wave_sum(sum);
      };
      const float mean = sum_of([](float v) { return v; }) / float(features);
      const float square = sum_of([&](float v) { return (v - mean) * (v - mean); }) / float(features);
      const float inverse = 1 / __builtin_sqrtf(square + product.norm_eps);
      float y[kEight];
#pragma unroll
      for (int e = 0; e < kEight; ++e) y[e] = ((own ? h[1][e] : h[0][e]) - mean) * inverse;
      weight.multiply(norm.dtype, y);
#pragma unroll
      for (int e = 0; e < kEight; ++e) y[e] *= sigmoid_of(gate[e]);
      const int n = lane_id() + own * kWave;
      Sums::store(x(), head * (features / kStepFeatures) + n / kStepEights, n % kStepEights, 0, y, n < eights);
    }
    __syncthreads();
  }

  // ---- products

  // How the scales of a product lie; the same for all of its rows.
  struct Groups {
    bool offsets, float16;
    int two_steps;
  };
  // Steps of a slot, from `done` on; at: which of a row's scales there is the first's.
  XLSTM_DEVICE void multiply(Sums& sums, bool gate, const Groups& groups, int at, const char* slot, int done,
                             int now) const {
    const ClusterX with = x();
    const char* const rows = slot + item_row() * Ring::kSegment;
    const int turn = segment_turn(kBits, item_row());
    if constexpr (kBits == 16) {
      const char* const row[2] = {rows, rows + 8 * Ring::kSegment};
#pragma unroll
      for (int s = 0; s < Ring::kSegment / (kStepFeatures * 2); ++s)
        if (s < now) sums.multiply(with, done + s, row, s * kStepFeatures * 2, turn);
    } else if (gate) {
      for (int s = 0; s < now; ++s) {
        const char* const from = rows + s * kStepFeatures * 2;
        const char* const row[2] = {from, from + 8 * Ring::kSegment};
        sums.multiply_gate(with, done + s, row);
      }
    } else {
      // Of one x a lane has one row: scales from the first that the slot has of it.
      const int r = item_row() + quarter() / 2 * 8, shift = groups.two_steps;
      const int odd = done & shift;  // whether the first step is a group's second
      const char* const scales = slot + whole_groups_at(kBits) + r * kGroupBytes;
      const auto run = [&](auto element, auto with_offsets) {
        using T = decltype(element);
        constexpr int kSteps = Ring::kSegment / (kStepFeatures * kBits / 8);
        const auto step = [&](int s) {
          const int begin = (s * (kStepFeatures * kBits / 8)) ^ turn;
          const char* const row[2] = {rows + begin, rows + begin + 8 * Ring::kSegment};
          const char* const group = scales + ((at + ((odd + s) >> shift) * 2) ^ group_turn(r));
          float scale[2] = {}, offset[2] = {};
          scale[0] = to_float(*reinterpret_cast<const T*>(group));
          if (with_offsets) offset[0] = to_float(*reinterpret_cast<const T*>(group + kGroupsBytes));
          sums.template multiply<with_offsets>(with, done + s, row, scale, offset);
        };
        if (now == kSteps) {  // without branches between steps, whose loads then overlap
#pragma unroll
          for (int s = 0; s < kSteps; ++s) step(s);
        } else {
#pragma unroll 1
          for (int s = 0; s < now; ++s) step(s);
        }
      };
      const auto by_dtype = [&](auto with_offsets) {
        if (groups.float16)
          run(Float16{}, with_offsets);
        else
          run(BFloat16{}, with_offsets);
      };
      if (groups.offsets)
        by_dtype(std::true_type{});
      else
        by_dtype(std::false_type{});
    }
  }
  // Few threads do this and all others wait: no more instructions than it takes.
  XLSTM_DEVICE void finish(Phase phase, int block, const WholePart& part) const {
    const ProductParams& product = p.phase[int(phase)].product;
    const bool both = product.output == Output::swiglu, adds = product.output == Output::add;
    const int bits = both ? 3 : 4, parts = part.parts();
    const float factor = product.input == Input::rms ? *floats(p.room.factor) : 1.0f;
    for (int at = int(threadIdx.x); at < part.end << bits; at += kWholeThreads) {
      const int n = at >> bits, r = at & ((1 << bits) - 1);
      const WholeItem item = Ring::item_of(p, lds, phase, n);
      if (r >= item.rows) continue;
      const WholeWeights* const weights = p.block[block].linear + item.linear;
      const auto sum_of = [&](int piece, int of) {
        const float* const own = floats(p.room.received) + n * parts * kItemRows + of;
        float sum = 0, each[1 << kMostPartBits];
#pragma unroll
        for (int j = 0; j < 1 << kMostPartBits; ++j) each[j] = j < parts ? own[j * kItemRows] : 0.0f;
#pragma unroll
        for (int j = 0; j < 1 << kMostPartBits; ++j) sum += each[j];
        const DeviceVector& bias = weights[piece].bias;
        return bias.data ? sum * factor + value_of(bias, item.first + r) : sum * factor;
      };
      float y = sum_of(0, r);
      if (both) {
        y = swiglu(y, sum_of(1, r + kItemRows / 2));
      } else if (adds) {  // to x's rows, which no other block has
        y += floats(p.room.residual)[at];
        floats(p.room.residual)[at] = y;
      } else {
        y = stored(product, item.linear - first_linear(phase), 0, y);
      }
      if (phase == Phase::head)
        product.to[0][item.first + r] = y;
      else
        leave(p.of(block) + item.to + r, y);
    }
  }

  // Of the model's block: x's are there, in LDS. A warp goes through the slots of its items, and asks for a slot that
  // it has read before it reads the next: so the last of a product's waits until the next product's x's are there,
  // which would otherwise come behind it.
  XLSTM_DEVICE void multiply_all(Phase phase, int block) {
    const WholePart& part = ring.part_of(p, lds, phase, ring.warp());
    const DeviceLinear& w = p.phase[int(phase)].product.linear[0];
    const Groups groups{p.block[block].linear[first_linear(phase)].offsets != nullptr, w.dtype == XLSTM_FLOAT16,
                        part.two_steps};
    Sums sums{};
    int n = part.first, done = 0;  // of an item's steps
    if (!part.steps)
      for (; n < part.end; n += part.stride()) leave_sum(part, n, sums);
#pragma unroll 1
    while (n < part.end) {
      ring.fetch(slot ? slot - 1 : Ring::kSlots - 1);
      const bool gate = kBits < 16 && Ring::item_of(p, lds, phase, n).kind == WholeItem::gate;
      const int most = Ring::kSegment / step_bytes(kBits, gate), left = part.steps - done;
      const int at = part.groups_at(item_row(), part.first_step + done) & 15;  // of all items, and of either half
      cp_async_wait_group<Ring::kSlots - 1>();
      __syncwarp();
      multiply(sums, gate, groups, at, ring.slot(slot), part.first_step + done, left < most ? left : most);
      slot = slot + 1 == Ring::kSlots ? 0 : slot + 1;
      if (left > most) {
        done += most;
      } else {
        leave_sum(part, n, sums);
        sums = {}, done = 0, n += part.stride();
      }
      __syncwarp();
    }
    __syncthreads();
    finish(phase, block, part);
    if (phase == Phase::output) WholeToken(p, lds).settle(p.block[block]);
    if (phase == Phase::projections) __syncthreads();  // the gate's sums lie where these were read
  }
  // Of item n of this block's, over this warp's part.
  XLSTM_DEVICE void leave_sum(const WholePart& part, int n, const Sums& sums) const {
    const float sum = sums.alone();
    if (sums.own_row() < 0) return;
    floats(p.room.received)[(n * part.parts() + part.rank(ring.warp())) * kItemRows + sums.own_row()] = sum;
  }

  // What is read once a token, and then waited for by all: lines of the norms' weights, of this block of the model and
  // the next, and of the tile of C and n that this multiprocessor has.
  XLSTM_DEVICE void ask_ahead(int at) const {
    const WholeBlock &block = p.block[at], &next = p.block[at + 1];
    const int thread = int(threadIdx.x), keys = p.step.q.columns, values = p.step.v.columns;
    const int tile = int(blockIdx.x), head = tile / p.step.tiles;
    if (tile < p.step.tiles * p.heads) {
      const float* const c = block.c + int64_t(head) * keys * values + tile % p.step.tiles * kStepColumns;
      if (thread < keys) prefetch_l2_line(c + int64_t(thread) * values);
      if (thread % kStepColumns == 0 && thread < keys) prefetch_l2_line(block.n + head * keys + thread);
      if (thread == keys) prefetch_l2_line(block.m + head);
    }
    const auto ask = [&](const DeviceVector& norm, int features) {
      const int lines = (features * (norm.dtype == XLSTM_FLOAT32 ? 4 : 2) + 127) / 128;
      for (int line = tile; line < lines; line += int(gridDim.x))
        prefetch_l2_line(static_cast<const char*>(norm.data) + line * 128);
    };
    if (thread + 1 < kWholeThreads) return;
    ask(block.head_norm, p.heads * values), ask(block.norm_ffn, p.phase[int(Phase::up)].product.columns);
    ask(next.norm, p.phase[int(Phase::head)].product.columns);
  }

  // Scales of this block's items of a product come to L2 a product ahead: of each line eight warps want a part, which
  // memory would be asked for part by part.
  XLSTM_DEVICE void ask_scales(const WholePlace& of) const {
    if (kBits == 16 || of.over()) return;
    const WholePart& part = Ring::part_of(p, lds, of.phase, 0);
    const int n = int(threadIdx.x) / 2, half = int(threadIdx.x) % 2;
    if (n >= part.end) return;
    const WholeItem item = Ring::item_of(p, lds, of.phase, n);
    const bool both = item.kind == WholeItem::both;
    const int before = half && !both ? Ring::kHalf : 0, left = item.rows - before;
    if (item.kind == WholeItem::gate || left <= 0) return;
    const int64_t begin = int64_t(item.first + before) * part.row_groups;
    const int bytes = (left < Ring::kHalf ? left : Ring::kHalf) * part.row_groups & ~15;
    const WholeWeights& weights = p.block[of.block].linear[item.linear + (both ? half : 0)];
    if (bytes) bulk_prefetch_l2(static_cast<const char*>(weights.scales) + begin, bytes);
    if (bytes && weights.offsets) bulk_prefetch_l2(static_cast<const char*>(weights.offsets) + begin, bytes);
  }

  XLSTM_DEVICE void run() {
    for (int s = 0; s + 1 < Ring::kSlots; ++s) ring.fetch(s);
#pragma unroll 1
    for (WholePlace at; !at.over(); at.go_on(p.blocks)) {  // one copy of each part's code, which caches hold
      const WholeBlock& block = p.block[at.block];
      WholePlace next = at;
      next.go_on(p.blocks);
      ask_scales(next);
      if (at.phase == Phase::gate) {  // of the projections' x's; h is on its way while it is multiplied
        WholeToken(p, lds).step(at.block);
      } else if (at.phase == Phase::output) {
        bring_heads(at.block, block.head_norm);
      } else if (at.phase == Phase::down) {
        bring<false, 3>(at.phase, at.block, {});
      } else {
        if (at.phase == Phase::projections) ask_ahead(at.block);
        bring<true, 1>(at.phase, at.block, at.phase == Phase::up ? block.norm_ffn : block.norm);
      }
      multiply_all(at.phase, at.block);
    }
  }
};

template <class Weights>
__global__ __launch_bounds__(kWholeThreads, 1) void whole_step(XLSTM_PARAM WholeParams given) {
  if constexpr (kHopper) {
    extern __shared__ __align__(128) char lds[];
    WholeStep<Weights>::prepare(given, lds);
    __syncthreads();
    WholeStep<Weights>(given, lds).run();
  }
}

}  // namespace xlstm::gpu::engine
