// SPDX-License-Identifier: Apache-2.0
// Attention backward on Hopper (backward.h has the maths), a warp-specialised kernel with TMA, mbarriers and wgmma, in
// the same two forms: a block owns keys and walks tiles of queries for dk and dv, or owns queries and walks tiles of
// keys for dq. Scores have the owned tokens down, so that the weights are, in their registers, the left operand of the
// sums. This is for 64 and 128 features; backward_hopper_wide.h is for 192 and 256.
//
//               owned      S [owned][tile]    dP [owned][tile]    sums [owned][features]
//     dk, dv    k, v       k q^T              v dout^T            dv += w dout, dk += ds q
//     dq        q, dout    q k^T              dout v^T            dq += ds k
//
// Who owns what: each of two consumer warpgroups has 64 owned tokens, 64 to 128 registers of sums, and S and dP of a
// tile, which take as many again. Owned tokens and tiles are in shared memory as TMA stores them; a warp of the
// producer warpgroup loads tiles, four ahead (hopper_smem.h has the table of barriers). The wgmma products read a tile
// K-major for scores and MN-major for sums, and read the owned tokens from registers where registers suffice
// (hopper_shape.h). An iteration of the mainloop starts the products of the next tile's scores and then those of this
// tile's sums; the consumer turns the former into weights while the tensor cores compute the latter, and the other
// warpgroup's products. No wgmma stays in flight from one iteration to the next, and no path skips a product or a wait:
// otherwise the compiler keeps none in flight.
//
// Iteration n of a consumer warpgroup, time from left to right. dP starts early or, where registers are short, late
// (hopper_shape.h). The prologue computes w(0) and ds(0), the last step the sums of the last tile.
//
//   early   start S(n + 1), dP(n + 1), sums(n) | wait S: w(n + 1) | wait dP: ds(n + 1) | wait sums, release n, pack
//   late    start S(n + 1), dv(n), dk(n) | wait S: w(n + 1) | wait dv, start dP | wait all: ds(n + 1), release n, pack
//   tensor  S(n + 1), dP(n + 1) if early | sums(n)          | dP(n + 1) if late
//
// Floor: 7 products of the tile's pairs and features, four for dk and dv and three for dq, compared with 5 with
// atomics: 2 x 7 x features flops for each pair. A pair costs two exps and in addition some ten instructions. Measured
// on an H200 (ncu, 128 features, causal): the tensor pipe is busy 91 % of the time for dq and 77 % for dk and dv, whose
// scores of 64 columns use all the bandwidth of shared memory; with 64 features, where exps take half as long as the
// products, 58 %.
#pragma once

#include "attention/backward/backward_hopper_wide.h"

namespace xlstm::gpu::attention {

template <class E, class Smem>
struct HopperBackward : HopperBackwardSoftmax<E, Smem> {
  using Softmax = HopperBackwardSoftmax<E, Smem>;
  using Softmax::kOfKeys, Softmax::kScores, Softmax::smem, Softmax::rows, Softmax::to_weights, Softmax::to_ds;
  using Rows = OwnedRows<E, Smem>;
  using OwnedFragments = typename Rows::OwnedFragments;
  static constexpr int kSums = Rows::kSums, kTile = Rows::kTile;
  static constexpr bool kEarlyDp = Smem::kShape.early_dp;

  XLSTM_DEVICE HopperBackward(const Smem& s, int warpgroup) : Softmax(s, warpgroup) {}

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

  XLSTM_DEVICE void start_scores(float (&s)[kScores], const OwnedFragments& fragments, int n) const {
    smem.wait_full(n, false);
    rows.multiply_tile(s, fragments, n, false);
  }
  XLSTM_DEVICE void start_dp(float (&dp)[kScores], const OwnedFragments& fragments, int n) const {
    smem.wait_full(n, true);
    rows.multiply_tile(dp, fragments, n, true);
  }
  XLSTM_DEVICE void start_sums(Sums& sums, const Operands& operands, int n) const {
    if constexpr (kOfKeys) rows.add_tile(sums.second, operands.weights, n, true);
    rows.add_tile(sums.first, operands.ds, n, false);
  }
  XLSTM_DEVICE void finish_sums(Sums& sums, int n) const {
    if constexpr (kOfKeys)
      wgmma_wait<0>(sums.first, sums.second);
    else
      wgmma_wait<0>(sums.first);
    smem.release(n, true);
  }

  XLSTM_DEVICE void walk(Sums& sums) const {
    float s[kScores], dp[kScores];
    Operands operands;
    OwnedFragments fragments;
    rows.load_owned_fragments(fragments);
    int first = smem.visible_tiles.first * kTile;
    const int tiles_end = first + smem.visible_tiles.count * kTile;
    start_scores(s, fragments, 0);
    start_dp(dp, fragments, 0);
    wgmma_wait<1>(s);
    to_weights(s, 0, first);
    wgmma_wait<0>(dp);
    to_ds(dp, s, 0);
    operands.pack_all(s, dp);
    int n = 0;
#pragma unroll 1
    for (; n + 1 < smem.tiles; ++n) {
      first += kTile;
      if (first == tiles_end) first = smem.visible_tiles.first * kTile;  // of the next head
      constexpr int kAdds = kOfKeys ? 2 : 1;                             // wgmma groups of start_sums()
      start_scores(s, fragments, n + 1);
      if constexpr (kEarlyDp) start_dp(dp, fragments, n + 1);
      start_sums(sums, operands, n);
      wgmma_wait<kAdds + kEarlyDp>(s);
      to_weights(s, n + 1, first);
      if constexpr (kEarlyDp) {
        wgmma_wait<kAdds>(dp);
      } else {
        wgmma_wait<1>(sums.second);
        start_dp(dp, fragments, n + 1);
        wgmma_wait<0>(dp);
      }
      to_ds(dp, s, n + 1);
      finish_sums(sums, n);
      operands.pack_all(s, dp);
    }
    start_sums(sums, operands, n);
    finish_sums(sums, n);
  }

  XLSTM_DEVICE void run() const {
    Sums sums;
#pragma unroll
    for (float& x : sums.first) x = 0;
#pragma unroll
    for (float& x : sums.second) x = 0;
    if (smem.tiles > 0) walk(sums);
    const xlstm_attention_backward& call = smem.p.call;
    const float softmax_scale = float(call.in.softmax_scale);
    if constexpr (kOfKeys) {
      rows.store(sums.first, {softmax_scale, softmax_scale}, false,
                 key_rows<E>(smem.at, call.dk, smem.key_head, call.in.dqk, true));
      rows.store(sums.second, {1, 1}, true, key_rows<E>(smem.at, call.dv, smem.key_head, call.in.dv, true));
    } else {
      rows.store(sums.first, {softmax_scale, softmax_scale}, false,
                 query_rows<E>(smem.at, call.dq, smem.query_head, call.in.dqk, true));
    }
  }
};

// The body of dkdv_hopper_kernel and dq_hopper_kernel.
template <class E, int kFeatures, bool kOfKeys>
XLSTM_DEVICE void run_backward_hopper(const HopperBackwardParams& params, char* lds) {
  using Smem = BackwardSmem<kFeatures, kOfKeys>;
  run_hopper_attention<Smem>(
      params, lds,
      [&](const Smem& smem) {
        if constexpr (kOfKeys)
          clear_pads<E, kHopperAttentionThreads>(params.of, smem.at, smem.key_head, smem.owned, Smem::kOwned);
      },
      [](const Smem& smem, int warpgroup) {
        if constexpr (kFeatures > 128)
          HopperWideBackward<E, Smem>(smem, warpgroup).run();
        else
          HopperBackward<E, Smem>(smem, warpgroup).run();
      });
}
template <class E, int kFeatures>
__global__ __launch_bounds__(kHopperAttentionThreads,
                             1) void dkdv_hopper_kernel(const __grid_constant__ HopperBackwardParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    run_backward_hopper<E, kFeatures, true>(params, lds);
  }
}
template <class E, int kFeatures>
__global__ __launch_bounds__(kHopperAttentionThreads,
                             1) void dq_hopper_kernel(const __grid_constant__ HopperBackwardParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    run_backward_hopper<E, kFeatures, false>(params, lds);
  }
}

}  // namespace xlstm::gpu::attention
