// SPDX-License-Identifier: Apache-2.0
// Scores of one panel of rows against one tile of keys, for forward and backward on a CPU.
//
// They are kept transposed, keys down and rows across: a row's maximum and sum are then lane by lane, a panel of
// weights is the left operand of weights x values as it lies, and stored once more with its pairs along the rows it is
// that of weights^T x dout.
#pragma once

#include <numbers>

#include "attention/cpu/sequences.h"

namespace xlstm::XLSTM_ISA::attention {

template <class T>
using IntVec = typename VectorOf<IntegerOf<T>>::type;

// The lanes from p on, one after the other.
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

// With bfloat16 operands scores are kept as powers of two, y log2 e: the factor that brings them into that unit is
// there anyway, and 2^x costs half of e^x. In float they stay as they are: two more roundings would show.
template <class Op>
constexpr double kUnit = Op::kPack == 1 ? 1 : std::numbers::log2e;
template <class Op>
inline Vec<typename Op::Scalar> weight_of(Vec<typename Op::Scalar> difference) {
  if constexpr (Op::kPack == 1)
    return exp(difference);
  else
    return exp2(difference);
}

// Keys [key, key + kRows) of token panels times rows in a token panel; key is a multiple of kRows.
template <class Op, int V, class T>
XLSTM_ALWAYS_INLINE void multiply_keys(Tile<T, kRows, V>& tile, const T* keys, int64_t key, const T* rows,
                                       int64_t width) {
  tile.template product<Op>(keys + key / NR<T> * width * NR<T> + key % NR<T>, NR<T>, rows, width);
}

// s (n, NR): keys [first, first + n) of token panels times rows in a token panel, times scale; first and n are whole
// numbers of kRows. Keeps the largest score of every row in `most`.
template <class Op, int V, class T>
inline void raw_scores(const T* keys, int64_t first, const T* rows, int64_t width, int64_t n, T scale, T* s,
                       Vec<T>* most) {
  Vec<T> top[V];
  for (int v = 0; v < V; ++v) top[v] = lowest<T>();
  for (int64_t j = 0; j < n; j += kRows) {
    Tile<T, kRows, V> tile;
    multiply_keys<Op>(tile, keys, first + j, rows, width);
    tile.each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED {
      tile.acc[r][v] *= scale;
      top[v] = max(top[v], tile.acc[r][v]);
      store(s + j * NR<T> + at, tile.acc[r][v]);
    });
  }
  for (int v = 0; v < V; ++v) most[v] = top[v];
}

// Softcap, ALiBi and what a row may not see (-infinity), in place, for scores (n, NR) of keys [j0, j0 + n) and the
// panel that starts at row `first`. through: where to leave d(capped)/d(score), or NULL.
template <class Op, int V, class T>
inline void apply_rules(const RowFacts<T>& facts, int64_t first, double softcap, bool masked, int64_t j0, int64_t n,
                        T* s, T* through, Vec<T>* most) {
  const T cap = T(softcap * kUnit<Op>), inverse = T(softcap > 0 ? 1 / (softcap * kUnit<Op>) : 0);
  for (int v = 0; v < V; ++v) {
    const int64_t lane = first + v * kLanes<T>;
    const IntVec<T> begin = load_integers<T>(facts.begin + lane), end = load_integers<T>(facts.end + lane);
    const IntVec<T> place = load_integers<T>(facts.place + lane);
    const Vec<T> slope = load(facts.slope + lane) * T(kUnit<Op>);
    Vec<T> top = lowest<T>();
    IntVec<T> j = IntVec<T>{} + IntegerOf<T>(j0);
    for (int64_t t = 0; t < n; ++t, j += 1) {
      T* at = s + t * NR<T> + v * kLanes<T>;
      Vec<T> y = load(at);
      if (softcap > 0) {
        const Vec<T> bent = tanh(y * inverse);
        if (through) store(through + t * NR<T> + v * kLanes<T>, T(1) - bent * bent);
        y = bent * cap;
      }
      if (facts.slopes) {
        const IntVec<T> apart = place - j;
        y -= slope * __builtin_convertvector(apart < 0 ? -apart : apart, Vec<T>);
      }
      if (masked) y = ((j >= begin) & (j < end)) ? y : lowest<T>();
      top = max(top, y);
      store(at, y);
    }
    most[v] = top;
  }
}

// keep: 1 where dropout keeps a weight, else 0, for n keys (n, NR) and on to a whole number of kDrawsAtOnce: those
// beyond are multiplied by weights of 0. j0 is a multiple of kDrawsAtOnce.
template <class T>
inline void fill_keep(const RowFacts<T>& facts, int64_t first, const xlstm_attention& in, int64_t j0, int64_t n,
                      T* keep) {
  const uint32_t threshold = dropout_threshold(in.dropout_p);
  const uint64_t seed = uint64_t(in.rng_state[0]), offset = uint64_t(in.rng_state[1]);
  uint32_t words[4][NR<T>];
  for (int64_t j = 0; j < n; j += kDrawsAtOnce) {
    for (int64_t r = 0; r < NR<T>; ++r) {
      const Philox draws = dropout_draws(j0 + j, facts.query[first + r], facts.draw_row[first + r], seed, offset);
      for (int w = 0; w < 4; ++w) words[w][r] = draws.word[w];
    }
    for (int e = 0; e < kDrawsAtOnce; ++e)
      for (int64_t r = 0; r < NR<T>; ++r)
        keep[(j + e) * NR<T> + r] = T((words[e / 2][r] >> (e % 2 * 16) & 0xffff) >= threshold);
  }
}

}  // namespace xlstm::XLSTM_ISA::attention
