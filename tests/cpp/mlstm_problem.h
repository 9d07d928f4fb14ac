// SPDX-License-Identifier: Apache-2.0
// An mLSTM problem in doubles, and its solution token by token in long double, which follows the definition alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "formats.h"
#include "xlstm_hip.h"

using Values = std::vector<double>;

// x rounded to `dtype`.
inline double rounded(double x, xlstm_dtype dtype) {
  switch (dtype) {
    case XLSTM_FLOAT32:
      return float(x);
    case XLSTM_FLOAT64:
      return x;
    case XLSTM_BFLOAT16:
      return kBfloat16.decode(kBfloat16.encode(x));
    case XLSTM_FLOAT16:
      return kFloat16.decode(kFloat16.encode(x));
    default:
      return NAN;
  }
}

inline xlstm_dtype wide(xlstm_dtype dtype) { return dtype == XLSTM_FLOAT64 ? XLSTM_FLOAT64 : XLSTM_FLOAT32; }

struct Shape {
  int64_t batch, heads, length, dqk, dhv, chunk;
  std::vector<int64_t> cu_seqlens = {};

  int64_t sequences() const { return cu_seqlens.empty() ? batch : int64_t(cu_seqlens.size()) - 1; }
  int64_t tokens() const { return batch * heads * length; }
  int64_t walks() const { return sequences() * heads; }
};

struct Problem {
  Shape shape;
  xlstm_dtype dtype, gate_dtype;
  xlstm_gate gate;
  bool normalize = true, normalizer_grad = true;
  double eps = 1e-6;
  Values q, k, v, i, f;   // (B, NH, S, D), (B, NH, S)
  Values c, n, m;         // (N, NH, DHQK, DHHV), (N, NH, DHQK), (N, NH); empty for none
  Values dh, dc, dn, dm;  // gradients of h and of the last states; dc, dn, dm empty for none
};

struct Solution {
  Values h, l, c, n, m;
};

struct Settings {
  xlstm_dtype dtype = XLSTM_FLOAT64;
  xlstm_gate gate = XLSTM_GATE_EXP;
  bool normalize = true;
  bool states = true;       // with initial states, and gradients of the last states
  double gate_spread = 2;   // standard deviation of i around 0 and f around 2
  bool wide_gates = false;  // i and f in float though q is not
};

inline Problem random_problem(const Shape& s, const Settings& set, unsigned seed = 0) {
  std::mt19937_64 engine(seed);
  const auto values = [&](int64_t n, double mean, double spread, xlstm_dtype dtype) {
    Values x(n);
    std::normal_distribution<double> normal(mean, spread);
    for (double& value : x) value = rounded(normal(engine), dtype);
    return x;
  };
  Problem p;
  p.shape = s;
  p.dtype = set.dtype;
  p.gate_dtype = set.wide_gates ? wide(set.dtype) : set.dtype;
  p.gate = set.gate;
  p.normalize = set.normalize;
  p.q = values(s.tokens() * s.dqk, 0, 1, p.dtype);
  p.k = values(s.tokens() * s.dqk, 0, 1, p.dtype);
  p.v = values(s.tokens() * s.dhv, 0, 1, p.dtype);
  p.i = values(s.tokens(), 0, set.gate_spread, p.gate_dtype);
  p.f = values(s.tokens(), 2, set.gate_spread, p.gate_dtype);
  p.dh = values(s.tokens() * s.dhv, 0, 1, p.dtype);
  if (!set.states) return p;
  const xlstm_dtype state = wide(p.dtype);
  p.c = values(s.walks() * s.dqk * s.dhv, 0, 1, state), p.dc = values(p.c.size(), 0, 1, state);
  p.n = values(s.walks() * s.dqk, 0, 1, state), p.dn = values(p.n.size(), 0, 1, state);
  p.m = values(s.walks(), 0, 1, state), p.dm = values(p.m.size(), 0, 1, state);
  return p;
}

// The constants of backward when normalizer_grad is 0: each token's normaliser and stabiliser.
struct Constants {
  std::vector<long double> normaliser, m;
};

// `record` receives the normalisers and stabilisers. With `constants`, solve() uses these and does not compute them.
inline Solution solve(const Problem& p, Constants* record = nullptr, const Constants* constants = nullptr) {
  using Real = long double;
  const Shape& s = p.shape;
  Solution out{Values(s.tokens() * s.dhv), Values(s.tokens()), Values(s.walks() * s.dqk * s.dhv),
               Values(s.walks() * s.dqk), Values(s.walks())};
  if (record) record->normaliser = record->m = std::vector<Real>(s.tokens());
  const Real scale = 1 / std::sqrt(Real(s.dqk));
  const auto log_sigmoid = [](Real x) {
    return std::isnan(x) ? x : std::min<Real>(x, 0) - std::log1p(std::exp(-std::fabs(x)));
  };
  const auto larger = [](Real a, Real b) { return std::isnan(a) || std::isnan(b) ? Real(NAN) : std::max(a, b); };

  for (int64_t walk = 0; walk < s.walks(); ++walk) {
    const int64_t sequence = walk / s.heads, head = walk % s.heads;
    const bool packed = !s.cu_seqlens.empty();
    const int64_t begin = packed ? s.cu_seqlens[sequence] : 0, end = packed ? s.cu_seqlens[sequence + 1] : s.length;
    const int64_t row = ((packed ? 0 : sequence) * s.heads + head) * s.length;
    std::vector<Real> c(s.dqk * s.dhv), n(s.dqk);
    Real m = 0;
    if (!p.c.empty()) {
      std::copy_n(&p.c[walk * s.dqk * s.dhv], s.dqk * s.dhv, c.begin());
      std::copy_n(&p.n[walk * s.dqk], s.dqk, n.begin());
      m = p.m[walk];
    }
    for (int64_t t = row + begin; t < row + end; ++t) {
      const Real lf = log_sigmoid(p.f[t]), ig = p.gate == XLSTM_GATE_SIGMOID ? log_sigmoid(p.i[t]) : Real(p.i[t]);
      const Real m_next = constants ? constants->m[t] : p.gate == XLSTM_GATE_SIGMOID ? 0 : larger(lf + m, ig);
      const Real forget = std::exp(lf + m - m_next), input = std::exp(ig - m_next);
      m = m_next;
      std::vector<Real> num(s.dhv);
      Real l = 0;
      for (int64_t d = 0; d < s.dqk; ++d) {
        const Real q = scale * p.q[t * s.dqk + d], k = input * p.k[t * s.dqk + d];
        n[d] = forget * n[d] + k;
        l += q * n[d];
        for (int64_t e = 0; e < s.dhv; ++e) {
          Real& x = c[d * s.dhv + e];
          x = forget * x + k * p.v[t * s.dhv + e];
          num[e] += q * x;
        }
      }
      const Real normaliser = constants     ? constants->normaliser[t]
                              : p.normalize ? larger(std::fabs(l), std::exp(-m)) + p.eps
                                            : Real(1);
      if (record) record->normaliser[t] = normaliser, record->m[t] = m;
      out.l[t] = double(l);
      for (int64_t e = 0; e < s.dhv; ++e) out.h[t * s.dhv + e] = double(num[e] / normaliser);
    }
    std::copy(c.begin(), c.end(), &out.c[walk * s.dqk * s.dhv]);
    std::copy(n.begin(), n.end(), &out.n[walk * s.dqk]);
    out.m[walk] = double(m);
  }
  return out;
}
