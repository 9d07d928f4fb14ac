// SPDX-License-Identifier: Apache-2.0
// The chunkwise mLSTM on a CPU, forward and backward, as walks (chunk_walk.h) over the heads (sequences.h).
//
// Forward is one walk. Backward, with N the normaliser, dnum = dh / N and dl the gradient of l through N, is two walks,
//     dq = s (dS k + inter)      and, back in time,      dk, dv
// and a scan over the tokens for the gates:
//     dlf_t = the flow from tokens before t to tokens from t on: sum_{s < t <= u} score_us (k_s . q_u)        di = k.dk
// plus the gradient of the stabilisers, which goes to the argument that each max picked. The walks sum the flows before
// dq and dk are rounded: pairs of tokens within a chunk one by one, the flows out of a chunk and into it by token. The
// flow that crosses a whole chunk follows from the flows across its borders (chunk_borders.h). So dlf is small where
// the gates forget, without a difference of large sums. Forward stores one value a token for backward, l, and no state.
#include "mlstm/cpu/chunk_borders.h"
#include "mlstm/cpu/kernel_table.h"

namespace xlstm::XLSTM_ISA::mlstm {
namespace {

template <class T>
T query_scale(const xlstm_mlstm& in) {
  return T(1 / ::sqrt(double(in.dqk)));
}

template <class Op>
WalkScratch<Op>* scratch_of_workers(Arena& arena, const MlstmCpuPlan& plan, const WalkDims& dims) {
  WalkScratch<Op>* all = arena.take<WalkScratch<Op>>(plan.workers);
  for (int64_t w = 0; w < plan.workers; ++w) {
    const WalkScratch<Op> one(arena, dims);
    if (all) all[w] = one;
  }
  return all;
}

// Writes a row of a tile. Most rows have NR columns, a length that the compiler knows.
template <class T>
inline void store_part(const xlstm_tensor& to, const Head& h, int64_t token, int64_t column, const T* row,
                       int64_t columns) {
  const int64_t at = offset(to, h) + token * to.stride[2] + column;
  if (columns == NR<T>)
    store_row(to.data, to.dtype, at, row, NR<T>);
  else
    store_row(to.data, to.dtype, at, row, columns);
}

// ---- forward

template <class Op>
struct ForwardMemory {
  using T = typename Op::Scalar;
  GateArrays gates;
  SegmentStates<T> between;
  WalkScratch<Op>* scratch;

  ForwardMemory(Arena& arena, const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan)
      : gates(arena, p.in),
        between(arena, Heads{p.in}, plan, layout(p.in).size()),
        scratch(scratch_of_workers<Op>(arena, plan, {plan.chunk, p.in.dqk, p.in.dhv})) {}

  static StateLayout<T> layout(const xlstm_mlstm& in) { return {in.dqk, in.dhv, false}; }
};

template <class Op>
void forward(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  const xlstm_mlstm& in = p.in;
  Arena arena(workspace);
  using T = typename Op::Scalar;
  const ForwardMemory<Op> memory(arena, p, plan);
  const Heads heads{in};
  const StateLayout<T> layout = ForwardMemory<Op>::layout(in);
  const bool normalize = in.gate == XLSTM_GATE_EXP || in.normalize;

  parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t) {
    const Head h = heads[index];
    const double m = fill_gates(gates_of<T>(memory.gates, in, h), in, h);
    if (p.m_last) static_cast<T*>(p.m_last)[h.state] = T(m);
  });

  const auto make = [&](const Head& h) {
    WalkInputs<Op> inputs;
    inputs.a = rows_of<T>(in.q, h, in.dqk);
    inputs.x = rows_of<T>(in.k, h, in.dqk);
    inputs.y = rows_of<T>(in.v, h, in.dhv);
    inputs.gates = gates_of<T>(memory.gates, in, h);
    inputs.rows.all = query_scale<T>(in);
    inputs.ones = true;
    return Walk<Op>{inputs};
  };
  const auto load = [&](const Head& h, T* state) { return layout.load(in.c_initial, in.n_initial, h.state, state); };
  const auto sink = [&](const Head& h, WalkScratch<Op>& s) {
    return [&, h](int64_t token, int64_t rows, int64_t column, int64_t columns, T* values) {
      const int64_t local = s.token_in_chunk(token);
      T* inverse = s.inverse + local;
      const double* m = memory.gates.m + h.row + token;
      if (column + columns == in.dhv)  // the first panel to come
        for (int64_t r = 0; r < rows; ++r) {
          const double l = s.ones[local + r];
          inverse[r] = T(1 / normaliser(normalize, l, m[r], in.eps));
          if (p.l) static_cast<T*>(p.l)[h.row + token + r] = T(l);
        }
      for (int64_t r = 0; r < rows; ++r) {
        T* row = values + r * NR<T>;
        for (int64_t j = 0; j < NR<T>; ++j) row[j] *= inverse[r];
        store_part(p.h, h, token + r, column, row, columns);
      }
    };
  };
  const auto finish = [&](const Head& h, T* state) { layout.store(p.c_last, p.n_last, h.state, state); };
  walk_heads(executor, plan, heads, p.c_last != nullptr, memory.between, memory.scratch, make, load, sink, kIgnore,
             finish);
}

// ---- backward

// Flows are rounded to eps of their largest terms; this is eps^2.
template <class T>
constexpr double kNegligible = sizeof(T) == 8 ? 0x1p-104 : 0x1p-46;

template <class Op>
struct BackwardMemory {
  using T = typename Op::Scalar;
  GateArrays gates;
  T *s_over_n, *dl_times_n, *dm;  // per token: s / N, N times the gradient of l, the gradient of m through N
  T *flow_in, *flow_out;          // per token: the flow to its q from before the chunk, from its k beyond the chunk
  T *across, *inside;             // per token: the flow within the chunk across its forget gate, and from its k
  double *first, *last;           // per head: <dC, C> + <dn, n> of the states around the first and the last chunk
  Borders<T> borders;
  SegmentStates<T> between;  // of the first walk, then of the second
  WalkScratch<Op>* scratch;

  BackwardMemory(Arena& arena, const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan)
      : gates(arena, p.in),
        s_over_n(arena.take<T>(tokens(p.in))),
        dl_times_n(arena.take<T>(tokens(p.in))),
        dm(arena.take<T>(tokens(p.in))),
        flow_in(arena.take<T>(tokens(p.in))),
        flow_out(arena.take<T>(tokens(p.in))),
        across(arena.take<T>(tokens(p.in))),
        inside(arena.take<T>(tokens(p.in))),
        first(arena.take<double>(Heads{p.in}.count())),
        last(arena.take<double>(Heads{p.in}.count())),
        borders(arena, p.in, p.dv, plan),
        between(arena, Heads{p.in}, plan, WalkScratch<Op>::state_size(dims(p.in, plan).x, dims(p.in, plan).y)),
        scratch(scratch_of_workers<Op>(arena, plan, dims(p.in, plan))) {}

  static int64_t tokens(const xlstm_mlstm& in) { return in.batch * in.heads * in.length; }
  static WalkDims dims(const xlstm_mlstm& in, const MlstmCpuPlan& plan) { return {plan.chunk, in.dhv, in.dqk, true}; }
};

inline int64_t last_chunk(const Head& h, int64_t chunk) { return h.begin + (h.end - 1 - h.begin) / chunk * chunk; }

// A sink that writes a walk's tiles to a tensor.
template <class T>
auto gradient_sink(const xlstm_tensor& to, const Head& h) {
  return [&to, h](int64_t token, int64_t rows, int64_t column, int64_t columns, const T* values) {
    for (int64_t r = 0; r < rows; ++r) store_part(to, h, token + r, column, values + r * NR<T>, columns);
  };
}

// The sinks of a walk with two outputs.
template <class Out, class Twin>
struct WithTwin : Out {
  Twin twin;
};

// Fills the gates of one head and, per token, s / N and the gradients that pass through N.
template <class Op>
void normaliser_gradients(const xlstm_mlstm_backward& p, const BackwardMemory<Op>& memory, const Head& h,
                          const WalkScratch<Op>& scratch) {
  using T = typename Op::Scalar;
  const xlstm_mlstm& in = p.in;
  const bool normalize = in.gate == XLSTM_GATE_EXP || in.normalize;
  const Gates g = gates_of<T>(memory.gates, in, h);
  fill_gates(g, in, h);
  const Rows<T> rows_h = rows_of<T>(p.h, h, in.dhv), rows_dh = rows_of<T>(p.dh, h, in.dhv);
  T *row_h = scratch.y, *row_dh = scratch.state;
  for (int64_t t = h.begin; t < h.end; ++t) {
    rows_h.read(t, row_h);
    rows_dh.read(t, row_dh);
    const double l = static_cast<const T*>(p.l)[h.row + t];
    const NormaliserGrad grad =
        normaliser_grad(normalize && in.normalizer_grad, l, g.m[t], in.eps, dot(row_dh, row_h, in.dhv));
    memory.s_over_n[h.row + t] = T(double(query_scale<T>(in)) / normaliser(normalize, l, g.m[t], in.eps));
    memory.dl_times_n[h.row + t] = T(grad.dl_times_n);
    memory.dm[h.row + t] = T(grad.dm);
  }
}

// The walk for dq, or in reverse the walk for dk and dv.
template <class Op>
Walk<Op> gradient_walk(const xlstm_mlstm_backward& p, const BackwardMemory<Op>& memory, const Head& h, bool reverse) {
  using T = typename Op::Scalar;
  const xlstm_mlstm& in = p.in;
  const Rows<T> q = rows_of<T>(in.q, h, in.dqk), k = rows_of<T>(in.k, h, in.dqk);
  const Rows<T> v = rows_of<T>(in.v, h, in.dhv), dh = rows_of<T>(p.dh, h, in.dhv);
  const Gain<T> s_over_n{1, memory.s_over_n + h.row}, dl{1, memory.dl_times_n + h.row};
  WalkInputs<Op> inputs;
  inputs.reverse = reverse;
  inputs.gates = gates_of<T>(memory.gates, in, h);
  inputs.extra = true;
  if (reverse) {
    inputs.a = v, inputs.x = dh, inputs.y = q;
    inputs.columns = s_over_n, inputs.x_extra = dl;
    inputs.flows = {k, memory.flow_out + h.row, memory.across + h.row, memory.inside + h.row};
  } else {
    inputs.a = dh, inputs.x = v, inputs.y = k;
    inputs.rows = s_over_n, inputs.a_extra = dl;
    inputs.flows = {q, memory.flow_in + h.row};
  }
  return {inputs};
}

// The flow that crosses tokens [begin, end) of a chunk from end to end, without the flows that start or end there. It
// is known at the ends of the sequence and at most borders. Else it is the difference of the flow across the end and
// the flows that start in the part; where the part forgets nearly everything, that would be their rounding alone.
template <class Op>
double crossing_flow(const BackwardMemory<Op>& memory, const Head& h, int64_t chunk, int64_t begin, int64_t end,
                     double decay, double difference) {
  if (end == h.end) return decay * (begin == last_chunk(h, chunk) ? memory.last[h.state] : 0);
  if (begin == h.begin) return decay * (end == begin + chunk ? memory.first[h.state] : 0);
  if (memory.borders.knows_crossing(h, begin, end)) return decay * memory.borders.flow_at(h, begin);
  return decay < kNegligible<typename Op::Scalar> ? 0 : difference;
}

// Computes di and df of one head, chunk by chunk from the last to the first.
template <class Op>
void gate_gradients(const xlstm_mlstm_backward& p, const BackwardMemory<Op>& memory, const Head& h, int64_t chunk) {
  using T = typename Op::Scalar;
  const xlstm_mlstm& in = p.in;
  const Gates g = gates_of<T>(memory.gates, in, h);
  const bool sigmoid_gate = in.gate == XLSTM_GATE_SIGMOID, through_m = !sigmoid_gate && in.normalizer_grad;
  const T *flow_in = memory.flow_in + h.row, *flow_out = memory.flow_out + h.row;
  T* across = memory.across + h.row;

  // The walks split a chunk at hard forgets; this is the begin of the part that ends at `end`.
  const auto part_begin = [&](int64_t end) {
    int64_t begin = h.begin + (end - 1 - h.begin) / chunk * chunk;
    for (int64_t n; (n = tokens_to_hard_forget(g, begin, end - begin)) < end - begin;) begin += n;
    return begin;
  };
  double flow = 0;  // across the end of the part
  double dm = 0;    // the gradient of m
  for (int64_t begin, end = h.end; end > h.begin; end = begin) {
    begin = part_begin(end);
    double starting = 0, ending = 0;  // the flows that start or end in the part, and go beyond it
    for (int64_t t = begin; t < end; ++t) {
      across[t] += T(starting);
      starting += flow_out[t];
    }
    const double crossing = crossing_flow(memory, h, chunk, begin, end, g.decay(begin, end), flow - starting);
    if (end == h.end) {
      flow = crossing + starting;
      // A change of m_last with fixed c_last and n_last scales the states. Its gradient goes back along the max, as
      // each token's dm does.
      if (p.dm_last && through_m) dm = double(static_cast<const T*>(p.dm_last)[h.state]) - flow;
    }
    for (int64_t t = end - 1; t >= begin; --t) {
      ending += flow_in[t];
      const double dlf = crossing + ending + across[t];
      double di = double(flow_out[t]) + memory.inside[h.row + t];
      double dlf_t = dlf;
      if (through_m) {
        dm += memory.dm[h.row + t];
        if (keeps_stabiliser(g.lf[t], g.m_before(t), g.ig[t])) {
          dlf_t += dm;
        } else {
          di += dm;
          dm = 0;
        }
      }
      const double f = widen<double>(in.f.data, in.f.dtype, offset(in.f, h) + t * in.f.stride[2]);
      const T df = T(dlf_t * sigmoid(-f));
      if (sigmoid_gate) di *= sigmoid(-widen<double>(in.i.data, in.i.dtype, offset(in.i, h) + t * in.i.stride[2]));
      const T di_t = T(di);
      store_row(p.df.data, p.df.dtype, offset(p.df, h) + t * p.df.stride[2], &df, 1);
      store_row(p.di.data, p.di.dtype, offset(p.di, h) + t * p.di.stride[2], &di_t, 1);
    }
    flow = memory.borders.knows_flow(h, begin) ? memory.borders.flow_at(h, begin) : crossing + ending;
  }
  if (p.dm_initial) static_cast<T*>(p.dm_initial)[h.state] = in.normalizer_grad ? T(flow + dm) : T(0);
}

template <class Op>
void backward(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  const xlstm_mlstm& in = p.in;
  Arena arena(workspace);
  using T = typename Op::Scalar;
  const BackwardMemory<Op> memory(arena, p, plan);
  const Heads heads{in};
  const void* dn_last = in.normalizer_grad ? p.dn_last : nullptr;  // else n and m count as constants, like N
  const StateLayout<T> layout{in.dqk, in.dhv, true};

  parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t worker) {
    const Head h = heads[index];
    memory.first[index] = memory.last[index] = 0;
    for (int64_t t = h.begin; t < h.end; ++t) memory.flow_in[h.row + t] = memory.flow_out[h.row + t] = 0;
    normaliser_gradients(p, memory, h, memory.scratch[worker]);
  });

  walk_heads(
      executor, plan, heads, false, memory.between, memory.scratch,
      [&](const Head& h) { return gradient_walk(p, memory, h, false); },
      [&](const Head& h, T* state) { return layout.load(in.c_initial, in.n_initial, h.state, state); },
      [&](const Head& h, WalkScratch<Op>&) { return gradient_sink<T>(p.dq, h); },
      [&](const Head& h, int64_t token, T* state, WalkScratch<Op>&) {
        memory.borders.store_state(h, token, state);
        if (p.dc_last && token == last_chunk(h, plan.chunk))
          memory.last[h.state] = layout.dot(p.dc_last, dn_last, h.state, state);
      },
      kIgnore);
  walk_heads(
      executor, plan, heads, p.dc_initial != nullptr, memory.between, memory.scratch,
      [&](const Head& h) { return gradient_walk(p, memory, h, true); },
      [&](const Head& h, T* state) { return layout.load(p.dc_last, dn_last, h.state, state); },
      [&](const Head& h, WalkScratch<Op>&) { return WithTwin{gradient_sink<T>(p.dk, h), gradient_sink<T>(p.dv, h)}; },
      [&](const Head& h, int64_t token, T* state, WalkScratch<Op>& s) {
        memory.borders.dot_with_gradient(h, token, state, s.buffer);
        if (in.c_initial && token == h.begin + plan.chunk)
          memory.first[h.state] = layout.dot(in.c_initial, in.n_initial, h.state, state);
      },
      [&](const Head& h, T* state) { layout.store(p.dc_initial, p.dn_initial, h.state, state); });
  parallel_tasks(executor, heads.count(),
                 [&](int64_t index, int32_t) { gate_gradients(p, memory, heads[index], plan.chunk); });
}

// Calls f(Op) with the operands that suit the inputs' dtype on this instruction set. Products of a few tokens gain no
// time from narrow operands, and lose accuracy: the flow from chunk to chunk, which df is computed from, then consists
// of differences of many rounded sums.
template <class F>
auto with_operands(const xlstm_mlstm& in, [[maybe_unused]] const MlstmCpuPlan& plan, F&& f) {
#if defined(__AVX512BF16__)
  constexpr int64_t kMinTokens = 16;
  if (in.q.dtype == XLSTM_BFLOAT16 && plan.chunk >= kMinTokens) return f(Bf16Pairs{});
#endif
  return in.q.dtype == XLSTM_FLOAT64 ? f(Plain<double>{}) : f(Plain<float>{});
}

template <class Memory, class Params>
size_t bytes(const Params& p, const MlstmCpuPlan& plan) {
  Arena counter(nullptr);
  Memory(counter, p, plan);
  return counter.used();
}

}  // namespace

size_t chunkwise_workspace(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan) {
  return with_operands(p.in, plan, [&](auto op) { return bytes<ForwardMemory<decltype(op)>>(p, plan); });
}
void chunkwise(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  with_operands(p.in, plan, [&](auto op) { forward<decltype(op)>(p, plan, workspace, executor); });
}
size_t backward_workspace(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan) {
  return with_operands(p.in, plan, [&](auto op) { return bytes<BackwardMemory<decltype(op)>>(p, plan); });
}
void backward(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  with_operands(p.in, plan, [&](auto op) { backward<decltype(op)>(p, plan, workspace, executor); });
}

}  // namespace xlstm::XLSTM_ISA::mlstm
