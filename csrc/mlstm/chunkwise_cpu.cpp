// SPDX-License-Identifier: Apache-2.0
// The chunkwise mLSTM on a CPU, forward and backward, as walks (walk.h) over the heads (sequences.h).
//
// Forward is one walk. Backward, with N the normaliser, dnum = dh / N and dl = what reaches l through N, is three:
//     dq = s (dS k + inter)      dk      dv
// and a scan over the tokens for the gates:
//     dlf_t = sum_{t' >= t} (q.dq - k.dk) + <dC_last, C_last> + <dn_last, n_last>      di = k.dk
// plus what reaches the stabilisers, which flows to whatever the max picked. Forward leaves one value a token, l; no
// state is kept. q.dq and k.dk are taken before dq and dk are rounded, and without each token's own term, which both
// have: what is left is what flows across the token, so that it is small where the gates forget and dlf keeps its
// digits.
#include "mlstm/kernels_cpu.h"
#include "mlstm/sequences.h"

namespace xlstm::XLSTM_ISA {
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

// ---- forward

template <class Op>
struct ForwardMemory {
  using T = typename Op::Scalar;
  GateArrays gates;
  SegmentStates<T> between;
  WalkScratch<Op>* scratch;

  ForwardMemory(Arena& arena, const xlstm_mlstm& in, const MlstmCpuPlan& plan)
      : gates(arena, in),
        between(arena, Heads{in}, plan, in.dqk * padded<T>(in.dhv + 1)),
        scratch(scratch_of_workers<Op>(arena, plan, {plan.chunk, in.dqk, in.dhv + 1})) {}
};

template <class Op>
void forward(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  const xlstm_mlstm& in = p.in;
  Arena arena(workspace);
  using T = typename Op::Scalar;
  const ForwardMemory<Op> memory(arena, in, plan);
  const Heads heads{in};
  const StateLayout<T> layout{in.dqk, in.dhv, false, true};
  const bool normalize = in.gate == XLSTM_GATE_EXP || in.normalize;

  parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t) {
    const Head h = heads[index];
    const double m = fill_gates(gates_of<T>(memory.gates, in, h), in, h);
    if (p.m_last) static_cast<T*>(p.m_last)[h.state] = T(m);
  });

  const auto make = [&](const Head& h) {
    Walk<Op> walk{rows_of<T>(in.q, h, in.dqk),
                  rows_of<T>(in.k, h, in.dqk),
                  rows_of<T>(in.v, h, in.dhv),
                  false,
                  gates_of<T>(memory.gates, in, h),
                  {query_scale<T>(in)},
                  {}};
    walk.y.extra = true;
    return walk;
  };
  const auto load = [&](const Head& h, T* state) { layout.load(in.c_initial, in.n_initial, h.state, state); };
  const auto sink = [&](const Head& h, WalkScratch<Op>& s) {
    return [&, h](int64_t token, int64_t rows, int64_t column, int64_t columns, T* values, const T*) {
      const int64_t local = s.token_in_chunk(token);
      T* inverse = s.inverse + local;
      const double* m = memory.gates.m + h.row + token;
      if (column + columns > in.dhv) {  // the first panel to come: its last column is l
        columns -= 1;
        for (int64_t r = 0; r < rows; ++r) {
          const T l = values[r * NR<T> + columns] + s.score_rest[local + r];
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
  const StateFor wanted = p.c_last ? StateFor::after_last_token : StateFor::nobody;
  walk_heads(executor, plan, heads, wanted, memory.between, memory.scratch, make, load, sink, finish);
}

// ---- backward

template <class Op>
struct BackwardMemory {
  using T = typename Op::Scalar;
  GateArrays gates;
  T *s_over_n, *dl_times_n;  // per token: s / N, and N times what reaches l
  double *dm, *q_dq, *k_dk;  // per token: what reaches m, and the two sums without the token's own term
  double* k_dk_own;          // per token: that term
  double* carry;             // per head: <dC_last, C> + <dn_last, n> of the state that the last token decays
  SegmentStates<T> between;  // of one walk after the other
  WalkScratch<Op>* scratch;

  BackwardMemory(Arena& arena, const xlstm_mlstm& in, const MlstmCpuPlan& plan)
      : gates(arena, in),
        s_over_n(arena.take<T>(tokens(in))),
        dl_times_n(arena.take<T>(tokens(in))),
        dm(arena.take<double>(tokens(in))),
        q_dq(arena.take<double>(tokens(in))),
        k_dk(arena.take<double>(tokens(in))),
        k_dk_own(arena.take<double>(tokens(in))),
        carry(arena.take<double>(Heads{in}.count())),
        between(arena, Heads{in}, plan, dims(in, plan).x * padded<T>(dims(in, plan).y)),
        scratch(scratch_of_workers<Op>(arena, plan, dims(in, plan))) {}

  static int64_t tokens(const xlstm_mlstm& in) { return in.batch * in.heads * in.length; }
  static WalkDims dims(const xlstm_mlstm& in, const MlstmCpuPlan& plan) {
    const int64_t values = in.dhv + 1, d = in.dqk > values ? in.dqk : values;
    return {plan.chunk, d, d};
  }
};

// The three walks' operands for one head.
template <class T>
struct BackwardRows {
  Rows<T> q, k, v, v_one, dh, dh_dl;

  BackwardRows(const xlstm_mlstm_backward& p, const T* dl_times_n, const Head& h)
      : q(rows_of<T>(p.in.q, h, p.in.dqk)),
        k(rows_of<T>(p.in.k, h, p.in.dqk)),
        v(rows_of<T>(p.in.v, h, p.in.dhv)),
        v_one(v),
        dh(rows_of<T>(p.dh, h, p.in.dhv)),
        dh_dl(dh) {
    v_one.extra = dh_dl.extra = true;
    dh_dl.extra_value = dl_times_n + h.row;
  }
};

// Writes a walk's tiles.
template <class T>
auto gradient_sink(const xlstm_tensor& to, const Head& h) {
  return [&to, h](int64_t token, int64_t rows, int64_t column, int64_t columns, const T* values, const T*) {
    for (int64_t r = 0; r < rows; ++r)
      store_row(to.data, to.dtype, offset(to, h) + (token + r) * to.stride[2] + column, values + r * NR<T>, columns);
  };
}

// The same for a walk without_self: adds to others[t] the product of row t with the token of `with`, then the token's
// own term, whose share of that product goes to own[t].
template <class T>
auto gradient_sink(const xlstm_tensor& to, const Head& h, const Rows<T>& with, const Rows<T>& y, double* others,
                   double* own, T* room) {
  return [=, &to](int64_t token, int64_t rows, int64_t column, int64_t columns, T* values, const T* self) {
    T *with_row = room, *y_row = room + NR<T>;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = token + r;
      T* row = values + r * NR<T>;
      load_row(with_row, with.data, with.dtype, t * with.stride + column, columns);
      load_row(y_row, y.data, y.dtype, t * y.stride + column, columns);
      others[t] += dot(row, with_row, columns);
      if (own) own[t] += double(self[r]) * dot(y_row, with_row, columns);
      for (int64_t j = 0; j < columns; ++j) row[j] += self[r] * y_row[j];
      store_row(to.data, to.dtype, offset(to, h) + t * to.stride[2] + column, row, columns);
    }
  };
}

// The gates of one head, from the last token to the first.
template <class Op>
void gate_gradients(const xlstm_mlstm_backward& p, const BackwardMemory<Op>& memory, const Head& h) {
  using T = typename Op::Scalar;
  const xlstm_mlstm& in = p.in;
  const Gates g = gates_of<T>(memory.gates, in, h);
  const bool sigmoid_gate = in.gate == XLSTM_GATE_SIGMOID;
  // What reaches the last states is what was carried there and what the last token added: all of its k.dk. Its own
  // forget gate moves only the first.
  const double carry = memory.carry[h.state], added = memory.k_dk[h.row + h.end - 1];
  double dlf = carry + added;
  // A move of m_last alone scales the states that go with it. It flows back along the max, as each token's dm does.
  const bool through_m = !sigmoid_gate && in.normalizer_grad;
  double dm = p.dm_last && through_m ? double(static_cast<const T*>(p.dm_last)[h.state]) - dlf : 0;
  for (int64_t t = h.end - 1; t >= h.begin; --t) {
    dlf = t == h.end - 1 ? carry + memory.q_dq[h.row + t] : dlf + memory.q_dq[h.row + t] - memory.k_dk[h.row + t];
    double di = memory.k_dk[h.row + t] + memory.k_dk_own[h.row + t];
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

template <class Op>
void backward(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  const xlstm_mlstm& in = p.in;
  Arena arena(workspace);
  using T = typename Op::Scalar;
  const BackwardMemory<Op> memory(arena, in, plan);
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
    fill_gates(g, in, h);
    memory.carry[index] = 0;
    const Rows<T> rows_h = rows_of<T>(p.h, h, in.dhv), rows_dh = rows_of<T>(p.dh, h, in.dhv);
    T *row_h = memory.scratch[worker].y, *row_dh = memory.scratch[worker].state;
    for (int64_t t = h.begin; t < h.end; ++t) {
      rows_h.read(t, row_h);
      rows_dh.read(t, row_dh);
      const double l = static_cast<const T*>(p.l)[h.row + t];
      const NormaliserGrad grad =
          normaliser_grad(normalize && in.normalizer_grad, l, g.m[t], in.eps, dot(row_dh, row_h, in.dhv));
      memory.s_over_n[h.row + t] = T(double(query_scale<T>(in)) / normaliser(normalize, l, g.m[t], in.eps));
      memory.dl_times_n[h.row + t] = T(grad.dl_times_n);
      memory.dm[h.row + t] = grad.dm;
      memory.q_dq[h.row + t] = memory.k_dk[h.row + t] = memory.k_dk_own[h.row + t] = 0;
    }
  });

  const auto operands = [&](const Head& h) { return BackwardRows<T>(p, memory.dl_times_n, h); };
  const auto s_over_n = [&](const Head& h) { return Gain<T>{1, memory.s_over_n + h.row}; };

  {  // dq: forward in time, over [C, n] transposed
    const StateLayout<T> layout{in.dqk, in.dhv, true, true};
    walk_heads(
        executor, plan, heads, p.dc_last ? StateFor::before_last_token : StateFor::nobody, between(layout),
        memory.scratch,
        [&](const Head& h) {
          const BackwardRows<T> r = operands(h);
          return Walk<Op>{r.dh_dl, r.v_one, r.k, false, gates_of<T>(memory.gates, in, h), s_over_n(h), {}, true};
        },
        [&](const Head& h, T* state) { layout.load(in.c_initial, in.n_initial, h.state, state); },
        [&](const Head& h, WalkScratch<Op>& s) {
          const BackwardRows<T> r = operands(h);
          return gradient_sink<T>(p.dq, h, r.q, r.k, memory.q_dq + h.row, nullptr, s.room);
        },
        [&](const Head& h, T* state) {
          const double decay = gates_of<T>(memory.gates, in, h).decay(h.end - 1, h.end);
          memory.carry[h.state] = decay * layout.dot(p.dc_last, dn_last, h.state, state);
        });
  }
  {  // dk: back in time, over [dC, dn] transposed
    const StateLayout<T> layout{in.dqk, in.dhv, true, true};
    walk_heads(
        executor, plan, heads, p.dc_initial ? StateFor::after_last_token : StateFor::nobody, between(layout),
        memory.scratch,
        [&](const Head& h) {
          const BackwardRows<T> r = operands(h);
          return Walk<Op>{r.v_one, r.dh_dl, r.q, true, gates_of<T>(memory.gates, in, h), {}, s_over_n(h), true};
        },
        [&](const Head& h, T* state) { layout.load(p.dc_last, dn_last, h.state, state); },
        [&](const Head& h, WalkScratch<Op>& s) {
          const BackwardRows<T> r = operands(h);
          return gradient_sink<T>(p.dk, h, r.k, r.q, memory.k_dk + h.row, memory.k_dk_own + h.row, s.room);
        },
        [&](const Head& h, T* state) { layout.store_n(p.dn_initial, h.state, state); });
  }
  {  // dv: back in time, over dC
    const StateLayout<T> layout{in.dqk, in.dhv, false, false};
    walk_heads(
        executor, plan, heads, p.dc_initial ? StateFor::after_last_token : StateFor::nobody, between(layout),
        memory.scratch,
        [&](const Head& h) {
          const BackwardRows<T> r = operands(h);
          return Walk<Op>{r.k, r.q, r.dh, true, gates_of<T>(memory.gates, in, h), {}, s_over_n(h)};
        },
        [&](const Head& h, T* state) { layout.load(p.dc_last, dn_last, h.state, state); },
        [&](const Head& h, WalkScratch<Op>&) { return gradient_sink<T>(p.dv, h); },
        [&](const Head& h, T* state) { layout.store(p.dc_initial, p.dn_initial, h.state, state); });
  }
  parallel_tasks(executor, heads.count(), [&](int64_t index, int32_t) { gate_gradients(p, memory, heads[index]); });
}

// Calls f(Op) with the operands that suit the inputs' dtype here.
template <class F>
auto with_operands(const xlstm_mlstm& in, F&& f) {
#if defined(__AVX512BF16__)
  if (in.q.dtype == XLSTM_BFLOAT16) return f(Bf16Pairs{});
#endif
  return in.q.dtype == XLSTM_FLOAT64 ? f(Plain<double>{}) : f(Plain<float>{});
}

template <class Memory>
size_t bytes(const xlstm_mlstm& in, const MlstmCpuPlan& plan) {
  Arena counter(nullptr);
  Memory(counter, in, plan);
  return counter.used();
}

}  // namespace

size_t chunkwise_workspace(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan) {
  return with_operands(p.in, [&](auto op) { return bytes<ForwardMemory<decltype(op)>>(p.in, plan); });
}
void chunkwise(const xlstm_mlstm_forward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  with_operands(p.in, [&](auto op) { forward<decltype(op)>(p, plan, workspace, executor); });
}
size_t backward_workspace(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan) {
  return with_operands(p.in, [&](auto op) { return bytes<BackwardMemory<decltype(op)>>(p.in, plan); });
}
void backward(const xlstm_mlstm_backward& p, const MlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  with_operands(p.in, [&](auto op) { backward<decltype(op)>(p, plan, workspace, executor); });
}

}  // namespace xlstm::XLSTM_ISA
