// SPDX-License-Identifier: Apache-2.0
// The walk: the one loop that forward and backward are made of, on a CPU.
//
// Given tokens of three kinds a, x, y and a state C (features of x by features of y), it goes through the chunks in one
// direction of time and computes, per chunk,
//     out = f ∘ (a C) + ((a x^T) ∘ D) y         D_ts = e^(row_t + col_s), s <= t forward, s >= t in reverse
//     C   = decay C + (x w)^T y
//
//               direction   a           x           y         out      state
//   forward     forward     q           k           [v, 1]    num, l   [C, n]
//   dq          forward     [dnum, dl]  [v, 1]      k         dq / s   [C, n]^T
//   dk          reverse     [v, 1]      [dnum, dl]  s q       dk       [dC, dn]^T
//   dv          reverse     k           s q         dnum      dv       dC
//
// The normaliser is the column 1 (and dl, and n), so it needs no formula of its own.
//
// Who owns what: one task walks one segment of one head with the state in its scratch, 0.5 MB at 256 x 512 in float: it
// and a packed chunk live in L2. Per chunk of L tokens the products are 2 L DHQK DHHV multiply-adds for the state and
// L^2 (DHQK + DHHV) / 2 for the scores; packing touches each element once. The fused multiply-add units bind.
#pragma once

#include "mlstm/recurrence.h"
#include "tile/cpu.h"

namespace xlstm::XLSTM_ISA {

// Hands out aligned arrays from one block. With no block it only counts, so layout and size are written once.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t n) {
    char* p = base_ ? base_ + used_ : nullptr;
    used_ += (n * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(p);
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// What the gates say about each token of one head's row: log forget, log input, stabiliser after the token.
struct Gates {
  double *lf, *ig, *m;
  int64_t begin, end;  // the sequence's tokens
  double m_initial;    // before them

  double m_before(int64_t t) const { return t == begin ? m_initial : m[t - 1]; }
  // What is left of a state from before token t0 after token t1 - 1, in stabilised terms.
  double decay(int64_t t0, int64_t t1) const {
    double b = 0;
    for (int64_t t = t0; t < t1; ++t) b += lf[t];
    return ::exp(b + m_before(t0) - m[t1 - 1]);
  }
};

// Dims that fix the size of a walk's scratch.
struct WalkDims {
  int64_t chunk, x, y;
};

template <class T>
struct WalkScratch {
  T *state, *a, *x, *x_weighted, *y, *scores, *row, *tile;
  T *row_factor, *weight, *inverse;
  double *row_exponent, *column_exponent;
  int64_t x_stride;
  T decay = 1;

  WalkScratch(Arena& arena, const WalkDims& d) {
    const int64_t tokens = padded<T>(d.chunk), wide = round_up(d.x, kLanes<T>);
    x_stride = round_up(d.x, 16);
    state = arena.take<T>(d.x * padded<T>(d.y));
    a = arena.take<T>(tokens * d.x);
    x = arena.take<T>(tokens * d.x);
    x_weighted = arena.take<T>(d.chunk * x_stride);
    y = arena.take<T>(d.chunk * padded<T>(d.y));
    scores = arena.take<T>(d.chunk * tokens);
    row = arena.take<T>(kLanes<T> * wide > padded<T>(d.y) ? kLanes<T> * wide : padded<T>(d.y));
    tile = arena.take<T>(kRows * NR<T>);
    row_factor = arena.take<T>(tokens);
    weight = arena.take<T>(tokens);
    inverse = arena.take<T>(tokens);
    row_exponent = arena.take<double>(tokens);
    column_exponent = arena.take<double>(tokens);
  }
};

template <class T>
struct Walk {
  Rows<T> a, x, y;
  bool reverse;
  Gates gates;

  int64_t state_size() const { return x.width() * padded<T>(y.width()); }

  // Walks tokens [begin, end) in chunks, from and to s.state. sink(token, rows, column, columns, values) receives each
  // tile of out, values (rows, NR), the last columns first. Without outputs only the state moves.
  template <class Sink>
  void run(int64_t begin, int64_t end, int64_t chunk, bool outputs, bool last_state, WalkScratch<T>& s, Sink&& sink) const {
    const int64_t chunks = (end - begin + chunk - 1) / chunk;
    for (int64_t j = 0; j < chunks; ++j) {
      const int64_t t0 = begin + (reverse ? chunks - 1 - j : j) * chunk;
      const int64_t n = t0 + chunk < end ? chunk : end - t0;
      step(t0, n, outputs, last_state || j + 1 < chunks, s, sink);
    }
  }

 private:
  template <class Sink>
  void step(int64_t t0, int64_t n, bool outputs, bool update, WalkScratch<T>& s, Sink& sink) const {
    if (n > 1 && (!measure(t0, n, s) || !pack_columns(y, t0, n, s.y, s.row))) {
      // A NaN or an infinity must not reach tokens on its far side: zero times it is not zero. One by one, then.
      for (int64_t j = 0; j < n; ++j) step(t0 + (reverse ? n - 1 - j : j), 1, outputs, update || j + 1 < n, s, sink);
      return;
    }
    if (n == 1) {
      measure(t0, 1, s);
      pack_columns(y, t0, 1, s.y, s.row);
    }
    if (outputs) {
      pack_transposed(a, t0, n, s.a, s.row);
      pack_transposed(x, t0, n, s.x, s.row);
      score(n, s);
    }
    if (update) pack_weighted(x, t0, n, s.weight, s.x_weighted, s.x_stride);
    for (int64_t p = panels<T>(y.width()) - 1; p >= 0; --p) {
      const int64_t column = p * NR<T>, columns = y.width() - column < NR<T> ? y.width() - column : NR<T>;
      T* state = s.state + p * x.width() * NR<T>;
      const T* right = s.y + p * n * NR<T>;
      prefetch(t0 + (reverse ? -n : n), n, p, panels<T>(y.width()), outputs);
      for (int64_t t = 0; outputs && t < n; t += kRows) {
        const int64_t rows = n - t < kRows ? n - t : kRows;
        const int64_t first = reverse ? t : 0, last = reverse ? n : t + rows;
        with_tile<T>(rows, columns, [&](auto& tile) {
          tile.zero();
          tile.multiply(s.a + t / NR<T> * x.width() * NR<T> + t % NR<T>, NR<T>, state, x.width());
          tile.scale_rows(s.row_factor + t);
          tile.multiply(s.scores + first * padded<T>(n) + t, padded<T>(n), right + first * NR<T>, last - first);
          tile.store_to(s.tile);
        });
        sink(t0 + t, rows, column, columns, s.tile);
      }
      for (int64_t f = 0; update && f < x.width(); f += kRows)
        with_tile<T>(x.width() - f < kRows ? x.width() - f : kRows, columns, [&](auto& tile) {
          tile.load_scaled(state + f * NR<T>, s.decay);
          tile.multiply(s.x_weighted + f, s.x_stride, right, n);
          tile.store_to(state + f * NR<T>);
        });
    }
  }

  // A share of the next chunk's rows, asked for while this chunk is multiplied.
  void prefetch(int64_t t0, int64_t n, int64_t share, int64_t shares, bool outputs) const {
    if (t0 < gates.begin || t0 + n > gates.end) return;
    for (int64_t t = t0 + n * share / shares; t < t0 + n * (share + 1) / shares; ++t) {
      if (outputs) a.prefetch(t);
      x.prefetch(t);
      y.prefetch(t);
    }
  }

  // The chunk's gate factors. Differences of cumulative sums are taken in double: after forgetting e^-60 for 64 tokens a
  // float sum has lost what the next token adds. The first token's lf is kept apart, so a chunk may begin with lf = -inf;
  // returns false when another token has it.
  bool measure(int64_t t0, int64_t n, WalkScratch<T>& s) const {
    const double *lf = gates.lf + t0, *ig = gates.ig + t0, *m = gates.m + t0;
    const double m_before = gates.m_before(t0), m_end = m[n - 1];
    double* from_row = reverse ? s.column_exponent : s.row_exponent;
    double* from_column = reverse ? s.row_exponent : s.column_exponent;
    T* inter = reverse ? s.weight : s.row_factor;
    T* into = reverse ? s.row_factor : s.weight;
    bool splittable = true;
    double b = 0;
    for (int64_t t = 0; t < n; ++t) {
      if (t > 0) b += lf[t];
      splittable = splittable && (t == 0 || lf[t] != -__builtin_inf());
      from_row[t] = b - m[t];
      from_column[t] = ig[t] - b;
      inter[t] = T(::exp(lf[0] + b + m_before - m[t]));
    }
    for (int64_t t = 0; t < n; ++t) into[t] = T(::exp(from_column[t] + b - m_end));
    for (int64_t t = n; t < padded<T>(n); ++t) s.row_exponent[t] = 0;
    s.decay = T(::exp(lf[0] + b + m_before - m_end));
    return splittable;
  }

  // scores[c][r] = (x_c . a_r) e^(row_r + column_c) where c may reach r, else 0: transposed, tokens of x down.
  void score(int64_t n, WalkScratch<T>& s) const {
    const int64_t width = x.width(), ld = padded<T>(n);
    for (int64_t r0 = 0; r0 < n; r0 += NR<T>) {
      const int64_t first = reverse ? r0 : 0, last = reverse ? n : (r0 + NR<T> < n ? r0 + NR<T> : n);
      for (int64_t c = first; c < last; c += kRows) {
        const int64_t rows = last - c < kRows ? last - c : kRows;
        with_tile<T>(rows, NR<T>, [&](auto& tile) {
          tile.zero();
          tile.multiply(s.x + c / NR<T> * width * NR<T> + c % NR<T>, NR<T>, s.a + r0 * width, width);
          tile.store_to(s.tile);
        });
        for (int64_t j = 0; j < rows; ++j) decayed(s.tile + j * NR<T>, s.scores + (c + j) * ld + r0, c + j, r0, s);
      }
    }
  }

  void decayed(const T* dot, T* to, int64_t c, int64_t r0, const WalkScratch<T>& s) const {
    const double column = s.column_exponent[c];
    T e[NR<T>];
    for (int j = 0; j < NR<T>; ++j) e[j] = T(column + s.row_exponent[r0 + j]);
    for (int j = 0; j < NR<T>; j += kLanes<T>) store(e + j, exp(load(e + j)));
    if (reverse)
      for (int j = 0; j < NR<T>; ++j) to[j] = c >= r0 + j ? dot[j] * e[j] : T(0);
    else
      for (int j = 0; j < NR<T>; ++j) to[j] = c <= r0 + j ? dot[j] * e[j] : T(0);
  }
};

}  // namespace xlstm::XLSTM_ISA
