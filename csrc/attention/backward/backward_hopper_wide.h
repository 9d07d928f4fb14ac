// SPDX-License-Identifier: Apache-2.0
// Attention backward on Hopper with 192 or 256 features (backward_hopper.h has the two forms and their products). Sums
// of 64 tokens by 256 features take 128 registers of a thread, so a consumer warpgroup has one matrix of them:
//
//              a block owns    first consumer warpgroup         second consumer warpgroup
//     dq       128 queries     64 queries: S, dP, dq            the other 64 queries: S, dP, dq
//     dk, dv   64 keys         S, weights w, dv += w dout       dP, ds, dk += ds q, of the same 64 keys
//
// For dk and dv the first warpgroup sends w to the second, which needs it for ds, as floats through shared memory:
// thread t of both has the same rows and columns. So nothing is computed twice, and the two have the same work.
//
// Shared memory holds the owned tokens (256 features: q and dout, 128 KB, or k and v, 64 KB) and tiles of 64 tokens, of
// 32 KB for each matrix: k twice and v once for dq; q and dout twice, and 16 KB of weights, for dk and dv. 192 features
// leave room for a stage more. A tile of 64 is as small as can be: products of 64 by 64 scores read their operands from
// shared memory in as many cycles as they take. With few stages a tile must be released early. So an iteration starts
// the products of this tile's sums first and those of the next tile's scores behind them, and it is the other
// warpgroup's products that the softmax overlaps with; where it pays, the two take turns (hopper_shape.h).
//
// Iteration n, time from left to right. The prologue computes the operands of tile 0's sums, the last step the sums of
// the last tile. hopper_smem.h has the table of barriers.
//
//   dq       dq(n), S(n + 1), dP(n + 1) | dq(n) done: release k | S: w | dP done: release v | ds(n + 1)
//   dv       dv(n), S(n + 1)            | dv(n) done: release dout | S done: w(n + 1), release q, send w
//   dk       dk(n), dP(n + 1)           | dk(n) done: release q | dP done: release dout | receive w, ds(n + 1)
//
// Floor: 7 products, as in backward_hopper.h. What binds: the time that a stage has to load. At the full rate of the
// tensor cores a tile of dk and dv would come from L2 at 32 bytes a cycle.
#pragma once

#include "attention/backward/backward_hopper_softmax.h"

namespace xlstm::gpu::attention {

template <class E, class Smem>
struct HopperWideBackward : HopperBackwardSoftmax<E, Smem> {
  using Softmax = HopperBackwardSoftmax<E, Smem>;
  using Softmax::kOfKeys, Softmax::kScores, Softmax::smem, Softmax::rows, Softmax::to_weights, Softmax::to_ds;
  using Rows = OwnedRows<E, Smem>;
  static constexpr int kSums = Rows::kSums, kTile = Rows::kTile;
  using OwnedFragments = typename Rows::OwnedFragments;
  using Sums = float[kSums];
  using Scores = float[kScores];
  using Operands = uint32_t[kScores / 2];
  static constexpr bool kTurns = Smem::kShape.turns;
  static constexpr int kTurnBarrier = 1;  // and the next one, of the second consumer warpgroup

  const int warpgroup;

  XLSTM_DEVICE HopperWideBackward(const Smem& s, int group) : Softmax(s, group), warpgroup(group) {}

  // The first token of a tile, which follow each other for each query head in turn.
  XLSTM_DEVICE int first_tile() const { return smem.visible_tiles.first * kTile; }
  XLSTM_DEVICE int next_tile(int first) const {
    first += kTile;
    return first == (smem.visible_tiles.first + smem.visible_tiles.count) * kTile ? first_tile() : first;
  }

  XLSTM_DEVICE static void pack_all(Operands& to, const Scores& x) {
#pragma unroll
    for (int w = 0; w < kScores / 2; ++w) to[w] = pack_exact(E{}, x[2 * w], x[2 * w + 1]);
  }
  // Start the products of a tile that has been loaded: S (or, second, dP), and sums.
  XLSTM_DEVICE void start_scores(Scores& s, const OwnedFragments& fragments, int n, bool second) const {
    smem.wait_full(n, second);
    rows.multiply_tile(s, fragments, n, second);
  }
  XLSTM_DEVICE void start_sums(Sums& sums, const Operands& operands, int n, bool second) const {
    smem.wait_full(n, second);
    rows.add_tile(sums, operands, n, second);
  }
  // The warpgroups issue their products in turns, the first one first: turn 0 is that of tile 0's scores, turn n + 1
  // that of tile n's sums. Named barriers pass the turn on.
  XLSTM_DEVICE void take_turn(int turn) const {
    if (kTurns && (warpgroup == 1 || turn > 0)) barrier_sync(kTurnBarrier + warpgroup, 2 * kWarpgroup);
  }
  XLSTM_DEVICE void pass_turn(int turn) const {
    if (kTurns && (warpgroup == 0 || turn < smem.tiles)) barrier_arrive(kTurnBarrier + (warpgroup ^ 1), 2 * kWarpgroup);
  }

  // ---- dq

  XLSTM_DEVICE void add_dq(Sums& dq) const {
    Scores s, dp;
    Operands ds;
    int first = first_tile(), n = 0;
    OwnedFragments fragments;
    rows.load_owned_fragments(fragments);
    take_turn(0);
    start_scores(s, fragments, 0, false), start_scores(dp, fragments, 0, true);
    pass_turn(0);
    const auto finish_ds = [&](int tile) {
      wgmma_wait<1>(s);
      to_weights(s, tile, first);
      wgmma_wait<0>(dp);
      smem.release(tile, true);
      to_ds(dp, s, tile);
      pack_all(ds, dp);
    };
    finish_ds(0);
#pragma unroll 1
    for (; n + 1 < smem.tiles; ++n) {
      first += kTile;
      take_turn(n + 1);
      start_sums(dq, ds, n, false);
      start_scores(s, fragments, n + 1, false), start_scores(dp, fragments, n + 1, true);
      pass_turn(n + 1);
      wgmma_wait<2>(dq);
      smem.release(n, false);
      finish_ds(n + 1);
    }
    take_turn(n + 1);
    start_sums(dq, ds, n, false);
    pass_turn(n + 1);
    wgmma_wait<0>(dq);
    smem.release(n, false);
  }

  // ---- dk and dv

  XLSTM_DEVICE void send_weights(const Scores& w, int n) const {
    smem.barrier(Smem::kWeightsEmpty).wait(uint32_t(n % 2 ^ 1));
#pragma unroll
    for (int q = 0; q < kScores / 4; ++q)
      *smem.weights(q) = {{as_bits(w[4 * q]), as_bits(w[4 * q + 1]), as_bits(w[4 * q + 2]), as_bits(w[4 * q + 3])}};
    smem.barrier(Smem::kWeightsFull).arrive_once_per_warp();
  }
  XLSTM_DEVICE void receive_weights(Scores& w, int n) const {
    smem.barrier(Smem::kWeightsFull).wait(uint32_t(n % 2));
#pragma unroll
    for (int q = 0; q < kScores / 4; ++q) {
      const Vec16 vec = *smem.weights(q);
#pragma unroll
      for (int j = 0; j < 4; ++j) w[4 * q + j] = as_float(vec.word[j]);
    }
    smem.barrier(Smem::kWeightsEmpty).arrive_once_per_warp();
  }

  XLSTM_DEVICE void add_dv(Sums& dv) const {
    Scores s;
    Operands weights;
    int first = first_tile(), n = 0;
    OwnedFragments fragments;
    rows.load_fragments(fragments, false);
    take_turn(0);
    start_scores(s, fragments, 0, false);
    pass_turn(0);
    const auto finish_weights = [&](int tile) {
      wgmma_wait<0>(s);
      to_weights(s, tile, first);
      smem.release(tile, false);  // lse has been read
      send_weights(s, tile);
      pack_all(weights, s);
    };
    finish_weights(0);
#pragma unroll 1
    for (; n + 1 < smem.tiles; ++n) {
      first = next_tile(first);
      take_turn(n + 1);
      start_sums(dv, weights, n, true);
      start_scores(s, fragments, n + 1, false);
      pass_turn(n + 1);
      wgmma_wait<1>(dv);
      smem.release(n, true);
      finish_weights(n + 1);
    }
    take_turn(n + 1);
    start_sums(dv, weights, n, true);
    pass_turn(n + 1);
    wgmma_wait<0>(dv);
    smem.release(n, true);
  }
  XLSTM_DEVICE void add_dk(Sums& dk) const {
    Scores dp;
    Operands ds;
    int n = 0;
    OwnedFragments fragments;
    rows.load_fragments(fragments, true);
    take_turn(0);
    start_scores(dp, fragments, 0, true);
    pass_turn(0);
    const auto finish_ds = [&](int tile) {
      wgmma_wait<0>(dp);
      smem.release(tile, true);
      Scores weights;
      receive_weights(weights, tile);
      smem.wait_full(tile, false);  // D comes with q
      to_ds(dp, weights, tile);
      pack_all(ds, dp);
    };
    finish_ds(0);
#pragma unroll 1
    for (; n + 1 < smem.tiles; ++n) {
      take_turn(n + 1);
      start_sums(dk, ds, n, false);
      start_scores(dp, fragments, n + 1, true);
      pass_turn(n + 1);
      wgmma_wait<1>(dk);
      smem.release(n, false);
      finish_ds(n + 1);
    }
    take_turn(n + 1);
    start_sums(dk, ds, n, false);
    pass_turn(n + 1);
    wgmma_wait<0>(dk);
    smem.release(n, false);
  }

  XLSTM_DEVICE void run() const {
    Sums sums;
#pragma unroll
    for (float& x : sums) x = 0;
    const xlstm_attention_backward& call = smem.p.call;
    const float scale = float(call.in.softmax_scale);
    // Stores pass through memory of the owned tokens that the products of this warpgroup alone have read.
    if constexpr (!kOfKeys) {
      if (smem.tiles > 0) add_dq(sums);
      rows.store(sums, {scale, scale}, false, query_rows<E>(smem.at, call.dq, smem.query_head, call.in.dqk, true));
    } else if (warpgroup == 0) {
      if (smem.tiles > 0) add_dv(sums);
      rows.store(sums, {1, 1}, false, key_rows<E>(smem.at, call.dv, smem.key_head, call.in.dv, true));
    } else {
      if (smem.tiles > 0) add_dk(sums);
      rows.store(sums, {scale, scale}, true, key_rows<E>(smem.at, call.dk, smem.key_head, call.in.dqk, true));
    }
  }
};

}  // namespace xlstm::gpu::attention
