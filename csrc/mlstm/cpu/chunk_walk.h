// SPDX-License-Identifier: Apache-2.0
// The walk: the one loop over chunks that mLSTM forward and backward consist of, on a CPU.
//
// The walk takes tokens of three kinds a, x, y and a state C (features of x by features of y). It goes through the
// chunks in one direction of time and computes, per chunk,
//     out = f ∘ (a C) + ((a x^T) ∘ D) y         D_ts = e^(row_t + col_s), s <= t forward, s >= t in reverse
//     C   = decay C + (x w)^T y
// and, with tokens b of y's shape, a second output from the same state (the twin):
//     twin = f ∘ (b C^T) + ((b y^T) ∘ D) x
//
//               direction   a        x          y      rows times   columns times   out      twin        state
//   forward     forward     q        k          v, 1   s            1               num, l               C, n
//   dq          forward     dh, dl N v, 1       k      s / N        1               dq                   [C, n]^T
//   dk, dv      reverse     v, 1     dh, dl N   q      1            s / N           dk       dv (b: k)   [dC, dn]^T
//
// The normaliser is the column 1 of y (and dl of a or x, and n of the state), so it needs no further formula. That
// column is never an operand of a product: it adds one multiply-add per element, in T, whatever the operands are
// rounded to. In the forward walk it is summed in double: where l cancels, its rounding is the whole error of h.
// Factors of tokens (s = DHQK^-1/2 and 1 / N) belong to f, D and w, so that operands are packed as they lie in memory.
//
// Who owns what: one task walks one segment of one head with the state in its scratch, 0.5 MB at 256 x 512 in float.
// The state and a packed chunk stay in L2.
//
// Floor: per chunk of L tokens the products are 2 L DHQK DHHV multiply-adds for the state (3 with a twin) and
// L^2 (DHQK + DHHV) / 2 for the scores; packing touches each element once. The fused multiply-add units bind.
//
// With Op = Bf16Pairs products take bfloat16 operands and sum in float. The state is kept in float; each product reads
// the state, the scores and the weighted x rounded once, as a bfloat16 matmul in torch would. In two cases one rounding
// loses too much, because the sums for df cancel, and the rounding errors are multiplied too: the scores of forward,
// since dl comes from h; and the state that the walk began with.
#pragma once

#include "mlstm/cpu/chunk_scores.h"

namespace xlstm::XLSTM_ISA::mlstm {

template <class Op>
struct Walk {
  using T = typename Op::Scalar;
  WalkInputs<Op> in;

  // Walks tokens [begin, end) in chunks: the mainloop. s.state is the state before and after. sink(token, rows, column,
  // columns, values) receives each tile of out, values (rows, NR), the last columns first; sink.twin, if present,
  // receives the tiles of the twin. Without outputs only the state is updated. border(token) is called before each
  // chunk, token being the first after s.state in time.
  template <class Sink, class Border>
  void run(int64_t begin, int64_t end, int64_t chunk, bool outputs, bool last_state, WalkScratch<Op>& s, Sink&& sink,
           Border&& border) const {
    if (outputs) pack_state(s);
    s.from_caller = outputs && !s.empty;
    const int64_t chunks = (end - begin + chunk - 1) / chunk;
    for (int64_t j = 0; j < chunks; ++j) {
      const int64_t t0 = begin + (in.reverse ? chunks - 1 - j : j) * chunk;
      const int64_t n = t0 + chunk < end ? chunk : end - t0;
      border(in.reverse ? t0 + n : t0);
      step(t0, n, outputs, last_state || j + 1 < chunks, s, sink);
    }
  }

 private:
  template <class Sink>
  void step(int64_t t0, int64_t n, bool outputs, bool update, WalkScratch<Op>& s, Sink& sink) const {
    constexpr bool has_twin = requires { sink.twin; };
    if (const int64_t first = tokens_to_hard_forget(in.gates, t0, n); first < n) {
      step(in.reverse ? t0 + first : t0, in.reverse ? n - first : first, outputs, true, s, sink);
      step(in.reverse ? t0 : t0 + first, in.reverse ? first : n - first, outputs, update, s, sink);
      return;
    }
    const ChunkScores<Op> scores{in};
    scores.compute_gate_factors(t0, n, s);
    if (s.decay != s.decay) s.empty = false;  // NaN times zero is NaN
    bool finite = pack_columns<Op>(in.y, t0, n, s.y, s.buffer);
    if (has_twin && outputs) finite &= pack_rows<Op>(in.x, t0, n, s.x_rows, s.x_stride, s.buffer);
    if (!finite && n > 1) {
      // A NaN or an infinity must not reach tokens that it does not precede, but zero times it is not zero. So the
      // chunk is taken token by token.
      for (int64_t j = 0; j < n; ++j) step(t0 + (in.reverse ? n - 1 - j : j), 1, outputs, update || j + 1 < n, s, sink);
      return;
    }
    // In a forward walk such a token reads the state that already includes its own infinities, as in the recurrence.
    const bool update_first = !finite && !in.reverse;
    if (outputs) {
      pack_transposed<Op>(in.a, t0, n, s.a, s.buffer);
      pack_transposed<Op>(in.x, t0, n, s.x, s.buffer);
      scores.compute_scores(t0, n, s);
    }
    if (update || update_first) pack_weighted<Op>(in.x, t0, n, s.weight, s.x_weighted, s.x_stride, s.buffer);
    if (in.ones) scores.add_ones(t0, n, outputs, update, s);
    if constexpr (has_twin)
      if (outputs) twin(t0, n, s, sink.twin);
    for (int64_t t = 0; in.flows.outside && t < n; ++t) store(s.flow + t * kLanes<T>, Vec<T>{});
    const LeftOperands left = left_operands(n, outputs, update || update_first, s);
    const int64_t count = panels<T>(in.y.features);
    for (int64_t p = count - 1; p >= 0; --p) {
      prefetch(t0 + (in.reverse ? -n : n), n, p, count, outputs);
      if (update_first) update_panel(p, n, left, s);
      if (outputs) out_panel(p, t0, n, update_first, left, s, sink);
      if (update && !update_first) update_panel(p, n, left, s);
    }
    for (int64_t t = 0; in.flows.outside && outputs && t < n; ++t)
      in.flows.outside[t0 + t] += s.row_factor[t] * T(total<T>(load(s.flow + t * kLanes<T>)));
    if (update || update_first) s.empty = s.from_caller = false;
  }

  int64_t columns_of(int64_t panel) const {
    const int64_t left = in.y.features - panel * NR<T>;
    return left < NR<T> ? left : NR<T>;
  }

  // The left operands of all panels' products.
  struct LeftOperands {
    LeftPanels<Op> a;
    LeftOperand<T> scores, scores_error, x_weighted;
  };
  LeftOperands left_operands(int64_t n, bool outputs, bool update, WalkScratch<Op>& s) const {
    const int64_t steps = packed<Op>(in.x.features), tokens = packed<Op>(n), ld = padded<T>(n);
    LeftOperands left{};
    if (outputs) left.a = left_panels<Op>(s.a, n, steps, s.a_copy);
    if (outputs) left.scores = left_operand<Op>(s.scores, ld, n, tokens, s.scores_copy);
    if (Op::kPack > 1 && outputs && in.ones)
      left.scores_error = left_operand<Op>(s.scores_error, ld, n, tokens, s.error_copy);
    if (update) left.x_weighted = left_operand<Op>(s.x_weighted, s.x_stride, in.x.features, tokens, s.x_copy);
    return left;
  }

  template <class Sink>
  void out_panel(int64_t p, int64_t t0, int64_t n, bool update_first, const LeftOperands& left, WalkScratch<Op>& s,
                 Sink& sink) const {
    const int64_t column = p * NR<T>, columns = columns_of(p), width = in.x.features;
    const int64_t steps = packed<Op>(width), tokens = packed<Op>(n);
    const T *operand = s.state_operand + p * steps * NR<T>, *right = s.y + p * tokens * NR<T>;
    const T *ones_row = s.ones_state(width, in.y.features) + column, *factor = update_first ? s.row_gain : s.row_factor;
    const bool from_state = update_first || !s.empty, with_error = Op::kPack > 1 && s.from_caller && !update_first;
    if (with_error) pack_state_error(p, s);
    for (int64_t t = 0; t < n; t += kRows) {
      const int64_t rows = n - t < kRows ? n - t : kRows;
      const StepRange sees = steps_of_row_tile(t, rows, tokens);
      with_tile<T>(rows, columns, [&](auto& tile) XLSTM_INLINED {
        if (from_state) {
          tile.template product<Op>(left.a.at(t), operand, steps);
          if (with_error) {
            auto rounding_error = tile;
            rounding_error.template product<Op>(left.a.at(t), s.rounding_error, steps);
            tile.add(rounding_error);
          }
          if (in.extra) tile.add_outer(s.row_extra + t, ones_row);
          tile.store_to(s.tile);
          if (in.flows.outside) flow_outside(t0 + t, rows, column, columns, s);
        }
        // The scores are summed apart: the state's term can be large, and would round each token's share.
        tile.template product<Op>(left.scores.at(t, sees.first), right + sees.first * NR<T>,
                                  update_first ? 0 : sees.last - sees.first);
        if (Op::kPack > 1 && in.ones && !update_first) {
          auto rounding_error = tile;
          rounding_error.template product<Op>(left.scores_error.at(t, sees.first), right + sees.first * NR<T>,
                                              sees.last - sees.first);
          tile.add(rounding_error);
        }
        if (from_state) tile.add_scaled_rows(s.tile, factor + t);
        tile.store_to(s.tile);
      });
      sink(t0 + t, rows, column, columns, s.tile);
    }
  }

  // The elements of scores that rows [t, t + rows) see. Tile registers take 16 at a time, with zeros for tokens that
  // rows do not see.
  struct StepRange {
    int64_t first, last;
  };
  StepRange steps_of_row_tile(int64_t t, int64_t rows, int64_t tokens) const {
    constexpr int64_t unit = Op::kTiles ? NR<T> / Op::kPack : 1;
    if (in.reverse) return {t / Op::kPack / unit * unit, tokens};
    const int64_t last = round_up(packed<Op>(t + rows), unit);
    return {0, last < tokens ? last : tokens};
  }

  void update_panel(int64_t p, int64_t n, const LeftOperands& left, WalkScratch<Op>& s) const {
    const int64_t width = in.x.features, tokens = packed<Op>(n);
    T *state = s.state + p * width * NR<T>, *operand = s.state_operand + p * packed<Op>(width) * NR<T>;
    const T* right = s.y + p * tokens * NR<T>;
    for (int64_t f = 0; f < width; f += kRows)
      with_tile<T>(width - f < kRows ? width - f : kRows, columns_of(p), [&](auto& tile) XLSTM_INLINED {
        // The chunk is summed before the state is added: a large state would round each token's share.
        tile.template product<Op>(left.x_weighted.at(f, 0), right, tokens);
        if (!s.empty) tile.add_scaled(state + f * NR<T>, s.decay);
        tile.store_to(state + f * NR<T>);
        if constexpr (Op::kPack > 1) tile.template store_packed<Op>(operand + f / Op::kPack * NR<T>);
      });
    if (!in.extra) return;
    T* ones_row = s.ones_state(width, in.y.features) + p * NR<T>;
    for (int v = 0; v < kVectors; ++v) {
      Vec<T> sum{};
      for (int64_t t = 0; t < n; t += Op::kPack) {
        Vec<T> first, second;
        Op::unpack(load(right + t / Op::kPack * NR<T> + v * kLanes<T>), first, second);
        sum += first * (s.weight[t] * s.column_extra[t]);
        if (Op::kPack == 2 && t + 1 < n) sum += second * (s.weight[t + 1] * s.column_extra[t + 1]);
      }
      store(ones_row + v * kLanes<T>, load(ones_row + v * kLanes<T>) * s.decay + sum);
    }
  }

  // Computes the second output, before the state is updated. It comes transposed, features down and tokens across: the
  // state is the left operand as it lies, by rows; x by tokens, as it lies in memory, is the left operand of the
  // scores.
  template <class Sink>
  void twin(int64_t t0, int64_t n, WalkScratch<Op>& s, Sink& sink) const {
    const int64_t width = in.x.features, depth = packed<Op>(in.y.features), ld = padded<T>(n), tokens = packed<Op>(n);
    constexpr int64_t kPanelSteps = NR<T> / Op::kPack;
    const int64_t count = panels<T>(in.y.features);
    // Of the state as a left operand. Tile registers take all panels at once.
    const int64_t row_step = Op::kTiles ? count * kPanelSteps : kPanelSteps;
    const int64_t panel = Op::kPack == 1 ? width * NR<T> : Op::kTiles ? kPanelSteps : kRows * kPanelSteps;
    for (int64_t f = 0; f < width; f += kRows) {
      const int64_t features = width - f < kRows ? width - f : kRows;
      const T* state = s.state + f * NR<T>;
      if constexpr (Op::kPack > 1) {
        state = s.left;
        for (int64_t p = 0; p < count; ++p)
          for (int64_t r = 0; r < features; ++r) {
            const T* row = s.state + (p * width + f + r) * NR<T>;
            store(s.left + p * panel + r * row_step, Op::join(load(row), load(row + kLanes<T>)));
          }
      }
      for (int64_t r0 = 0; r0 < n; r0 += NR<T>) {
        const int64_t first = in.reverse ? r0 / Op::kPack : 0,
                      last = in.reverse || r0 + NR<T> > n ? tokens : packed<Op>(r0 + NR<T>);
        with_rows<T, kVectors>(features, [&](auto& tile) XLSTM_INLINED {
          if (!s.empty) {
            if constexpr (Op::kTiles) {
              tile.template product<Op>(LeftOperand<T>{state, 1, row_step}, s.with + r0 * depth, depth);
            } else {
              tile.zero();
              for (int64_t p = 0; p < count; ++p) {
                auto part = tile;
                const int64_t steps = depth - p * kPanelSteps;
                part.template product_part<Op>({state + p * panel, 1, row_step},
                                               s.with + (r0 * depth + p * kPanelSteps * NR<T>), NR<T>,
                                               steps < kPanelSteps ? steps : kPanelSteps);
                tile.add(part);
              }
            }
            tile.store_to(s.tile);
          }
          tile.template product<Op>({s.x_rows + first * s.x_stride + f, s.x_stride, 1}, s.twin_scores + first * ld + r0,
                                    last - first, ld);
          if (!s.empty) tile.add_scaled_columns(s.tile, s.row_factor + r0);
          tile.store_to(s.block + f % NR<T> * ld + r0, ld);
        });
      }
      if ((f + features) % NR<T> == 0 || f + features == width)
        sink_block(t0, n, f / NR<T> * NR<T>, f + features, s, sink);
    }
  }

  // Passes features [column, end) of all tokens from s.block to the sink, as tiles of tokens.
  template <class Sink>
  void sink_block(int64_t t0, int64_t n, int64_t column, int64_t end, WalkScratch<Op>& s, Sink& sink) const {
    constexpr int lanes = kLanes<T>;
    for (int64_t t = 0; t < n; t += lanes) {
      for (int64_t f = 0; f < end - column; f += lanes) {
        Vec<T> block[lanes];
        for (int r = 0; r < lanes; ++r) block[r] = load(s.block + (f + r) * padded<T>(n) + t);
        transpose<T>(block);
        for (int r = 0; r < lanes; ++r) store(s.tile + r * NR<T> + f, block[r]);
      }
      sink(t0 + t, n - t < lanes ? n - t : lanes, column, end - column, s.tile);
    }
  }

  // Packs the state as an operand, when no update has done so.
  void pack_state(WalkScratch<Op>& s) const {
    const int64_t width = in.x.features;
    if constexpr (Op::kPack > 1)
      for (int64_t p = 0; p < panels<T>(in.y.features); ++p)
        for (int64_t f = 0; f < width; f += kRows)
          with_rows<T, kVectors>(width - f < kRows ? width - f : kRows, [&](auto& tile) XLSTM_INLINED {
            tile.load_from(s.state + (p * width + f) * NR<T>);
            tile.template store_packed<Op>(s.state_operand + (p * packed<Op>(width) + f / Op::kPack) * NR<T>);
          });
  }

  // Packs the error that a panel of the state loses as an operand. The state that the walk began with is read together
  // with this error: the flows from it, into dm_initial above all, are few numbers in which roundings do not average
  // out.
  void pack_state_error(int64_t p, WalkScratch<Op>& s) const {
    const int64_t width = in.x.features;
    if constexpr (Op::kPack > 1)
      for (int64_t f = 0; f < width; f += kRows)
        with_rows<T, kVectors>(width - f < kRows ? width - f : kRows, [&](auto& tile) XLSTM_INLINED {
          tile.load_from(s.state + (p * width + f) * NR<T>);
          tile.template keep_rounding_error<Op>();
          tile.template store_packed<Op>(s.rounding_error + f / Op::kPack * NR<T>);
        });
  }

  // Prefetches a share of the next chunk's rows while this chunk is multiplied.
  void prefetch(int64_t t0, int64_t n, int64_t share, int64_t shares, bool outputs) const {
    if (t0 < in.gates.begin || t0 + n > in.gates.end) return;
    for (int64_t t = t0 + n * share / shares; t < t0 + n * (share + 1) / shares; ++t) {
      if (outputs) in.a.prefetch(t);
      in.x.prefetch(t);
      in.y.prefetch(t);
    }
  }

  // Adds out . with over the tile's columns, out being the state's term in s.tile, to the flow of each row.
  void flow_outside(int64_t token, int64_t rows, int64_t column, int64_t columns, WalkScratch<Op>& s) const {
    const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>;
    for (int64_t r = 0; r < rows; ++r) {
      if (columns == NR<T>)
        in.flows.with.read_part(token + r, column, NR<T>, s.buffer);
      else
        for (int64_t j = 0; j < NR<T>; ++j) s.buffer[j] = 0;
      if (columns < NR<T>) in.flows.with.read_part(token + r, column, columns, s.buffer);
      T* flow = s.flow + s.token_in_chunk(token + r) * kLanes<T>;
      Vec<T> sum = load(flow);
      for (int64_t v = 0; v < vectors; ++v)
        sum += load(s.tile + r * NR<T> + v * kLanes<T>) * load(s.buffer + v * kLanes<T>);
      store(flow, sum);
    }
  }
};

}  // namespace xlstm::XLSTM_ISA::mlstm
