// SPDX-License-Identifier: Apache-2.0
// Attention backward (backward.h has the maths) as Hopper likes it, in the same two forms: a block owns keys and
// walks tiles of queries for dk and dv, or owns queries and walks tiles of keys for dq. Scores lie with the owned
// tokens down, so that once they are weights they are, in their registers, the left operand of the sums:
//
//               owned      S [owned][tile]    dP [owned][tile]    sums [owned][features]
//     dk, dv    k, v       k q^T              v dout^T            dv += w dout, dk += ds q
//     dq        q, dout    q k^T              dout v^T            dq += ds k
//
// Who owns what: two warpgroups have 64 tokens each, 64 to 128 registers of sums, and S and dP of a tile, as many
// again. What is owned and tiles lie in shared memory as copies bring them, four tiles ahead, asked for by a warp of
// the warpgroup beside; products read a tile along its rows for scores and across them for sums, and what is owned from
// registers where there is room (hopper_shape.h). A turn of the loop asks for the next tile's scores and then for this
// one's sums: weights are made of the former while the matrix units have the latter, and the other warpgroup's besides.
// Nothing is under way from one turn to the next, and no path goes around a product or a wait: else the compiler keeps
// none in flight.
//
// Floor: 7 products of the tile's pairs and features, four for dk and dv and three for dq, where 5 with atomics would
// do: 2 x 7 x features flops for each pair. A pair costs an exp twice and beside it some ten instructions. Measured on
// an H200 (ncu, 128 features, causal): the tensor pipe is busy 91 % of the time for dq and 77 % for dk and dv, whose
// scores of 64 columns read all that shared memory gives; of 64 features, where exps are half of the products' time,
// 58 %.
#pragma once

#include <numbers>

#include "attention/gpu/hopper_rows.h"

namespace xlstm::gpu::attention {

using HopperBackwardParams = HopperAttentionParams<BackwardParams>;
template <int kFeatures, bool kOfKeys>
using GradientRoom = HopperRoom<BackwardParams, gradient_shape(kFeatures, kOfKeys)>;

template <class E, class Room>
struct HopperGradients : OwnedRows<E, Room> {
  using Rows = OwnedRows<E, Room>;
  using Rows::kScores, Rows::kSums, Rows::kOfKeys, Rows::kTile, Rows::room, Rows::first_row, Rows::first_column,
      Rows::half, Rows::column, Rows::multiply_tile, Rows::add_tile, Rows::mask, Rows::store;
  using typename Rows::Owned;
  static constexpr bool kEarlyDp = Room::kShape.early_dp;

  const float scale;       // of products, to base 2
  float lse[2], delta[2];  // dq: of this thread's rows

  XLSTM_DEVICE HopperGradients(const Room& r, int warpgroup)
      : Rows(r, warpgroup), scale(float(r.at.in.softmax_scale * std::numbers::log2e)) {
    if constexpr (!kOfKeys) {
      const float* facts = facts_of(room.p, room.at, room.query_head);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* mine = facts + fact_place(room.owned + first_row() + 8 * h);
        lse[h] = mine[0], delta[h] = mine[kFactGroup];
      }
    }
  }

  // ---- scores into weights, dP into ds

  // f(register, lse or D of its query, of the next register's).
  template <class F>
  XLSTM_DEVICE void each_pair(const float* facts, bool deltas, F&& f) const {
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      float2 of{};
      if constexpr (kOfKeys)
        of = *reinterpret_cast<const float2*>(facts + fact_place(column(i)) + deltas * kFactGroup + first_column());
#pragma unroll
      for (int j = i; j < i + 4; j += 2) {
        const float own = deltas ? delta[half(j)] : lse[half(j)];
        f(j, kOfKeys ? of.x : own, kOfKeys ? of.y : own);
      }
    }
  }
  XLSTM_DEVICE void weigh(float (&s)[kScores], int n, int first) const {
    each_pair(room.facts(n), false, [&](int i, float a, float b) {
      s[i] = __builtin_fmaf(s[i], scale, -a), s[i + 1] = __builtin_fmaf(s[i + 1], scale, -b);
    });
    mask(s, first);
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(s[i]);
  }
  XLSTM_DEVICE void flow(float (&dp)[kScores], const float (&weight)[kScores], int n) const {
    each_pair(room.facts(n), true, [&](int i, float a, float b) {
      dp[i] = weight[i] * (dp[i] - a), dp[i + 1] = weight[i + 1] * (dp[i + 1] - b);
    });
  }

  // ---- the walk

  struct Sums {
    float first[kSums], second[kOfKeys ? kSums : 1];  // dk and dv, or dq
  };
  struct Operands {
    uint32_t weights[kOfKeys ? kScores / 2 : 1], ds[kScores / 2];

    XLSTM_DEVICE void pack_all(const float (&s)[kScores], const float (&dp)[kScores]) {
#pragma unroll
      for (int w = 0; w < kScores / 2; ++w) {
        if constexpr (kOfKeys) weights[w] = pack_exact(E{}, s[2 * w], s[2 * w + 1]);
        ds[w] = pack_exact(E{}, dp[2 * w], dp[2 * w + 1]);
      }
    }
  };

  XLSTM_DEVICE void ask_scores(float (&s)[kScores], const Owned& owned, int n) const {
    room.first_full(n).wait(Room::parity(n));
    multiply_tile(s, owned, n, false);
  }
  XLSTM_DEVICE void ask_dp(float (&dp)[kScores], const Owned& owned, int n) const {
    room.second_full(n).wait(Room::parity(n));
    multiply_tile(dp, owned, n, true);
  }
  XLSTM_DEVICE void ask_sums(Sums& sums, const Operands& operands, int n) const {
    if constexpr (kOfKeys) add_tile(sums.second, operands.weights, n, true);
    add_tile(sums.first, operands.ds, n, false);
  }
  XLSTM_DEVICE void sums_made(Sums& sums, int n) const {
    if constexpr (kOfKeys)
      wgmma_wait<0>(sums.first, sums.second);
    else
      wgmma_wait<0>(sums.first);
    room.give_free(n);
  }

  XLSTM_DEVICE void walk(Sums& sums) const {
    float s[kScores], dp[kScores];
    Operands operands;
    Owned owned;
    this->hold_owned(owned);
    int first = room.seen.first * kTile;
    const int tiles_end = first + room.seen.count * kTile;
    ask_scores(s, owned, 0);
    ask_dp(dp, owned, 0);
    wgmma_wait<1>(s);
    weigh(s, 0, first);
    wgmma_wait<0>(dp);
    flow(dp, s, 0);
    operands.pack_all(s, dp);
    int n = 0;
#pragma unroll 1
    for (; n + 1 < room.tiles; ++n) {
      first += kTile;
      if (first == tiles_end) first = room.seen.first * kTile;  // of the next head
      constexpr int kAdds = kOfKeys ? 2 : 1;                    // groups of ask_sums()
      ask_scores(s, owned, n + 1);
      if constexpr (kEarlyDp) ask_dp(dp, owned, n + 1);
      ask_sums(sums, operands, n);
      wgmma_wait<kAdds + kEarlyDp>(s);
      weigh(s, n + 1, first);
      if constexpr (kEarlyDp) {
        wgmma_wait<kAdds>(dp);
      } else {
        wgmma_wait<1>(sums.second);
        ask_dp(dp, owned, n + 1);
        wgmma_wait<0>(dp);
      }
      flow(dp, s, n + 1);
      sums_made(sums, n);
      operands.pack_all(s, dp);
    }
    ask_sums(sums, operands, n);
    sums_made(sums, n);
  }

  XLSTM_DEVICE void run() const {
    Sums sums;
#pragma unroll
    for (float& x : sums.first) x = 0;
#pragma unroll
    for (float& x : sums.second) x = 0;
    if (room.tiles > 0) walk(sums);
    const xlstm_attention_backward& call = room.p.call;
    const float by = float(call.in.softmax_scale);
    if constexpr (kOfKeys) {
      store(sums.first, {by, by}, false, key_rows<E>(room.at, call.dk, room.key_head, call.in.dqk, true));
      store(sums.second, {1, 1}, true, key_rows<E>(room.at, call.dv, room.key_head, call.in.dv, true));
    } else {
      store(sums.first, {by, by}, false, query_rows<E>(room.at, call.dq, room.query_head, call.in.dqk, true));
    }
  }
};

template <class E, int kFeatures, bool kOfKeys>
__global__ __launch_bounds__(kHopperAttentionThreads,
                             1) void attention_gradients_hopper(const __grid_constant__ HopperBackwardParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    using Room = GradientRoom<kFeatures, kOfKeys>;
    run_hopper_attention<Room>(
        params, lds,
        [&](const Room& room) {
          if constexpr (kOfKeys)
            clear_pads<E, kHopperAttentionThreads>(params.of, room.at, room.key_head, room.owned, kHopperOwned);
        },
        [](const Room& room, int warpgroup) { HopperGradients<E, Room>(room, warpgroup).run(); });
  }
}

}  // namespace xlstm::gpu::attention
