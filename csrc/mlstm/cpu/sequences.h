// SPDX-License-Identifier: Apache-2.0
// Heads, sequences and segments as tasks; the gates of every token; states between memory and a walk. Shared by the
// chunkwise forward and backward on a CPU.
#pragma once

#include "mlstm/cpu/chunk_walk.h"
#include "mlstm/cpu/kernel_table.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::mlstm {

// One head of one sequence.
struct Head {
  int64_t batch, head, begin, end;  // its tokens are [begin, end) of a batch row
  int64_t state;                    // index of its states
  int64_t row;                      // index of its first token in a contiguous (B, NH, S) array, less begin
};

struct Heads {
  const xlstm_mlstm& in;

  int64_t sequences() const { return in.cu_seqlens ? in.sequences : in.batch; }
  int64_t count() const { return sequences() * in.heads; }
  Head operator[](int64_t index) const {
    const int64_t sequence = index / in.heads, head = index % in.heads;
    const int64_t batch = in.cu_seqlens ? 0 : sequence;
    return {batch,
            head,
            in.cu_seqlens ? in.cu_seqlens[sequence] : 0,
            in.cu_seqlens ? in.cu_seqlens[sequence + 1] : in.length,
            index,
            (batch * in.heads + head) * in.length};
  }
};

inline int64_t offset(const xlstm_tensor& x, const Head& h) { return h.batch * x.stride[0] + h.head * x.stride[1]; }

inline const void* at(const xlstm_tensor& x, const Head& h) {
  return static_cast<const char*>(x.data) + offset(x, h) * element_bytes(x.dtype);
}

template <class T>
inline Rows<T> rows_of(const xlstm_tensor& x, const Head& h, int64_t features) {
  Rows<T> r;
  r.data = at(x, h);
  r.dtype = x.dtype;
  r.stride = x.stride[2];
  r.features = features;
  return r;
}

// lf, ig and m of every token, (B, NH, S) doubles.
struct GateArrays {
  double *lf, *ig, *m;

  GateArrays(Arena& arena, const xlstm_mlstm& in) {
    const int64_t tokens = in.batch * in.heads * in.length;
    lf = arena.take<double>(tokens);
    ig = arena.take<double>(tokens);
    m = arena.take<double>(tokens);
  }
};

template <class T>
inline Gates gates_of(const GateArrays& arrays, const xlstm_mlstm& in, const Head& h) {
  const double m_initial = in.m_initial ? double(static_cast<const T*>(in.m_initial)[h.state]) : 0.0;
  return {arrays.lf + h.row, arrays.ig + h.row, arrays.m + h.row, h.begin, h.end, m_initial};
}

// The log forget and log input gate of one token.
struct TokenGates {
  double lf, ig;
};
inline TokenGates token_gates(const xlstm_mlstm& in, const Head& h, int64_t t) {
  const auto gate = [&](const xlstm_tensor& x) {
    return capped_gate(widen<double>(x.data, x.dtype, offset(x, h) + t * x.stride[2]), in.gate_soft_cap);
  };
  const double i = gate(in.i), f = gate(in.f);
  return {log_sigmoid(f), in.gate == XLSTM_GATE_SIGMOID ? log_sigmoid(i) : i};
}

// Fills the gates of one head; returns m after its last token.
inline double fill_gates(const Gates& g, const xlstm_mlstm& in, const Head& h) {
  const bool sigmoid_gate = in.gate == XLSTM_GATE_SIGMOID;
  double m = g.m_initial;
  for (int64_t t = h.begin; t < h.end; ++t) {
    const TokenGates token = token_gates(in, h, t);
    g.lf[t] = token.lf;
    g.ig[t] = token.ig;
    g.m[t] = m = next_stabiliser(sigmoid_gate, g.lf[t], m, g.ig[t]);
  }
  return m;
}

// States in memory are c (DHQK, DHHV) and n (DHQK). A walk keeps c in column panels as x by y, or transposed, followed
// by n if it has one.
template <class T>
struct StateLayout {
  int64_t dqk, dhv;
  bool transposed;

  int64_t x() const { return transposed ? dhv : dqk; }
  int64_t y() const { return transposed ? dqk : dhv; }
  int64_t c_size() const { return x() * padded<T>(y()); }
  int64_t size() const { return c_size() + padded<T>(dqk); }

  // Calls f(value in memory, value in the walk) for each element of c and, if n is not null, of n.
  template <class U, class F>
  void each(U* c, U* n, T* state, F&& f) const {
    for (int64_t i = 0; i < x(); ++i)
      for (int64_t j = 0; j < y(); ++j) {
        const int64_t key = transposed ? j : i, value = transposed ? i : j;
        f(c[key * dhv + value], state[(j / NR<T> * x() + i) * NR<T> + j % NR<T>]);
      }
    for (int64_t key = 0; n && key < dqk; ++key) f(n[key], state[c_size() + key]);
  }
  // Loads a state from memory. Without c the state is zero and the result false.
  bool load(const void* c, const void* n, int64_t index, T* state) const {
    for (int64_t j = 0; j < size(); ++j) state[j] = 0;
    if (!c) return false;
    each(static_cast<const T*>(c) + index * dqk * dhv, n ? static_cast<const T*>(n) + index * dqk : nullptr, state,
         [](const T& in_memory, T& in_walk) { in_walk = in_memory; });
    return true;
  }
  void store(void* c, void* n, int64_t index, T* state) const {
    each(static_cast<T*>(c) + index * dqk * dhv, static_cast<T*>(n) + index * dqk, state,
         [](T& in_memory, T& in_walk) { in_memory = in_walk; });
  }
  double dot(const void* c, const void* n, int64_t index, T* state) const {
    double total = 0;
    each(static_cast<const T*>(c) + index * dqk * dhv, n ? static_cast<const T*>(n) + index * dqk : nullptr, state,
         [&](const T& in_memory, T& in_walk) { total += double(in_memory) * double(in_walk); });
    return total;
  }
};

// The states between segments: for each head, one per segment but the last. Empty with one segment.
template <class T>
struct SegmentStates {
  T* states = nullptr;
  int64_t size = 0, per_head = 0;

  SegmentStates(Arena& arena, const Heads& heads, const MlstmCpuPlan& plan, int64_t state_size)
      : size(state_size), per_head(plan.segments - 1) {
    if (per_head > 0) states = arena.take<T>(heads.count() * per_head * size);
  }
  // After the segment that is `order`th in the walk's direction.
  T* after(int64_t head, int64_t order) const { return states + (head * per_head + order) * size; }
};

// Walks every head. make(head) returns a Walk; load(head, state) fills the state before the first token in the walk's
// direction and returns whether that state is not zero; sink(head, scratch) returns a sink for Walk::run; border(head,
// token, state, scratch) is called with the state between chunks, token being the first after it in time; finish(head,
// state) is called with the last state if last_state.
//
// With one segment a head is one task. Else there are three passes: the addition of each segment to a zero state, a
// scan of those that computes the state before each segment, and the walk with outputs of every segment.
constexpr auto kIgnore = [](auto&&...) {};

template <class Op, class T, class Make, class Load, class Sink, class Border, class Finish>
inline void walk_heads(const Executor& executor, const MlstmCpuPlan& plan, const Heads& heads, bool last_state,
                       const SegmentStates<T>& between, WalkScratch<Op>* scratch, Make&& make, Load&& load, Sink&& sink,
                       Border&& border, Finish&& finish) {
  struct Span {
    int64_t begin, end, order;
    bool last;
  };
  const auto segments = [&](const Head& h) {
    return (h.end - h.begin + plan.segment_length - 1) / plan.segment_length;
  };
  const auto span = [&](const Head& h, int64_t order, bool reverse) {
    const int64_t count = segments(h), j = reverse ? count - 1 - order : order;
    const int64_t begin = h.begin + j * plan.segment_length, end = begin + plan.segment_length;
    return Span{begin, end < h.end ? end : h.end, order, order + 1 == count};
  };
  const auto copy = [](const T* from, T* to, int64_t n) { memcpy(to, from, n * sizeof(T)); };

  if (plan.segments > 1) {
    parallel_tasks(executor, heads.count() * (plan.segments - 1), [&](int64_t task, int32_t worker) {
      const int64_t index = task / (plan.segments - 1), order = task % (plan.segments - 1);
      const Head h = heads[index];
      if (order + 1 >= segments(h)) return;
      WalkScratch<Op>& s = scratch[worker];
      const Walk<Op> walk = make(h);
      const Span p = span(h, order, walk.in.reverse);
      for (int64_t j = 0; j < between.size; ++j) s.state[j] = 0;
      s.empty = true;
      walk.run(p.begin, p.end, plan.chunk, false, true, s, kIgnore, kIgnore);
      copy(s.state, between.after(index, order), between.size);
    });
    parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t worker) {
      const Head h = heads[index];
      const Walk<Op> walk = make(h);
      const T* before = scratch[worker].state;
      load(h, scratch[worker].state);
      for (int64_t order = 0; order + 1 < segments(h); ++order) {
        const Span p = span(h, order, walk.in.reverse);
        const T decay = T(walk.in.gates.decay(p.begin, p.end));
        T* after = between.after(index, order);
        for (int64_t j = 0; j < between.size; ++j) after[j] += decay * before[j];
        before = after;
      }
    });
  }
  parallel_tasks(executor, heads.count() * plan.segments, [&](int64_t task, int32_t worker) {
    const int64_t index = task / plan.segments, order = task % plan.segments;
    const Head h = heads[index];
    if (order >= segments(h)) return;
    WalkScratch<Op>& s = scratch[worker];
    const Walk<Op> walk = make(h);
    const Span p = span(h, order, walk.in.reverse);
    const auto at_border = [&](int64_t token) { border(h, token, s.state, s); };
    s.empty = order == 0 && !load(h, s.state);
    if (order > 0) copy(between.after(index, order - 1), s.state, between.size);
    walk.run(p.begin, p.end, plan.chunk, true, !p.last || last_state, s, sink(h, s), at_border);
    if (p.last && last_state) finish(h, s.state);
  });
}

}  // namespace xlstm::XLSTM_ISA::mlstm
