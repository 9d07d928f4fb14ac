// SPDX-License-Identifier: Apache-2.0
// MLA decoding (mla.h has the table of what it is) as Hopper likes it: 64 rows by tiles of 64 keys, whose first 512
// features are the values; both products read a tile where it lies.
//     S [rows][keys] = Q K^T        O [rows][512] = O + P V,  P = 2^(S - m)
// Who owns what: the first warpgroup brings tiles, each warp half of the values of every other tile, eight lanes a row:
// pages may be of one token. The second has rows by features 0 to 255 of O in accumulators; it makes scores and
// weights. The third has features 256 to 511, and takes the weights from LDS, as operands: thread t of both has the
// same rows. Who has half of a tile as values gives it free as soon as that is done, so that the next but one can come.
//
// The second warpgroup has S of a tile, its weights, its half of O one after the other, the third O alone, whose
// products run beside the second's of O and S: the tensor cores are idle in what is left of the softmax. S of the next
// tile in front of it would need that tile then, of two that there is room for: its copy would have no time.
//
// LDS, 576 features: Q 72 KB, two tiles 144, weights 8, numbers of rows 1: 230,488 bytes. Registers of a thread: O 128,
// S 32, weights 16, of the 216 that each of two warpgroups has; the first keeps 72.
//
// Floor, 128 heads: 2 (576 + 512) flops for each head and key. On an SM a tile is 1152 cycles of the tensor cores for S
// and 1024 for O. Of LDS, 128 bytes a cycle, S reads 144 KB (A and B of products of 64 by 64: as long as it
// multiplies), O 64, and 72 arrive, 16 are weights: 2370 cycles. A tile that comes from L2 at 31 bytes a cycle is there
// in as many.
#pragma once

#include <numbers>

#include "attention/gpu/score_rules.h"
#include "attention/mla/mla_hopper_smem.h"

namespace xlstm::gpu::attention {

constexpr int kMlaBringRegisters = 72, kMlaMultiplyRegisters = 216;
static_assert(kMlaBringRegisters + 2 * kMlaMultiplyRegisters == 3 * 168);

template <class E, int kFeatures>
struct MlaHopper {
  using Room = MlaHopperRoom<E, kFeatures>;
  static constexpr int kKeys = Room::kKeys, kPanel = Room::kPanel, kPanels = Room::kPanels;
  static constexpr int kHalf = kMlaValues / Room::kParts;  // features of O that a warpgroup has

  using Scores = float[kKeys / 2];      // of a thread: rows as Columns has them, keys 8 (i / 4) + 2 (lane % 4) + i % 2
  using Weights = uint32_t[kKeys / 4];  // the same, in pairs
  using Out = float[kHalf / 2];         // rows likewise, features in the place of keys

  const Room& room;
  int begin, tiles;  // of the keys: where the first tile begins

  // ---- both warpgroups

  XLSTM_DEVICE static void scale(Out& o, const Columns& by) {
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) o[i] *= by.value[Columns::of(i % 8)];
  }
  // O += P V of a tile, this warpgroup's half of the features.
  template <int kPart>
  XLSTM_DEVICE void multiply_values(Out& o, const Weights& weights, int n) const {
    const uint64_t values = mn_major_descriptor(room.tile(n) + kPart * Room::kPartPanels * kPanel, kPanel);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) wgmma_rs<true, E>(o, weights + 4 * k, values + k * kNextMnMajor);
    wgmma_commit();
  }

  // ---- scores and weights, by the second warpgroup

  struct Softmax {
    const RowsSee& see;
    RowFacts<1> facts;
    float scale;
    Columns most = Columns::all(kLowest), sum = Columns::all(0);

    XLSTM_DEVICE Softmax(const AttentionLayout& at, const Room& room, const RowsSee& sees)
        : see(sees),
          facts(at, room.key_head, room.first_row + wave_id() % Room::kGroupWarps * kStripColumns),
          scale(float(at.in.softmax_scale * std::numbers::log2e)) {}

    // -infinity for the keys that a row does not see.
    XLSTM_DEVICE void mask(Scores& s, int first) const {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int key = first + 8 * (i / 4) + 2 * (lane_id() % 4) + i % 2;
        const uint32_t from_left = uint32_t(key) - uint32_t(facts.place[0][Columns::of(i % 8)]) + uint32_t(facts.left);
        if (!(from_left <= facts.span && key < facts.keys)) s[i] = -__builtin_inff();
      }
    }
    // Scores of the tile that begins with key `first` into weights. Returns whether a maximum has grown so much that
    // sums are to be scaled, and by what.
    XLSTM_DEVICE bool weigh(Scores& s, int first, Weights& weights, Columns& by) {
#pragma unroll
      for (float& x : s) x *= scale;
      if (!see.whole(first, kKeys)) mask(s, first);
      Columns top = Columns::all(-__builtin_inff());
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        float& of_row = top.value[Columns::of(i % 8)];
        of_row = fmaxf(of_row, s[i]);
      }
      top.over_rows([](float x, float y) { return fmaxf(x, y); });
      const bool more = has_grown(most, top);
      by = Columns::all(1);
      if (more) by = grow(most, sum, top);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        s[i] = exp2_fast(s[i] - most.value[Columns::of(i % 8)]);
        sum.value[Columns::of(i % 8)] += s[i];
      }
#pragma unroll
      for (int w = 0; w < kKeys / 4; ++w) weights[w] = pack(E{}, s[2 * w], s[2 * w + 1]);
      return more;
    }
  };

  // S = Q K^T of a part of the features, or S +=. Where Q lies is made anew: 36 places would be kept in registers.
  template <int kPart>
  XLSTM_DEVICE void multiply_keys(Scores& s, int n) const {
    const uint64_t queries = k_major_descriptor(uint32_t(opaque(int(room.queries())))),
                   keys = k_major_descriptor(room.tile(n));
    room.full(n, kPart).wait(Room::parity(n));
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      if (Room::part_of_panel(panel) == kPart)
#pragma unroll
        for (int k = 0; k < kPanelColumns / 16; ++k) {
          const uint64_t at = panel * (kPanel >> 4) + k * kNextKMajor;
          wgmma_ss<false, false, E>(s, queries + at, keys + at, kPart > 0 || panel > 0 || k > 0);
        }
    wgmma_commit();
  }
  XLSTM_DEVICE void share(const Weights& weights, const Columns& by, int n) const {
    room.weights_free().wait(Room::every_parity(n) ^ 1);
#pragma unroll
    for (int q = 0; q < kKeys / 16; ++q)
      *room.weights(q) = {{weights[4 * q], weights[4 * q + 1], weights[4 * q + 2], weights[4 * q + 3]}};
    share(by);
  }
  XLSTM_DEVICE void share(const Columns& by) const {
    *room.numbers() = make_float2(by.value[0], by.value[1]);
    room.weights_full().arrive_once_per_warp();
  }

  XLSTM_DEVICE void make_scores(const RowsSee& see, int64_t split) const {
    Out o{};
    Softmax softmax(AttentionLayout(room.p.call.in, room.batch), room, see);
    if (tiles > 0) room.queries_full().wait(0);
    for (int n = 0; n < tiles; ++n) {
      Scores s;
      multiply_keys<0>(s, n);
      multiply_keys<1>(s, n);
      wgmma_wait<0>(s);
      Weights weights;
      Columns by;
      const bool more = softmax.weigh(s, begin + n * kKeys, weights, by);
      share(weights, by, n);
      if (more) scale(o, by);
      multiply_values<0>(o, weights, n);
      wgmma_wait<0>(o);
      room.free(n, 0).arrive_once_per_warp();
    }
    softmax.sum.over_rows([](float x, float y) { return x + y; });
    const Columns factor = close(softmax, split);
    room.weights_free().wait(Room::every_parity(tiles) ^ 1);
    share(factor);
    write<0>(o, factor, split);
  }

  // ---- the other half of O, by the third warpgroup

  XLSTM_DEVICE Columns take_numbers(int n) const {
    room.weights_full().wait(Room::every_parity(n));
    const float2 two = *room.numbers();
    Columns x;
    x.value[0] = two.x, x.value[1] = two.y;
    return x;
  }
  XLSTM_DEVICE void add_values(int64_t split) const {
    Out o{};
    for (int n = 0; n < tiles; ++n) {
      const Columns by = take_numbers(n);
      Weights weights;
#pragma unroll
      for (int q = 0; q < kKeys / 16; ++q) {
        const Vec16 four = *room.weights(q);
#pragma unroll
        for (int w = 0; w < 4; ++w) weights[4 * q + w] = four.word[w];
      }
      room.weights_free().arrive_once_per_warp();
      if (any_lane(by.value[0] != 1 || by.value[1] != 1)) scale(o, by);
      multiply_values<1>(o, weights, n);
      wgmma_wait<0>(o);
      room.free(n, 1).arrive_once_per_warp();
    }
    write<1>(o, take_numbers(tiles), split);
  }

  // ---- results

  // f(j, head, query) for the rows of this thread that there are. The layout is made anew: it would be kept in
  // registers from the beginning.
  template <class F>
  XLSTM_DEVICE void each_row(F&& f) const {
    const AttentionLayout at(room.p.call.in, opaque(int(room.batch)));
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j) {
      const uint32_t strip = wave_id() % Room::kGroupWarps * kStripColumns;
      const uint32_t r = room.first_row + strip + Columns::position(j);
      if (r >= uint32_t(at.rows())) continue;
      const auto [head, i] = query_row(int64_t(room.key_head), r, uint32_t(at.group()));
      f(j, at, head, i);
    }
  }
  XLSTM_DEVICE int64_t part_row(const AttentionLayout& at, int64_t head, int64_t i, int64_t split) const {
    return split * ForwardParts::rows(at.in) + ForwardParts::row(at.in, at.index, head, i);
  }
  // lse to memory, and what O is to be multiplied by.
  XLSTM_DEVICE Columns close(const Softmax& softmax, int64_t split) const {
    const FewRowsParams& p = room.p;
    Columns factor = Columns::all(0);
    each_row([&](int j, const AttentionLayout& at, int64_t head, int64_t i) {
      const float whole = softmax.sum.value[j],
                  keys = whole == 0 ? -__builtin_inff() : softmax.most.value[j] * kLn2 + ::log(whole);
      WithSink<float> sink = without_sink(keys);
      if (p.splits == 1 && at.in.sink)
        sink = with_sink(keys, static_cast<const float*>(at.in.sink)[head], p.call.lse_with_sink != 0);
      factor.value[j] = whole == 0 ? 0.0f : sink.factor / whole;
      if (lane_id() % 4 != 0) return;
      if (p.splits > 1)
        p.parts.lse[part_row(at, head, i, split)] = keys;
      else
        static_cast<float*>(p.call.lse.data)[at.query(p.call.lse, head, i)] = sink.lse;
    });
    return factor;
  }
  template <int kPart>
  XLSTM_DEVICE void write(const Out& o, const Columns& factor, int64_t split) const {
    const FewRowsParams& p = room.p;
    each_row([&](int j, const AttentionLayout& at, int64_t head, int64_t i) {
      const int first = kPart * kHalf + 2 * (lane_id() % 4);
      const auto each_two = [&](auto&& store) {
#pragma unroll
        for (int c = 0; c < kHalf / 8; ++c) {
          const float two[2] = {o[4 * c + 2 * j] * factor.value[j], o[4 * c + 2 * j + 1] * factor.value[j]};
          store(first + 8 * c, two);
        }
      };
      float* const part = p.parts.out + part_row(at, head, i, split) * kMlaValues;
      E* const out = static_cast<E*>(p.call.out.data) + at.query(p.call.out, head, i);
      if (p.splits > 1)
        each_two([&](int f, const float(&two)[2]) { store_elements(part + f, two); });
      else if (p.whole_out)
        each_two([&](int f, const float(&two)[2]) { store_elements(out + f, two); });
      else
        each_two(
            [&](int f, const float(&two)[2]) { out[f] = from_float<E>(two[0]), out[f + 1] = from_float<E>(two[1]); });
    });
  }
};

template <class E, int kFeatures>
__global__ __launch_bounds__(kMlaHopperThreads, 1) void mla_hopper(XLSTM_PARAM FewRowsParams p) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    const xlstm_attention& in = p.call.in;
    const ForwardPlace place = forward_place(blockIdx.x, in.batch * in.heads_k, p.splits, p.blocks);
    const uint32_t head = uint32_t(place.head), heads_k = uint32_t(in.heads_k);
    const AttentionLayout at(in, head / heads_k);
    const int64_t first = place.rows * kMlaHopperRows, left = at.rows() - first;
    if (left <= 0) return;
    using Room = MlaHopperRoom<E, kFeatures>;
    const Room room(p, head / heads_k, head % heads_k, first, lds);
    const RowsSee see(at, first, left < kMlaHopperRows ? left : kMlaHopperRows);
    const int origin = see.begin / kMlaHopperKeys, all = (see.end + kMlaHopperKeys - 1) / kMlaHopperKeys - origin;
    const int from = part_of(all, place.split, p.splits), to = part_of(all, place.split + 1, p.splits);
    const MlaHopper<E, kFeatures> block{room, (origin + from) * kMlaHopperKeys, to - from};
    room.open();
    const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32), group = warp / 4;
    if (group == 0) {
      setmaxnreg_dec<kMlaBringRegisters>();
      if (block.tiles <= 0) return;
      const int part = warp % Room::kParts, buffer = warp / Room::kParts;
      if (part == 0)
        room.template bring_keys<0>(at, block.begin, block.tiles, buffer);
      else
        room.template bring_keys<1>(at, block.begin, block.tiles, buffer);
    } else {
      setmaxnreg_inc<kMlaMultiplyRegisters>();
      if (block.tiles > 0) room.bring_queries(at);
      if (group == 1)
        block.make_scores(see, place.split);
      else
        block.add_values(place.split);
    }
  }
}

}  // namespace xlstm::gpu::attention
