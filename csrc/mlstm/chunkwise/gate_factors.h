// SPDX-License-Identifier: Apache-2.0
// The gate factors of the tokens of one chunk: the exponents of D, and the factors that the walks read. The first
// token's lf is stored apart from the sums of lf, because it belongs to the decay of what comes from before the chunk.
#pragma once

#include <numbers>

#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

// D of a pair of tokens, from the high and low parts of its row's and its column's exponent.
XLSTM_DEVICE float pair_decay(float row_high, float row_low, float column_high, float column_low) {
  return exp2_fast((row_high + column_high) + (row_low + column_low));
}

// The same for float32, whose precision shows rounding of a large exponent: with the sigmoid gate, whose m is 0, all
// exponents of a chunk may be large.
XLSTM_DEVICE float pair_decay_exact(float row_high, float row_low, float column_high, float column_low) {
  const float high = row_high + column_high, rounded_column = high - row_high;
  const float lost = (row_high - (high - rounded_column)) + (column_high - rounded_column), integer = rintf(high);
  const float decay = ldexpf(exp2f((high - integer) + (lost + (row_low + column_low))), int(integer));
  return high < -300.0f ? 0.0f : decay;  // also for -inf
}

// The gates of one chunk, in LDS.
template <int kChunk>
struct ChunkGates {
  static constexpr int kGroups = (kChunk + kTokenLanes - 1) / kTokenLanes;
  double first_lf;
  GateSums group[2];  // the effect on m of each lane group's tokens, without first_lf
  float row_high[kChunk], row_low[kChunk], column_high[kChunk], column_low[kChunk];  // exponents of 2
  float scale_over_n[kChunk], dl_n[kChunk], into[kChunk], dl_inter[kChunk];
};

// A token's factors that its thread keeps in registers until dh h is known.
struct TokenFactors {
  double m, l, inter;
};

// Called by all threads that `sync` synchronises; thread t has token t. scale_over_n is set in backward only.
template <bool kBackward, int kChunk, class Sync>
XLSTM_DEVICE TokenFactors compute_gate_factors(const ScoreParams& p, const Chunk& c, ChunkGates<kChunk>& g, int t,
                                               Sync&& sync) {
  constexpr int kGroups = ChunkGates<kChunk>::kGroups;
  const bool inside = t < c.valid;
  const double m_before = p.m_before[c.slot];
  const float l = kBackward && inside ? p.l_saved[c.head.row * p.where.length + c.t0 + t] : 0.0f;
  double ig = -INFINITY;
  GateSums x[1];
  if (t < kGroups * kTokenLanes) {
    if (inside) {
      const TokenGates gates = token_gates(p.i, p.f, p.sigmoid, c.head, c.t0 + t);
      ig = gates.ig;
      x[0] = {t == 0 ? 0.0 : gates.lf, ig};
      if (t == 0) g.first_lf = gates.lf;
    }
    scan_gates(x, t % kTokenLanes);
    if (t % kTokenLanes == kTokenLanes - 1) g.group[t / kTokenLanes] = x[0];
  }
  sync();
  if (t >= kChunk) return {};
  GateSums sums_to_token = x[0], chunk_sums = g.group[0];
  if constexpr (kGroups == 2) {
    if (t >= kTokenLanes) sums_to_token = chunk_sums.then(sums_to_token);
    chunk_sums = chunk_sums.then(g.group[1]);
  }
  const double decayed_m_before = g.first_lf + m_before;
  const double m = sums_to_token.after(p.sigmoid, decayed_m_before),
               m_end = chunk_sums.after(p.sigmoid, decayed_m_before);
  constexpr double kToTwo = std::numbers::log2e;
  const double row = (sums_to_token.sum - m) * kToTwo, column = (ig - sums_to_token.sum) * kToTwo;
  g.row_high[t] = float(row);
  g.row_low[t] = float(row - float(row));
  g.column_high[t] = float(column);
  g.column_low[t] = column > -INFINITY ? float(column - float(column)) : 0.0f;
  const double state_share = inside ? exp(g.first_lf + sums_to_token.sum + (m_before - m)) : 0.0;
  const float into = inside ? float(exp(ig - sums_to_token.sum + (chunk_sums.sum - m_end))) : 0.0f;
  TokenFactors factors{m, l, p.scale * state_share};
  g.into[t] = into;
  const int64_t at = c.slot * kChunk + t;
  p.m[at] = m;
  if constexpr (kBackward) {
    const double n = normaliser(p.normalize, l, m, p.eps);
    factors.inter /= n;
    g.scale_over_n[t] = float(p.scale / n);
    p.flows.state_share[at] = float(state_share);
  } else {
    p.factors[factor_at(c.slot, kDiagonal, t, kChunk)] = 0;  // the walks copy all factors, including this unused one
  }
  p.factors[factor_at(c.slot, kInter, t, kChunk)] = float(factors.inter);
  p.factors[factor_at(c.slot, kInto, t, kChunk)] = into;
  if (t == 0) p.decay[c.slot] = float(exp(g.first_lf + chunk_sums.sum + (m_before - m_end)));
  return factors;
}

// The factors of token t that depend on `dot` = dh h, computed by the token's thread.
template <int kChunk>
XLSTM_DEVICE void compute_gradient_factors(const ScoreParams& p, const Chunk& c, ChunkGates<kChunk>& g, int t,
                                           const TokenFactors& factors, float dot) {
  const bool inside = t < c.valid;
  const NormaliserGrad grad =
      normaliser_grad(p.normalize && p.normalizer_grad, factors.l, factors.m, p.eps, inside ? double(dot) : 0.0);
  g.dl_n[t] = float(grad.dl_times_n);
  g.dl_inter[t] = float(factors.inter * grad.dl_times_n);
  p.factors[factor_at(c.slot, kInterDl, t, kChunk)] = g.dl_inter[t];
  p.flows.dm[c.slot * kChunk + t] = inside ? grad.dm : 0.0;
}

}  // namespace xlstm::gpu::mlstm
