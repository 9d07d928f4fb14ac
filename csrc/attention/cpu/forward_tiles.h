// SPDX-License-Identifier: Apache-2.0
// A block of rows of attention forward by tile registers of 16 rows (arch/cpu/amx.h): the same online softmax as
// forward_cpu.cpp, whose task, plan and epilogue it has, with the operands the other way round.
//
//   scores (32 rows x keys)  =  q (rows as they lie)  k^T (token panels)
//   o      (32 rows x dv)   +=  weights               v   (column panels)
//
// Scores lie rows down, keys across, so that a row's weights, two vectors of them rounded to one of bfloat16, are the
// left operand of the second product as they lie: they take the scores' place in memory, and are not transposed. A
// row's maximum and sum are vectors of lanes until all of its keys of the tile are taken; then 16 rows are folded into
// one vector at once. o is rescaled in memory and is what the tile registers start from.
//
// What binds, for 32 rows by 128 keys at 64 features: weights, 13 instructions for each 16, take 1,630 cycles of two
// vector units, which is the floor; each product takes 512 of the tiles' unit and 256 of loads. So the scores of the
// next panel of rows are computed while the weights of this one are: 32 keys at a time, between its rows, since the
// machine looks a few hundred instructions ahead.
#pragma once

#include "attention/cpu/forward_rows.h"
#include "attention/cpu/plan.h"
#include "tile/lane_folds.h"

namespace xlstm::XLSTM_ISA::attention {

template <class Op>
struct TileForwardScratch {
  using T = typename Op::Scalar;
  RowRules<T> rules;
  T *q, *k, *v;        // rows; token panels and column panels of a tile of keys
  T* scores[2];        // (NR, ld) of this panel and of the next one
  T *keep, *row_sums;  // (NR, ld), with dropout; (NR, lanes)
  T *o, *m, *l;        // (rows, padded dv); per row
  T *factor, *shift, *row, *buffer;
  int64_t *row_offsets, *key_offsets, *value_offsets;

  TileForwardScratch(Arena& arena, const xlstm_attention& in, const AttentionCpuPlan& plan)
      : rules(arena, plan.rows),
        q(arena.take<T>(plan.rows * steps_of_copy(packed<Op>(in.dqk)))),
        k(arena.take<T>(padded<T>(plan.block_k) * packed<Op>(in.dqk))),
        v(arena.take<T>(packed<Op>(plan.block_k) * padded<T>(in.dv))),
        scores{arena.take<T>(NR<T> * padded<T>(plan.block_k)), arena.take<T>(NR<T> * padded<T>(plan.block_k))},
        keep(arena.take<T>(in.dropout_p > 0 ? NR<T> * padded<T>(plan.block_k) : 0)),
        row_sums(arena.take<T>(NR<T> * kLanes<T>)),
        o(arena.take<T>(plan.rows * padded<T>(in.dv))),
        m(arena.take<T>(plan.rows)),
        l(arena.take<T>(plan.rows)),
        factor(arena.take<T>(NR<T>)),
        shift(arena.take<T>(NR<T>)),
        row(arena.take<T>(padded<T>(in.dv > plan.block_k ? in.dv : plan.block_k))),
        buffer(arena.take<T>(pack_buffer_size<T>(in.dqk > in.dv ? in.dqk : in.dv))),
        row_offsets(arena.take<int64_t>(plan.rows)),
        key_offsets(arena.take<int64_t>(plan.block_k)),
        value_offsets(arena.take<int64_t>(plan.block_k)) {}
};

// One block of rows of one key head.
template <class Op>
struct TileForwardBlock {
  using T = typename Op::Scalar;
  using Scratch = TileForwardScratch<Op>;
  static constexpr int kStrip = kTileColumns;  // rows whose maxima are one vector
  static_assert(NR<T> == 2 * kStrip && kLanes<T> == kStrip);

  const xlstm_attention_forward& p;
  const AttentionSequence& sequence;
  int64_t key_head, first, live, split;
  Scratch& s;
  const AttentionCpuPlan& plan;
  const xlstm_attention& in = p.in;
  const int64_t width = packed<Op>(in.dqk), q_row = steps_of_copy(width), o_row = padded<T>(in.dv);
  const int64_t ld = padded<T>(plan.block_k);
  const T scale = T(in.softmax_scale * kUnit<Op> * descale_of(in.k_descale, sequence.index, key_head));

  // A panel's step with keys [from, to) of the tile that starts at key j0 and has `tile_keys`. n: to whole panels.
  struct Step {
    int64_t panel, j0, tile_keys, from, to, n;
    T* scores;
  };

  int64_t rows() const { return padded<T>(live); }
  int64_t head(int64_t r) const { return key_head * sequence.group() + (first + r) % sequence.group(); }
  int64_t strips(int64_t panel) const { return live - panel * NR<T> <= kStrip ? 1 : 2; }
  template <bool kAdd>
  void multiply(int64_t panel, const T* a, int64_t a_row, const T* b, int64_t steps, T* sums, int64_t sums_row) const {
    if (strips(panel) == 1)
      multiply_rows<1, kAdd>(a, a_row, b, NR<T>, steps, sums, sums_row);
    else
      multiply_rows<2, kAdd>(a, a_row, b, NR<T>, steps, sums, sums_row);
  }

  void begin() const {
    s.rules.fill(sequence, key_head, first, live, rows());
    const Rows<T> q = sequence.rows_at<T>(in.q, key_head, in.dqk, first, live, s.row_offsets);
    for (int64_t r = 0; r < rows(); ++r) {
      T* to = s.q + r * q_row;
      if (r >= live) {
        memset(to, 0, size_t(q_row) * sizeof(T));
        continue;
      }
      const T* packed_row = q.template read_packed<Op>(r, to, q_row, s.buffer);
      if (packed_row != to) memcpy(to, packed_row, size_t(q_row) * sizeof(T));
    }
    memset(s.o, 0, size_t(rows() * o_row) * sizeof(T));
    for (int64_t r = 0; r < rows(); ++r) s.m[r] = -T(__builtin_inff()), s.l[r] = 0;
  }

  // Multiplies q by panels [begin, end) of the step's keys.
  void raw_scores(const Step& step, int64_t begin, int64_t end) const {
    const T* q = s.q + step.panel * NR<T> * q_row;
    for (int64_t n = begin; n < end; ++n)
      multiply<false>(step.panel, q, q_row, s.k + ((step.from - step.j0) / NR<T> + n) * width * NR<T>, width,
                      step.scores + n * NR<T>, ld);
  }
  bool has_rules(const Step& step) const {
    const KeyRange all = s.rules.all(step.panel * NR<T>, NR<T>);
    const bool masked = step.from < all.begin || step.to > all.end || step.to < step.from + step.n;
    return masked || in.softcap > 0 || s.rules.slopes || !(scale > 0);
  }
  // Applies scale, softcap, ALiBi and the mask (-infinity) in place.
  void apply_rules(const Step& step) const {
    const T cap = T(in.softcap * kUnit<Op>), inverse = T(in.softcap > 0 ? 1 / (in.softcap * kUnit<Op>) : 0);
    IntVec<T> lanes;
    for (int e = 0; e < kLanes<T>; ++e) lanes[e] = e;
    for (int64_t r = 0; r < strips(step.panel) * kStrip; ++r) {
      const int64_t row = step.panel * NR<T> + r;
      const IntegerOf<T> begin = s.rules.begin[row], diagonal = s.rules.diagonal[row];
      const IntegerOf<T> end = s.rules.end[row] < step.to ? s.rules.end[row] : IntegerOf<T>(step.to);
      const T slope = s.rules.slope[row] * T(kUnit<Op>);
      IntVec<T> j = lanes + IntegerOf<T>(step.from);
      T* at = step.scores + r * ld;
      for (int64_t t = 0; t < step.n; t += kLanes<T>, at += kLanes<T>, j += kLanes<T>) {
        Vec<T> y = load(at) * scale;
        if (in.softcap > 0) y = tanh(y * inverse) * cap;
        if (s.rules.slopes) {
          const IntVec<T> distance = diagonal - j;
          y -= slope * __builtin_convertvector(distance < 0 ? -distance : distance, Vec<T>);
        }
        store(at, ((j >= begin) & (j < end)) ? y : lowest<T>());
      }
    }
  }

  // Folds the maxima of the strip's rows into m, and sets what their weights are computed with.
  void new_maxima(const Step& step, int64_t strip, T unit) const {
    Vec<T> row_max[kStrip];
    for (int r = 0; r < kStrip; ++r) {
      const T* at = step.scores + (strip * kStrip + r) * ld;
      Vec<T> most = max(load(at), load(at + kLanes<T>));
      for (int64_t t = NR<T>; t < step.n; t += NR<T>) most = max(max(most, load(at + t)), load(at + t + kLanes<T>));
      row_max[r] = most;
    }
    T* m = s.m + step.panel * NR<T> + strip * kStrip;
    const Vec<T> m_old = load(m), m_new = max(m_old, lane_maxima<kStrip>(row_max) * unit);
    const Vec<T> shift = m_new == lowest<T>() ? Vec<T>{} : m_new;  // nothing seen yet: e^(-infinity - 0) is zero
    store(m, m_new);
    store(s.shift + strip * kStrip, shift);
    store(s.factor + strip * kStrip, exp2(m_old - shift));
  }
  // Replaces the scores, times unit, of rows [begin, end) of the panel by weights, as elements along the keys.
  template <bool kDropout>
  void weights(const Step& step, int64_t begin, int64_t end, T unit) const {
    for (int64_t r = begin; r < end; ++r) {
      const Vec<T> shift = broadcast(s.shift[r]), units = broadcast(unit);
      const T* at = step.scores + r * ld;
      T* to = step.scores + r * ld;
      Vec<T> sums[2] = {};
      for (int64_t t = 0; t < step.n; t += NR<T>, at += NR<T>, to += kLanes<T>) {
        Vec<T> pair[2];
        XLSTM_UNROLL for (int v = 0; v < 2; ++v) {
          pair[v] = exp2_rounded_later(load(at + v * kLanes<T>) * units - shift);
          sums[v] += pair[v];
          if (kDropout) pair[v] *= load(s.keep + r * ld + t + v * kLanes<T>);
        }
        store(to, Op::join(pair[0], pair[1]));
      }
      store(s.row_sums + r * kLanes<T>, sums[0] + sums[1]);
    }
  }
  // Takes an online softmax step, and computes the scores of the next one meanwhile.
  void online_softmax_step(const Step& step, const Step* next) const {
    const int64_t count = strips(step.panel), row0 = step.panel * NR<T>;
    const bool rules = has_rules(step);
    if (rules) apply_rules(step);
    const T unit = rules ? T(1) : scale;
    for (int64_t strip = 0; strip < count; ++strip) new_maxima(step, strip, unit);
    const bool has_dropout = in.dropout_p > 0;
    if (has_dropout) fill_keep_by_row(s.rules, row0, count * kStrip, in, step.from, step.n, s.keep, ld);

    constexpr int64_t kRowsAtOnce = 8;
    const int64_t parts = count * kStrip / kRowsAtOnce, panels_next = next ? next->n / NR<T> : 0;
    for (int64_t part = 0; part < parts; ++part) {
      if (next) raw_scores(*next, panels_next * part / parts, panels_next * (part + 1) / parts);
      const int64_t r = part * kRowsAtOnce;
      if (has_dropout)
        weights<true>(step, r, r + kRowsAtOnce, unit);
      else
        weights<false>(step, r, r + kRowsAtOnce, unit);
    }
    for (int64_t strip = 0; strip < count; ++strip) {
      Vec<T> sums[kStrip];
      for (int r = 0; r < kStrip; ++r) sums[r] = load(s.row_sums + (strip * kStrip + r) * kLanes<T>);
      T* l = s.l + row0 + strip * kStrip;
      store(l, load(l) * load(s.factor + strip * kStrip) + lane_sums<kStrip>(sums));
    }
    T* const o = s.o + row0 * o_row;
    for (int64_t r = 0; r < count * kStrip; ++r) {
      const T factor = s.factor[r];
      if (factor == 1) continue;
      for (int64_t j = 0; j < o_row; j += kLanes<T>) store(o + r * o_row + j, load(o + r * o_row + j) * factor);
    }
    const T* values = s.v + (step.from - step.j0) / Op::kPack * NR<T>;
    for (int64_t column = 0; column < in.dv; column += NR<T>)
      multiply<true>(step.panel, step.scores, ld, values + column * packed<Op>(step.tile_keys),
                     packed<Op>(step.to - step.from), o + column, o_row);
  }

  // Packs each tile of keys [begin, end) and calls f(Step) for each panel of rows that sees some of them.
  template <class F>
  void each_step(int64_t begin, int64_t end, bool values, F&& f) const {
    for (int64_t tile = begin / plan.block_k * plan.block_k; tile < end; tile += plan.block_k) {
      const int64_t j0 = tile > begin ? tile : begin / kDrawsAtOnce * kDrawsAtOnce;
      const int64_t n = (tile + plan.block_k < end ? tile + plan.block_k : end) - j0;
      pack_transposed<Op>(sequence.keys_at<T>(in.k, key_head, in.dqk, j0, n, s.key_offsets), 0, n, s.k, s.buffer);
      if (values)
        pack_columns<Op>(sequence.keys_at<T>(in.v, key_head, in.dv, j0, n, s.value_offsets), 0, n, s.v, s.buffer);
      int64_t count = 0;
      for (int64_t panel = 0; panel * NR<T> < live; ++panel) {
        const KeyRange any = s.rules.any(panel * NR<T>, NR<T>);
        const int64_t from = any.begin > j0 ? j0 + (any.begin - j0) / NR<T> * NR<T> : j0;
        const int64_t to = any.end < j0 + n ? any.end : j0 + n;
        if (any.begin < any.end && from < to)
          f(Step{panel, j0, n, from, to, round_up(to - from, NR<T>), s.scores[count++ % 2]});
      }
      f(Step{-1, j0, n, 0, 0, 0, nullptr});  // the tile ends
    }
  }

  void run() const {
    begin();
    const KeyRange sees = s.rules.any(0, rows());
    const KeyRange part = keys_of_part(sees, plan.block_k, split, plan.splits);
    Step step{-1, 0, 0, 0, 0, 0, nullptr};
    each_step(part.begin, part.end, true, [&](const Step& next) {
      const bool has_next = next.panel >= 0;
      if (step.panel >= 0)
        online_softmax_step(step, has_next ? &next : nullptr);
      else if (has_next)
        raw_scores(next, 0, next.n / NR<T>);
      step = next;
    });
  }

  // Normalises row r of the sums into s.row; returns the row's lse.
  T finish_row(int64_t r) const {
    const T unit = T(dropout_scale(in.dropout_p) * descale_of(in.v_descale, sequence.index, key_head));
    const T l = s.l[r], inverse = l == 0 ? T(0) : unit / l;
    for (int64_t j = 0; j < o_row; j += kLanes<T>) store(s.row + j, load(s.o + r * o_row + j) * inverse);
    return l == 0 ? -T(__builtin_inff()) : T(double(s.m[r]) / kUnit<Op>) + T(::log(double(l)));
  }

  // Recomputes the softmax tile by tile and stores it.
  void store_probs() const {
    const KeyRange sees = s.rules.any(0, rows());
    each_step(sees.begin, sees.end, false, [&](const Step& step) {
      if (step.panel < 0) return;
      const int64_t row0 = step.panel * NR<T>;
      raw_scores(step, 0, step.n / NR<T>);
      apply_rules(step);
      if (in.dropout_p > 0)
        fill_keep_by_row(s.rules, row0, strips(step.panel) * kStrip, in, step.from, step.n, s.keep, ld);
      for (int64_t r = 0; r < NR<T> && row0 + r < live; ++r)
        store_probs_of_row(p, sequence, head(row0 + r), s.rules.query[row0 + r],
                           double(s.m[row0 + r]) / kUnit<Op> + ::log(double(s.l[row0 + r])), kUnit<Op>, step.from,
                           step.to, step.scores + r * ld, in.dropout_p > 0 ? s.keep + r * ld : nullptr, 1, s.row);
    });
  }
};

}  // namespace xlstm::XLSTM_ISA::attention
