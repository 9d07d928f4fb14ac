// SPDX-License-Identifier: Apache-2.0
// y = W x for up to kBatch x's on Hopper, of quantised weights and of bfloat16 beside 2 to 8 x's, by clusters of
// blocks: engine/gemm_cluster/gemm_cluster_plan.h says who makes what.
//
// A warp sums up an item, 16 rows of weights, over its block's part of the features. Weights come to a ring of the
// warp's own, 256 bytes of each row at a time. (Each lane's own copies: bulk copies are one thread's instructions, and
// with one for each row this took three times as long.) The first ones, which no kernel of a step writes, are asked for
// before this kernel waits for the one before it. Sums go to the item's owner as they are ready, which adds up the
// parts in their order, so every batch has the same bits.
//
// Floor: weights once from memory. What binds is in docs/design.md: instructions, and a kernel's own latency (x's from
// L2 and their digits, the cluster's barrier, the last sums on their way).
#pragma once

#include "arch/hopper/hopper.h"
#include "arch/nvidia/dependent_launch.h"
#include "engine/gemm_cluster/gemm_cluster_bf16_sums.h"
#include "engine/gemm_cluster/gemm_cluster_ring.h"
#include "engine/prologue_epilogue.h"

namespace xlstm::gpu::engine {

template <class Weights, int kBatch>
struct ClusterProduct : ClusterPart {
  static constexpr int kBits = Weights::kBits, kStride = segment_stride(kBits);
  static constexpr int kWarps = cluster_warps(kBatch), kThreads = kWarps * kWave;
  using Sums = typename SumsOf<Weights, kBatch>::type;

  char* lds;
  uint32_t lds_at;
  ClusterRing<kBits, kWarps> ring;

  XLSTM_DEVICE ClusterProduct(const ClusterParams& given, char* memory)
      : ClusterPart(given, kBatch), lds(memory), lds_at(lds_address(memory)), ring(*this, lds_at) {}

  XLSTM_DEVICE Mbarrier received() const { return {lds_at}; }

  // ---- x's

  XLSTM_DEVICE ClusterX x() const { return {lds + room.x, reinterpret_cast<float*>(lds + room.sums)}; }
  XLSTM_DEVICE bool normed() const { return p.input == Input::rms; }

  static constexpr int kBurst = kBatch == 1 ? 1 : 4;  // eights of a thread on their way
  // Eight i of a thread: of a step, of a row of the batch.
  struct Eight {
    int step, b, n;
    bool there;
  };
  XLSTM_DEVICE Eight eight_at(int begin, int i) const {
    const int at = begin + i * kThreads + int(threadIdx.x), step = at / (kStepEights * kBatch);
    return {step, at / kStepEights % kBatch, at % kStepEights, step < steps};
  }
  XLSTM_DEVICE int feature(const Eight& e) const {
    return e.there ? (first_step + e.step) * kStepFeatures + e.n * kEight : 0;
  }
  XLSTM_DEVICE void fetch_weights(int begin, NormEight (&weight)[kBurst]) const {
    if (!normed()) return;
#pragma unroll
    for (int i = 0; i < kBurst; ++i) weight[i].fetch(p.weight, feature(eight_at(begin, i)));
  }
  // All of it; `weight` are the first burst's.
  XLSTM_DEVICE void bring(NormEight (&weight)[kBurst]) {
    const ClusterX to = x();
    float* const squares = reinterpret_cast<float*>(lds + room.squares);
    for (int begin = 0; begin < steps * kStepEights * kBatch; begin += kBurst * kThreads) {
      float x[kBurst][kEight];
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const Eight e = eight_at(begin, i);
        read_eight(p.x + (e.there && e.b < count ? int64_t(first_row + e.b) * p.columns + feature(e) : 0), x[i]);
      }
      if (begin) fetch_weights(begin, weight);
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const Eight e = eight_at(begin, i);
        if (!e.there || e.b >= count)
#pragma unroll
          for (int k = 0; k < kEight; ++k) x[i][k] = 0;
        if (normed()) {
          const float own = over_lanes<kStepEights>(sum_of_squares(x[i]));
          if (e.there && e.n == 0) squares[e.step * kBatch + e.b] = own;
          weight[i].multiply(p.weight.dtype, x[i]);
        }
        Sums::store(to, e.step, e.n, e.b, x[i], e.there);
      }
    }
  }
  // A row's sum of squares of this part, to all blocks of the cluster.
  XLSTM_DEVICE void send_squares() const {
    const int b = int(threadIdx.x) % kBatch, to = int(threadIdx.x) / kBatch;
    if (!normed() || to >= plan.parts()) return;
    const float* const squares = reinterpret_cast<const float*>(lds + room.squares);
    float sum = 0;
    for (int step = 0; step < steps; ++step) sum += squares[step * kBatch + b];
    st_async_to_cta(uint32_t(to), lds_at + uint32_t(room.all_squares + (rank * kBatch + b) * 4), sum, received());
  }
  XLSTM_DEVICE float reciprocal(int b) const {
    if (!normed()) return 1;
    const float* const squares = reinterpret_cast<const float*>(lds + room.all_squares);
    float sum = 0;
    for (int part = 0; part < plan.parts(); ++part) sum += squares[part * kBatch + b];
    return 1 / __builtin_sqrtf(sum / float(p.columns) + p.norm_eps);
  }

  // ---- sums of an item

  // Steps of a slot, the first of which is `done` of the item's.
  XLSTM_DEVICE void multiply(Sums& sums, const Item& item, const char* slot, int done, int now) const {
    const ClusterX with = x();
    const auto each_step = [&](int bytes, auto&& f) {
      const char* rows = slot + item_row() * kStride;
#pragma unroll 2
      for (int s = 0; s < now; ++s, rows += bytes) {
        const char* const row[2] = {rows, rows + 8 * kStride};
        f(s, row);
      }
    };
    if constexpr (kBits == 16) {
      each_step(kStepFeatures * 2, [&](int s, const auto& row) { sums.multiply(with, done + s, row, 0, 0); });
    } else if (item.gate) {
      each_step(kStepFeatures * 2, [&](int s, const auto& row) { sums.multiply_gate(with, done + s, row); });
    } else {
      // Of one x a lane has one row.
      constexpr int kLaneRows = kBatch == 1 ? 1 : 2;
      const char* scales[kLaneRows];
      const DeviceLinear* weights = nullptr;
      int shift = 0;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const int r = item_row() + (kBatch == 1 ? quarter() / 2 * 8 : 8 * j);
        int row;
        const DeviceLinear& w = row_of(item, r, row);
        weights = &w;
        shift = w.group_size > kStepFeatures ? 1 : 0;
        const int first = first_group(w, row, done);
        scales[j] = slot + kItemRows * kStride + r * kGroupRowBytes + (first - groups_begin(w, first));
      }
      const int odd = (first_step + done) & shift;  // whether the first step is a group's second
      const auto run = [&](auto element, auto offsets) {
        using T = decltype(element);
        each_step(kStepFeatures * kBits / 8, [&](int s, const auto& row) {
          const int group = ((odd + s) >> shift) * 2;
          float scale[2] = {}, offset[2] = {};
#pragma unroll
          for (int j = 0; j < kLaneRows; ++j) {
            const char* const at = scales[j] + group;
            scale[j] = to_float(*reinterpret_cast<const T*>(at));
            if (offsets) offset[j] = to_float(*reinterpret_cast<const T*>(at + kItemRows * kGroupRowBytes));
          }
          sums.template multiply<offsets>(with, done + s, row, scale, offset);
        });
      };
      with_dtype(weights->dtype, [&](auto element) {
        if (weights->offsets)
          run(element, std::true_type{});
        else
          run(element, std::false_type{});
      });
    }
  }

  // To the owner of the nth item of a round.
  XLSTM_DEVICE void send(const Sums& sums, int n) const {
    const auto place = [&](int row, int b) {
      return lds_at + uint32_t(room.received +
                               ((((n >> plan.part_bits << plan.part_bits) + rank) * kItemRows + row) * kBatch + b) * 4);
    };
    const uint32_t owner = uint32_t(n & (plan.parts() - 1));
    if constexpr (kBatch == 1) {
      const float sum = sums.alone();
      if (sums.own_row() >= 0) st_async_to_cta(owner, place(sums.own_row(), 0), sum, received());
    } else {
#pragma unroll
      for (int s = 0; s < kBatch / 8; ++s)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          st_async_to_cta(owner, place(item_row() + 8 * j, 8 * s + 2 * quarter()), sums.of_batch(s, j, 0),
                          sums.of_batch(s, j, 1), received());
    }
  }

  int slot;  // of the ring: which is read next

  XLSTM_DEVICE void make(const Item& item, int n) {
    Sums sums;
    sums.clear();
    const int most = kSegmentBytes / step_bytes(kBits, item);
    for (int done = 0; done < steps; done += most) {
      cp_async_wait_group<kSlots - 1>();
      __syncwarp();
      multiply(sums, item, lds + ring.place(room, slot), done, steps - done < most ? steps - done : most);
      __syncwarp();
      ring.fetch(*this, slot);
      slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
    send(sums, n);
  }

  // ---- rounds

  XLSTM_DEVICE int round_items() const { return plan.owned << plan.part_bits; }
  XLSTM_DEVICE int owned(int round) const {
    const int left = items - round * round_items() - rank;
    const int own = left > 0 ? (left + plan.parts() - 1) >> plan.part_bits : 0;
    return own < plan.owned ? own : plan.owned;
  }
  XLSTM_DEVICE void expect(int round) const {
    const int squares = round == 0 && normed() ? plan.parts() * kBatch * 4 : 0;
    received().arrive_expect_tx(uint32_t(owned(round) * plan.parts() * kItemRows * kBatch * 4 + squares));
  }

  XLSTM_DEVICE void finish(int round) const {
    const int rows = both() ? kItemRows / 2 : kItemRows;
    for (int at = int(threadIdx.x); at < owned(round) * rows * kBatch; at += kThreads) {
      const int r = at % rows, b = at / rows % kBatch, place = at / (rows * kBatch);
      const Item of = item(round * round_items() + place * plan.parts() + rank);
      const int row = of.first + r;
      if (b >= count || row >= p.linear[of.piece].rows) continue;
      const float factor = reciprocal(b);
      const auto product = [&](int piece, int r) {
        const float* part =
            reinterpret_cast<const float*>(lds + room.received) + (place * plan.parts() * kItemRows + r) * kBatch + b;
        float sum = 0;
        for (int j = 0; j < plan.parts(); ++j) sum += part[j * (kItemRows * kBatch)];
        const DeviceLinear& w = p.linear[piece];
        return w.bias.data ? sum * factor + value_of(w.bias, row) : sum * factor;
      };
      const float y = product(of.piece, r);
      put(p, p.output, of.piece, row, first_row + b, both() ? swiglu(y, product(1, r + kItemRows / 2)) : y);
    }
  }

  XLSTM_DEVICE void run() {
    if (threadIdx.x == 0) {
      received().init(1);
      fence_mbarrier_init();
      expect(0);
    }
#pragma unroll 1
    for (int s = 0; s < kSlots; ++s) ring.fetch(*this, s);
    NormEight weight[kBurst];
    fetch_weights(0, weight);
    pdl_wait();
    bring(weight);
    cluster_sync();  // x's are there, and all blocks' barriers
    send_squares();
    slot = 0;
    int own = ring.warp();  // items are this warp's in the order in which it fetches them, whatever rounds are
    const int rounds = (items + round_items() - 1) / round_items();
    for (int round = 0; round < rounds; ++round) {
      const int begin = round * round_items();
      for (; own < begin + round_items() && own < items; own += kWarps) make(item(own), own - begin);
      received().wait(uint32_t(round & 1));
      finish(round);
      if (round + 1 == rounds) break;
      if (threadIdx.x == 0) expect(round + 1);
      cluster_sync();  // nobody sends to a block that still reads
    }
  }
};

template <class Weights, int kBatch>
__global__ __launch_bounds__(32 * cluster_warps(kBatch), 1) void cluster_products(XLSTM_PARAM ClusterParams given) {
  if constexpr (kHopper) {
    extern __shared__ __align__(128) char lds[];
    pdl_trigger();
    ClusterProduct<Weights, kBatch>(given, lds).run();
  }
}

}  // namespace xlstm::gpu::engine
