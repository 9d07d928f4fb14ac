// SPDX-License-Identifier: Apache-2.0
// What a block of a cluster has to make (engine/gemm_cluster/gemm_cluster.h), and the ring by which the weights of it
// come.
#pragma once

#include "arch/fragments.h"
#include "engine/gemm_cluster/gemm_cluster_plan.h"

namespace xlstm::gpu::engine {

struct ClusterParams {
  ProductParams product;
  ClusterPlan plan;
  ClusterItems items;
  int each, rest;  // items of a cluster; the first `rest` have one more
  ClusterRoom room;
};

struct ClusterPart {
  const ProductParams& p;
  const ClusterPlan& plan;
  const ClusterItems& all;
  const ClusterRoom& room;
  int rank, cluster;      // this block's part; which items
  int first_row, count;   // of the batch
  int first_step, steps;  // of the part
  int items;              // of this cluster

  XLSTM_DEVICE ClusterPart(const ClusterParams& given, int batch)
      : p(given.product), plan(given.plan), all(given.items), room(given.room) {
    rank = int(blockIdx.x) & (plan.parts() - 1);
    const int which = int(blockIdx.x) >> plan.part_bits;
    cluster = plan.passes == 1 ? which : which / plan.passes;
    first_row = (which - cluster * plan.passes) * batch;
    count = p.batch - first_row < batch ? p.batch - first_row : batch;
    first_step = rank * plan.part_steps;
    const int left = p.columns / kStepFeatures - first_step;
    steps = left < 0 ? 0 : left < plan.part_steps ? left : plan.part_steps;
    items = given.each + (cluster < given.rest ? 1 : 0);
  }

  XLSTM_DEVICE bool both() const { return p.output == Output::swiglu; }

  struct Item {
    int piece, first;  // its weights, and the first of their rows
    bool gate;         // of 2 bytes beside quantised ones
  };
  XLSTM_DEVICE Item item(int n) const {  // of this cluster
    int at = cluster + n * plan.clusters, j = 0;
    while (j + 1 < all.count && at >= all.end[j]) ++j;
    if (j) at -= all.end[j - 1];
    return {all.piece[j], at * (both() ? kItemRows / 2 : kItemRows), j >= all.gates_from};
  }
  // Row r of an item: of which weights, and which of them; beyond the last, the last again.
  XLSTM_DEVICE const DeviceLinear& row_of(const Item& item, int r, int& row) const {
    const int second = both() && r >= kItemRows / 2 ? 1 : 0;
    const DeviceLinear& w = p.linear[both() ? second : item.piece];
    row = item.first + r - second * (kItemRows / 2);
    row = row < w.rows ? row : w.rows - 1;
    return w;
  }
  XLSTM_DEVICE static int step_bytes(int bits, const Item& item) { return kStepFeatures * (item.gate ? 16 : bits) / 8; }

  // Where a row's scales are from a step on, among all rows', and where the 32 bytes of a slot that have them begin.
  XLSTM_DEVICE int first_group(const DeviceLinear& w, int row, int step) const {
    return (row * w.groups + ((first_step + step) >> (w.group_size > kStepFeatures ? 1 : 0))) * 2;
  }
  XLSTM_DEVICE static int groups_begin(const DeviceLinear& w, int first) {
    const int last = w.rows * w.groups * 2 - kGroupBytes;
    return (first & ~15) < last ? first & ~15 : last;
  }
};

// Of a warp, which takes items in turn and copies 256 bytes of each of their rows at a time, and the scales to them.
template <int kBits, int kWarps>
struct ClusterRing {
  static constexpr int kStride = segment_stride(kBits);
  static constexpr int kRowPieces = kSegmentBytes / 16, kAtOnce = kWave / kRowPieces, kHalf = kItemRows / 2;

  uint32_t lds_at;
  // What is asked for next: an item, from which of its steps on; and where a lane's first row of either half of its
  // rows is, how many there are from there, and how far it is to the next one that the lane brings.
  int item, step;
  ClusterPart::Item next;
  const char* side[2];
  int rows[2];
  int64_t distance;

  XLSTM_DEVICE ClusterRing(const ClusterPart& part, uint32_t at)
      : lds_at(at), item(part.steps > 0 ? warp() : part.items), step(0) {}

  XLSTM_DEVICE static int warp() { return int(threadIdx.x) / kWave; }
  XLSTM_DEVICE static uint32_t place(const ClusterRoom& room, int slot) {
    return uint32_t(room.ring + (warp() * kSlots + slot) * slot_bytes(kBits));
  }

  XLSTM_DEVICE void begin_item(const ClusterPart& part) {
    next = part.item(item);
    const int r = lane_id() / kRowPieces, first_byte = part.first_step * part.step_bytes(kBits, next);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const DeviceLinear& w = part.p.linear[part.both() ? h : next.piece];
      const int row = next.first + r + (part.both() ? 0 : h * kHalf);
      side[h] = static_cast<const char*>(w.data) + row * w.row_bytes + first_byte + lane_id() % kRowPieces * 16;
      rows[h] = w.rows - row;
      distance = kAtOnce * w.row_bytes;
    }
  }
  // Beyond a piece's last row there is nothing to read: zeros.
  XLSTM_DEVICE void fetch(const ClusterPart& part, int slot) {
    if (item < part.items) {
      if (step == 0) begin_item(part);
      const int lane = lane_id(), each = part.step_bytes(kBits, next), most = kSegmentBytes / each;
      const int now = part.steps - step < most ? part.steps - step : most;
      const uint32_t to = lds_at + place(part.room, slot);
      const uint32_t own = to + uint32_t(lane / kRowPieces * kStride + lane % kRowPieces * 16);
      const auto copy = [&](auto&& bytes) {
#pragma unroll
        for (int n = 0; n < kItemRows / kAtOnce; ++n) {
          const int h = n / (kHalf / kAtOnce), m = n % (kHalf / kAtOnce);
          cp_async_16(own + uint32_t(n * kAtOnce * kStride), side[h] + m * distance, bytes(h, m * kAtOnce));
        }
      };
      if (lane % kRowPieces * 16 < now * each) {
        if (rows[0] > kHalf - kAtOnce && rows[1] > kHalf - kAtOnce)
          copy([](int, int) { return 16; });
        else
          copy([&](int h, int row) { return row < rows[h] ? 16 : 0; });
      }
      side[0] += kSegmentBytes, side[1] += kSegmentBytes;
      if (kBits < 16 && !next.gate) fetch_groups(part, to + uint32_t(kItemRows * kStride));
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
    const uint32_t own = to + uint32_t(r * kGroupRowBytes + half);
    cp_async_16(own, static_cast<const char*>(w.scales) + from, 16);
    if (w.offsets) cp_async_16(own + kItemRows * kGroupRowBytes, static_cast<const char*>(w.offsets) + from, 16);
  }
};

}  // namespace xlstm::gpu::engine
