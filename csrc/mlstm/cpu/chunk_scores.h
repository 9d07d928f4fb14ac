// SPDX-License-Identifier: Apache-2.0
// The steps of a walk (chunk_walk.h) on a chunk that precede the products with the state: the gates' factors, the
// scores with the flows between their pairs of tokens, and the column of ones.
#pragma once

#include "mlstm/cpu/chunk_memory.h"

namespace xlstm::XLSTM_ISA::mlstm {

template <class Op>
struct ChunkScores {
  using T = typename Op::Scalar;
  const WalkInputs<Op>& in;

  // Computes the chunk's gate factors. Differences of cumulative sums are taken in double: after forgetting e^-60 for
  // 64 tokens a float sum has lost what the next token adds. The first token's lf is kept apart, so that a chunk may
  // begin with lf = -inf.
  void compute_gate_factors(int64_t t0, int64_t n, WalkScratch<Op>& s) const {
    s.first_token = t0;
    const double *lf = in.gates.lf + t0, *ig = in.gates.ig + t0, *m = in.gates.m + t0;
    const double m_before = in.gates.m_before(t0), m_end = m[n - 1];
    double* from_row = in.reverse ? s.column_exponent : s.row_exponent;
    double* from_column = in.reverse ? s.row_exponent : s.column_exponent;
    T* inter = in.reverse ? s.weight : s.row_factor;
    T* into = in.reverse ? s.row_factor : s.weight;
    double b = 0;
    for (int64_t t = 0; t < n; ++t) {
      if (t > 0) b += lf[t];
      from_row[t] = b - m[t];
      from_column[t] = ig[t] - b;
      inter[t] = T(::exp(lf[0] + b + (m_before - m[t])));
    }
    for (int64_t t = 0; t < n; ++t) into[t] = T(::exp(from_column[t] + (b - m_end)));
    for (int64_t t = 0; t < n; ++t) {
      s.row_gain[t] = in.rows(t0 + t);
      s.column_gain[t] = in.columns(t0 + t);
      s.row_factor[t] *= s.row_gain[t];
      s.weight[t] *= s.column_gain[t];
      s.row_extra[t] = in.a_extra(t0 + t);
      s.column_extra[t] = in.x_extra(t0 + t);
    }
    for (int64_t t = n; t < padded<T>(n); ++t) s.row_exponent[t] = s.row_gain[t] = s.row_factor[t] = s.row_extra[t] = 0;
    s.decay = T(::exp(lf[0] + b + (m_before - m_end)));
  }

  // Computes scores[c][r] = (x_c . a_r) D_rc with its gains where c may reach r, else 0: transposed, tokens of x down.
  // For a twin also twin_scores[c][r] = (y_c . b_r) D_rc.
  void compute_scores(int64_t t0, int64_t n, WalkScratch<Op>& s) const {
    const int64_t width = packed<Op>(in.x.features), twin_width = packed<Op>(in.y.features), ld = padded<T>(n);
    for (int64_t t = 0; t < ld; ++t) s.ones[t] = 0;
    if (in.flows.across) {
      pack_transposed<Op>(in.flows.with, t0, n, s.with, s.buffer);
      pack_transposed<Op>(in.y, t0, n, s.y_transposed, s.buffer);
    }
    const auto tokens = [](const T* panels, int64_t steps, int64_t t) {
      return LeftOperand<T>{panels + t / NR<T> * steps * NR<T> + t % NR<T>, NR<T>, 1};
    };
    for (int64_t r0 = 0; r0 < n; r0 += NR<T>) {
      const int64_t first = in.reverse ? r0 : 0, last = in.reverse ? n : (r0 + NR<T> < n ? r0 + NR<T> : n);
      for (int64_t c = first; c < last; c += kRows) {
        const int64_t rows = last - c < kRows ? last - c : kRows;
        T* pairs = s.pairs + c * ld + r0;
        with_rows<T, kVectors>(rows, [&](auto& tile) XLSTM_INLINED {
          tile.template product<Op>(tokens(s.x, width, c), s.a + r0 * width, width);
          if (in.extra) tile.add_outer(s.column_extra + c, s.row_extra + r0);
          compute_decays(c, rows, r0, s);
          apply_decays(tile, c, r0, s);
          tile.template store_packed<Op>(s.scores + c / Op::kPack * ld + r0, ld);
          if (in.flows.across) tile.store_to(pairs, ld);
          if (in.ones) tile.store_to(s.tile);
          if constexpr (Op::kPack > 1)
            if (in.ones) {
              tile.template keep_rounding_error<Op>();
              tile.template store_packed<Op>(s.scores_error + c / Op::kPack * ld + r0, ld);
            }
        });
        for (int64_t j = 0; in.ones && j < rows; ++j)
          for (int e = 0; e < NR<T>; ++e) s.ones[r0 + e] += double(s.tile[j * NR<T> + e]);
        if (in.flows.across)
          with_rows<T, kVectors>(rows, [&](auto& tile) XLSTM_INLINED {
            tile.template product<Op>(tokens(s.y_transposed, twin_width, c), s.with + r0 * twin_width, twin_width);
            tile.scale(pairs, ld);
            apply_decays(tile, c, r0, s);
            tile.template store_packed<Op>(s.twin_scores + c / Op::kPack * ld + r0, ld);
          });
      }
    }
    if (in.flows.across) sum_pairs(t0, n, s);
  }

  // Applies the column of ones in y: adds f (a n) to s.ones, which holds the scores' row sums, then updates n with the
  // chunk.
  void add_ones(int64_t t0, int64_t n, bool outputs, bool update, WalkScratch<Op>& s) const {
    const int64_t width = in.x.features;
    T* state = s.ones_state(width, in.y.features);
    for (int64_t j = 0; j < width; ++j) {
      s.wide[j] = double(state[j]);
      s.ones_next[j] = s.wide[j] * double(s.decay);
    }
    for (int64_t t = 0; t < n; ++t) {
      if (outputs) {
        in.a.read(t0 + t, s.buffer);
        s.ones[t] += double(s.row_factor[t]) * wide_dot(s.buffer, s.wide, width);
      }
      if (!update) continue;
      in.x.read(t0 + t, s.buffer);
      const double weight = s.weight[t];
      for (int64_t j = 0; j < width; ++j) s.ones_next[j] += weight * double(s.buffer[j]);
    }
    for (int64_t j = 0; update && j < width; ++j) state[j] = T(s.ones_next[j]);
  }

 private:
  // Computes D for rows [c0, c0 + rows) and columns [r0, r0 + NR), without the mask.
  void compute_decays(int64_t c0, int64_t rows, int64_t r0, WalkScratch<Op>& s) const {
    for (int64_t c = c0; c < c0 + rows; ++c) {
      T* d = s.decays + (c - c0) * NR<T>;
      for (int e = 0; e < NR<T>; ++e) d[e] = T(s.column_exponent[c] + s.row_exponent[r0 + e]);
      for (int v = 0; v < kVectors; ++v)
        store(d + v * kLanes<T>,
              exp(load(d + v * kLanes<T>)) * (load(s.row_gain + r0 + v * kLanes<T>) * s.column_gain[c]));
    }
  }

  // Multiplies the tile by its D and sets it to 0 where c does not reach r, even if it holds a NaN there.
  template <class Tile>
  void apply_decays(Tile& tile, int64_t c0, int64_t r0, WalkScratch<Op>& s) const {
    tile.scale_by(s.decays);
    if (in.reverse ? c0 >= r0 + NR<T> : c0 + kRows <= r0 + 1) return;
    typedef typename VectorOf<IntegerOf<T>>::type Int;
    Int lane;
    for (int e = 0; e < kLanes<T>; ++e) lane[e] = e;
    for (int j = 0; j < Tile::kTileRows; ++j)
      for (int v = 0; v < kVectors; ++v) {
        const Int r_less_c = lane + IntegerOf<T>(r0 + v * kLanes<T> - (c0 + j));
        tile.acc[j][v] = (in.reverse ? r_less_c <= 0 : r_less_c >= 0) ? tile.acc[j][v] : Vec<T>{};
      }
  }

  // Sums the flows between pairs. In reverse walks pairs hold score_ts (y_t . with_s) at [t][s] for s up to t, and
  // zeros to the panel's end.
  void sum_pairs(int64_t t0, int64_t n, WalkScratch<Op>& s) const {
    const int64_t ld = padded<T>(n);
    T* until = s.pairs + n * ld;  // for each s, the sum over tokens t >= j
    for (int64_t t = 0; t < ld; ++t) until[t] = 0;
    for (int64_t j = n - 1; j >= 0; --j) {
      const T* row = s.pairs + j * ld;
      for (int64_t t = 0; t <= j; t += kLanes<T>) store(until + t, load(until + t) + load(row + t));
      in.flows.across[t0 + j] = T(sum(until, j));
      in.flows.inside[t0 + j] = until[j];
    }
  }
};

}  // namespace xlstm::XLSTM_ISA::mlstm
