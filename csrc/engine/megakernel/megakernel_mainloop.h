// SPDX-License-Identifier: Apache-2.0
// The mainloop of the megakernels (engine/megakernel/megakernel.h, megakernel_rows.h): a warp's items of a phase, whose
// weights come through its ring.
#pragma once

#include "arch/hopper/hopper.h"
#include "engine/gemm_cluster/gemm_cluster_sums.h"
#include "engine/megakernel/megakernel_weight_ring.h"

namespace xlstm::gpu::engine {

// The sum of the parts' sums in shared memory, in the order of the parts; their loads overlap.
XLSTM_DEVICE float sum_of_parts(const float* from, int stride, int parts) {
  float sum = 0, part[1 << kMaxPartBits];
#pragma unroll
  for (int j = 0; j < 1 << kMaxPartBits; ++j) part[j] = j < parts ? from[j * stride] : 0.0f;
#pragma unroll
  for (int j = 0; j < 1 << kMaxPartBits; ++j) sum += part[j];
  return sum;
}

// kRows: of x that the kernel is made for.
template <class Weights, int kRows>
struct MegakernelMainloop {
  static constexpr int kBits = Weights::kBits;
  using Sums = typename SumsOf<Weights, kRows>::type;
  using Ring = MegakernelRing<kBits, kRows>;

  const MegakernelParams& p;
  char* lds;
  Ring ring;
  int slot = 0;  // of the ring: the slot to be read next; the slot before it is refilled

  XLSTM_DEVICE MegakernelMainloop(const MegakernelParams& params, char* memory)
      : p(params), lds(memory), ring(params, memory) {}

  // Fills in the tables of this block's share of all phases. A barrier must follow.
  XLSTM_DEVICE static void prepare(const MegakernelParams& p, char* lds) {
    const BlockGroup group(p);
    for (int s = 0; s < kPhases; ++s) {
      const Phase phase = Phase(s);
      const int items = WarpPart(p, phase, 0).end, thread = int(threadIdx.x);
      for (int n = thread; n < items; n += kMegakernelThreads)
        Ring::item_of(p, lds, phase, n) = RowItem(p, phase, kBits, group.index + n * group.count);
      if (thread < kMegakernelWarps) Ring::part_of(p, lds, phase, thread) = WarpPart(p, phase, thread);
    }
  }

  XLSTM_DEVICE const WarpPart& part(Phase phase) const { return Ring::part_of(p, lds, phase, Ring::warp()); }
  XLSTM_DEVICE ClusterX x() const { return {lds + p.smem.x, reinterpret_cast<float*>(lds + p.smem.x_scales)}; }

  XLSTM_DEVICE void begin() {
    for (int s = 0; s + 1 < Ring::kSlots; ++s) ring.fetch(s);
  }

  // Computes this warp's items of a phase from n on, up to `end`; store_sum(n, sums) takes what each comes to. Before a
  // slot is read, the one that was read last is refilled. So the refill of a phase's last slot is issued only after the
  // next phase's x has arrived, whose loads would otherwise queue behind it.
  template <class StoreSum>
  XLSTM_DEVICE void run(Phase phase, int block, int& n, int end, StoreSum&& store_sum) {
    const WarpPart& of = part(phase);
    const DeviceLinear& w = p.phase[int(phase)].gemm.linear[0];
    const Groups groups{p.block[block].linear[first_linear(phase)].offsets != nullptr, w.dtype == XLSTM_FLOAT16,
                        of.two_steps};
    Sums sums;
    sums.clear();
    int done = 0;  // steps of the item
    if (!of.steps)
      for (; n < end; n += of.stride) store_sum(n, sums);
#pragma unroll 1
    while (n < end) {
      ring.fetch(slot ? slot - 1 : Ring::kSlots - 1);
      const bool gate = kBits < 16 && Ring::item_of(p, lds, phase, n).kind == RowItem::gate;
      const int most = Ring::kSegment / step_bytes(kBits, gate), left = of.steps - done;
      cp_async_wait_group<Ring::kSlots - 1>();
      __syncwarp();
      multiply(sums, of, gate, groups, ring.slot(slot), done, left < most ? left : most);
      slot = slot + 1 == Ring::kSlots ? 0 : slot + 1;
      if (left > most) {
        done += most;
      } else {
        store_sum(n, sums);
        sums.clear(), done = 0, n += of.stride;
      }
      __syncwarp();
    }
  }

  // Prefetches the weights of norms to L2, of this block of the model and the next, which a step reads once, and all
  // blocks would then wait for.
  XLSTM_DEVICE void prefetch_norms(int block_index) const {
    const MegakernelBlock &block = p.block[block_index], &next = p.block[block_index + 1];
    const auto prefetch = [&](const DeviceVector& norm, int features) {
      const int lines = (features * (norm.dtype == XLSTM_FLOAT32 ? 4 : 2) + 127) / 128;
      for (int line = int(blockIdx.x); line < lines; line += int(gridDim.x))
        prefetch_l2_line(static_cast<const char*>(norm.data) + line * 128);
    };
    if (threadIdx.x + 1 < kMegakernelThreads) return;
    prefetch(block.head_norm, p.heads * p.step.v.columns);
    prefetch(block.norm_ffn, p.phase[int(Phase::up)].gemm.columns);
    prefetch(next.norm, p.phase[int(Phase::head)].gemm.columns);
  }

  // Prefetches the scales of this block's items to L2 a phase ahead: eight warps, or blocks, each need a part of every
  // line, which memory would otherwise be asked for part by part.
  XLSTM_DEVICE void prefetch_scales(const PhaseCursor& next) const {
    if (kBits == 16 || next.done()) return;
    const WarpPart& part = Ring::part_of(p, lds, next.phase, 0);
    const int n = (int(threadIdx.x) / 2 << p.cluster_bits) + BlockGroup(p).rank, half = int(threadIdx.x) % 2;
    if (n >= part.end) return;
    const RowItem item = Ring::item_of(p, lds, next.phase, n);
    const bool is_swiglu = item.kind == RowItem::both;
    const int before = half && !is_swiglu ? Ring::kHalf : 0, left = item.rows - before;
    if (item.kind == RowItem::gate || left <= 0) return;
    const int64_t begin = int64_t(item.first + before) * part.row_groups;
    const int bytes = (left < Ring::kHalf ? left : Ring::kHalf) * part.row_groups & ~15;
    const MegakernelWeights& weights = p.block[next.block].linear[item.linear + (is_swiglu ? half : 0)];
    if (bytes) bulk_prefetch_l2(static_cast<const char*>(weights.scales) + begin, bytes);
    if (bytes && weights.offsets) bulk_prefetch_l2(static_cast<const char*>(weights.offsets) + begin, bytes);
  }

 private:
  // The format of a phase's scales, the same for all of its rows.
  struct Groups {
    bool offsets, float16;
    int two_steps;
  };
  // Multiplies the steps in a slot, from step `done` of the warp's part on. In x's memory a part of one row's features
  // lies among all; a block that has a part of several rows' has no others.
  XLSTM_DEVICE void multiply(Sums& sums, const WarpPart& of, bool gate, const Groups& groups, const char* slot,
                             int done, int now) const {
    const ClusterX with = x();
    const int absolute = of.first_step + done, at_x = kRows == 1 ? absolute : done;
    const char* const rows = slot + item_row() * Ring::kSegment;
    const int swizzle = segment_swizzle(kBits, item_row());
    if constexpr (kBits == 16) {
      const char* const row[2] = {rows, rows + 8 * Ring::kSegment};
#pragma unroll
      for (int s = 0; s < Ring::kSegment / (kStepFeatures * 2); ++s)
        if (s < now) sums.multiply(with, at_x + s, row, s * kStepFeatures * 2, swizzle);
    } else if (gate) {
      for (int s = 0; s < now; ++s) {
        const char* const from = rows + s * kStepFeatures * 2;
        const char* const row[2] = {from, from + 8 * Ring::kSegment};
        sums.multiply_gate(with, at_x + s, row);
      }
    } else {
      // With one row of x a lane scales one row of weights only. `at`: the first step's scale among those of a row in
      // the slot, the same for all items and for either half of their rows.
      constexpr int kLaneRows = kRows == 1 ? 1 : 2;
      const int r = item_row() + (kRows == 1 ? quarter() / 2 * 8 : 0), shift = groups.two_steps;
      const int at = of.groups_at(item_row(), absolute) & 15;
      const int odd = absolute & shift;  // whether the first step is the second of its group
      const char* const scales = slot + megakernel_groups_offset(kBits) + r * kGroupBytes;
      const auto run_steps = [&](auto element, auto with_offsets) {
        using T = decltype(element);
        constexpr int kSteps = Ring::kSegment / (kStepFeatures * kBits / 8);
        const auto step = [&](int s) {
          const int begin = (s * (kStepFeatures * kBits / 8)) ^ swizzle;
          const char* const row[2] = {rows + begin, rows + begin + 8 * Ring::kSegment};
          // Rows eight apart have the same swizzle.
          const char* const group = scales + ((at + ((odd + s) >> shift) * 2) ^ group_swizzle(r));
          float scale[2] = {}, offset[2] = {};
#pragma unroll
          for (int j = 0; j < kLaneRows; ++j) {
            const char* const from = group + j * 8 * kGroupBytes;
            scale[j] = to_float(*reinterpret_cast<const T*>(from));
            if (with_offsets) offset[j] = to_float(*reinterpret_cast<const T*>(from + kGroupsBytes));
          }
          sums.template multiply<with_offsets>(with, at_x + s, row, scale, offset);
        };
        if (now == kSteps) {  // no branches between steps, so their loads overlap
#pragma unroll
          for (int s = 0; s < kSteps; ++s) step(s);
        } else {
#pragma unroll 1
          for (int s = 0; s < now; ++s) step(s);
        }
      };
      const auto by_dtype = [&](auto with_offsets) {
        if (groups.float16)
          run_steps(Float16{}, with_offsets);
        else
          run_steps(BFloat16{}, with_offsets);
      };
      if (groups.offsets)
        by_dtype(std::true_type{});
      else
        by_dtype(std::false_type{});
    }
  }
};

}  // namespace xlstm::gpu::engine
