// SPDX-License-Identifier: Apache-2.0
// Scores of one panel of rows against one tile of keys, for forward and backward on a CPU.
//
// Scores are stored transposed, keys down and rows across. So a row's maximum and sum are computed lane by lane, and a
// panel of weights is, as it lies, the left operand of weights x values; stored once more with its pairs along the
// rows, it is the left operand of weights^T x dout.
#pragma once

#include <numbers>

#include "attention/cpu/sequences.h"

namespace xlstm::XLSTM_ISA::attention {

template <class T>
using IntVec = typename VectorOf<IntegerOf<T>>::type;

// Loads kLanes integers from p.
template <class T>
inline IntVec<T> load_integers(const IntegerOf<T>* p) {
  IntVec<T> v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
inline Vec<T> lowest() {
  return broadcast(-T(__builtin_inff()));
}

// With bfloat16 operands scores are exponents of two, y log2 e: the factor log2 e is merged into softmax_scale, and 2^x
// costs half of e^x. In float the scores are y itself: two more roundings would show.
template <class Op>
constexpr double kUnit = Op::kPack == 1 ? 1 : std::numbers::log2e;
template <class Op>
inline Vec<typename Op::Scalar> weight_of(Vec<typename Op::Scalar> difference) {
  if constexpr (Op::kPack == 1)
    return exp(difference);
  else
    return exp2(difference);
}

// Computes s (n, NR): keys [first, first + n) times the rows of a token panel, times scale; first and n
// are multiples of kRows. row_max gets the largest score of every row.
template <class Op, int V, class T>
inline void raw_scores(const LeftPanels<Op>& keys, int64_t first, const T* rows, int64_t width, int64_t n, T scale,
                       T* s, Vec<T>* row_max) {
  Vec<T> running_max[V];
  for (int v = 0; v < V; ++v) running_max[v] = lowest<T>();
  for (int64_t j = 0; j < n; j += kRows) {
    Tile<T, kRows, V> tile;
    tile.template product<Op>(keys.at(first + j), rows, width);
    tile.each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED {
      tile.acc[r][v] *= scale;
      running_max[v] = max(running_max[v], tile.acc[r][v]);
      store(s + j * NR<T> + at, tile.acc[r][v]);
    });
  }
  for (int v = 0; v < V; ++v) row_max[v] = running_max[v];
}

// Applies softcap, ALiBi and the mask (-infinity) in place, to scores (n, NR) of keys [j0, j0 + n) and the panel that
// starts at row `first`. cap_slope: the output for d(capped)/d(score), or NULL.
template <class Op, int V, class T>
inline void apply_rules(const RowRules<T>& rules, int64_t first, double softcap, bool masked, int64_t j0, int64_t n,
                        T* s, T* cap_slope, Vec<T>* row_max) {
  const T cap = T(softcap * kUnit<Op>), inverse = T(softcap > 0 ? 1 / (softcap * kUnit<Op>) : 0);
  for (int v = 0; v < V; ++v) {
    const int64_t lane = first + v * kLanes<T>;
    const IntVec<T> begin = load_integers<T>(rules.begin + lane), end = load_integers<T>(rules.end + lane);
    const IntVec<T> diagonal = load_integers<T>(rules.diagonal + lane);
    const Vec<T> slope = load(rules.slope + lane) * T(kUnit<Op>);
    Vec<T> running_max = lowest<T>();
    IntVec<T> j = IntVec<T>{} + IntegerOf<T>(j0);
    for (int64_t t = 0; t < n; ++t, j += 1) {
      T* at = s + t * NR<T> + v * kLanes<T>;
      Vec<T> y = load(at);
      if (softcap > 0) {
        const Vec<T> capped = tanh(y * inverse);
        if (cap_slope) store(cap_slope + t * NR<T> + v * kLanes<T>, T(1) - capped * capped);
        y = capped * cap;
      }
      if (rules.slopes) {
        const IntVec<T> distance = diagonal - j;
        y -= slope * __builtin_convertvector(distance < 0 ? -distance : distance, Vec<T>);
      }
      if (masked) y = ((j >= begin) & (j < end)) ? y : lowest<T>();
      running_max = max(running_max, y);
      store(at, y);
    }
    row_max[v] = running_max;
  }
}

// Computes keep (n, NR): 1 where dropout keeps a weight, else 0. It is filled up to a multiple of kDrawsAtOnce keys;
// the keys beyond n have weights of 0. j0 is a multiple of kDrawsAtOnce.
template <class T>
inline void fill_keep(const RowRules<T>& rules, int64_t first, const xlstm_attention& in, int64_t j0, int64_t n,
                      T* keep) {
  const uint32_t threshold = dropout_threshold(in.dropout_p);
  const uint64_t seed = uint64_t(in.rng_state[0]), offset = uint64_t(in.rng_state[1]);
  uint32_t bits[4][NR<T>];
  for (int64_t j = 0; j < n; j += kDrawsAtOnce) {
    for (int64_t r = 0; r < NR<T>; ++r) {
      const Philox draws = dropout_draws(j0 + j, rules.query[first + r], rules.draw_row[first + r], seed, offset);
      for (int w = 0; w < 4; ++w) bits[w][r] = draws.word[w];
    }
    for (int e = 0; e < kDrawsAtOnce; ++e)
      for (int64_t r = 0; r < NR<T>; ++r)
        keep[(j + e) * NR<T> + r] = T((bits[e / 2][r] >> (e % 2 * 16) & 0xffff) >= threshold);
  }
}

// The same by rows, for `rows` of them: keep (rows, ld).
template <class T>
inline void fill_keep_by_row(const RowRules<T>& rules, int64_t first, int64_t rows, const xlstm_attention& in,
                             int64_t j0, int64_t n, T* keep, int64_t ld) {
  const uint32_t threshold = dropout_threshold(in.dropout_p);
  const uint64_t seed = uint64_t(in.rng_state[0]), offset = uint64_t(in.rng_state[1]);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; j += kDrawsAtOnce) {
      const Philox draws = dropout_draws(j0 + j, rules.query[first + r], rules.draw_row[first + r], seed, offset);
      for (int e = 0; e < kDrawsAtOnce; ++e)
        keep[r * ld + j + e] = T((draws.word[e / 2] >> (e % 2 * 16) & 0xffff) >= threshold);
    }
}

}  // namespace xlstm::XLSTM_ISA::attention
