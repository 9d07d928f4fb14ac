// SPDX-License-Identifier: Apache-2.0
// The inputs of a walk (chunk_walk.h) and its scratch.
#pragma once

#include "base/arena.h"
#include "mlstm/recurrence.h"
#include "tile/cpu_panels.h"

namespace xlstm::XLSTM_ISA::mlstm {

// The gates of each token of one head's row: log forget gate, log input gate, stabiliser after the token.
struct Gates {
  double *lf, *ig, *m;
  int64_t begin, end;  // the sequence's tokens
  double m_initial;    // the stabiliser before them

  double m_before(int64_t t) const { return t == begin ? m_initial : m[t - 1]; }
  // The factor by which tokens [t0, t1) decay a state, in stabilised terms.
  double decay(int64_t t0, int64_t t1) const {
    double b = 0;
    for (int64_t t = t0; t < t1; ++t) b += lf[t];
    return ::exp(b + m_before(t0) - m[t1 - 1]);
  }
};

// The number of tokens of [t0, t0 + n) before the first token after t0 that has lf = -inf. Tokens on either side of
// such a token do not mix, and differences of sums of lf across it would be NaN.
inline int64_t tokens_to_hard_forget(const Gates& gates, int64_t t0, int64_t n) {
  int64_t j = 1;
  while (j < n && gates.lf[t0 + j] != -__builtin_inf()) ++j;
  return j;
}

// A factor of each token: a common factor, times one per token where per_token is not null.
template <class T>
struct Gain {
  T all = 1;
  const T* per_token = nullptr;

  T operator()(int64_t t) const { return per_token ? all * per_token[t] : all; }
};

// The flows between tokens, by token: out_t . with_t is a sum of terms score_ts (y_s . with_t) and of a term from the
// state. These terms add up to the gradient of the forget gates without a difference of large sums, so digits are kept.
template <class T>
struct Flows {
  Rows<T> with;
  T* outside = nullptr;  // the term from the state, that is from beyond the chunk; null: no flows
  T* across = nullptr;   // the sum over pairs s < token <= t in the chunk
  T* inside = nullptr;   // the sum over pairs token = s <= t in the chunk
};

// The inputs of a walk (chunk_walk.h has its formula).
template <class Op>
struct WalkInputs {
  using T = typename Op::Scalar;
  Rows<T> a, x, y;
  bool reverse = false;
  Gates gates = {};
  Gain<T> rows = {}, columns = {};
  Flows<T> flows = {};  // with a twin, flows.with is b
  bool ones = false;    // y has a column of ones; its outputs go to s.ones and not to the sink
  bool extra = false;   // a and x have one more feature, a_extra and x_extra
  Gain<T> a_extra = {}, x_extra = {};
};

// The dims that fix the size of a walk's scratch.
struct WalkDims {
  int64_t chunk, x, y;
  bool twin = false;  // whether the walk has a second output
};

template <class Op>
struct WalkScratch {
  using T = typename Op::Scalar;
  T* state;                                       // column panels (x, NR) of T, then the vector of the ones column
  T *state_operand, *a, *y, *scores;              // elements of Op
  T *x, *x_weighted;                              // elements of Op; x_weighted overwrites x once the scores are done
  T *with, *y_transposed, *x_rows, *twin_scores;  // for the twin
  T *left, *block, *pairs;                        // for the twin
  T *rounding_error, *scores_error;               // what rounding to Op removes from a panel of the state, from scores
  T *a_copy, *x_copy, *scores_copy, *error_copy;  // copies of left operands (LeftOperand)
  T *buffer, *tile, *decays, *flow;
  T *row_factor, *weight, *row_gain, *column_gain, *row_extra, *column_extra, *inverse;
  double *row_exponent, *column_exponent, *ones, *wide, *ones_next;
  int64_t x_stride;
  int64_t first_token = 0;  // of the current chunk
  T decay = 1;
  bool empty = false;        // the state is zero
  bool from_caller = false;  // the state is the one that the walk began with

  static int64_t state_size(int64_t x, int64_t y) { return x * padded<T>(y) + padded<T>(x > y ? x : y); }
  T* ones_state(int64_t x, int64_t y) const { return state + x * padded<T>(y); }
  int64_t token_in_chunk(int64_t token) const { return token - first_token; }

  WalkScratch(Arena& arena, const WalkDims& d) {
    const int64_t tokens = padded<T>(d.chunk), steps = packed<Op>(d.chunk), wide_dim = d.x > d.y ? d.x : d.y;
    const auto twin = [&](int64_t n) { return arena.take<T>(d.twin ? n : 0); };
    x_stride = round_up(d.x, 16) + 16;  // no power of two: a column of it would fall into few sets of the cache
    state = arena.take<T>(state_size(d.x, d.y));
    state_operand = Op::kPack == 1 ? state : arena.take<T>(packed<Op>(d.x) * padded<T>(d.y));
    a = arena.take<T>(tokens * packed<Op>(d.x));
    const int64_t across = tokens * packed<Op>(d.x), down = steps * x_stride;
    x = x_weighted = arena.take<T>(across > down ? across : down);
    y = arena.take<T>(steps * padded<T>(d.y));
    scores = arena.take<T>(steps * tokens);
    with = twin(tokens * packed<Op>(d.y));
    y_transposed = twin(tokens * packed<Op>(d.y));
    x_rows = twin(steps * x_stride);
    twin_scores = twin(steps * tokens);
    left = twin(Op::kPack == 1 ? 0 : kRows * padded<T>(d.y) / Op::kPack);
    block = twin(NR<T> * tokens);
    pairs = twin((d.chunk + 1) * tokens);
    scores_error = arena.take<T>(Op::kPack == 1 ? 0 : steps * tokens);
    rounding_error = arena.take<T>(Op::kPack == 1 ? 0 : packed<Op>(d.x) * NR<T>);
    a_copy = arena.take<T>(left_panels_size<Op>(d.chunk, packed<Op>(d.x)));
    x_copy = arena.take<T>(left_copy_size<Op>(d.x, steps));
    scores_copy = arena.take<T>(left_copy_size<Op>(tokens, steps));
    error_copy = arena.take<T>(left_copy_size<Op>(tokens, steps));
    buffer = arena.take<T>(pack_buffer_size<T>(wide_dim));
    tile = arena.take<T>(NR<T> * NR<T>);
    decays = arena.take<T>(kRows * NR<T>);
    flow = arena.take<T>(tokens * kLanes<T>);
    row_factor = arena.take<T>(tokens);
    weight = arena.take<T>(tokens);
    row_gain = arena.take<T>(tokens);
    column_gain = arena.take<T>(tokens);
    row_extra = arena.take<T>(tokens);
    column_extra = arena.take<T>(tokens);
    inverse = arena.take<T>(tokens);
    row_exponent = arena.take<double>(tokens);
    column_exponent = arena.take<double>(tokens);
    ones = arena.take<double>(tokens);
    wide = arena.take<double>(d.x);
    ones_next = arena.take<double>(d.x);
  }
};

}  // namespace xlstm::XLSTM_ISA::mlstm
