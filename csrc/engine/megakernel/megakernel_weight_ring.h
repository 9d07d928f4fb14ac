// SPDX-License-Identifier: Apache-2.0
// A whole step in one launch (engine/megakernel/megakernel.h): what it is given, and the rings by which weights come. A
// ring goes on from product to product and from block to block of the model: no kernel of a step writes weights, so
// nothing of what they wait for holds it up.
#pragma once

#include "arch/fragments.h"
#include "arch/operands.h"
#include "engine/gemm_cluster/gemm_cluster_ring.h"
#include "engine/megakernel/megakernel_plan.h"
#include "mlstm/recurrent/recurrent.h"

namespace xlstm::gpu::engine {

// What differs from block to block of a model. What stands behind the last is a block of one product, the head.
struct WholeWeights {
  const void *data, *scales, *offsets;
  DeviceVector bias;
};
constexpr int kBlockLinears = 10;  // q, k, v, o, i, f, out, gate, up, down
constexpr int first_linear(Phase of) {
  return of == Phase::output ? 6 : of == Phase::up ? 7 : of == Phase::down ? 9 : 0;
}
struct WholeBlock {
  WholeWeights linear[kBlockLinears];
  DeviceVector norm, head_norm, norm_ffn;  // before the projections, or before the head; of heads; before up
  float *c, *n, *m;
};

// What all blocks of a model share.
struct WholePhase {
  PhasePlan plan;
  ClusterItems items;
  ProductParams product;  // without addresses but of the head's result: WholeBlock and WholePassed have them
};

struct WholeParams {
  WholePhase phase[kPhases];
  WholeRoom room;
  int blocks, heads;
  mlstm::RecurrentParams step;  // without the addresses of a token and its state, but for n and m, left in workspace
  WholePassed at;               // of what blocks of the grid hand to each other
  float* passed;                // it begins with the token's x, as it is embedded; what follows is absent
  WholeBlock block[kMostWholeBlocks + 1];

  // Where what is handed on lies, of a block of the model.
  XLSTM_DEVICE float* of(int n) const { return passed + int64_t(n) * at.block; }
  XLSTM_DEVICE float* from(Phase phase, int n) const { return of(n) + at.from[int(phase)]; }
  XLSTM_DEVICE float* to(Phase phase, int piece, int n) const { return of(n) + at.to[int(phase)][piece]; }
};
static_assert(sizeof(WholeParams) <= 32764);  // that a launch may have

// Which product of which of the model's blocks.
struct WholePlace {
  int block = 0;
  Phase phase = Phase::projections;

  XLSTM_DEVICE bool over() const { return int(phase) == kPhases; }
  XLSTM_DEVICE void go_on(int blocks) {
    if (phase != Phase::down) {
      phase = Phase(int(phase) + 1);
    } else {
      ++block;
      phase = block < blocks ? Phase::projections : Phase::head;
    }
  }
};

// What a warp has of a product, and what its rows are like: in LDS, where the ring finds it again.
struct alignas(16) WholePart {
  int first_step, steps;      // of the features
  int first, end, part_bits;  // of the multiprocessor's items, and every how many: those of the other warps of its part
  int row_bytes, row_groups;  // of a row of weights; bytes of its scales
  int two_steps;              // 1 where a group is two steps, else 0

  XLSTM_DEVICE WholePart(const WholePhase& s, int warp) {
    const PhasePlan& plan = s.plan;
    part_bits = plan.part_bits;
    first_step = rank(warp) * plan.part_steps;
    const int left = plan.steps - first_step;
    steps = left < 0 ? 0 : left < plan.part_steps ? left : plan.part_steps;
    first = warp >> part_bits;
    const int behind = plan.items - int(blockIdx.x);
    end = behind > 0 ? (behind + int(gridDim.x) - 1) / int(gridDim.x) : 0;
    const DeviceLinear& w = s.product.linear[0];
    row_bytes = int(w.row_bytes), row_groups = w.groups * 2;
    two_steps = w.group_size > kStepFeatures ? 1 : 0;
  }
  XLSTM_DEVICE int parts() const { return 1 << part_bits; }
  XLSTM_DEVICE int rank(int warp) const { return warp & (parts() - 1); }
  XLSTM_DEVICE int stride() const { return kWholeWarps >> part_bits; }
  // Bytes before a row's scales from a step on, among all rows'; those of 8 rows are a multiple of 16.
  XLSTM_DEVICE int groups_at(int row, int step) const { return row * row_groups + (step >> two_steps) * 2; }
};

// 16 rows of weights of a product, or 8 of either side of SwiGLU.
struct alignas(16) WholeItem {
  enum Kind : short { plain, gate, both };  // gate: of 2 bytes beside quantised ones

  Kind kind;
  short linear;     // which of the model's block's weights
  int to;           // where its results lie, of what is handed on
  int first, rows;  // the first of its rows; how many there are from there on

  // The nth of a phase's, as blocks of the grid take them.
  XLSTM_DEVICE WholeItem(const WholeParams& p, Phase phase, int bits, int n) {
    const WholePhase& s = p.phase[int(phase)];
    n = (n + s.plan.transposed) % s.plan.items;
    int j = 0;
    while (j + 1 < s.items.count && n >= s.items.end[j]) ++j;
    if (j) n -= s.items.end[j - 1];
    const int piece = s.items.piece[j];
    linear = short(first_linear(phase) + piece);
    const bool two = s.product.output == Output::swiglu;
    kind = two ? both : bits < 16 && s.product.linear[piece].bits == 0 ? gate : plain;
    first = n * (two ? kItemRows / 2 : kItemRows), rows = s.product.linear[piece].rows - first;
    to = p.at.to[int(phase)][piece] + first;
  }
};

static_assert(sizeof(WholePart) == kPartBytes && sizeof(WholeItem) == kItemBytes);

XLSTM_DEVICE int step_bytes(int bits, bool gate) { return kStepFeatures * (gate ? 16 : bits) / 8; }

// Of a warp, a segment of each of an item's rows at a time, and the scales to them. What it must keep is where it is:
// registers are few, and what they spill would wait behind the weights.
template <int kBits>
class WholeRing {
 public:
  static constexpr int kSegment = whole_segment_bytes(kBits), kSlots = whole_slots(kBits);
  static constexpr int kRowPieces = kSegment / 16, kAtOnce = kWave / kRowPieces, kHalf = kItemRows / 2;
  static constexpr int kLine = 128;  // bytes

  XLSTM_DEVICE static int warp() { return int(threadIdx.x) / kWave; }
  XLSTM_DEVICE WholeRing(const WholeParams& params, const char* memory)
      : p(params),
        lds(memory),
        at(lds_address(memory) + uint32_t(params.room.ring + warp() * kSlots * whole_slot_bytes(kBits))),
        item(part().first),
        step(0) {
    find_item(part());
  }

  XLSTM_DEVICE static WholePart& part_of(const WholeParams& p, const char* lds, Phase phase, int warp) {
    return reinterpret_cast<WholePart*>(const_cast<char*>(lds) + p.room.parts)[int(phase) * kWholeWarps + warp];
  }
  XLSTM_DEVICE static WholeItem& item_of(const WholeParams& p, const char* lds, Phase phase, int n) {
    return reinterpret_cast<WholeItem*>(const_cast<char*>(lds) + p.room.items)[p.phase[int(phase)].plan.table + n];
  }
  XLSTM_DEVICE const char* slot(int of) const {
    return lds + p.room.ring + (warp() * kSlots + of) * whole_slot_bytes(kBits);
  }

  // Beyond a piece's last row there is nothing to read: zeros. All addresses are made before the first copy, which
  // holds its address's registers until it is on its way.
  XLSTM_DEVICE void fetch(int slot) {
    if (!place.over()) {
      const WholePart own = part();
      const WholeItem from = item_of(p, lds, place.phase, item);
      const WholeWeights* const weights = p.block[place.block].linear + from.linear;
      const bool gate = kBits < 16 && from.kind == WholeItem::gate, both = from.kind == WholeItem::both;
      const int lane = opaque_lane(), r = lane / kRowPieces, column = lane % kRowPieces * 16;
      const int each = step_bytes(kBits, gate), most = kSegment / each, left = own.steps - step;
      const uint32_t to = at + uint32_t(slot * whole_slot_bytes(kBits)), rows_to = to + uint32_t(r * kSegment);
      const uint32_t row_bytes = row_bytes_of(own, gate);
      const uint32_t begin = uint32_t(from.first + r) * row_bytes + uint32_t((own.first_step + step) * each + column);
      const char* row[kItemRows / kAtOnce];
#pragma unroll
      for (int n = 0; n < kItemRows / kAtOnce; ++n) {
        const int h = n / (kHalf / kAtOnce), m = n % (kHalf / kAtOnce) * kAtOnce;
        if (m == 0) {  // the first of a half, whose weights may be others than those of the half before it
          row[n] = static_cast<const char*>(weights[both ? h : 0].data) + begin;
          if (h && !both) row[n] += kHalf * row_bytes;
        } else {
          row[n] = row[n - 1] + kAtOnce * row_bytes;
        }
      }
      const bool quantised = kBits < 16 && !gate;
      const WholeGroups groups = quantised ? groups_of(own, from, weights, lane) : WholeGroups{};
      const auto copy = [&](auto&& bytes) {
#pragma unroll
        for (int n = 0; n < kItemRows / kAtOnce; ++n) {
          const int turn = gate ? 0 : segment_turn(kBits, r + n * kAtOnce), h = n / (kHalf / kAtOnce);
          cp_async_16(rows_to + uint32_t(n * kAtOnce * kSegment + (column ^ turn)), row[n],
                      bytes(n * kAtOnce - (both ? h * kHalf : 0)));
        }
      };
      if (column < left * each) {
        if (from.rows >= (both ? kHalf : kItemRows))
          copy([](int) { return 16; });
        else
          copy([&](int n) { return r + n < from.rows ? 16 : 0; });
      }
      if (quantised) {
        const uint32_t into = to + uint32_t(whole_groups_at(kBits) + groups.at);
        if (groups.used) cp_async_16(into, groups.scales, groups.bytes);
        if (groups.used && groups.offsets) cp_async_16(into + kGroupsBytes, groups.offsets, groups.bytes);
      }
      step += most;
      if (step >= own.steps) {
        item += own.stride(), step = 0;
        find_item(own);
      }
    }
    cp_async_commit();
  }

  // To L2, of each row the nth two lines behind those that the ring has asked for: they keep memory at work while a
  // warp waits for words, a look at which goes before. Nibbles need all of their time to be multiplied.
  XLSTM_DEVICE void ask_beyond(int n) const {
    if (kBits == 4 || place.over()) return;
    const WholePart own = part();
    const WholeItem from = item_of(p, lds, place.phase, item);
    const bool gate = kBits < 16 && from.kind == WholeItem::gate, both = from.kind == WholeItem::both;
    const int lane = opaque_lane(), half = both ? lane / 2 / kHalf : 0, row = lane / 2 - half * kHalf;
    const int each = step_bytes(kBits, gate), end = (own.first_step + own.steps) * each;
    const int begin = (own.first_step + step) * each + (2 * n + lane % 2) * kLine;
    if (begin >= end || row >= from.rows) return;
    const uint32_t at = uint32_t(from.first + row) * row_bytes_of(own, gate) + uint32_t(begin);
    prefetch_l2_line(static_cast<const char*>(p.block[place.block].linear[from.linear + half].data) + at);
  }

 private:
  const WholeParams& p;
  const char* lds;
  uint32_t at;  // of its slots
  WholePlace place;
  int item, step;  // what is asked for next

  XLSTM_DEVICE WholePart part() const { return part_of(p, lds, place.phase, warp()); }
  XLSTM_DEVICE uint32_t row_bytes_of(const WholePart& own, bool gate) const {
    return uint32_t(gate ? p.phase[int(place.phase)].product.columns * 2 : own.row_bytes);
  }

  // Where this warp has no more items of a product, the first of the next one that has any for it.
  XLSTM_DEVICE void find_item(WholePart own) {
    while (item >= own.end || own.steps == 0) {
      place.go_on(p.blocks);
      if (place.over()) return;
      own = part();
      item = own.first;
    }
  }

  // A lane's half of 32 bytes of a row's scales, from a multiple of 16 on; beyond the last scale nothing.
  struct WholeGroups {
    const char *scales, *offsets;
    int at, bytes;  // in a slot
    bool used;      // whether the slot's steps have any in it
  };
  XLSTM_DEVICE WholeGroups groups_of(const WholePart& own, const WholeItem& rows, const WholeWeights* weights,
                                     int lane) const {
    const int r = lane / 2, half = lane % 2 * 16, second = rows.kind == WholeItem::both && r >= kHalf ? 1 : 0;
    const WholeWeights& of = weights[second];
    const int first = own.groups_at(rows.first + r - second * kHalf, own.first_step + step),
              from = (first & ~15) + half;
    const char* const offsets = static_cast<const char*>(of.offsets);
    return {static_cast<const char*>(of.scales) + from, offsets ? offsets + from : nullptr,
            r * kGroupBytes + (half ^ group_turn(r)), from < (rows.first + rows.rows) * own.row_groups ? 16 : 0,
            half < (first & 15) + kSegment / step_bytes(kBits, false) * 2};
  }
};

}  // namespace xlstm::gpu::engine
