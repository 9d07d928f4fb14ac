// SPDX-License-Identifier: Apache-2.0
// Attention forward on Hopper, a warp-specialised kernel with TMA, mbarriers and wgmma (forward.h has the maths and the
// rules of all calls). It takes 64, 128, 192 or 256 features, scores that are a positive number times products, and
// keys that are neither paged nor split into parts.
//
//     S [queries][keys of a tile] = q k^T      w = 2^(S - row_max)      out [queries][features] += w v
//
// Who owns what: an item is 128 queries of one head. Persistent blocks, as many as multiprocessors, take items in turn
// (hopper_rows.h); for sequences of unlike lengths the grid has a block for each item. Each of two consumer warpgroups
// owns 64 of the queries, and holds in registers q (32 registers with 128 features), S of a tile of 128 keys (64), the
// weights of the tile before as operands (32) and out (64); with 256 features S of 80 keys (40), weights (20) and out
// (128), with 192 of 112 keys, while q stays in shared memory. The producer warp loads tiles of k and v by TMA into a
// pipeline of two to four stages (hopper_smem.h has the table of barriers). With two stages, k is released as soon as S
// is done, so that the load of the tile after next has an iteration's time. An iteration of the mainloop starts the
// wgmma of the next tile's scores, then the wgmma of this tile's out; the online softmax of the next tile's scores
// overlaps with the latter and with the other warpgroup's wgmma. out and the row sums are rescaled only when a row's
// maximum has grown by more than 2^8 since they were rescaled last.
//
// Iteration n of a consumer warpgroup, time from left to right. The prologue computes S(0) and w(0), the last step
// out of the last tile.
//
//   producer warp   wait empty | TMA k, v of tile n + stages                          (runs ahead of the consumers)
//   consumer        wait k(n + 1), v(n) | wait S, release k | softmax: w(n + 1) | wait out, release v(n), rescale
//   tensor cores    S(n + 1) = q k^T                        | out += w(n) v(n)  |
//
// From item to item the tiles' numbers run on. The consumers release q when it is in registers or when the last S is
// done, and store out from registers, so that the next item's q, k and v arrive while this one ends:
//
//   producer warp   ... last tile | wait owned empty | q of the next item | its k, v, as stages become empty
//   consumer        ... last S, release q | last out | store out, lse     | wait q, k | S(0) of the next item ...
//
// Floor: 4 x features flops for each pair; an exp for each, which takes half as long as the products with 64 features,
// a quarter with 128. With 256 a product of 64 by 80 scores takes 40 cycles and reads shared memory for 36 of them.
#pragma once

#include <numbers>

#include "attention/forward/forward_params.h"
#include "attention/gpu/epilogue.h"
#include "attention/gpu/hopper_rows.h"
#include "attention/gpu/score_rules.h"
#include "attention/gpu/token_rows.h"

namespace xlstm::gpu::attention {

using HopperForwardParams = HopperAttentionParams<ForwardParams>;

template <class E, class Smem>
struct HopperForward {
  using Rows = OwnedRows<E, Smem>;
  using OwnedFragments = typename Rows::OwnedFragments;
  static constexpr int kScores = Rows::kScores, kSums = Rows::kSums, kTile = Rows::kTile;

  const Smem& smem;
  const Rows rows;
  const float scale;                                                      // of products, to base 2
  Columns row_max = Columns::all(kLowestMax), row_sum = Columns::all(0);  // for each half of the rows

  XLSTM_DEVICE HopperForward(const Smem& s, int warpgroup)
      : smem(s), rows(s, warpgroup), scale(float(s.at.in.softmax_scale * std::numbers::log2e)) {}

  // Online softmax: turns the scores of a tile into weights. Returns whether out must be rescaled, and the factor.
  XLSTM_DEVICE bool online_softmax(float (&s)[kScores], int first, Columns& rescale) {
    rows.mask(s, first);
    Columns tile_max = Columns::all(-__builtin_inff());
#pragma unroll
    for (int i = 0; i < kScores; ++i) tile_max.value[Rows::half(i)] = fmaxf(tile_max.value[Rows::half(i)], s[i]);
    tile_max.over_rows([](float x, float y) { return fmaxf(x, y); });
#pragma unroll
    for (float& x : tile_max.value) x *= scale;
    const bool rescales = needs_rescale(row_max, tile_max);
    if (rescales) rescale = update_row_max(row_max, row_sum, tile_max);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      s[i] = exp2_fast(__builtin_fmaf(s[i], scale, -row_max.value[Rows::half(i)]));
      row_sum.value[Rows::half(i)] += s[i];
    }
    return rescales;
  }
  XLSTM_DEVICE static void pack_all(uint32_t (&to)[kScores / 2], const float (&s)[kScores]) {
#pragma unroll
    for (int w = 0; w < kScores / 2; ++w) to[w] = pack_exact(E{}, s[2 * w], s[2 * w + 1]);
  }

  XLSTM_DEVICE void start_scores(float (&s)[kScores], const OwnedFragments& fragments, int n) const {
    smem.wait_full(n, false);
    rows.multiply_tile(s, fragments, n, false);
  }
  XLSTM_DEVICE void start_out(float (&out)[kSums], const uint32_t (&weights)[kScores / 2], int n) const {
    smem.wait_full(n, true);
    rows.add_tile(out, weights, n, true);
  }

  XLSTM_DEVICE void walk(float (&out)[kSums]) {
    float s[kScores];
    Columns rescale;
    uint32_t weights[kScores / 2];
    OwnedFragments fragments;
    rows.load_owned_fragments(fragments);
    if constexpr (Rows::kOwnedInRegisters) smem.release_owned();
    int first = smem.visible_tiles.first * kTile, n = smem.done.tiles;
    const int last = n + smem.tiles - 1;
    start_scores(s, fragments, n);
    wgmma_wait<0>(s);
    smem.release(n, false);
    online_softmax(s, first, rescale);
    pack_all(weights, s);
#pragma unroll 1
    for (; n < last; ++n) {
      first += kTile;
      start_scores(s, fragments, n + 1);
      start_out(out, weights, n);
      wgmma_wait<1>(s);
      smem.release(n + 1, false);
      const bool rescales = online_softmax(s, first, rescale);
      wgmma_wait<0>(out);
      smem.release(n, true);
      if (rescales)
#pragma unroll
        for (int i = 0; i < kSums; ++i) out[i] *= rescale.value[Rows::half(i)];
      pack_all(weights, s);
    }
    if constexpr (!Rows::kOwnedInRegisters) smem.release_owned();
    start_out(out, weights, n);
    wgmma_wait<0>(out);
    smem.release(n, true);
  }

  XLSTM_DEVICE void run() {
    float out[kSums];
#pragma unroll
    for (float& x : out) x = 0;
    if (smem.tiles > 0) walk(out);
    const xlstm_attention_forward& call = smem.p.call;
    const ForwardEpilogue<E, ForwardParams, false> epilogue{smem.p, smem.at, 0};
    row_sum.over_rows([](float x, float y) { return x + y; });
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto row = epilogue.finish(row_max.value[h], row_sum.value[h], smem.query_head);
      factor[h] = row.factor;
      const int query = smem.owned + rows.first_row() + 8 * h;
      if (lane_id() % 4 == 0 && query < smem.queries)
        epilogue.store_lse(epilogue.offset(smem.query_head, query), row.lse);
    }
    rows.store_directly(out, factor, query_rows<E>(smem.at, call.out, smem.query_head, call.in.dv, true));
  }
};

template <class E, int kFeatures>
__global__ __launch_bounds__(kHopperAttentionThreads,
                             1) void forward_hopper_kernel(const __grid_constant__ HopperForwardParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    using Smem = HopperSmem<ForwardParams, forward_hopper_shape(kFeatures)>;
    run_hopper_attention<Smem>(
        params, lds, [](const Smem&) {},
        [](const Smem& smem, int warpgroup) { HopperForward<E, Smem>(smem, warpgroup).run(); });
  }
}

}  // namespace xlstm::gpu::attention
