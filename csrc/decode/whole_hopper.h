// SPDX-License-Identifier: Apache-2.0
// A whole step of one row, from its embedding to logits, in one launch: decode/whole_plan.h says who makes what.
//
// Every multiprocessor has a block that stays. Weights come to rings of its warps, which go on through all products
// (decode/whole_ring_hopper.h): while blocks wait for each other, 160 KB of each one's weights are on their way or
// there. Between two products all blocks of the grid meet, five times for each of the model's: x's of a product are
// what all of them have made. They run at once because the launch says so.
//
// A warp sums up 16 rows of weights over its part of the features; a block adds up the parts in their order, which is
// that of decode/cluster_hopper.h: quantised weights have the same products there and here, bit for bit.
//
// Floor: weights once from memory. What binds is in docs/design.md.
#pragma once

#include "arch/hopper.h"
#include "decode/rows_gpu.h"
#include "decode/whole_ring_hopper.h"
#include "decode/whole_sums_hopper.h"
#include "mlstm/recurrent_step_gpu.h"

namespace xlstm::gpu {

// All blocks of the grid, each time they meet; what they wrote before is then there for all of them. Between arriving
// and waiting a block may do what none of the others is to see.
struct GridMeeting {
  uint32_t* arrivals;
  uint32_t met = 0;

  XLSTM_DEVICE void arrive() {
    ++met;
    __syncthreads();
    if (threadIdx.x == 0) arrive_in_grid(arrivals);
  }
  XLSTM_DEVICE void wait() const {
    if (threadIdx.x == 0) wait_in_grid(arrivals, met * gridDim.x);
    __syncthreads();
  }
};

template <class Weights>
struct WholeStep {
  static constexpr int kBits = Weights::kBits;
  using Sums = RowSums<Weights>;
  using Ring = WholeRing<kBits>;
  using Tile = HeadTile<float, kStepColumns>;
  using TileSums = gpu::Sums<float, kStepColumns, kWholeWarps>;
  static_assert(sizeof(TileSums) == kStepSumBytes && sizeof(OneStep) <= kStepBytes);

  const WholeParams& p;
  char* lds;
  GridMeeting grid;
  Ring ring;
  int slot = 0;  // of the ring: which is read next

  XLSTM_DEVICE WholeStep(const WholeParams& params, char* memory)
      : p(params), lds(memory), grid{params.arrivals}, ring(params, memory) {}

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
      reinterpret_cast<float*>(lds + p.room.residual)[at] = row < rows ? p.x[row] : 0.0f;
    }
  }

  XLSTM_DEVICE ClusterX x() const { return {lds + p.room.x, reinterpret_cast<float*>(lds + p.room.facts)}; }
  XLSTM_DEVICE float* floats(int at) const { return reinterpret_cast<float*>(lds + at); }

  // ---- x's

  // Eights of x, kBurst of a thread at a time; `weight`: of a norm, or none.
  template <bool kNormed, int kBurst>
  XLSTM_DEVICE void bring(const ProductParams& product, const DeviceVector& norm) {
    const int eights = product.columns / kEight;
    const auto place = [&](int i) { return i * kWholeThreads + int(threadIdx.x); };
    const auto feature = [&](int i) { return place(i) < eights ? place(i) * kEight : 0; };
    NormEight weight[kBurst];
#pragma unroll
    for (int i = 0; kNormed && i < kBurst; ++i) weight[i].fetch(norm, feature(i));
    grid.wait();
    for (int begin = 0; begin * kWholeThreads < eights; begin += kBurst) {
      float y[kBurst][kEight];
#pragma unroll
      for (int i = 0; i < kBurst; ++i) read_eight(product.x + feature(begin + i), y[i]);
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
  XLSTM_DEVICE void bring_heads(const ProductParams& product, const DeviceVector& norm) {
    const int features = p.step.v.columns, eights = features / kEight, each = (eights + kWave - 1) / kWave;
    const auto feature = [&](int j) {
      const int n = lane_id() + j * kWave;
      return n < eights ? n * kEight : 0;
    };
    grid.wait();
    for (int turn = ring.warp(); turn < p.heads * each; turn += kWholeWarps) {
      const int head = turn / each, own = turn % each, begin = head * features;
      float h[kMostHeadEights][kEight], y[kEight], gate[kEight];
      NormEight weight;
      read_eight(product.x + begin + feature(own), y);
      read_eight(p.o + begin + feature(own), gate);
#pragma unroll
      for (int j = 0; j < kMostHeadEights; ++j)
        if (j < each) read_eight(product.x + begin + feature(j), h[j]);
      weight.fetch(norm, begin + feature(own));
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
#pragma unroll
      for (int e = 0; e < kEight; ++e) y[e] = (y[e] - mean) * inverse;
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
#pragma unroll
      for (int s = 0; s < Ring::kSegment / (kStepFeatures * 2); ++s)
        if (s < now) sums.multiply(with, done + s, rows, s * kStepFeatures * 2, turn);
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
  // Item n of this block's: its sums over this warp's part.
  XLSTM_DEVICE void make(Phase phase, const WholePart& part, const Groups& groups, int n) {
    const WholeItem item = Ring::item_of(p, lds, phase, n);
    const bool gate = item.kind == WholeItem::gate;
    const int row = item.row(item_row() + quarter() / 2 * 8), most = Ring::kSegment / step_bytes(kBits, gate);
    Sums sums{};
    for (int done = 0; done < part.steps; done += most) {
      copies_came<Ring::kSlots - 1>();
      __syncwarp();
      const int at = part.groups_at(row, part.first_step + done) & 15;
      multiply(sums, gate, groups, at,
               lds + p.room.ring + (ring.warp() * Ring::kSlots + slot) * whole_slot_bytes(kBits),
               part.first_step + done, part.steps - done < most ? part.steps - done : most);
      __syncwarp();
      ring.fetch(slot);
      slot = slot + 1 == Ring::kSlots ? 0 : slot + 1;
    }
    const float sum = sums.alone();
    if (sums.own_row() < 0) return;
    floats(p.room.received)[(n * part.parts() + part.rank(ring.warp())) * kItemRows + sums.own_row()] = sum;
  }

  XLSTM_DEVICE void finish(Phase phase, int block, const WholePart& part) const {
    const ProductParams& product = p.phase[int(phase)].product;
    const bool both = product.output == Output::swiglu, adds = product.output == Output::add;
    const int rows = both ? kItemRows / 2 : kItemRows, bits = both ? 3 : 4, parts = part.parts();
    const float factor = product.input == Input::rms ? *floats(p.room.factor) : 1.0f;
    for (int at = int(threadIdx.x); at < part.end * rows; at += kWholeThreads) {
      const int r = at & (rows - 1), n = at >> bits;
      const WholeItem item = Ring::item_of(p, lds, phase, n);
      if (r >= item.rows) continue;
      const auto sum_of = [&](int piece, int of) {
        const float* const own = floats(p.room.received) + n * parts * kItemRows + of;
        float sum = 0;
        for (int j = 0; j < parts; ++j) sum += own[j * kItemRows];
        const DeviceVector& bias = p.block[block].linear[first_linear(phase) + piece].bias;
        return bias.data ? sum * factor + value_of(bias, item.first + r) : sum * factor;
      };
      const float y = sum_of(item.piece, r);
      if (adds)  // to x's rows, which no other block has
        product.to[0][item.first + r] = floats(p.room.residual)[at] += y;
      else
        put(product, product.output, item.piece, item.first + r, 0, both ? swiglu(y, sum_of(1, r + kItemRows / 2)) : y);
    }
  }

  // Of the model's block: x's are there, in LDS.
  XLSTM_DEVICE void multiply_all(Phase phase, int block) {
    const WholePart part = ring.part_of(p, lds, phase, ring.warp());
    const DeviceLinear& w = p.phase[int(phase)].product.linear[0];
    const Groups groups{p.block[block].linear[first_linear(phase)].offsets != nullptr, w.dtype == XLSTM_FLOAT16,
                        part.two_steps};
#pragma unroll 1
    for (int n = part.first; n < part.end; n += part.stride()) make(phase, part, groups, n);
    if (phase == Phase::output) settle(p.block[block]);
    __syncthreads();
    finish(phase, block, part);
    if (phase != Phase::gate) grid.arrive();  // with what follows, which nobody waits for until then
  }

  // ---- the mLSTM's step

  XLSTM_DEVICE void step(const WholeBlock& block) {
    const int64_t keys = p.step.q.columns, values = p.step.v.columns;
    const int tiles = p.step.tiles * p.heads;
    TileSums& sums = *reinterpret_cast<TileSums*>(lds + p.room.received);
    OneStep& one = *reinterpret_cast<OneStep*>(lds + p.room.step);
    const auto state_of = [&](int turn) { return int64_t(unsigned(turn) / unsigned(p.step.tiles)); };
    const auto load = [&](Tile& tile, int turn) {
      const int64_t n_offset = state_of(turn) * keys;
      tile.load(block.c + n_offset * values, block.n + n_offset);
    };
    const auto store = [&](const Tile& tile, int turn) { tile.store_c(block.c + state_of(turn) * keys * values); };
    // The first tile of C, and n, which are the last token's, before what waits.
    const int first = int(blockIdx.x);
    int last = first;
    Tile tile(p.step, first % p.step.tiles);
    if (first < tiles) load(tile, first);
    grid.wait();
    for (int turn = first; turn < tiles; turn += int(gridDim.x)) {
      const int64_t state = state_of(turn), n_offset = state * keys;
      const int which = turn % p.step.tiles;
      const Head head = only_token(p.step, state);
      const OneGate gate(p.step, head, block.m);
      if (turn != first) {
        store(tile, turn - int(gridDim.x));
        tile = Tile(p.step, which);
        load(tile, turn);
      }
      last = turn;
      tile.fetch(p.step, head);
      gate.make(p.step, one);
      __syncthreads();
      float h[Tile::kWidth] = {}, l = 0;
      tile.update({one.factor[0], 0, one.factor[1]}, h, l);
      leave_sums<Tile>(sums, 0, h, l);
      __syncthreads();
      const int waves = (p.step.q.columns / Tile::kRows * Tile::kLanes + kWave - 1) / kWave;
      TokenOutput<float>(p.step, head, which, kStepColumns).write(p.step, sums, 0, waves, one.m);
      if (tile.column == 0) tile.store_n(p.step.n_last + n_offset);
      if (which == 0 && threadIdx.x == 0) p.step.m_last[state] = float(one.m);
      __syncthreads();
    }
    grid.arrive();
    if (first < tiles) store(tile, last);  // the next token's: what all wait for is on its way before it
  }
  // n and m, which every tile of a head has read by now, to where they are updated in place: the block with the fewest
  // items.
  XLSTM_DEVICE void settle(const WholeBlock& block) const {
    if (blockIdx.x + 1 < gridDim.x) return;
    const auto move = [](float* to, const float* from, int count) {
      for (int at = int(threadIdx.x); at < count; at += kWholeThreads) to[at] = from[at];
    };
    move(block.n, p.step.n_last, p.heads * p.step.q.columns);
    move(block.m, p.step.m_last, p.heads);
  }

  XLSTM_DEVICE void run() {
    for (int s = 0; s < Ring::kSlots; ++s) ring.fetch(s);
#pragma unroll 1
    for (WholePlace at; !at.over(); at.go_on(p.blocks)) {  // one copy of each part's code, which caches hold
      const WholeBlock& block = p.block[at.block];
      const ProductParams& product = p.phase[int(at.phase)].product;
      if (at.phase == Phase::output) {
        step(block);
        bring_heads(product, block.head_norm);
      } else if (at.phase == Phase::down) {
        bring<false, 3>(product, {});
      } else if (at.phase != Phase::gate) {  // which has the projections'
        bring<true, 1>(product, at.phase == Phase::up ? block.norm_ffn : block.norm);
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

}  // namespace xlstm::gpu
