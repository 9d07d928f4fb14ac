// SPDX-License-Identifier: Apache-2.0
// The walk: the one loop that forward and backward are made of, on a CPU.
//
// Given tokens of three kinds a, x, y and a state C (features of x by features of y), it goes through the chunks in one
// direction of time and computes, per chunk,
//     out = f ∘ (a C) + ((a x^T) ∘ D) y         D_ts = e^(row_t + col_s), s <= t forward, s >= t in reverse
//     C   = decay C + (x w)^T y
//
//               direction   a                  x           y      rows times   columns times   out      state
//   forward     forward     q                  k           v, 1   s            1               num, l   C, n
//   dq          forward     [dh, dl N]         [v, 1]      k      s / N        1               dq       [C, n]^T
//   dk          reverse     [v, 1]             [dh, dl N]  q      1            s / N           dk       [dC, dn]^T
//   dv          reverse     k                  q           dh     1            s / N           dv       dC
//
// The normaliser is the column 1 (and dl, and n), so it needs no formula of its own. In the forward walk that column is
// kept apart and summed in double: where l cancels, its rounding is all that h has of errors. Factors of tokens (s =
// DHQK^-1/2 and 1 / N) belong to f, D and w, so that operands are packed as they lie in memory.
//
// Who owns what: one task walks one segment of one head with the state in its scratch, 0.5 MB at 256 x 512 in float: it
// and a packed chunk live in L2. Per chunk of L tokens the products are 2 L DHQK DHHV multiply-adds for the state and
// L^2 (DHQK + DHHV) / 2 for the scores; packing touches each element once. The fused multiply-add units bind: at 256 x
// 512 and L = 64 on two Zen 4 cores the products take 85% of the time, the rest is reading q, k, v and writing h.
//
// With Op = Bf16Pairs (on request: arch/isa.h) products take bfloat16 operands and sum in float. The state is kept in
// float; each product reads it, the scores and the weighted x rounded once, as a bfloat16 matmul in torch would.
#pragma once

#include "mlstm/recurrence.h"
#include "tile/arena.h"
#include "tile/cpu.h"

namespace xlstm::XLSTM_ISA {

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

// Tokens of [t0, t0 + n) up to the first, but t0 itself, that has lf = -inf: what stands on either side of it does not
// mix, and differences of sums over it would be NaN.
inline int64_t whole(const Gates& gates, int64_t t0, int64_t n) {
  int64_t j = 1;
  while (j < n && gates.lf[t0 + j] != -__builtin_inf()) ++j;
  return j;
}

// Dims that fix the size of a walk's scratch.
struct WalkDims {
  int64_t chunk, x, y;
  bool pairs = false;  // has Flows with pairs
};

template <class Op>
struct WalkScratch {
  using T = typename Op::Scalar;
  T* state;                                            // column panels (x, NR) of T, then the state of the ones (x)
  T *state_operand, *a, *x, *x_weighted, *y, *scores;  // elements of Op
  T *with, *y_transposed, *pairs;                      // for flows
  T *room, *tile;
  T *row_factor, *weight, *row_gain, *column_gain, *row_rest, *column_rest, *inverse;
  double *row_exponent, *column_exponent, *ones, *ones_next;
  int64_t x_stride;
  int64_t first_token = 0;  // of the chunk at hand
  T decay = 1;

  static int64_t state_size(int64_t x, int64_t y) { return x * padded<T>(y) + x; }
  T* ones_state(int64_t x, int64_t y) const { return state + x * padded<T>(y); }
  int64_t token_in_chunk(int64_t token) const { return token - first_token; }

  WalkScratch(Arena& arena, const WalkDims& d) {
    const int64_t tokens = padded<T>(d.chunk), steps = packed<Op>(d.chunk), wide = d.x > d.y ? d.x : d.y;
    x_stride = round_up(d.x, 16);
    state = arena.take<T>(state_size(d.x, d.y));
    state_operand = Op::kPack == 1 ? state : arena.take<T>(packed<Op>(d.x) * padded<T>(d.y));
    a = arena.take<T>(tokens * packed<Op>(d.x));
    x = arena.take<T>(tokens * packed<Op>(d.x));
    x_weighted = arena.take<T>(steps * x_stride);
    y = arena.take<T>(steps * padded<T>(d.y));
    scores = arena.take<T>(steps * tokens);
    with = arena.take<T>(d.pairs ? tokens * packed<Op>(d.y) : 0);
    y_transposed = arena.take<T>(d.pairs ? tokens * packed<Op>(d.y) : 0);
    pairs = arena.take<T>(d.pairs ? (d.chunk + 1) * tokens : 0);
    room = arena.take<T>(pack_room<T>(wide));
    tile = arena.take<T>(kRows * NR<T>);
    row_factor = arena.take<T>(tokens);
    weight = arena.take<T>(tokens);
    row_gain = arena.take<T>(tokens);
    column_gain = arena.take<T>(tokens);
    row_rest = arena.take<T>(tokens);
    column_rest = arena.take<T>(tokens);
    inverse = arena.take<T>(tokens);
    row_exponent = arena.take<double>(tokens);
    column_exponent = arena.take<double>(tokens);
    ones = arena.take<double>(tokens);
    ones_next = arena.take<double>(d.x);
  }
};

// A factor of each token: one for all, times one per token where there are such.
template <class T>
struct Gain {
  T all = 1;
  const T* per_token = nullptr;

  T operator()(int64_t t) const { return per_token ? all * per_token[t] : all; }
};

// What flows between tokens, by token: out_t . with_t is a sum of terms score_ts (y_s . with_t) and of what the state
// brings. Their signs are those of the gradient itself, so sums of them keep their digits where differences would not.
template <class T>
struct Flows {
  Rows<T> with;
  T* outside = nullptr;  // out . with of what came with the state, from beyond the chunk; null: no flows
  T* across = nullptr;   // of the pairs s < token <= t in the chunk: the sum; null: pairs are not wanted
  T* inside = nullptr;   // of the pairs token = s <= t in the chunk: the sum
};

template <class Op>
struct Walk {
  using T = typename Op::Scalar;
  Rows<T> a, x, y;
  bool reverse;
  Gates gates;
  Gain<T> rows, columns;
  Flows<T> flows = {};
  bool ones = false;  // y has a column of ones, which goes to s.ones and not to the sink

  // Walks tokens [begin, end) in chunks, from and to s.state. sink(token, rows, column, columns, values) receives
  // each tile of out, values (rows, NR), the last columns first. Without outputs only the state moves. border(token) is
  // called before each chunk, token being the first after s.state in time.
  template <class Sink, class Border>
  void run(int64_t begin, int64_t end, int64_t chunk, bool outputs, bool last_state, WalkScratch<Op>& s, Sink&& sink,
           Border&& border) const {
    if (outputs) pack_state(s);
    const int64_t chunks = (end - begin + chunk - 1) / chunk;
    for (int64_t j = 0; j < chunks; ++j) {
      const int64_t t0 = begin + (reverse ? chunks - 1 - j : j) * chunk;
      const int64_t n = t0 + chunk < end ? chunk : end - t0;
      border(reverse ? t0 + n : t0);
      step(t0, n, outputs, last_state || j + 1 < chunks, s, sink);
    }
  }

 private:
  template <class Sink>
  void step(int64_t t0, int64_t n, bool outputs, bool update, WalkScratch<Op>& s, Sink& sink) const {
    if (const int64_t first = whole(gates, t0, n); first < n) {
      step(reverse ? t0 + first : t0, reverse ? n - first : first, outputs, true, s, sink);
      step(reverse ? t0 : t0 + first, reverse ? first : n - first, outputs, update, s, sink);
      return;
    }
    measure(t0, n, s);
    if (!pack_columns<Op>(y, t0, n, s.y, s.room) && n > 1) {
      // A NaN or an infinity must not reach tokens on its far side: zero times it is not zero. One by one, then.
      for (int64_t j = 0; j < n; ++j) step(t0 + (reverse ? n - 1 - j : j), 1, outputs, update || j + 1 < n, s, sink);
      return;
    }
    if (outputs) {
      pack_transposed<Op>(a, t0, n, s.a, s.room);
      pack_transposed<Op>(x, t0, n, s.x, s.room);
      score(t0, n, s);
    }
    if (update) pack_weighted<Op>(x, t0, n, s.weight, s.x_weighted, s.x_stride, s.room);
    if (ones) add_ones(t0, n, outputs, update, s);
    const int64_t width = x.width(), steps = packed<Op>(width), tokens = packed<Op>(n), ld = padded<T>(n);
    for (int64_t p = panels<T>(y.width()) - 1; p >= 0; --p) {
      const int64_t column = p * NR<T>, columns = y.width() - column < NR<T> ? y.width() - column : NR<T>;
      T *state = s.state + p * width * NR<T>, *operand = s.state_operand + p * steps * NR<T>;
      const T* right = s.y + p * tokens * NR<T>;
      prefetch(t0 + (reverse ? -n : n), n, p, panels<T>(y.width()), outputs);
      for (int64_t t = 0; outputs && t < n; t += kRows) {
        const int64_t rows = n - t < kRows ? n - t : kRows;
        const int64_t first = reverse ? t / Op::kPack : 0, last = reverse ? tokens : packed<Op>(t + rows);
        with_tile<T>(rows, columns, [&](auto& tile) {
          tile.zero();
          tile.template multiply<Op>(s.a + t / NR<T> * steps * NR<T> + t % NR<T>, NR<T>, operand, steps);
          tile.store_to(s.tile);
          if (flows.outside) flow_outside(t0 + t, rows, column, columns, s);
          tile.zero();  // again: what the state brings can be large, and would round each token's share
          tile.template multiply<Op>(s.scores + first * ld + t, ld, right + first * NR<T>, last - first);
          tile.add_scaled_rows(s.tile, s.row_factor + t);
          tile.store_to(s.tile);
        });
        sink(t0 + t, rows, column, columns, s.tile);
      }
      for (int64_t f = 0; update && f < width; f += kRows)
        with_tile<T>(width - f < kRows ? width - f : kRows, columns, [&](auto& tile) {
          tile.zero();  // the chunk is summed first: a large state would round each of its tokens
          tile.template multiply<Op>(s.x_weighted + f, s.x_stride, right, tokens);
          tile.add_scaled(state + f * NR<T>, s.decay);
          tile.store_to(state + f * NR<T>);
          if constexpr (Op::kPack > 1) tile.template store_packed<Op>(operand + f / Op::kPack * NR<T>);
        });
    }
  }

  // The state as an operand, when it does not come out of an update.
  void pack_state(WalkScratch<Op>& s) const {
    if constexpr (Op::kPack > 1)
      for (int64_t p = 0; p < panels<T>(y.width()); ++p)
        for (int64_t f = 0; f < x.width(); f += kRows)
          with_rows<T, kVectors>(x.width() - f < kRows ? x.width() - f : kRows, [&](auto& tile) {
            tile.load_from(s.state + (p * x.width() + f) * NR<T>);
            tile.template store_packed<Op>(s.state_operand + (p * packed<Op>(x.width()) + f / Op::kPack) * NR<T>);
          });
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

  // The chunk's gate factors. Differences of cumulative sums are taken in double: after forgetting e^-60 for 64 tokens
  // a float sum has lost what the next token adds. The first token's lf is kept apart, so a chunk may begin with lf =
  // -inf.
  void measure(int64_t t0, int64_t n, WalkScratch<Op>& s) const {
    s.first_token = t0;
    const double *lf = gates.lf + t0, *ig = gates.ig + t0, *m = gates.m + t0;
    const double m_before = gates.m_before(t0), m_end = m[n - 1];
    double* from_row = reverse ? s.column_exponent : s.row_exponent;
    double* from_column = reverse ? s.row_exponent : s.column_exponent;
    T* inter = reverse ? s.weight : s.row_factor;
    T* into = reverse ? s.row_factor : s.weight;
    double b = 0;
    for (int64_t t = 0; t < n; ++t) {
      if (t > 0) b += lf[t];
      from_row[t] = b - m[t];
      from_column[t] = ig[t] - b;
      inter[t] = T(::exp(lf[0] + b + (m_before - m[t])));
    }
    for (int64_t t = 0; t < n; ++t) into[t] = T(::exp(from_column[t] + (b - m_end)));
    for (int64_t t = 0; t < n; ++t) {
      s.row_gain[t] = rows(t0 + t);
      s.column_gain[t] = columns(t0 + t);
      s.row_factor[t] *= s.row_gain[t];
      s.weight[t] *= s.column_gain[t];
    }
    for (int64_t t = n; t < padded<T>(n); ++t) s.row_exponent[t] = s.row_gain[t] = 0;
    s.decay = T(::exp(lf[0] + b + (m_before - m_end)));
  }

  // scores[c][r] = (x_c . a_r) D_rc with its gains where c may reach r, else 0: transposed, tokens of x down. Where
  // operands are rounded, dl is kept whole: it cancels against dh v / N where a token forgets all others.
  void score(int64_t t0, int64_t n, WalkScratch<Op>& s) const {
    const int64_t width = packed<Op>(x.width()), ld = padded<T>(n);
    extra_rest(a, t0, n, s.row_rest);
    extra_rest(x, t0, n, s.column_rest);
    for (int64_t t = 0; t < ld; ++t) s.ones[t] = 0;
    const int64_t pair_width = packed<Op>(y.width());
    if (flows.across) {
      pack_transposed<Op>(flows.with, t0, n, s.with, s.room);
      pack_transposed<Op>(y, t0, n, s.y_transposed, s.room);
    }
    for (int64_t r0 = 0; r0 < n; r0 += NR<T>) {
      const int64_t first = reverse ? r0 : 0, last = reverse ? n : (r0 + NR<T> < n ? r0 + NR<T> : n);
      for (int64_t c = first; c < last; c += kRows) {
        const int64_t rows = last - c < kRows ? last - c : kRows;
        if (flows.across)
          with_rows<T, kVectors>(rows, [&](auto& tile) {
            tile.zero();
            tile.template multiply<Op>(s.y_transposed + c / NR<T> * pair_width * NR<T> + c % NR<T>, NR<T>,
                                       s.with + r0 * pair_width, pair_width);
            tile.store_to(s.tile);
          });
        with_rows<T, kVectors>(rows, [&](auto& tile) {
          tile.zero();
          tile.template multiply<Op>(s.x + c / NR<T> * width * NR<T> + c % NR<T>, NR<T>, s.a + r0 * width, width);
          decay_tile(tile, c, r0, s);
          tile.template store_packed<Op>(s.scores + c / Op::kPack * ld + r0, ld);
          if (!flows.across) return;
          tile.scale_by(s.tile);
          tile.store_to(s.pairs + c * ld + r0, ld);
        });
      }
    }
    if (flows.across) sum_pairs(t0, n, s);
  }

  // From pairs, which hold score_ts (y_s . with_t) at [s][t] for t from the panel of s on.
  void sum_pairs(int64_t t0, int64_t n, WalkScratch<Op>& s) const {
    const int64_t ld = padded<T>(n);
    T* before = s.pairs + n * ld;  // for each t, of the tokens before the one at hand
    for (int64_t t = 0; t < ld; ++t) before[t] = 0;
    for (int64_t j = 0; j < n; ++j) {
      const T* row = s.pairs + j * ld;
      const int64_t panel = j / NR<T> * NR<T>;
      flows.across[t0 + j] = T(sum(before + j, n - j));
      flows.inside[t0 + j] = T(sum(row + j, n - j));
      for (int64_t t = panel; t < ld; t += kLanes<T>) store(before + t, load(before + t) + load(row + t));
    }
  }

  void flow_outside(int64_t token, int64_t rows, int64_t column, int64_t columns, WalkScratch<Op>& s) const {
    for (int64_t r = 0; r < rows; ++r) {
      load_row(s.room, flows.with.data, flows.with.dtype, (token + r) * flows.with.stride + column, columns);
      flows.outside[token + r] +=
          s.row_factor[s.token_in_chunk(token + r)] * T(dot(s.tile + r * NR<T>, s.room, columns));
    }
  }

  template <class Tile>
  void decay_tile(Tile& tile, int64_t c0, int64_t r0, WalkScratch<Op>& s) const {
    for (int j = 0; j < Tile::kTileRows; ++j) {
      const int64_t c = c0 + j;
      T d[NR<T>];
      for (int e = 0; e < NR<T>; ++e) d[e] = T(s.column_exponent[c] + s.row_exponent[r0 + e]);
      for (int v = 0; v < kVectors; ++v) {
        T* part = d + v * kLanes<T>;
        const int64_t r = r0 + v * kLanes<T>;
        const Vec<T> dot = tile.acc[j][v] + load(s.row_rest + r) + s.column_rest[c];
        store(part, exp(load(part)) * (load(s.row_gain + r) * s.column_gain[c]) * dot);
      }
      for (int e = 0; e < NR<T>; ++e) d[e] = (reverse ? c >= r0 + e : c <= r0 + e) ? d[e] : T(0);
      for (int v = 0; v < kVectors; ++v) tile.acc[j][v] = load(d + v * kLanes<T>);
      if (ones)
        for (int e = 0; e < NR<T>; ++e) s.ones[r0 + e] += double(d[e]);
    }
  }

  // The column of ones in y: s.ones, which holds the scores' row sums, gets f (a n) too; then n takes in the chunk.
  void add_ones(int64_t t0, int64_t n, bool outputs, bool update, WalkScratch<Op>& s) const {
    const int64_t width = x.width();
    T* state = s.ones_state(width, y.width());
    for (int64_t j = 0; j < width; ++j) s.ones_next[j] = double(state[j]) * double(s.decay);
    for (int64_t t = 0; t < n; ++t) {
      if (outputs) {
        a.read(t0 + t, s.room);
        double total = 0;
        for (int64_t j = 0; j < width; ++j) total += double(s.room[j]) * double(state[j]);
        s.ones[t] += double(s.row_factor[t]) * total;
      }
      if (!update) continue;
      x.read(t0 + t, s.room);
      const double weight = s.weight[t];
      for (int64_t j = 0; j < width; ++j) s.ones_next[j] += weight * double(s.room[j]);
    }
    for (int64_t j = 0; update && j < width; ++j) state[j] = T(s.ones_next[j]);
  }

  // What the operand's rounding takes from the extra feature.
  static void extra_rest(const Rows<T>& r, int64_t t0, int64_t n, T* to) {
    for (int64_t t = 0; t < padded<T>(n); t += kLanes<T>) store(to + t, Vec<T>{});
    if (Op::kPack > 1 && r.extra_value)
      for (int64_t t = 0; t < n; ++t) to[t] = Op::rest(broadcast(r.extra_value[t0 + t]))[0];
  }
};

}  // namespace xlstm::XLSTM_ISA
