// SPDX-License-Identifier: Apache-2.0
// A whole step in one launch (decode/whole_hopper.h): what it is given, and the rings by which weights come. A ring
// goes on from product to product and from block to block of the model: no kernel of a step writes weights, so nothing
// of what they wait for holds it up.
#pragma once

#include "arch/gpu.h"
#include "decode/cluster_ring_hopper.h"
#include "decode/whole_plan.h"
#include "mlstm/recurrent_gpu.h"

namespace xlstm::gpu {

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
  ProductParams product;  // without the weights' addresses
};

struct WholeParams {
  WholePhase phase[kPhases];
  WholeRoom room;
  int blocks, heads;
  RecurrentParams step;  // without the state's addresses, but for n and m, which it leaves in workspace
  const float* x;        // the token's, as it is embedded
  const float* o;        // gates of h
  uint32_t* arrivals;    // of blocks of the grid; zero when the kernel begins
  WholeBlock block[kMostWholeBlocks + 1];
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
  // Bytes before a row's scales from a step on, among all rows'.
  XLSTM_DEVICE int groups_at(int row, int step) const { return row * row_groups + (step >> two_steps) * 2; }
};

// 16 rows of weights of a product, or 8 of either side of SwiGLU.
struct alignas(16) WholeItem {
  enum Kind : short { plain, gate, both };  // gate: of 2 bytes beside quantised ones

  Kind kind;
  short linear;     // which of the model's block's weights
  int piece;        // of the product
  int first, rows;  // the first of its rows; how many there are from there on

  // Item n of all of a phase's.
  XLSTM_DEVICE WholeItem(const WholeParams& p, Phase phase, int bits, int n) {
    const WholePhase& s = p.phase[int(phase)];
    int j = 0;
    while (j + 1 < s.items.count && n >= s.items.end[j]) ++j;
    if (j) n -= s.items.end[j - 1];
    piece = s.items.piece[j], linear = short(first_linear(phase) + piece);
    const bool two = s.product.output == Output::swiglu;
    kind = two ? both : bits < 16 && s.product.linear[piece].bits == 0 ? gate : plain;
    first = n * (two ? kItemRows / 2 : kItemRows), rows = s.product.linear[piece].rows - first;
  }
  // Row r as it lies among those of its weights; beyond the last, the last again.
  XLSTM_DEVICE int row(int r) const {
    if (kind == both) r &= kItemRows / 2 - 1;
    return first + (r < rows ? r : rows - 1);
  }
};

static_assert(sizeof(WholePart) == kPartBytes && sizeof(WholeItem) == kItemBytes);

XLSTM_DEVICE int step_bytes(int bits, bool gate) { return kStepFeatures * (gate ? 16 : bits) / 8; }

// Of a warp, a segment of each of an item's rows at a time, and the scales to them. What it must keep is where it is:
// registers are few, and what they spill would wait behind the weights.
template <int kBits>
struct WholeRing {
  static constexpr int kSegment = whole_segment_bytes(kBits), kSlots = whole_slots(kBits);
  static constexpr int kRowPieces = kSegment / 16, kAtOnce = kWave / kRowPieces, kHalf = kItemRows / 2;

  const WholeParams& p;
  const char* lds;
  uint32_t at;  // of its slots
  WholePlace place;
  int item, step;  // what is asked for next

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
  XLSTM_DEVICE WholePart part() const { return part_of(p, lds, place.phase, warp()); }

  // Where this warp has no more items of a product, the first of the next one that has any for it.
  XLSTM_DEVICE void find_item(WholePart own) {
    while (item >= own.end || own.steps == 0) {
      place.go_on(p.blocks);
      if (place.over()) return;
      own = part();
      item = own.first;
    }
  }

  // Beyond a piece's last row there is nothing to read: zeros.
  XLSTM_DEVICE void fetch(int slot) {
    if (!place.over()) {
      const WholePart own = part();  // all of it before the copies, behind which a read of LDS would wait
      const WholeItem from = item_of(p, lds, place.phase, item);
      const WholeWeights* const weights = p.block[place.block].linear;
      const bool gate = kBits < 16 && from.kind == WholeItem::gate, both = from.kind == WholeItem::both;
      const int lane = lane_id(), r = lane / kRowPieces, column = lane % kRowPieces * 16;
      const int each = step_bytes(kBits, gate), most = kSegment / each, left = own.steps - step;
      const uint32_t to = at + uint32_t(slot * whole_slot_bytes(kBits));
      if (column < left * each) {
        const uint32_t row_bytes = uint32_t(gate ? p.phase[int(place.phase)].product.columns * 2 : own.row_bytes);
        const uint32_t begin = uint32_t(from.first + r) * row_bytes + uint32_t((own.first_step + step) * each + column);
        const char* side[2];
        side[0] = static_cast<const char*>(weights[from.linear].data) + begin;
        side[1] = both ? static_cast<const char*>(weights[from.linear + 1].data) + begin : side[0] + kHalf * row_bytes;
        const auto copy = [&](auto&& bytes) {
#pragma unroll
          for (int n = 0; n < kItemRows / kAtOnce; ++n) {
            const int h = n / (kHalf / kAtOnce), m = n % (kHalf / kAtOnce) * kAtOnce;
            const int turn = gate ? 0 : segment_turn(kBits, r + n * kAtOnce);
            copy_16_bytes(to + uint32_t((r + n * kAtOnce) * kSegment + (column ^ turn)), side[h] + m * row_bytes,
                          bytes(both ? m : n * kAtOnce));
          }
        };
        if (from.rows >= (both ? kHalf : kItemRows))
          copy([](int) { return 16; });
        else
          copy([&](int row) { return r + row < from.rows ? 16 : 0; });
      }
      if (kBits < 16 && !gate) fetch_groups(own, from, weights, to + whole_groups_at(kBits));
      step += most;
      if (step >= own.steps) {
        item += own.stride(), step = 0;
        find_item(own);
      }
    }
    copies_sent();
  }
  // 32 bytes from a multiple of 16 on; beyond the last scale nothing.
  XLSTM_DEVICE void fetch_groups(const WholePart& own, const WholeItem& rows, const WholeWeights* weights,
                                 uint32_t to) const {
    const int r = lane_id() / 2, half = lane_id() % 2 * 16;
    const WholeWeights& of = weights[rows.linear + (rows.kind == WholeItem::both && r >= kHalf ? 1 : 0)];
    const int from = (own.groups_at(rows.row(r), own.first_step + step) & ~15) + half;
    const uint32_t into = to + uint32_t(r * kGroupBytes + (half ^ group_turn(r)));
    const int bytes = from < (rows.first + rows.rows) * own.row_groups ? 16 : 0;
    copy_16_bytes(into, static_cast<const char*>(of.scales) + from, bytes);
    if (of.offsets) copy_16_bytes(into + kGroupsBytes, static_cast<const char*>(of.offsets) + from, bytes);
  }
};

}  // namespace xlstm::gpu
