// SPDX-License-Identifier: Apache-2.0
// The elementwise part of attention's backward on Hopper: a tile's scores become weights, its dP become ds, in the
// registers in which wgmma leaves them.
#pragma once

#include <numbers>

#include "attention/backward/backward_params.h"
#include "attention/gpu/hopper_rows.h"

namespace xlstm::gpu::attention {

using HopperBackwardParams = HopperAttentionParams<BackwardParams>;
template <int kFeatures, bool kOfKeys>
using BackwardSmem = HopperSmem<BackwardParams, backward_hopper_shape(kFeatures, kOfKeys)>;

template <class E, class Smem>
struct HopperBackwardSoftmax {
  using Rows = OwnedRows<E, Smem>;
  static constexpr int kScores = Rows::kScores;
  static constexpr bool kOfKeys = Rows::kOfKeys;

  const Smem& smem;
  const Rows rows;
  const float scale;       // of products, to base 2
  float lse[2], delta[2];  // dq: of this thread's rows

  XLSTM_DEVICE HopperBackwardSoftmax(const Smem& s, int warpgroup)
      : smem(s), rows(s, warpgroup), scale(float(smem.at.in.softmax_scale * std::numbers::log2e)) {
    if constexpr (!kOfKeys) {
      const float* row_stats = row_stats_of(smem.p, smem.at, smem.query_head);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* query_stats = row_stats + row_stats_index(smem.owned + rows.first_row() + 8 * h);
        lse[h] = query_stats[0], delta[h] = query_stats[kStatsGroup];
      }
    }
  }

  // f(register, lse or D of its query, of the next register's query).
  template <class F>
  XLSTM_DEVICE void each_pair(const float* row_stats, bool deltas, F&& f) const {
#pragma unroll
    for (int i = 0; i < kScores; i += 4) {
      float2 of{};
      if constexpr (kOfKeys)
        of = *reinterpret_cast<const float2*>(row_stats + row_stats_index(Rows::column(i)) + deltas * kStatsGroup +
                                              Rows::first_column());
#pragma unroll
      for (int j = i; j < i + 4; j += 2) {
        const float row_value = deltas ? delta[Rows::half(j)] : lse[Rows::half(j)];
        f(j, kOfKeys ? of.x : row_value, kOfKeys ? of.y : row_value);
      }
    }
  }
  XLSTM_DEVICE void to_weights(float (&s)[kScores], int n, int first) const {
    each_pair(smem.row_stats(n), false, [&](int i, float a, float b) {
      s[i] = __builtin_fmaf(s[i], scale, -a), s[i + 1] = __builtin_fmaf(s[i + 1], scale, -b);
    });
    rows.mask(s, first);
#pragma unroll
    for (int i = 0; i < kScores; ++i) s[i] = exp2_fast(s[i]);
  }
  XLSTM_DEVICE void to_ds(float (&dp)[kScores], const float (&weight)[kScores], int n) const {
    each_pair(smem.row_stats(n), true, [&](int i, float a, float b) {
      dp[i] = weight[i] * (dp[i] - a), dp[i + 1] = weight[i + 1] * (dp[i + 1] - b);
    });
  }
};

}  // namespace xlstm::gpu::attention
