// SPDX-License-Identifier: Apache-2.0
// The gate factors of the tokens of one chunk: the exponents of D, and the factors that the walks read. They
// follow from m before the chunk and from the sums of lf (stabilisers.h).
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
  float row_high[kChunk], row_low[kChunk], column_high[kChunk], column_low[kChunk];  // exponents of 2
  float scale_over_n[kChunk], dl_n[kChunk], into[kChunk], dl_inter[kChunk];
  int first[kChunk];  // of the chunk's tokens, the first of this one's sequence

  // Whether the pair (t, s) is of one sequence, s not after t, in a chunk with so many tokens.
  XLSTM_DEVICE bool is_pair(int t, int s, int valid) const { return first[t] <= s && s <= t && t < valid; }
};

// A token's factors that its thread keeps in registers until dh h is known.
struct TokenFactors {
  double m, l, inter;
};

// m before a chunk, for a group of kTokenLanes lanes, which add up what the chunks before it do.
XLSTM_DEVICE double stabiliser_before(const ScoreParams& p, const Chunk& c, int lane) {
  const double m = p.m_initial ? double(p.m_initial[c.head.state]) : 0.0;
  const int64_t first = c.head.slot_of(p.where, 0), chunks = c.slot - first;
  if (chunks == 0) return m;
  const int64_t each = (chunks + kTokenLanes - 1) / kTokenLanes, begin = lane * each;
  const int64_t end = begin + each < chunks ? begin + each : chunks;
  GateSums sums[1];
  for (int64_t j = begin; j < end; ++j)
    sums[0] = sums[0].then({p.sums.chunk_lf[first + j], p.sums.chunk_max[first + j]});
  scan_gates(sums, lane);
  const GateSums all{shuffle_from(sums[0].sum, kTokenLanes - 1, kTokenLanes),
                     shuffle_from(sums[0].max, kTokenLanes - 1, kTokenLanes)};
  return all.after(p.sigmoid, m);
}

// Called by whole groups of kTokenLanes lanes; thread t has token t. scale_over_n is set in backward only.
template <bool kBackward, int kChunk>
XLSTM_DEVICE TokenFactors compute_gate_factors(const ScoreParams& p, const Chunk& c, ChunkGates<kChunk>& g, int t) {
  if (t >= (kChunk + kTokenLanes - 1) / kTokenLanes * kTokenLanes) return {};
  const bool inside = t < c.valid;
  const int64_t at = c.slot * kChunk + (t < kChunk ? t : 0), end = (c.slot + 1) * kChunk - 1;
  const float l = kBackward && inside ? p.l_saved[c.head.row * p.where.length + c.t0 + t] : 0.0f;
  // Where the sequences of this token and of the chunk's last one begin.
  const int64_t last = c.t0 + c.valid - 1;
  const int begin = sequence_begin(p.where, inside ? c.t0 + t : last), last_begin = sequence_begin(p.where, last);
  const double lf = p.sums.lf[at], chunk_lf = p.sums.lf[end];
  const GateSums to_token{begin < 0 ? lf : -INFINITY, p.sums.max[at]},
      to_end{last_begin < 0 ? chunk_lf : -INFINITY, p.sums.max[end]};
  const double column_of_e = p.sums.column[at], first_lf = p.sums.first_lf[c.slot];
  const double m_before = stabiliser_before(p, c, t % kTokenLanes);
  if (t >= kChunk) return {};
  const double decayed_m_before = first_lf + m_before;
  const double m = to_token.after(p.sigmoid, decayed_m_before), m_end = to_end.after(p.sigmoid, decayed_m_before);
  constexpr double kToTwo = std::numbers::log2e;
  const double row = (lf - m) * kToTwo, column = column_of_e * kToTwo;
  g.row_high[t] = float(row);
  g.row_low[t] = float(row - float(row));
  g.column_high[t] = float(column);
  g.column_low[t] = column > -INFINITY ? float(column - float(column)) : 0.0f;
  g.first[t] = begin < 0 ? 0 : begin;
  const double state_share = inside && begin < 0 ? exp(first_lf + lf + (m_before - m)) : 0.0;
  const float into = inside && t >= last_begin ? float(exp(column_of_e + (chunk_lf - m_end))) : 0.0f;
  TokenFactors factors{m, l, p.scale * state_share};
  g.into[t] = into;
  p.m[at] = m;
  if constexpr (kBackward) {
    const double n = normaliser(p.normalize, l, m, p.eps);
    factors.inter /= n;
    g.scale_over_n[t] = float(p.scale / n);
    p.flows.state_share[at] = float(state_share);
  } else {  // the walks copy all factors, including an unused one
    const bool walk_divides = kFamily == Family::cdna && !p.row_sums;
    constexpr double kMost = __FLT_MAX__;
    const double least_n = walk_divides ? exp(-m) : 0.0;
    p.factors[factor_at(c.slot, kLeastN, t, kChunk)] = float(least_n < kMost ? least_n : kMost);
  }
  p.factors[factor_at(c.slot, kInter, t, kChunk)] = float(factors.inter);
  p.factors[factor_at(c.slot, kInto, t, kChunk)] = into;
  if (t == 0) {
    p.decay[c.slot] = last_begin < 0 ? float(exp(first_lf + chunk_lf + (m_before - m_end))) : 0.0f;
    if (p.m_last && c.t0 + kChunk >= c.head.end) p.m_last[c.head.state] = float(m_end);
  }
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
