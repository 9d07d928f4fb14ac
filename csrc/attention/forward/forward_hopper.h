// SPDX-License-Identifier: Apache-2.0
// Attention forward as Hopper likes it (forward.h has the maths, and what all calls may ask): of 64 or 128
// features, scores that are a positive number times products, keys that are neither paged nor cut into parts.
//
//     S [queries][keys of a tile] = q k^T      w = 2^(S - most)      out [queries][features] += w v
//
// Who owns what: a block has 128 queries of one head, two warpgroups 64 each, with q (32 registers of 128 features), S
// of a tile of 128 keys (64), the weights before it as operands (32) and out (64) in registers. Tiles of k and v come
// by bulk copies, three or four tiles ahead (hopper_smem.h). A turn of the loop asks for the next tile's scores and
// then for this one's out; weights are made of the former while the matrix units have the latter, and the other
// warpgroup's besides. out and sums are scaled only when a row's maximum has grown by more than 2^8 since they last
// were.
//
// Floor: 4 x features flops for each pair; an exp for each, half as long as the products with 64 features, a quarter
// with 128.
#pragma once

#include <numbers>

#include "attention/gpu/hopper_rows.h"
#include "attention/gpu/score_rules.h"

namespace xlstm::gpu::attention {

using HopperForwardParams = HopperAttentionParams<ForwardParams>;

template <class E, class Room>
struct HopperAttend : OwnedRows<E, Room> {
  using Rows = OwnedRows<E, Room>;
  using Rows::kScores, Rows::kSums, Rows::kTile, Rows::room, Rows::half, Rows::multiply_tile, Rows::add_tile;
  using typename Rows::Owned;

  const float scale;                                            // of products, to base 2
  Columns most = Columns::all(kLowest), sum = Columns::all(0);  // of either half of the rows

  XLSTM_DEVICE HopperAttend(const Room& r, int warpgroup)
      : Rows(r, warpgroup), scale(float(r.at.in.softmax_scale * std::numbers::log2e)) {}

  // Scores of a tile into weights. Returns whether out is to be scaled, and by what.
  XLSTM_DEVICE bool weigh(float (&s)[kScores], int first, Columns& by) {
    this->mask(s, first);
    Columns top = Columns::all(-__builtin_inff());
#pragma unroll
    for (int i = 0; i < kScores; ++i) top.value[half(i)] = fmaxf(top.value[half(i)], s[i]);
    top.over_rows([](float x, float y) { return fmaxf(x, y); });
#pragma unroll
    for (float& x : top.value) x *= scale;
    const bool more = has_grown(most, top);
    if (more) by = grow(most, sum, top);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = exp2_fast(__builtin_fmaf(s[i], scale, -most.value[half(i)]));
      sum.value[half(i)] += s[i];
    }
    return more;
  }
  XLSTM_DEVICE static void pack_all(uint32_t (&to)[kScores / 2], const float (&s)[kScores]) {
#pragma unroll
    for (int w = 0; w < kScores / 2; ++w) to[w] = pack_exact(E{}, s[2 * w], s[2 * w + 1]);
  }

  XLSTM_DEVICE void ask_scores(float (&s)[kScores], const Owned& owned, int n) const {
    room.first_full(n).wait(Room::parity(n));
    multiply_tile(s, owned, n, false);
  }
  XLSTM_DEVICE void ask_out(float (&out)[kSums], const uint32_t (&weights)[kScores / 2], int n) const {
    room.second_full(n).wait(Room::parity(n));
    add_tile(out, weights, n, true);
  }

  XLSTM_DEVICE void walk(float (&out)[kSums]) {
    float s[kScores];
    Columns by;
    uint32_t weights[kScores / 2];
    Owned owned;
    this->hold_owned(owned);
    int first = room.seen.first * kTile, n = 0;
    ask_scores(s, owned, 0);
    wgmma_wait<0>(s);
    weigh(s, first, by);
    pack_all(weights, s);
#pragma unroll 1
    for (; n + 1 < room.tiles; ++n) {
      first += kTile;
      ask_scores(s, owned, n + 1);
      ask_out(out, weights, n);
      wgmma_wait<1>(s);
      const bool more = weigh(s, first, by);
      wgmma_wait<0>(out);
      room.give_free(n);
      if (more)
#pragma unroll
        for (int i = 0; i < kSums; ++i) out[i] *= by.value[half(i)];
      pack_all(weights, s);
    }
    ask_out(out, weights, n);
    wgmma_wait<0>(out);
    room.give_free(n);
  }

  XLSTM_DEVICE void run() {
    float out[kSums];
#pragma unroll
    for (float& x : out) x = 0;
    if (room.tiles > 0) walk(out);
    const xlstm_attention_forward& call = room.p.call;
    sum.over_rows([](float x, float y) { return x + y; });
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float all = sum.value[h];
      const float keys = all == 0 ? -__builtin_inff() : most.value[h] * kLn2 + ::log(all);  // NaN goes on as NaN
      WithSink<float> sink = without_sink(keys);
      if (call.in.sink)
        sink = with_sink(keys, static_cast<const float*>(call.in.sink)[room.query_head], call.lse_with_sink != 0);
      factor[h] = all == 0 ? 0.0f : sink.factor / all;
      const int query = room.owned + this->first_row() + 8 * h;
      if (lane_id() % 4 == 0 && query < room.queries)
        static_cast<float*>(call.lse.data)[room.at.query(call.lse, room.query_head, query)] = sink.lse;
    }
    this->store(out, factor, false, query_rows<E>(room.at, call.out, room.query_head, call.in.dv, true));
  }
};

template <class E, int kFeatures>
__global__ __launch_bounds__(kHopperAttentionThreads,
                             1) void attend_hopper(const __grid_constant__ HopperForwardParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    using Room = HopperRoom<ForwardParams, attend_shape(kFeatures)>;
    run_hopper_attention<Room>(
        params, lds, [](const Room&) {},
        [](const Room& room, int warpgroup) { HopperAttend<E, Room>(room, warpgroup).run(); });
  }
}

}  // namespace xlstm::gpu::attention
