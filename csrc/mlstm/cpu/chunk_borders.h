// SPDX-License-Identifier: Apache-2.0
// Where backward starts the sum behind df anew.
//
// What flows across the end of a chunk is what flows across its begin, less what ends in it, and what starts in it: a
// sum over all chunks, whose rounding errors would grow with the length. But it is also <dC, C> + <dn, n> of the states
// that meet there; and the same of the state before a chunk and the gradient after it, times its decay, is what crosses
// the chunk. The walk for dq goes forward with [C, n], the walk for dk and dv comes back with [dC, dn]. What the first
// leaves for the second lies in rows of dv that the second has yet to write, so no state takes memory of its own: those
// of the chunk that comes next, or, where a state takes more rows than a chunk has, those before the border. n, for
// which they have no room, is in the workspace: at most one value per token.
#pragma once

#include "mlstm/cpu/sequences.h"

namespace xlstm::XLSTM_ISA::mlstm {

template <class T>
class Borders {
 public:
  Borders(Arena& arena, const xlstm_mlstm& in, const xlstm_tensor& dv, const MlstmCpuPlan& plan)
      : dv_(dv),
        dhv_(in.dhv),
        length_(in.length),
        segment_(plan.segment_length),
        row_values_(in.dhv * element_bytes(dv.dtype) / int64_t(sizeof(T))) {
    if (row_values_ == 0) return;  // one value per token, in half precision
    rows_per_panel_ = (NR<T> * dhv_ + row_values_ - 1) / row_values_;
    panels_ = panels<T>(in.dqk);
    step_ = round_up(panels_ * rows_per_panel_, plan.chunk);
    one_chunk_ = step_ == plan.chunk;
    in_row_ = (length_ + step_ - 1) / step_;
    const int64_t count = in.batch * in.heads * in_row_;
    n_ = arena.take<T>(count * panels_ * NR<T>);
    found_ = arena.take<double>(count);
  }

  // The state before token t, as the walk for dq has it.
  void leave(const Head& h, int64_t t, const T* state) const {
    if (!before(h, t)) return;
    T* n = n_ + index(h, t) * panels_ * NR<T>;
    each_row(h, t, state, [](char* row, const T* values, int64_t count) { memcpy(row, values, count * sizeof(T)); });
    memcpy(n, n_in(state), panels_ * NR<T> * sizeof(T));
  }
  // The gradient of the state before token `at`, as the walk for dk has it; room for one row of dv.
  void meet(const Head& h, int64_t at, const T* state, T* room) const {
    const int64_t t = one_chunk_ ? at - step_ : at;
    if (!before(h, t)) return;
    const T* n = n_ + index(h, t) * panels_ * NR<T>;
    double& found = found_[index(h, t)] = 0;
    each_row(h, t, state, [&](const char* row, const T* values, int64_t count) {
      memcpy(room, row, count * sizeof(T));  // rows of 16-bit values need not be aligned for T
      found += dot(room, values, count);
    });
    found += dot(n, n_in(state), panels_ * NR<T>);
  }
  // What was found there, for token t. With one chunk from border to border it is what crosses that chunk, but for its
  // decay; else what flows across the border itself.
  bool knows_crossing(const Head& h, int64_t t, int64_t end) const {
    return one_chunk_ && end - t == step_ && before(h, t);
  }
  bool knows_flow(const Head& h, int64_t t) const { return !one_chunk_ && before(h, t); }
  double found(const Head& h, int64_t t) const { return found_[index(h, t)]; }

 private:
  int64_t first_row(int64_t t) const { return one_chunk_ ? t : t - panels_ * rows_per_panel_; }
  // Whether there is one before token t: at the begin of a chunk, with its rows in the sequence and in one segment, as
  // another one's walk may be further back.
  bool before(const Head& h, int64_t t) const {
    if (step_ == 0 || t <= h.begin || t >= h.end || (t - h.begin) % step_ != 0) return false;
    const int64_t first = first_row(t), last = first + panels_ * rows_per_panel_ - 1;
    return first >= h.begin && last < h.end && (first - h.begin) / segment_ == (last - h.begin) / segment_;
  }
  // Two borders of a row are at least a step apart, of whichever sequences they are.
  int64_t index(const Head& h, int64_t t) const { return h.row / length_ * in_row_ + t / step_; }

  const T* n_in(const T* state) const { return state + panels_ * dhv_ * NR<T>; }

  // C by panels of keys, each in rows of its own.
  template <class F>
  void each_row(const Head& h, int64_t t, const T* state, F&& f) const {
    const int64_t bytes = element_bytes(dv_.dtype), size = NR<T> * dhv_;
    for (int64_t p = 0; p < panels_; ++p)
      for (int64_t r = 0; r < rows_per_panel_; ++r) {
        const int64_t row = first_row(t) + p * rows_per_panel_ + r, first = r * row_values_;
        f(static_cast<char*>(dv_.data) + (offset(dv_, h) + row * dv_.stride[2]) * bytes,
          state + p * dhv_ * NR<T> + first, size - first < row_values_ ? size - first : row_values_);
      }
  }

  xlstm_tensor dv_;
  int64_t dhv_, length_, segment_, row_values_;
  bool one_chunk_ = false;
  int64_t rows_per_panel_ = 0, panels_ = 0, step_ = 0, in_row_ = 0;
  T* n_ = nullptr;
  double* found_ = nullptr;
};

}  // namespace xlstm::XLSTM_ISA::mlstm
