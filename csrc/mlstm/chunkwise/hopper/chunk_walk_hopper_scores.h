// SPDX-License-Identifier: Apache-2.0
// What a forward Hopper walk (chunk_walk_hopper.h) knows beside its state, made by a warpgroup of its own a chunk ahead
// of the products that read it: the scores s (q k) D, n, and the normaliser of each token.
//
// n is an accumulator, of 64 features and 8 columns for each panel of k: k^T times a token's weight, whose upper and
// lower parts are two columns. So that q n comes with q k, n's upper and lower parts lie below each panel of k, as
// tokens 64 and 65. Of n and of weights 16 bits are multiplied, an error of 2^-17 of each.
//
// Every block along y makes all of it again: a sixth of the walk's products, and no score reaches memory.
#pragma once

#include "mlstm/chunkwise/gate_factors.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_smem.h"

namespace xlstm::gpu::mlstm {

template <class Room>
struct HopperScorer {
  static constexpr bool kScored = Room::kScored;
  static constexpr int kPanels = Room::kPanels, kPanel = Room::kPanel, kXPanel = Room::kXPanel, kChunk = Room::kChunk;
  static constexpr int kAll = 5;  // named barrier: this warpgroup
  static constexpr int kSteps = kPanelColumns / 16;

  const Room& room;
  const WalkParams& p = room.p;
  const ScoringParams& own = room.params.scoring;
  const int warp = wave_id(), lane = lane_id();

  // ---- n: of features row() and row() + 8 of each panel, registers 0 and 2 in the first of four lanes, and 1 and 3,
  // which is what the weights' lower parts add

  XLSTM_DEVICE int row() const { return 16 * warp + lane / 4; }
  // f(n's number, its feature) for each that this thread has.
  template <class F>
  XLSTM_DEVICE void each(float (&n)[kPanels][4], F&& f) const {
    if (lane % 4) return;
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) f(n[i][2 * h], n[i][2 * h + 1], i * kPanelColumns + row() + 8 * h);
  }
  XLSTM_DEVICE float* between(int order) const {
    return own.n_between + (int64_t(room.segment.state) * (p.segments - 1) + order) * Room::kShape.rows;
  }
  XLSTM_DEVICE void load(float (&n)[kPanels][4]) const {
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) n[i][j] = 0;
    const int order = room.segment.order(), columns = p.x.columns;
    const float* const from = p.alone         ? nullptr
                              : order         ? between(order - 1)
                              : own.n_initial ? own.n_initial + room.segment.state * int64_t(columns)
                                              : nullptr;
    if (!from) return;
    each(n, [&](float& value, float&, int feature) { value = feature < columns ? from[feature] : 0.0f; });
  }
  XLSTM_DEVICE void store(float (&n)[kPanels][4]) const {
    const int columns = p.x.columns;
    float* const to = room.tile != 0                      ? nullptr
                      : p.alone                           ? between(room.segment.order())
                      : room.segment.last() && own.n_last ? own.n_last + room.segment.state * int64_t(columns)
                                                          : nullptr;
    if (!to) return;
    each(n, [&](float high, float low, int feature) {
      if (feature < columns) to[feature] = high + low;
    });
  }
  // Below k of the nth chunk, by every eighth lane two features that lie side by side.
  XLSTM_DEVICE void put(float (&n)[kPanels][4], int chunk) const {
    char* const x = room.lds + chunk % Room::kStages * Room::kStage + Room::kX;
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float value = n[i][2 * h] + n[i][2 * h + 1], next = shuffle_xor(value, 4);
        if (lane % 8) continue;
        const uint32_t upper = pack(BFloat16{}, value, next),
                       lower =
                           pack(BFloat16{}, value - low_float(BFloat16{}, upper), next - high_float(BFloat16{}, upper));
        char* const to = x + i * kXPanel + lane / 8 * 4;
        *reinterpret_cast<uint32_t*>(to + panel_vec16_offset(kChunk, 2 * warp + h)) = upper;
        *reinterpret_cast<uint32_t*>(to + panel_vec16_offset(kChunk + 1, 2 * warp + h)) = lower;
      }
  }

  // ---- products

  // q k, and q n in the columns after them.
  XLSTM_DEVICE static void multiply_tokens(float (&pairs)[36], uint32_t stage) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kPanels * kSteps; ++i) {
      const uint64_t left = k_major_descriptor(stage + Room::kA + i / kSteps * kPanel) + i % kSteps * kNextKMajor,
                     right = k_major_descriptor(stage + Room::kX + i / kSteps * kXPanel) + i % kSteps * kNextKMajor;
      wgmma_ss<false, false>(pairs, left, right, i > 0);
    }
    wgmma_commit();
  }
  // n += k^T weights. hold(): else the compiler may scale n after the fence, and products wait for each other.
  XLSTM_DEVICE void add_keys(float (&n)[kPanels][4], uint32_t stage, uint32_t weights) const {
#pragma unroll
    for (int i = 0; i < kPanels; ++i) hold(n[i]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
#pragma unroll
      for (int k = 0; k < kChunk / 16; ++k)
        wgmma_ss<true, false>(n[i], mn_major_descriptor(stage + Room::kX + i * kXPanel, kXPanel) + k * kNextMnMajor,
                              k_major_descriptor(weights) + k * kNextKMajor);
    wgmma_commit();
  }

  XLSTM_DEVICE static void wait_for_keys(float (&vector)[kPanels][4]) {
    static_assert(kPanels == 2 || kPanels == 4);
    if constexpr (kPanels == 2)
      wgmma_wait<0>(vector[0], vector[1]);
    else
      wgmma_wait<0>(vector[0], vector[1], vector[2], vector[3]);
  }

  // ---- pairs of tokens: accumulator 4 j + 2 h + e of a thread is the pair (row() + 8 h, column(j) + e)

  XLSTM_DEVICE int column(int j) const { return 8 * j + lane % 4 * 2; }

  // The scores, for the products that read them; and each row's sum of them, over the four lanes that have it.
  XLSTM_DEVICE void weigh_pairs(const float (&pairs)[36], int n, float (&sum)[2]) const {
    float high[2], low[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      high[h] = room.measured(n, kRowHigh)[row() + 8 * h];
      low[h] = room.measured(n, kRowLow)[row() + 8 * h];
      sum[h] = 0;
    }
    const uint32_t to = room.stage_address(n) + Room::kScores;
#pragma unroll
    for (int two = 0; two < 4; ++two) {
      if (two > warp) continue;  // above the diagonal
      uint32_t square[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int j = 2 * two + m / 2, h = m % 2;
        const float2 above = *reinterpret_cast<const float2*>(room.measured(n, kColumnHigh) + column(j));
        const float2 below = *reinterpret_cast<const float2*>(room.measured(n, kColumnLow) + column(j));
        float score[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float d = pair_decay(high[h], low[h], e ? above.y : above.x, e ? below.y : below.x);
          score[e] = column(j) + e <= row() + 8 * h ? own.scale * pairs[4 * j + 2 * h + e] * d : 0.0f;
          sum[h] += score[e];
        }
        square[m] = pack_exact(BFloat16{}, score[0], score[1]);
      }
      stmatrix(to + panel_vec16_offset(16 * warp + lane % 16, 2 * two + lane / 16), square[0], square[1], square[2],
               square[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += shuffle_xor(sum[h], 1);
      sum[h] += shuffle_xor(sum[h], 2);
    }
  }

  // l and 1 / N of this thread's rows: l = inter q n + the row's sum of scores.
  XLSTM_DEVICE void normalise(const float (&pairs)[36], const float (&sum)[2], int n) const {
    if (lane % 4) return;
    const int64_t t0 = int64_t(room.chunk_at(n)) * kChunk;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      const float l = room.factors(n, kInter)[t] * (pairs[32 + 2 * h] + pairs[33 + 2 * h]) + sum[h];
      const float size = fabsf(l), least = room.measured(n, kLeast)[t];
      room.gains(n)[t] = own.normalize ? 1 / ((size < least ? least : size) + own.eps) : 1.0f;  // NaN stays
      if (room.tile == 0 && own.l && t0 + t < room.segment.end) own.l[room.segment.row * p.where.length + t0 + t] = l;
    }
  }

  XLSTM_DEVICE void run() const {
    float vector[kPanels][4];
    load(vector);
    float decay = p.decay[room.slot_of(0)];
    for (int n = 0; n < room.chunks; ++n) {
      const uint32_t stage = room.stage_address(n), phase = room.parity(n);
      const float decay_now = decay;
      if (n + 1 < room.chunks) decay = p.decay[room.slot_of(n + 1)];
      float pairs[36], sum[2];
      if constexpr (kScored) {
        put(vector, n);
        fence_async_proxy();
        room.a_full(n).wait(phase);
      }
      room.x_full(n).wait(phase);
      if constexpr (kScored) {
        barrier_sync(kAll, kWarpgroup);
        multiply_tokens(pairs, stage);
      }
#pragma unroll
      for (int i = 0; i < kPanels; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) vector[i][j] *= decay_now;
      add_keys(vector, stage, room.weights_address(n));
      if constexpr (kScored) {
        wgmma_wait<1>(pairs);
        room.a_free(n).arrive_once_per_warp();
        room.y_free(n).wait(phase ^ 1);  // where scores and gains go
        weigh_pairs(pairs, n, sum);
        fence_async_proxy();
        room.scores_full(n).arrive_once_per_warp();
        room.y_full(n).wait(phase);  // the factors
        normalise(pairs, sum, n);
        room.gain_full(n).arrive_once_per_warp();
      }
      wait_for_keys(vector);
      room.x_free(n).arrive_once_per_warp();
    }
    store(vector);
  }
};

}  // namespace xlstm::gpu::mlstm
