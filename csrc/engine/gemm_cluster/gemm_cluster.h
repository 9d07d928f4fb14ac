// SPDX-License-Identifier: Apache-2.0
// y = W x for up to kBatch x's on Hopper, by clusters of thread blocks: for quantised weights, and for bfloat16 weights
// at batches of 2 to 8. The prologue and the epilogue are those of a decode step (engine/gpu/prologue_epilogue.h).
//
// Maths: y = sum over the cluster's blocks (split-K) of partial sums. For quantised weights a partial sum is of int8
// products of weights and the digits of x, scaled group by group; for bfloat16 weights, of products with the two
// bfloat16 parts of x (engine/gemm_cluster/gemm_cluster_sums.h). An RMS norm is a factor of each row of the batch: the
// blocks exchange their sums of squares, and the factor is applied to sums.
//
// Who owns what (engine/gemm_cluster/gemm_cluster_plan.h): a warp computes an item, 16 rows of weights, over its
// block's part of the features. Each warp has a pipeline of its own, a ring of two slots with 256 bytes of each row.
// All lanes copy (cp.async): bulk copies are one thread's instructions, and one for each row took three times as long.
// The first weights, which no kernel of a step writes, are copied before this kernel waits for the kernel before it.
// Partial sums go to the item's owner as soon as they are ready, through distributed shared memory and an mbarrier. The
// owner adds up the parts in their order, so every batch has the same bits.
//
// Barriers:
//
//   which                         who arrives                    who waits            phase
//   received (mbarrier)           thread 0, with the bytes of    all threads of the   the round's parity
//                                 the round's partial sums (in   block, before the
//                                 round 0 also of the blocks'    epilogue
//                                 sums of squares); the bytes
//                                 by st.async
//   cluster_sync before round 0   all blocks: x is in shared     all blocks           once
//                                 memory, `received` is
//                                 initialised, its bytes are
//                                 announced
//   cluster_sync between rounds   all blocks: the epilogue has   all blocks           once a round
//                                 read its sums, the next bytes
//                                 are announced
//   a warp's ring                 the warp's own cp.async groups, then __syncwarp; no other warp takes part
//
// Timeline of a block:
//
//   weights  | ring's first slots | next slot at the use of this one .......................................
//   x        | pdl_wait, load     |
//   warps    |       cluster_sync | round 0: items, sums to owners | received, epilogue, cluster_sync | round 1
//
// Floor: the bytes of the weights over the bandwidth of memory. What binds are instructions and a kernel's own latency:
// x from L2 and its digits, the cluster's barrier, the last sums in flight (docs/lab/decode-h200.md).
#pragma once

#include "arch/hopper/hopper.h"
#include "arch/nvidia/dependent_launch.h"
#include "engine/gemm_cluster/gemm_cluster_ring.h"
#include "engine/gemm_cluster/gemm_cluster_sums.h"
#include "engine/gpu/prologue_epilogue.h"

namespace xlstm::gpu::engine {

template <class Weights, int kBatch>
struct GemmCluster {
  static constexpr int kBits = Weights::kBits, kStride = segment_stride(kBits);
  static constexpr int kWarps = cluster_warps(kBatch), kThreads = kWarps * kWave;
  using Sums = typename SumsOf<Weights, kBatch>::type;
  using Item = ClusterPart::Item;

  const ClusterPart part;
  const GemmParams& p;
  const ClusterPlan& plan;
  const ClusterSmem& smem;
  char* lds;
  uint32_t lds_at;
  ClusterRing<kBits, kWarps> ring;

  XLSTM_DEVICE GemmCluster(const ClusterParams& kernel_arg, char* memory)
      : part(kernel_arg, kBatch),
        p(part.p),
        plan(part.plan),
        smem(part.smem),
        lds(memory),
        lds_at(lds_address(memory)),
        ring(part, lds_at) {}

  XLSTM_DEVICE Mbarrier received() const { return {lds_at}; }

  // ---- x

  XLSTM_DEVICE ClusterX x() const { return {lds + smem.x, reinterpret_cast<float*>(lds + smem.x_scales)}; }
  XLSTM_DEVICE bool normed() const { return p.input == Input::rms; }

  static constexpr int kBurst = kBatch == 1 ? 1 : 4;  // vec8s of x that a thread has in flight
  // The ith vec8 of a thread: its step, its row of the batch, and its index in the step.
  struct XVec8 {
    int step, b, n;
    bool is_inside;
  };
  XLSTM_DEVICE XVec8 vec8_at(int begin, int i) const {
    const int at = begin + i * kThreads + int(threadIdx.x), step = at / (kStepVec8s * kBatch);
    return {step, at / kStepVec8s % kBatch, at % kStepVec8s, step < part.steps};
  }
  XLSTM_DEVICE int feature(const XVec8& e) const {
    return e.is_inside ? (part.first_step + e.step) * kStepFeatures + e.n * kVec8 : 0;
  }
  XLSTM_DEVICE void fetch_weights(int begin, NormVec8 (&weight)[kBurst]) const {
    if (!normed()) return;
#pragma unroll
    for (int i = 0; i < kBurst; ++i) weight[i].fetch(p.weight, feature(vec8_at(begin, i)));
  }
  // The prologue: loads all of the block's part of x. `weight` holds the first burst's weights of the norm.
  XLSTM_DEVICE void load_x(NormVec8 (&weight)[kBurst]) {
    const ClusterX to = x();
    float* const squares = reinterpret_cast<float*>(lds + smem.squares);
    for (int begin = 0; begin < part.steps * kStepVec8s * kBatch; begin += kBurst * kThreads) {
      float x[kBurst][kVec8];
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const XVec8 e = vec8_at(begin, i);
        read_vec8(p.x + (e.is_inside && e.b < part.count ? int64_t(part.first_row + e.b) * p.columns + feature(e) : 0),
                  x[i]);
      }
      if (begin) fetch_weights(begin, weight);
#pragma unroll
      for (int i = 0; i < kBurst; ++i) {
        const XVec8 e = vec8_at(begin, i);
        if (!e.is_inside || e.b >= part.count)
#pragma unroll
          for (int k = 0; k < kVec8; ++k) x[i][k] = 0;
        if (normed()) {
          const float square_sum = sum_over_lanes<kStepVec8s>(sum_of_squares(x[i]));
          if (e.is_inside && e.n == 0) squares[e.step * kBatch + e.b] = square_sum;
          weight[i].multiply(p.weight.dtype, x[i]);
        }
        Sums::store(to, e.step, e.n, e.b, x[i], e.is_inside);
      }
    }
  }
  // Sends this part's sum of squares of each row to all blocks of the cluster.
  XLSTM_DEVICE void send_squares() const {
    const int b = int(threadIdx.x) % kBatch, to = int(threadIdx.x) / kBatch;
    if (!normed() || to >= plan.parts()) return;
    const float* const squares = reinterpret_cast<const float*>(lds + smem.squares);
    float sum = 0;
    for (int step = 0; step < part.steps; ++step) sum += squares[step * kBatch + b];
    st_async_to_cta(uint32_t(to), lds_at + uint32_t(smem.all_squares + (part.rank * kBatch + b) * 4), sum, received());
  }
  XLSTM_DEVICE float rms_factor(int b) const {
    if (!normed()) return 1;
    const float* const squares = reinterpret_cast<const float*>(lds + smem.all_squares);
    float sum = 0;
    for (int j = 0; j < plan.parts(); ++j) sum += squares[j * kBatch + b];
    return 1 / __builtin_sqrtf(sum / float(p.columns) + p.norm_eps);
  }

  // ---- mainloop: the sums of an item

  // Multiplies the steps in a slot, the first of which is step `done` of the item.
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
    } else if (item.is_gate) {
      each_step(kStepFeatures * 2, [&](int s, const auto& row) { sums.multiply_gate(with, done + s, row); });
    } else {
      // At batch 1 a lane scales one row only.
      constexpr int kLaneRows = kBatch == 1 ? 1 : 2;
      const char* scales[kLaneRows];
      const DeviceLinear* weights = nullptr;
      int shift = 0;
#pragma unroll
      for (int j = 0; j < kLaneRows; ++j) {
        const int r = item_row() + (kBatch == 1 ? quarter() / 2 * 8 : 8 * j);
        int row;
        const DeviceLinear& w = part.row_of(item, r, row);
        weights = &w;
        shift = w.group_size > kStepFeatures ? 1 : 0;
        const int first = part.first_group(w, row, done);
        scales[j] = slot + kItemRows * kStride + r * kGroupRowBytes + (first - part.groups_begin(w, first));
      }
      const int odd = (part.first_step + done) & shift;  // whether the first step is the second of its group
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

  // Sends partial sums to the owner of the nth item of a round.
  XLSTM_DEVICE void send_sums(const Sums& sums, int n) const {
    const auto sum_address = [&](int row, int b) {
      return lds_at +
             uint32_t(smem.received +
                      ((((n >> plan.part_bits << plan.part_bits) + part.rank) * kItemRows + row) * kBatch + b) * 4);
    };
    const uint32_t owner = uint32_t(n & (plan.parts() - 1));
    if constexpr (kBatch == 1) {
      const float sum = sums.single_sum();
      if (sums.lane_row() >= 0) st_async_to_cta(owner, sum_address(sums.lane_row(), 0), sum, received());
    } else {
      sums.each_pair([&](int row, int b, float sum, float next_sum) {
        st_async_to_cta(owner, sum_address(row, b), sum, next_sum, received());
      });
    }
  }

  int slot;  // of the ring: the slot to be read next

  XLSTM_DEVICE void compute_item(const Item& item, int n) {
    Sums sums;
    sums.clear();
    const int most = kSegmentBytes / part.step_bytes(kBits, item);
    for (int done = 0; done < part.steps; done += most) {
      cp_async_wait_group<kSlots - 1>();
      __syncwarp();
      multiply(sums, item, lds + ring.slot_offset(smem, slot), done,
               part.steps - done < most ? part.steps - done : most);
      __syncwarp();
      ring.fetch(part, slot);
      slot = slot + 1 == kSlots ? 0 : slot + 1;
    }
    send_sums(sums, n);
  }

  // ---- rounds

  XLSTM_DEVICE int round_items() const { return plan.owned << plan.part_bits; }
  XLSTM_DEVICE int owned(int round) const {
    const int left = part.items - round * round_items() - part.rank;
    const int owned_items = left > 0 ? (left + plan.parts() - 1) >> plan.part_bits : 0;
    return owned_items < plan.owned ? owned_items : plan.owned;
  }
  XLSTM_DEVICE void expect_round(int round) const {
    const int squares = round == 0 && normed() ? plan.parts() * kBatch * 4 : 0;
    received().arrive_expect_tx(uint32_t(owned(round) * plan.parts() * kItemRows * kBatch * 4 + squares));
  }

  XLSTM_DEVICE void epilogue(int round) const {
    const int rows = part.is_swiglu() ? kItemRows / 2 : kItemRows;
    for (int at = int(threadIdx.x); at < owned(round) * rows * kBatch; at += kThreads) {
      const int r = at % rows, b = at / rows % kBatch, item_index = at / (rows * kBatch);
      const Item of = part.item(round * round_items() + item_index * plan.parts() + part.rank);
      const int row = of.first + r;
      if (b >= part.count || row >= p.linear[of.linear].rows) continue;
      const float factor = rms_factor(b);
      const auto linear_output = [&](int linear, int r) {
        const float* part_sum = reinterpret_cast<const float*>(lds + smem.received) +
                                (item_index * plan.parts() * kItemRows + r) * kBatch + b;
        float sum = 0;
        for (int j = 0; j < plan.parts(); ++j) sum += part_sum[j * (kItemRows * kBatch)];
        const DeviceLinear& w = p.linear[linear];
        return w.bias.data ? sum * factor + value_of(w.bias, row) : sum * factor;
      };
      const float y = linear_output(of.linear, r);
      store_output(p, p.output, of.linear, row, part.first_row + b,
                   part.is_swiglu() ? swiglu(y, linear_output(1, r + kItemRows / 2)) : y);
    }
  }

  XLSTM_DEVICE void run() {
    if (threadIdx.x == 0) {
      received().init(1);
      fence_mbarrier_init();
      expect_round(0);
    }
#pragma unroll 1
    for (int s = 0; s < kSlots; ++s) ring.fetch(part, s);
    NormVec8 weight[kBurst];
    fetch_weights(0, weight);
    pdl_wait();
    load_x(weight);
    cluster_sync();  // x is ready, and so are the mbarriers of all blocks
    send_squares();
    slot = 0;
    int next_item = ring.warp();  // a warp takes its items in the order in which its ring fetches them
    const int rounds = (part.items + round_items() - 1) / round_items();
    for (int round = 0; round < rounds; ++round) {
      const int begin = round * round_items();
      for (; next_item < begin + round_items() && next_item < part.items; next_item += kWarps)
        compute_item(part.item(next_item), next_item - begin);
      received().wait(uint32_t(round & 1));
      epilogue(round);
      if (round + 1 == rounds) break;
      if (threadIdx.x == 0) expect_round(round + 1);
      cluster_sync();  // no block may send to a block that still reads
    }
  }
};

template <class Weights, int kBatch>
__global__ __launch_bounds__(32 * cluster_warps(kBatch),
                             1) void gemm_cluster_kernel(XLSTM_PARAM ClusterParams kernel_arg) {
  if constexpr (kHopper) {
    extern __shared__ __align__(128) char lds[];
    pdl_trigger();
    GemmCluster<Weights, kBatch>(kernel_arg, lds).run();
  }
}

}  // namespace xlstm::gpu::engine
