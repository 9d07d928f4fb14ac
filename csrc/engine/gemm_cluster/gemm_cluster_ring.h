// SPDX-License-Identifier: Apache-2.0
// The share of a block of a cluster in a product (engine/gemm_cluster/gemm_cluster.h), and the ring that its weights
// pass through.
#pragma once

#include "arch/fragments.h"
#include "engine/gemm_cluster/gemm_cluster_plan.h"

namespace xlstm::gpu::engine {

struct ClusterParams {
  GemmParams gemm;
  ClusterPlan plan;
  ClusterItems items;
  int items_per_cluster, extra_items;  // of each cluster; the first extra_items clusters have one more
  ClusterSmem smem;
};

struct ClusterPart {
  const GemmParams& p;
  const ClusterPlan& plan;
  const ClusterItems& item_list;
  const ClusterSmem& smem;
  int rank, cluster;      // which part of the features; which items
  int first_row, count;   // of the batch
  int first_step, steps;  // of the part
  int items;              // of this cluster

  XLSTM_DEVICE ClusterPart(const ClusterParams& kernel_arg, int batch)
      : p(kernel_arg.gemm), plan(kernel_arg.plan), item_list(kernel_arg.items), smem(kernel_arg.smem) {
    rank = int(blockIdx.x) & (plan.parts() - 1);
    const int which = int(blockIdx.x) >> plan.part_bits;
    cluster = plan.passes == 1 ? which : which / plan.passes;
    first_row = (which - cluster * plan.passes) * batch;
    count = p.batch - first_row < batch ? p.batch - first_row : batch;
    first_step = rank * plan.part_steps;
    const int left = p.columns / kStepFeatures - first_step;
    steps = left < 0 ? 0 : left < plan.part_steps ? left : plan.part_steps;
    items = kernel_arg.items_per_cluster + (cluster < kernel_arg.extra_items ? 1 : 0);
  }

  XLSTM_DEVICE bool is_swiglu() const { return p.output == Output::swiglu; }

  struct Item {
    int linear, first;  // the linear, and the item's first row
    bool is_gate;       // of 2 bytes, next to quantised linears
  };
  XLSTM_DEVICE Item item(int n) const {  // the nth item of this cluster
    int at = cluster + n * plan.clusters, j = 0;
    while (j + 1 < item_list.count && at >= item_list.end[j]) ++j;
    if (j) at -= item_list.end[j - 1];
    return {item_list.linear[j], at * (is_swiglu() ? kItemRows / 2 : kItemRows), j >= item_list.gates_from};
  }
  // Row r of an item: returns its linear and sets its row; past the last row, the last row again.
  XLSTM_DEVICE const DeviceLinear& row_of(const Item& item, int r, int& row) const {
    const int second = is_swiglu() && r >= kItemRows / 2 ? 1 : 0;
    const DeviceLinear& w = p.linear[is_swiglu() ? second : item.linear];
    row = item.first + r - second * (kItemRows / 2);
    row = row < w.rows ? row : w.rows - 1;
    return w;
  }
  XLSTM_DEVICE static int step_bytes(int bits, const Item& item) {
    return kStepFeatures * (item.is_gate ? 16 : bits) / 8;
  }

  // Bytes before a row's scales, from a step on, among all rows' scales; and the beginning of the 32 bytes of them that
  // a slot holds.
  XLSTM_DEVICE int first_group(const DeviceLinear& w, int row, int step) const {
    return (row * w.groups + ((first_step + step) >> (w.group_size > kStepFeatures ? 1 : 0))) * 2;
  }
  XLSTM_DEVICE static int groups_begin(const DeviceLinear& w, int first) {
    const int last = w.rows * w.groups * 2 - kGroupBytes;
    return (first & ~15) < last ? first & ~15 : last;
  }
};

// A warp's ring. The warp takes items in turn and copies 256 bytes of each of an item's rows at a time, and their
// scales.
template <int kBits, int kWarps>
struct ClusterRing {
  static constexpr int kStride = segment_stride(kBits);
  static constexpr int kRowVec16s = kSegmentBytes / 16, kRowsPerCopy = kWave / kRowVec16s, kHalf = kItemRows / 2;

  uint32_t lds_at;
  // The next copy: the item and the first of its steps; the address of the lane's first row in either half of the
  // item's rows, how many rows are left from there, and the distance to the lane's next row.
  int item, step;
  ClusterPart::Item next;
  const char* source[2];
  int rows_left[2];
  int64_t rows_distance;

  XLSTM_DEVICE ClusterRing(const ClusterPart& part, uint32_t at)
      : lds_at(at), item(part.steps > 0 ? warp() : part.items), step(0) {}

  XLSTM_DEVICE static int warp() { return int(threadIdx.x) / kWave; }
  XLSTM_DEVICE static uint32_t slot_offset(const ClusterSmem& smem, int slot) {
    return uint32_t(smem.ring + (warp() * kSlots + slot) * slot_bytes(kBits));
  }

  XLSTM_DEVICE void begin_item(const ClusterPart& part) {
    next = part.item(item);
    const int r = lane_id() / kRowVec16s, first_byte = part.first_step * part.step_bytes(kBits, next);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const DeviceLinear& w = part.p.linear[part.is_swiglu() ? h : next.linear];
      const int row = next.first + r + (part.is_swiglu() ? 0 : h * kHalf);
      source[h] = static_cast<const char*>(w.data) + row * w.row_bytes + first_byte + lane_id() % kRowVec16s * 16;
      rows_left[h] = w.rows - row;
      rows_distance = kRowsPerCopy * w.row_bytes;
    }
  }
  // Past a linear's last row, cp.async fills in zeros.
  XLSTM_DEVICE void fetch(const ClusterPart& part, int slot) {
    if (item < part.items) {
      if (step == 0) begin_item(part);
      const int lane = lane_id(), each = part.step_bytes(kBits, next), most = kSegmentBytes / each;
      const int now = part.steps - step < most ? part.steps - step : most;
      const uint32_t to = lds_at + slot_offset(part.smem, slot);
      const uint32_t copy_to = to + uint32_t(lane / kRowVec16s * kStride + lane % kRowVec16s * 16);
      const auto copy = [&](auto&& bytes) {
#pragma unroll
        for (int n = 0; n < kItemRows / kRowsPerCopy; ++n) {
          const int h = n / (kHalf / kRowsPerCopy), m = n % (kHalf / kRowsPerCopy);
          cp_async_16(copy_to + uint32_t(n * kRowsPerCopy * kStride), source[h] + m * rows_distance,
                      bytes(h, m * kRowsPerCopy));
        }
      };
      if (lane % kRowVec16s * 16 < now * each) {
        if (rows_left[0] > kHalf - kRowsPerCopy && rows_left[1] > kHalf - kRowsPerCopy)
          copy([](int, int) { return 16; });
        else
          copy([&](int h, int row) { return row < rows_left[h] ? 16 : 0; });
      }
      source[0] += kSegmentBytes, source[1] += kSegmentBytes;
      if (kBits < 16 && !next.is_gate) fetch_groups(part, to + uint32_t(kItemRows * kStride));
      step += now;
      if (step == part.steps) item += kWarps, step = 0;
    }
    cp_async_commit();
  }
  XLSTM_DEVICE void fetch_groups(const ClusterPart& part, uint32_t to) const {
    const int r = lane_id() / 2, half = lane_id() % 2 * 16;
    int row;
    const DeviceLinear& w = part.row_of(next, r, row);
    const int from = part.groups_begin(w, part.first_group(w, row, step)) + half;
    const uint32_t copy_to = to + uint32_t(r * kGroupRowBytes + half);
    cp_async_16(copy_to, static_cast<const char*>(w.scales) + from, 16);
    if (w.offsets) cp_async_16(copy_to + kItemRows * kGroupRowBytes, static_cast<const char*>(w.offsets) + from, 16);
  }
};

}  // namespace xlstm::gpu::engine
