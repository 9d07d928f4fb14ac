// SPDX-License-Identifier: Apache-2.0
// What the gates say about the tokens of one chunk: the exponents of D, and the factors that the walks read. The first
// token's lf stands apart from the sums of lf: it is in what comes from before the chunk.
#pragma once

#include <numbers>

#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

// D of a pair of tokens, from the parts of its row's and of its column's exponent.
XLSTM_DEVICE float pair_decay(float row_high, float row_low, float column_high, float column_low) {
  return exp2_fast((row_high + column_high) + (row_low + column_low));
}

// The same for float32, which sees what rounds where the exponent is large: with the sigmoid gate, whose m is 0, all of
// a chunk's may be.
XLSTM_DEVICE float pair_decay_exact(float row_high, float row_low, float column_high, float column_low) {
  const float high = row_high + column_high, back = high - row_high;
  const float lost = (row_high - (high - back)) + (column_high - back), whole = rintf(high);
  const float decay = ldexpf(exp2f((high - whole) + (lost + (row_low + column_low))), int(whole));
  return high < -300.0f ? 0.0f : decay;  // -inf too
}

// Its gates, in LDS.
template <int kChunk>
struct ChunkGates {
  static constexpr int kGroups = (kChunk + kTokenLanes - 1) / kTokenLanes;
  double first_lf;
  GateSums group[2];  // what the tokens of each group of lanes do to m, without first_lf
  float row_high[kChunk], row_low[kChunk], column_high[kChunk], column_low[kChunk];  // exponents of 2
  float over_n[kChunk], dl_n[kChunk], into[kChunk], dl_inter[kChunk];
};

// What the thread of a token keeps of it until dh h is known.
struct TokenMeasure {
  double m, l, inter;
};

// By all threads that `sync` stands for; thread t has token t. over_n: backward.
template <bool kBackward, int kChunk, class Sync>
XLSTM_DEVICE TokenMeasure measure_gates(const ScoreParams& p, const Chunk& c, ChunkGates<kChunk>& g, int t,
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
  GateSums here = x[0], whole = g.group[0];
  if constexpr (kGroups == 2) {
    if (t >= kTokenLanes) here = whole.then(here);
    whole = whole.then(g.group[1]);
  }
  const double from_before = g.first_lf + m_before;
  const double m = here.after(p.sigmoid, from_before), m_end = whole.after(p.sigmoid, from_before);
  constexpr double kToTwo = std::numbers::log2e;
  const double row = (here.sum - m) * kToTwo, column = (ig - here.sum) * kToTwo;
  g.row_high[t] = float(row);
  g.row_low[t] = float(row - float(row));
  g.column_high[t] = float(column);
  g.column_low[t] = column > -INFINITY ? float(column - float(column)) : 0.0f;
  const double reach = inside ? exp(g.first_lf + here.sum + (m_before - m)) : 0.0;
  const float into = inside ? float(exp(ig - here.sum + (whole.sum - m_end))) : 0.0f;
  TokenMeasure kept{m, l, p.scale * reach};
  g.into[t] = into;
  const int64_t at = c.slot * kChunk + t;
  p.m[at] = m;
  if constexpr (kBackward) {
    const double n = normaliser(p.normalize, l, m, p.eps);
    kept.inter /= n;
    g.over_n[t] = float(p.scale / n);
    p.reach[at] = float(reach);
  } else {
    p.factors[factor_at(c.slot, kSelf, t, kChunk)] =
        0;  // walks copy what there is of factors, also what they do not use
  }
  p.factors[factor_at(c.slot, kInter, t, kChunk)] = float(kept.inter);
  p.factors[factor_at(c.slot, kInto, t, kChunk)] = into;
  if (t == 0) p.decay[c.slot] = float(exp(g.first_lf + whole.sum + (m_before - m_end)));
  return kept;
}

// What dh h of token t says, by its thread.
template <int kChunk>
XLSTM_DEVICE void measure_gradient(const ScoreParams& p, const Chunk& c, ChunkGates<kChunk>& g, int t,
                                   const TokenMeasure& kept, float dot) {
  const bool inside = t < c.valid;
  const NormaliserGrad grad =
      normaliser_grad(p.normalize && p.normalizer_grad, kept.l, kept.m, p.eps, inside ? double(dot) : 0.0);
  g.dl_n[t] = float(grad.dl_times_n);
  g.dl_inter[t] = float(kept.inter * grad.dl_times_n);
  p.factors[factor_at(c.slot, kAlong, t, kChunk)] = g.dl_inter[t];
  p.dm[c.slot * kChunk + t] = inside ? grad.dm : 0.0;
}

}  // namespace xlstm::gpu::mlstm
