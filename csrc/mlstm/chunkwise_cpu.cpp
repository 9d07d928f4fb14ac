// SPDX-License-Identifier: Apache-2.0
// The chunkwise mLSTM on a CPU, forward and backward, as walks (walk.h) over the heads (sequences.h).
//
// Forward is one walk. Backward, with N the normaliser, dnum = dh / N and dl = what reaches l through N, is three:
//     dq = s (dS k + inter)      dk      dv
// and a scan over the tokens for the gates:
//     dlf_t = sum_{t' >= t} (q.dq - k.dk) + <dC_last, C_last> + <dn_last, n_last>      di = k.dk
// plus what reaches the stabilisers, which flows to whatever the max picked. Forward leaves one value a token, l; no
// state is kept. q.dq and k.dk are taken before dq and dk are rounded.
#include "mlstm/kernels_cpu.h"
#include "mlstm/sequences.h"

namespace xlstm::XLSTM_ISA {
namespace {

template <class T>
T query_scale(const xlstm_mlstm& in) {
  return T(1 / ::sqrt(double(in.dqk)));
}

template <class T>
WalkScratch<T>* scratch_of_workers(Arena& arena, const MlstmCpuPlan& plan, const WalkDims& dims) {
  WalkScratch<T>* all = arena.take<WalkScratch<T>>(plan.workers);
  for (int64_t w = 0; w < plan.workers; ++w) {
    const WalkScratch<T> one(arena, dims);
    if (all) all[w] = one;
  }
  return all;
}

// Lanes are summed in T, a few dozen products each, and the lanes in double.
template <class T>
double dot(const T* a, const T* b, int64_t n) {
  Vec<T> lanes{};
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) lanes += load(a + j) * load(b + j);
  double total = 0;
  for (int e = 0; e < kLanes<T>; ++e) total += double(lanes[e]);
  for (; j < n; ++j) total += double(a[j]) * double(b[j]);
  return total;
}

// ---- forward

template <class T>
struct ForwardMemory {
  GateArrays gates;
  SegmentStates<T> between;
  WalkScratch<T>* scratch;

  ForwardMemory(Arena& arena, const xlstm_mlstm& in, const MlstmCpuPlan& plan)
      : gates(arena, in),
        between(arena, Heads{in}, plan, in.dqk * padded<T>(in.dhv + 1)),
        scratch(scratch_of_workers<T>(arena, plan, {plan.chunk, in.dqk, in.dhv + 1})) {}
};

template <class T>
void forward(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  const xlstm_mlstm& in = p.in;
  Arena arena(workspace);
  const ForwardMemory<T> memory(arena, in, plan);
  const Heads heads{in};
  const StateLayout<T> layout{in.dqk, in.dhv, false, true};
  const bool normalize = in.gate == XLSTM_GATE_EXP || in.normalize;

  parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t) {
    const Head h = heads[index];
    const double m = fill_gates<T>(gates_of<T>(memory.gates, in, h), in, h);
    if (p.m_last) static_cast<T*>(p.m_last)[h.state] = T(m);
  });

  const auto make = [&](const Head& h) {
    Walk<T> walk{rows_of<T>(in.q, h, in.dqk), rows_of<T>(in.k, h, in.dqk), rows_of<T>(in.v, h, in.dhv), false,
                 gates_of<T>(memory.gates, in, h)};
    walk.a.gain = query_scale<T>(in);
    walk.y.extra = true;
    return walk;
  };
  const auto load = [&](const Head& h, T* state) { layout.load(in.c_initial, in.n_initial, h.state, state); };
  const auto sink = [&](const Head& h, WalkScratch<T>& s) {
    return [&, h](int64_t token, int64_t rows, int64_t column, int64_t columns, T* values) {
      T* inverse = s.inverse + (token - h.begin) % plan.chunk;
      const double* m = memory.gates.m + h.row + token;
      if (column + columns > in.dhv) {  // the first panel to come: its last column is l
        columns -= 1;
        for (int64_t r = 0; r < rows; ++r) {
          const T l = values[r * NR<T> + columns];
          inverse[r] = T(1 / normaliser(normalize, l, m[r], in.eps));
          if (p.l) static_cast<T*>(p.l)[h.row + token + r] = l;
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        T* row = values + r * NR<T>;
        for (int64_t j = 0; j < columns; ++j) row[j] *= inverse[r];
        store_row(p.h.data, p.h.dtype, offset(p.h, h) + (token + r) * p.h.stride[2] + column, row, columns);
      }
    };
  };
  const auto finish = [&](const Head& h, T* state) { layout.store(p.c_last, p.n_last, h.state, state); };
  walk_heads(executor, plan, heads, p.c_last != nullptr, memory.between, memory.scratch, make, load, sink, finish);
}

// ---- backward

template <class T>
struct BackwardMemory {
  GateArrays gates;
  T *inverse, *dl;            // per token: 1 / N, what reaches l
  double *dm, *q_dq, *k_dk;   // per token: what reaches m, and the two sums
  double* state_dot;          // per head: <dC_last, C_last> + <dn_last, n_last>
  SegmentStates<T> between;   // of one walk after the other
  WalkScratch<T>* scratch;

  BackwardMemory(Arena& arena, const xlstm_mlstm& in, const MlstmCpuPlan& plan)
      : gates(arena, in),
        inverse(arena.take<T>(tokens(in))),
        dl(arena.take<T>(tokens(in))),
        dm(arena.take<double>(tokens(in))),
        q_dq(arena.take<double>(tokens(in))),
        k_dk(arena.take<double>(tokens(in))),
        state_dot(arena.take<double>(Heads{in}.count())),
        between(arena, Heads{in}, plan, dims(in, plan).x * padded<T>(dims(in, plan).y)),
        scratch(scratch_of_workers<T>(arena, plan, dims(in, plan))) {}

  static int64_t tokens(const xlstm_mlstm& in) { return in.batch * in.heads * in.length; }
  static WalkDims dims(const xlstm_mlstm& in, const MlstmCpuPlan& plan) {
    const int64_t values = in.dhv + 1, d = in.dqk > values ? in.dqk : values;
    return {plan.chunk, d, d};
  }
};

// The three walks' operands for one head.
template <class T>
struct BackwardRows {
  Rows<T> q, k, v, scaled_q, v_one, dnum, dnum_dl;

  BackwardRows(const xlstm_mlstm_backward& p, const BackwardMemory<T>& memory, const Head& h) {
    const xlstm_mlstm& in = p.in;
    q = scaled_q = rows_of<T>(in.q, h, in.dqk);
    scaled_q.gain = query_scale<T>(in);
    k = rows_of<T>(in.k, h, in.dqk);
    v = v_one = rows_of<T>(in.v, h, in.dhv);
    v_one.extra = true;
    dnum = rows_of<T>(p.dh, h, in.dhv);
    dnum.token_gain = memory.inverse + h.row;
    dnum_dl = dnum;
    dnum_dl.extra = true;
    dnum_dl.extra_value = memory.dl + h.row;
  }
};

// Writes a walk's tiles, each value times gain, and adds their product with partner to products.
template <class T>
auto gradient_sink(const xlstm_tensor& to, const Head& h, T gain, const Rows<T>& partner, double* products, T* room) {
  return [=, &to](int64_t token, int64_t rows, int64_t column, int64_t columns, T* values) {
    for (int64_t r = 0; r < rows; ++r) {
      T* row = values + r * NR<T>;
      for (int64_t j = 0; j < columns; ++j) row[j] *= gain;
      store_row(to.data, to.dtype, offset(to, h) + (token + r) * to.stride[2] + column, row, columns);
      if (!products) continue;
      load_row(room, partner.data, partner.dtype, (token + r) * partner.stride + column, columns);
      products[token + r] += dot(row, room, columns);
    }
  };
}

// The gates of one head, from the last token to the first.
template <class T>
void gate_gradients(const xlstm_mlstm_backward& p, const BackwardMemory<T>& memory, const Head& h) {
  const xlstm_mlstm& in = p.in;
  const Gates g = gates_of<T>(memory.gates, in, h);
  const bool sigmoid_gate = in.gate == XLSTM_GATE_SIGMOID;
  double dlf = memory.state_dot[h.state];
  // A move of m_last alone scales the states that go with it. It flows back along the max, as each token's dm does.
  const bool through_m = !sigmoid_gate && in.normalizer_grad;
  double dm = p.dm_last && through_m ? double(static_cast<const T*>(p.dm_last)[h.state]) - memory.state_dot[h.state] : 0;
  for (int64_t t = h.end - 1; t >= h.begin; --t) {
    double di = memory.k_dk[h.row + t];
    dlf += memory.q_dq[h.row + t] - di;
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
  if (!p.dm_initial) return;
  const int64_t c = h.state * in.dqk * in.dhv, n = h.state * in.dqk;
  const T *c0 = static_cast<const T*>(in.c_initial) + c, *n0 = static_cast<const T*>(in.n_initial) + n;
  double scale = dot(static_cast<const T*>(p.dn_initial) + n, n0, in.dqk);
  for (int64_t j = 0; j < in.dqk; ++j)
    scale += dot(static_cast<const T*>(p.dc_initial) + c + j * in.dhv, c0 + j * in.dhv, in.dhv);
  static_cast<T*>(p.dm_initial)[h.state] = in.normalizer_grad ? T(scale + dm) : T(0);
}

template <class T>
void backward(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  const xlstm_mlstm& in = p.in;
  Arena arena(workspace);
  const BackwardMemory<T> memory(arena, in, plan);
  const Heads heads{in};
  const bool normalize = in.gate == XLSTM_GATE_EXP || in.normalize;
  const void* dn_last = in.normalizer_grad ? p.dn_last : nullptr;  // else n and m count as constants, like N
  const auto between = [&](const StateLayout<T>& layout) {
    SegmentStates<T> b = memory.between;
    b.size = layout.x() * padded<T>(layout.y());
    return b;
  };

  parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t worker) {
    const Head h = heads[index];
    const Gates g = gates_of<T>(memory.gates, in, h);
    fill_gates<T>(g, in, h);
    memory.state_dot[index] = 0;
    const Rows<T> rows_h = rows_of<T>(p.h, h, in.dhv), rows_dh = rows_of<T>(p.dh, h, in.dhv);
    T *row_h = memory.scratch[worker].y, *row_dh = memory.scratch[worker].state;
    for (int64_t t = h.begin; t < h.end; ++t) {
      rows_h.read(t, row_h);
      rows_dh.read(t, row_dh);
      const double l = static_cast<const T*>(p.l)[h.row + t];
      const NormaliserGrad grad = normaliser_grad(normalize && in.normalizer_grad, l, g.m[t], in.eps,
                                                  dot(row_dh, row_h, in.dhv));
      memory.inverse[h.row + t] = T(1 / normaliser(normalize, l, g.m[t], in.eps));
      memory.dl[h.row + t] = T(grad.dl);
      memory.dm[h.row + t] = grad.dm;
      memory.q_dq[h.row + t] = memory.k_dk[h.row + t] = 0;
    }
  });

  {  // dq: forward in time, over [C, n] transposed
    const StateLayout<T> layout{in.dqk, in.dhv, true, true};
    walk_heads(
        executor, plan, heads, p.dc_last != nullptr, between(layout), memory.scratch,
        [&](const Head& h) {
          const BackwardRows<T> r(p, memory, h);
          return Walk<T>{r.dnum_dl, r.v_one, r.k, false, gates_of<T>(memory.gates, in, h)};
        },
        [&](const Head& h, T* state) { layout.load(in.c_initial, in.n_initial, h.state, state); },
        [&](const Head& h, WalkScratch<T>& s) {
          return gradient_sink(p.dq, h, query_scale<T>(in), BackwardRows<T>(p, memory, h).q, memory.q_dq + h.row, s.row);
        },
        [&](const Head& h, T* state) { memory.state_dot[h.state] = layout.dot(p.dc_last, dn_last, h.state, state); });
  }
  {  // dk: back in time, over [dC, dn] transposed
    const StateLayout<T> layout{in.dqk, in.dhv, true, true};
    walk_heads(
        executor, plan, heads, p.dc_initial != nullptr, between(layout), memory.scratch,
        [&](const Head& h) {
          const BackwardRows<T> r(p, memory, h);
          return Walk<T>{r.v_one, r.dnum_dl, r.scaled_q, true, gates_of<T>(memory.gates, in, h)};
        },
        [&](const Head& h, T* state) { layout.load(p.dc_last, dn_last, h.state, state); },
        [&](const Head& h, WalkScratch<T>& s) {
          return gradient_sink(p.dk, h, T(1), BackwardRows<T>(p, memory, h).k, memory.k_dk + h.row, s.row);
        },
        [&](const Head& h, T* state) { layout.store_n(p.dn_initial, h.state, state); });
  }
  {  // dv: back in time, over dC
    const StateLayout<T> layout{in.dqk, in.dhv, false, false};
    walk_heads(
        executor, plan, heads, p.dc_initial != nullptr, between(layout), memory.scratch,
        [&](const Head& h) {
          const BackwardRows<T> r(p, memory, h);
          return Walk<T>{r.k, r.scaled_q, r.dnum, true, gates_of<T>(memory.gates, in, h)};
        },
        [&](const Head& h, T* state) { layout.load(p.dc_last, dn_last, h.state, state); },
        [&](const Head& h, WalkScratch<T>& s) { return gradient_sink<T>(p.dv, h, T(1), Rows<T>{}, nullptr, s.row); },
        [&](const Head& h, T* state) { layout.store(p.dc_initial, p.dn_initial, h.state, state); });
  }
  parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t) { gate_gradients(p, memory, heads[index]); });
}

bool is_double(const xlstm_mlstm& in) { return in.q.dtype == XLSTM_FLOAT64; }

template <class Memory>
size_t bytes(const xlstm_mlstm& in, const MlstmCpuPlan& plan) {
  Arena counter(nullptr);
  Memory(counter, in, plan);
  return counter.used();
}

}  // namespace

size_t chunkwise_workspace(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan) {
  return is_double(p.in) ? bytes<ForwardMemory<double>>(p.in, plan) : bytes<ForwardMemory<float>>(p.in, plan);
}
void chunkwise(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  is_double(p.in) ? forward<double>(p, plan, workspace, executor) : forward<float>(p, plan, workspace, executor);
}
size_t backward_workspace(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan) {
  return is_double(p.in) ? bytes<BackwardMemory<double>>(p.in, plan) : bytes<BackwardMemory<float>>(p.in, plan);
}
void backward(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  is_double(p.in) ? backward<double>(p, plan, workspace, executor) : backward<float>(p, plan, workspace, executor);
}

}  // namespace xlstm::XLSTM_ISA
