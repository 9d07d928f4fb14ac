// SPDX-License-Identifier: Apache-2.0
// The parameters of the megakernels (engine/megakernel/megakernel.h, megakernel_rows.h), and the rings that weights
// pass through. A ring runs on from phase to phase and from block to block of the model: no kernel of a step writes
// weights, so copies never wait for what the phases wait for.
#pragma once

#include "arch/fragments.h"
#include "arch/operands.h"
#include "engine/gemm_cluster/gemm_cluster_ring.h"
#include "engine/megakernel/megakernel_plan.h"
#include "mlstm/recurrent/recurrent.h"

namespace xlstm::gpu::engine {

// The parameters that differ from block to block of the model. After the last, the head is a block of one product.
struct MegakernelWeights {
  const void *data, *scales, *offsets;
  DeviceVector bias;
};
constexpr int kBlockLinears = 10;  // q, k, v, o, i, f, out, gate, up, down
constexpr int first_linear(Phase phase) {
  return phase == Phase::output ? 6 : phase == Phase::up ? 7 : phase == Phase::down ? 9 : 0;
}
struct MegakernelBlock {
  MegakernelWeights linear[kBlockLinears];
  DeviceVector norm, head_norm, norm_ffn;  // before the projections or the head; of the heads of h; before up
  float *c, *n, *m;
};

// The parameters that all blocks of a model share.
struct MegakernelPhase {
  PhasePlan plan;
  ClusterItems items;
  GemmParams gemm;  // without addresses, which MegakernelBlock and Mailboxes have, but for the head's output
};

struct MegakernelParams {
  MegakernelPhase phase[kPhases];
  MegakernelSmem smem;
  int blocks, heads, batch, cluster_bits;
  // Without the addresses of a token and its state, but for n_last and m_last, which are in the workspace.
  mlstm::RecurrentParams step;
  Mailboxes layout;  // the layout of mailboxes
  float* mailboxes;  // begins with the tokens' embeddings, x; the rest is empty
  MegakernelBlock block[kMaxMegakernelBlocks + 1];

  // The addresses of mailboxes of a block of the model.
  XLSTM_DEVICE float* of(int n) const { return mailboxes + int64_t(n) * layout.block; }
  XLSTM_DEVICE float* from(Phase phase, int n) const { return of(n) + layout.from[int(phase)]; }
  XLSTM_DEVICE float* to(Phase phase, int linear_index, int n) const {
    return of(n) + layout.to[int(phase)][linear_index];
  }
};
static_assert(sizeof(MegakernelParams) <= 32764);  // the limit of a launch

// A phase of a block of the model.
struct PhaseCursor {
  int block = 0;
  Phase phase = Phase::projections;

  XLSTM_DEVICE bool done() const { return int(phase) == kPhases; }
  XLSTM_DEVICE void advance(int blocks) {
    if (phase != Phase::down) {
      phase = Phase(int(phase) + 1);
    } else {
      ++block;
      phase = block < blocks ? Phase::projections : Phase::head;
    }
  }
};

// A group of blocks that takes items: a cluster, or of one row a block alone. Its nth item is the grid's index + n
// count.
struct BlockGroup {
  int rank, index, count;  // the block's in its group; the group's, and how many there are

  XLSTM_DEVICE explicit BlockGroup(const MegakernelParams& p)
      : rank(int(blockIdx.x) & ((1 << p.cluster_bits) - 1)),
        index(int(blockIdx.x) >> p.cluster_bits),
        count(int(gridDim.x) >> p.cluster_bits) {}
};

// A warp's part of a phase, and the format of its rows; in shared memory, since the ring needs it again and again.
struct alignas(16) WarpPart {
  int first_step, steps;      // of the features
  int first, end, stride;     // indices among the group's items; the warps of a part take every stride-th
  int row_bytes, row_groups;  // of a row of weights; bytes of its scales
  short part_bits;
  short two_steps;  // 1 if a group of scales has two steps, else 0

  XLSTM_DEVICE WarpPart(const MegakernelParams& p, Phase phase, int warp) {
    const MegakernelPhase& s = p.phase[int(phase)];
    const PhasePlan& plan = s.plan;
    const BlockGroup group(p);
    const int worker = warp << p.cluster_bits | group.rank;
    part_bits = short(plan.part_bits);
    first_step = (worker & (parts() - 1)) * plan.part_steps;
    const int left = plan.steps - first_step;
    steps = left < 0 ? 0 : left < plan.part_steps ? left : plan.part_steps;
    first = worker >> part_bits;
    stride = (kMegakernelWarps << p.cluster_bits) >> part_bits;
    const int items_from_group = plan.items - group.index;
    end = items_from_group > 0 ? (items_from_group + group.count - 1) / group.count : 0;
    const DeviceLinear& w = s.gemm.linear[0];
    row_bytes = int(w.row_bytes), row_groups = w.groups * 2;
    two_steps = w.group_size > kStepFeatures ? 1 : 0;
  }
  XLSTM_DEVICE int parts() const { return 1 << part_bits; }
  // Bytes before a row's scales, from a step on, among all rows' scales; those of 8 rows are a multiple of 16.
  XLSTM_DEVICE int groups_at(int row, int step) const { return row * row_groups + (step >> two_steps) * 2; }
};

// 16 rows of weights of a linear, or 8 of either linear of SwiGLU.
struct alignas(16) RowItem {
  enum Kind : short { plain, gate, both };  // gate: of 2 bytes, next to quantised linears

  Kind kind;
  short linear;     // index among the weights of the model's block
  int to;           // offset of its outputs among the mailboxes of the model's block
  int first, rows;  // its first row, and how many there are from there on

  // The nth item of a phase, in the order in which the grid's blocks take them.
  XLSTM_DEVICE RowItem(const MegakernelParams& p, Phase phase, int bits, int n) {
    const MegakernelPhase& s = p.phase[int(phase)];
    n = (n + s.plan.first_item) % s.plan.items;
    int j = 0;
    while (j + 1 < s.items.count && n >= s.items.end[j]) ++j;
    if (j) n -= s.items.end[j - 1];
    const int linear_index = s.items.linear[j];
    linear = short(first_linear(phase) + linear_index);
    const bool is_swiglu = s.gemm.output == Output::swiglu;
    kind = is_swiglu ? both : bits < 16 && s.gemm.linear[linear_index].bits == 0 ? gate : plain;
    first = n * (is_swiglu ? kItemRows / 2 : kItemRows), rows = s.gemm.linear[linear_index].rows - first;
    to = p.layout.to[int(phase)][linear_index] + first;
  }
};

static_assert(sizeof(WarpPart) == kPartBytes && sizeof(RowItem) == kItemBytes);

XLSTM_DEVICE int step_bytes(int bits, bool gate) { return kStepFeatures * (gate ? 16 : bits) / 8; }

// A warp's ring: a segment of each of an item's rows at a time, and its scales. State that must survive stays in shared
// memory: registers are few, and a spilled one would come back behind the weights in memory's queue.
template <int kBits, int kRows>
class MegakernelRing {
 public:
  static constexpr int kSegment = megakernel_segment_bytes(kBits), kSlots = megakernel_slots(kBits, kRows);
  static constexpr int kRowVec16s = kSegment / 16, kRowsPerCopy = kWave / kRowVec16s, kHalf = kItemRows / 2;
  static constexpr int kLine = 128;  // bytes

  XLSTM_DEVICE static int warp() { return int(threadIdx.x) / kWave; }
  XLSTM_DEVICE MegakernelRing(const MegakernelParams& params, const char* memory)
      : p(params),
        lds(memory),
        slots_at(lds_address(memory) + uint32_t(params.smem.ring + warp() * kSlots * megakernel_slot_bytes(kBits))),
        item(part().first),
        step(0) {
    find_item(part());
  }

  XLSTM_DEVICE static WarpPart& part_of(const MegakernelParams& p, const char* lds, Phase phase, int warp) {
    return reinterpret_cast<WarpPart*>(const_cast<char*>(lds) + p.smem.parts)[int(phase) * kMegakernelWarps + warp];
  }
  XLSTM_DEVICE static RowItem& item_of(const MegakernelParams& p, const char* lds, Phase phase, int n) {
    return reinterpret_cast<RowItem*>(const_cast<char*>(lds) + p.smem.items)[p.phase[int(phase)].plan.table + n];
  }
  XLSTM_DEVICE const char* slot(int index) const {
    return lds + p.smem.ring + (warp() * kSlots + index) * megakernel_slot_bytes(kBits);
  }

  // Copies the next segment to a slot. Past a linear's last row, cp.async fills in zeros. All addresses are computed
  // before the first copy, which keeps its address's registers until it is issued.
  XLSTM_DEVICE void fetch(int slot) {
    if (!next.done()) {
      const WarpPart warp_part = part();
      const RowItem row_item = item_of(p, lds, next.phase, item);
      const MegakernelWeights* const weights = p.block[next.block].linear + row_item.linear;
      const bool gate = kBits < 16 && row_item.kind == RowItem::gate, is_swiglu = row_item.kind == RowItem::both;
      const int lane = opaque_lane(), r = lane / kRowVec16s, column = lane % kRowVec16s * 16;
      const int each = step_bytes(kBits, gate), most = kSegment / each, left = warp_part.steps - step;
      const uint32_t slot_to = slots_at + uint32_t(slot * megakernel_slot_bytes(kBits)),
                     rows_to = slot_to + uint32_t(r * kSegment);
      const uint32_t row_bytes = row_bytes_of(warp_part, gate);
      const uint32_t begin =
          uint32_t(row_item.first + r) * row_bytes + uint32_t((warp_part.first_step + step) * each + column);
      const char* row[kItemRows / kRowsPerCopy];
#pragma unroll
      for (int n = 0; n < kItemRows / kRowsPerCopy; ++n) {
        const int h = n / (kHalf / kRowsPerCopy), m = n % (kHalf / kRowsPerCopy) * kRowsPerCopy;
        if (m == 0) {  // the first row of a half, which may belong to another linear than the half before it
          row[n] = static_cast<const char*>(weights[is_swiglu ? h : 0].data) + begin;
          if (h && !is_swiglu) row[n] += kHalf * row_bytes;
        } else {
          row[n] = row[n - 1] + kRowsPerCopy * row_bytes;
        }
      }
      const bool quantised = kBits < 16 && !gate;
      const GroupCopy groups = quantised ? groups_of(warp_part, row_item, weights, lane) : GroupCopy{};
      const auto copy = [&](auto&& bytes) {
#pragma unroll
        for (int n = 0; n < kItemRows / kRowsPerCopy; ++n) {
          const int swizzle = gate ? 0 : segment_swizzle(kBits, r + n * kRowsPerCopy), h = n / (kHalf / kRowsPerCopy);
          cp_async_16(rows_to + uint32_t(n * kRowsPerCopy * kSegment + (column ^ swizzle)), row[n],
                      bytes(n * kRowsPerCopy - (is_swiglu ? h * kHalf : 0)));
        }
      };
      if (column < left * each) {
        if (row_item.rows >= (is_swiglu ? kHalf : kItemRows))
          copy([](int) { return 16; });
        else
          copy([&](int row_in_half) { return r + row_in_half < row_item.rows ? 16 : 0; });
      }
      if (quantised) {
        const uint32_t groups_to = slot_to + uint32_t(megakernel_groups_offset(kBits) + groups.slot_offset);
        if (groups.used) cp_async_16(groups_to, groups.scales, groups.bytes);
        if (groups.used && groups.offsets) cp_async_16(groups_to + kGroupsBytes, groups.offsets, groups.bytes);
      }
      step += most;
      if (step >= warp_part.steps) {
        item += warp_part.stride, step = 0;
        find_item(warp_part);
      }
    }
    cp_async_commit();
  }

  // Prefetches to L2, of each row, the nth two lines after those that the ring has asked for: so memory stays busy
  // while a warp spins on a mailbox, whose loads go first. Not for nibbles, which need all of the time to be
  // multiplied.
  XLSTM_DEVICE void prefetch_beyond(int n) const {
    if (kBits == 4 || next.done()) return;
    const WarpPart warp_part = part();
    const RowItem row_item = item_of(p, lds, next.phase, item);
    const bool gate = kBits < 16 && row_item.kind == RowItem::gate, is_swiglu = row_item.kind == RowItem::both;
    const int lane = opaque_lane(), half = is_swiglu ? lane / 2 / kHalf : 0, row = lane / 2 - half * kHalf;
    const int each = step_bytes(kBits, gate), end = (warp_part.first_step + warp_part.steps) * each;
    const int begin = (warp_part.first_step + step) * each + (2 * n + lane % 2) * kLine;
    if (begin >= end || row >= row_item.rows) return;
    const uint32_t byte_offset = uint32_t(row_item.first + row) * row_bytes_of(warp_part, gate) + uint32_t(begin);
    prefetch_l2_line(static_cast<const char*>(p.block[next.block].linear[row_item.linear + half].data) + byte_offset);
  }

 private:
  const MegakernelParams& p;
  const char* lds;
  uint32_t slots_at;  // address of the warp's slots
  PhaseCursor next;
  int item, step;  // the item and its step to be copied next

  XLSTM_DEVICE WarpPart part() const { return part_of(p, lds, next.phase, warp()); }
  XLSTM_DEVICE uint32_t row_bytes_of(const WarpPart& warp_part, bool gate) const {
    return uint32_t(gate ? p.phase[int(next.phase)].gemm.columns * 2 : warp_part.row_bytes);
  }

  // If this warp has no more items in a phase, goes on to the next phase that has any for it.
  XLSTM_DEVICE void find_item(WarpPart warp_part) {
    while (item >= warp_part.end || warp_part.steps == 0) {
      next.advance(p.blocks);
      if (next.done()) return;
      warp_part = part();
      item = warp_part.first;
    }
  }

  // A lane's half of the 32 bytes of a row's scales that a slot holds, from a multiple of 16 bytes on; nothing past the
  // last scale.
  struct GroupCopy {
    const char *scales, *offsets;
    int slot_offset, bytes;  // in a slot
    bool used;               // whether the slot's steps use any of these bytes
  };
  XLSTM_DEVICE GroupCopy groups_of(const WarpPart& warp_part, const RowItem& rows, const MegakernelWeights* weights,
                                   int lane) const {
    const int r = lane / 2, half = lane % 2 * 16, second = rows.kind == RowItem::both && r >= kHalf ? 1 : 0;
    const MegakernelWeights& linear = weights[second];
    const int first = warp_part.groups_at(rows.first + r - second * kHalf, warp_part.first_step + step),
              first_byte = (first & ~15) + half;
    const char* const offsets = static_cast<const char*>(linear.offsets);
    return {static_cast<const char*>(linear.scales) + first_byte, offsets ? offsets + first_byte : nullptr,
            r * kGroupBytes + (half ^ group_swizzle(r)),
            first_byte < (rows.first + rows.rows) * warp_part.row_groups ? 16 : 0,
            half < (first & 15) + kSegment / step_bytes(kBits, false) * 2};
  }
};

}  // namespace xlstm::gpu::engine
