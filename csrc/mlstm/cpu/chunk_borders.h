// SPDX-License-Identifier: Apache-2.0
// The borders between chunks at which backward restarts the running sum for df.
//
// The flow across the end of a chunk is the flow across its begin, less the flows that end in it, plus the flows that
// start in it: a sum over all chunks, whose rounding errors would grow with the length. The flow across a border is
// also <dC, C> + <dn, n> of the states at that border. Likewise, <dC, C> + <dn, n> of the state before a chunk and the
// gradient after it, times the chunk's decay, is the flow that crosses the chunk.
//
// The walk for dq goes forward with [C, n]; the walk for dk and dv comes back with [dC, dn]. The first walk stores its
// states in rows of dv that the second walk has yet to write, so states take no memory beyond the outputs: the rows of
// the next chunk, or, where a state takes more rows than a chunk has, the rows before the border. n does not fit there
// and lies in the workspace: at most one value per token.
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
    borders_per_row_ = (length_ + step_ - 1) / step_;
    const int64_t count = in.batch * in.heads * borders_per_row_;
    n_ = arena.take<T>(count * panels_ * NR<T>);
    flows_ = arena.take<double>(count);
  }

  // Stores the state before token t, which the walk for dq holds.
  void store_state(const Head& h, int64_t t, const T* state) const {
    if (!is_border(h, t)) return;
    T* n = n_ + index(h, t) * panels_ * NR<T>;
    each_row(h, t, state, [](char* row, const T* values, int64_t count) { memcpy(row, values, count * sizeof(T)); });
    memcpy(n, n_in(state), panels_ * NR<T> * sizeof(T));
  }
  // Takes the dot product of the stored state with the gradient of the state before token `at`, which the walk for dk
  // holds. buffer holds one row of dv.
  void dot_with_gradient(const Head& h, int64_t at, const T* state, T* buffer) const {
    const int64_t t = one_chunk_ ? at - step_ : at;
    if (!is_border(h, t)) return;
    const T* n = n_ + index(h, t) * panels_ * NR<T>;
    double& flow = flows_[index(h, t)] = 0;
    each_row(h, t, state, [&](const char* row, const T* values, int64_t count) {
      memcpy(buffer, row, count * sizeof(T));  // rows of 16-bit values need not be aligned for T
      flow += dot(buffer, values, count);
    });
    flow += dot(n, n_in(state), panels_ * NR<T>);
  }
  // flow_at(h, t) is that dot product at the border before token t. With one chunk from border to border it is the flow
  // that crosses the chunk [t, end), but for the chunk's decay; else it is the flow across the border itself.
  bool knows_crossing(const Head& h, int64_t t, int64_t end) const {
    return one_chunk_ && end - t == step_ && is_border(h, t);
  }
  bool knows_flow(const Head& h, int64_t t) const { return !one_chunk_ && is_border(h, t); }
  double flow_at(const Head& h, int64_t t) const { return flows_[index(h, t)]; }

 private:
  int64_t first_row(int64_t t) const { return one_chunk_ ? t : t - panels_ * rows_per_panel_; }
  // Whether a border lies before token t: at the begin of a chunk, with its rows inside the sequence and inside one
  // segment, because the walk of another segment may not have come that far.
  bool is_border(const Head& h, int64_t t) const {
    if (step_ == 0 || t <= h.begin || t >= h.end || (t - h.begin) % step_ != 0) return false;
    const int64_t first = first_row(t), last = first + panels_ * rows_per_panel_ - 1;
    return first >= h.begin && last < h.end && (first - h.begin) / segment_ == (last - h.begin) / segment_;
  }
  // Two borders of a batch row are at least a step apart, even when they belong to different sequences.
  int64_t index(const Head& h, int64_t t) const { return h.row / length_ * borders_per_row_ + t / step_; }

  const T* n_in(const T* state) const { return state + panels_ * dhv_ * NR<T>; }

  // Calls f(row of dv, values of the state, count) for C by panels of keys; each panel starts a new row.
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
  int64_t rows_per_panel_ = 0, panels_ = 0, step_ = 0, borders_per_row_ = 0;
  T* n_ = nullptr;
  double* flows_ = nullptr;
};

}  // namespace xlstm::XLSTM_ISA::mlstm
