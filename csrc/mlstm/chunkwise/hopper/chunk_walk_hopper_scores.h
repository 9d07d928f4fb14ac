// SPDX-License-Identifier: Apache-2.0
// The first warpgroup of a forward Hopper walk (chunk_walk_hopper.h): it computes, one chunk ahead of the products that
// read them, the scores s (q k) D, n, and the normaliser of each token.
//
// n is an accumulator of 64 features by 8 columns for each panel of k: k^T times a token's weight, whose upper and
// lower bfloat16 parts are two columns. So that q n is computed with q k, the upper and lower parts of n lie below each
// panel of k, as tokens 64 and 65. Of n and of the weights 16 bits are multiplied, an error of 2^-17 of each.
//
// Every block along y repeats this work: it is a sixth of the walk's products, and no score goes to memory.
#pragma once

#include "mlstm/chunkwise/gate_factors.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_smem.h"

namespace xlstm::gpu::mlstm {

template <class Smem>
struct HopperScorer {
  static constexpr bool kMakesScores = Smem::kMakesScores;
  static constexpr int kXPanels = Smem::kXPanels, kPanelBytes = Smem::kPanelBytes, kXPanelBytes = Smem::kXPanelBytes,
                       kChunk = Smem::kChunk;
  static constexpr int kGroupBarrier = 5;  // named barrier 5: this warpgroup
  static constexpr int kSteps = kPanelColumns / 16;

  const Smem& smem;
  const WalkParams& p = smem.p;
  const ScoringParams& scoring = smem.params.scoring;
  const int warp = wave_id(), lane = lane_id();

  // ---- n: of features row() and row() + 8 of each panel, in registers 0 and 2 of the first of four lanes; registers 1
  // and 3 have what the weights' lower parts add

  XLSTM_DEVICE int row() const { return 16 * warp + lane / 4; }
  // Calls f(n's upper part, its lower part, its feature) for each feature that this thread has.
  template <class F>
  XLSTM_DEVICE void each(float (&n)[kXPanels][4], F&& f) const {
    if (lane % 4) return;
#pragma unroll
    for (int i = 0; i < kXPanels; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) f(n[i][2 * h], n[i][2 * h + 1], i * kPanelColumns + row() + 8 * h);
  }
  XLSTM_DEVICE float* segment_n_of(int order) const {
    return scoring.segment_n + (int64_t(smem.segment.state) * (p.segments - 1) + order) * Smem::kShape.rows;
  }
  XLSTM_DEVICE void load_n(float (&n)[kXPanels][4]) const {
#pragma unroll
    for (int i = 0; i < kXPanels; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) n[i][j] = 0;
    const int order = smem.segment.order(), columns = p.x.columns;
    const float* const from = Smem::kTerms.states_only ? nullptr
                              : order                  ? segment_n_of(order - 1)
                              : scoring.n_initial      ? scoring.n_initial + smem.segment.state * int64_t(columns)
                                                       : nullptr;
    if (!from) return;
    each(n, [&](float& value, float&, int feature) { value = feature < columns ? from[feature] : 0.0f; });
  }
  XLSTM_DEVICE void store_n(float (&n)[kXPanels][4]) const {
    const int columns = p.x.columns;
    float* const to = smem.tile != 0                          ? nullptr
                      : Smem::kTerms.states_only              ? segment_n_of(smem.segment.order())
                      : smem.segment.last() && scoring.n_last ? scoring.n_last + smem.segment.state * int64_t(columns)
                                                              : nullptr;
    if (!to) return;
    each(n, [&](float high, float low, int feature) {
      if (feature < columns) to[feature] = high + low;
    });
  }
  // Stores n below k of the chunk, as tokens 64 and 65. Every eighth lane stores two adjacent features.
  XLSTM_DEVICE void write_n_panels(float (&n)[kXPanels][4], int chunk) const {
    char* const x = smem.lds + chunk % Smem::kStages * Smem::kStageBytes + Smem::kXOffset;
#pragma unroll
    for (int i = 0; i < kXPanels; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float value = n[i][2 * h] + n[i][2 * h + 1], next = shuffle_xor(value, 4);
        if (lane % 8) continue;
        const uint32_t upper = pack(BFloat16{}, value, next),
                       lower =
                           pack(BFloat16{}, value - low_float(BFloat16{}, upper), next - high_float(BFloat16{}, upper));
        char* const to = x + i * kXPanelBytes + lane / 8 * 4;
        *reinterpret_cast<uint32_t*>(to + panel_vec16_offset(kChunk, 2 * warp + h)) = upper;
        *reinterpret_cast<uint32_t*>(to + panel_vec16_offset(kChunk + 1, 2 * warp + h)) = lower;
      }
  }

  // ---- products

  // q k, and q n in the columns after it.
  XLSTM_DEVICE static void multiply_tokens(float (&pairs)[36], uint32_t stage) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kXPanels * kSteps; ++i) {
      const uint64_t left = k_major_descriptor(stage + Smem::kAOffset + i / kSteps * kPanelBytes) +
                            i % kSteps * kNextKMajor,
                     right = k_major_descriptor(stage + Smem::kXOffset + i / kSteps * kXPanelBytes) +
                             i % kSteps * kNextKMajor;
      wgmma_ss<false, false>(pairs, left, right, i > 0);
    }
    wgmma_commit();
  }
  // n += k^T weights. hold(): otherwise the compiler may scale n after the fence, and then it serialises the wgmmas.
  XLSTM_DEVICE void add_to_n(float (&n)[kXPanels][4], uint32_t stage, uint32_t weights) const {
#pragma unroll
    for (int i = 0; i < kXPanels; ++i) hold(n[i]);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kXPanels; ++i)
#pragma unroll
      for (int k = 0; k < kChunk / 16; ++k)
        wgmma_ss<true, false>(
            n[i], mn_major_descriptor(stage + Smem::kXOffset + i * kXPanelBytes, kXPanelBytes) + k * kNextMnMajor,
            k_major_descriptor(weights) + k * kNextKMajor);
    wgmma_commit();
  }

  XLSTM_DEVICE static void wait_for_n(float (&vector)[kXPanels][4]) {
    static_assert(kXPanels == 2 || kXPanels == 4);
    if constexpr (kXPanels == 2)
      wgmma_wait<0>(vector[0], vector[1]);
    else
      wgmma_wait<0>(vector[0], vector[1], vector[2], vector[3]);
  }

  // ---- pairs of tokens: accumulator 4 j + 2 h + e of a thread is the pair (row() + 8 h, column(j) + e)

  XLSTM_DEVICE int column(int j) const { return 8 * j + lane % 4 * 2; }

  // Writes the scores for the products of the consumers, and sums each row over the four lanes that have it.
  XLSTM_DEVICE void score_pairs(const float (&pairs)[36], int n, float (&sum)[2]) const {
    float high[2], low[2];
    int first[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      high[h] = smem.gate_term(n, kRowHigh)[row() + 8 * h];
      low[h] = smem.gate_term(n, kRowLow)[row() + 8 * h];
      if constexpr (Smem::kIsPacked) first[h] = int(smem.gate_term(n, kFirstOfSequence)[row() + 8 * h]);
      sum[h] = 0;
    }
    const uint32_t to = smem.stage_address(n) + Smem::kScoresOffset;
#pragma unroll
    for (int column16 = 0; column16 < 4; ++column16) {
      if (column16 > warp) continue;  // above the diagonal
      uint32_t words[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int j = 2 * column16 + m / 2, h = m % 2;
        const float2 column_high = *reinterpret_cast<const float2*>(smem.gate_term(n, kColumnHigh) + column(j));
        const float2 column_low = *reinterpret_cast<const float2*>(smem.gate_term(n, kColumnLow) + column(j));
        float score[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float d =
              pair_decay(high[h], low[h], e ? column_high.y : column_high.x, e ? column_low.y : column_low.x);
          const int s = column(j) + e;
          const bool one_sequence = !Smem::kIsPacked || first[h] <= s;
          score[e] = one_sequence && s <= row() + 8 * h ? scoring.scale * pairs[4 * j + 2 * h + e] * d : 0.0f;
          sum[h] += score[e];
        }
        words[m] = pack_exact(BFloat16{}, score[0], score[1]);
      }
      stmatrix(to + panel_vec16_offset(16 * warp + lane % 16, 2 * column16 + lane / 16), words[0], words[1], words[2],
               words[3]);
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
    const int64_t t0 = smem.token_at(n);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      const float l = smem.factors(n, kInter)[t] * (pairs[32 + 2 * h] + pairs[33 + 2 * h]) + sum[h];
      const float abs_l = fabsf(l), min_n = smem.gate_term(n, kMinN)[t];
      // NaN stays NaN.
      smem.inverse_n(n)[t] = scoring.normalize ? 1 / ((abs_l < min_n ? min_n : abs_l) + scoring.eps) : 1.0f;
      if (smem.tile == 0 && scoring.l && t0 + t < smem.segment.end)
        scoring.l[smem.segment.row * p.where.length + t0 + t] = l;
    }
  }

  XLSTM_DEVICE void run() const {
    float vector[kXPanels][4];
    load_n(vector);
    float decay = p.decay[smem.slot_of(0)];
    for (int n = 0; n < smem.chunks; ++n) {
      const uint32_t stage = smem.stage_address(n), phase = smem.parity(n);
      const float decay_now = decay;
      if (n + 1 < smem.chunks) decay = p.decay[smem.slot_of(n + 1)];
      float pairs[36], sum[2];
      if constexpr (kMakesScores) {
        write_n_panels(vector, n);
        fence_async_proxy();
        smem.a_full(n).wait(phase);
      }
      smem.x_full(n).wait(phase);
      if constexpr (kMakesScores) {
        barrier_sync(kGroupBarrier, kWarpgroup);
        multiply_tokens(pairs, stage);
      }
#pragma unroll
      for (int i = 0; i < kXPanels; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          vector[i][j] = Smem::kIsPacked ? decayed(p.where, vector[i][j], decay_now) : vector[i][j] * decay_now;
      add_to_n(vector, stage, smem.weights_address(n));
      if constexpr (kMakesScores) {
        wgmma_wait<1>(pairs);
        smem.a_free(n).arrive_once_per_warp();
        smem.y_free(n).wait(phase ^ 1);  // frees the memory of the scores and of 1 / N
        score_pairs(pairs, n, sum);
        fence_async_proxy();
        smem.scores_full(n).arrive_once_per_warp();
        smem.y_full(n).wait(phase);  // brings the factors
        normalise(pairs, sum, n);
        smem.inverse_n_full(n).arrive_once_per_warp();
      }
      wait_for_n(vector);
      smem.x_free(n).arrive_once_per_warp();
    }
    store_n(vector);
  }
};

}  // namespace xlstm::gpu::mlstm
