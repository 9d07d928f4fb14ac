// SPDX-License-Identifier: Apache-2.0
// The recurrent mLSTM on a CPU: any number of tokens, one after the other; one token is the decode step.
//
// Who owns what: a task owns one head's rows of C for a tile of values; every task of a head computes q.n itself (one
// row against 256 or more). n and m are written when all tasks are done, so the states may be updated in place.
//
// Floor: each element of C is read, decayed, updated, used and written once per token: 8 bytes moved for 6 flops in
// float, 4 in bfloat16, so memory binds.
#include "mlstm/cpu/kernel_table.h"
#include "mlstm/cpu/sequences.h"
#include "mlstm/cpu/token.h"

namespace xlstm::XLSTM_ISA::mlstm {
namespace {

template <class T>
struct Memory {
  T *n, *m;  // after the last token, per head
  T* rows;   // per worker: q, k, n, v, h; with C in bfloat16 v and h in pairs, too, and the rows' random bits

  Memory(Arena& arena, const xlstm_mlstm& in, int64_t workers)
      : n(arena.take<T>(Heads{in}.count() * in.dqk)),
        m(arena.take<T>(Heads{in}.count())),
        rows(arena.take<T>(workers * per_worker(in))) {}
  static int64_t per_worker(const xlstm_mlstm& in) {
    const int64_t keys = in.dqk + 16, values = in.dhv + 16;
    const int64_t rounded = in.bfloat16_c ? keys + 4 * padded_pairs(values) : 0;
    return (3 * keys + 2 * values + rounded + 15) / 16 * 16;
  }
};

// C: the element of the state, T or uint16_t for bfloat16.
template <class T, class C = T>
void run(const xlstm_mlstm_forward& p, void* workspace, const Executor& executor) {
  const xlstm_mlstm& in = p.in;
  Arena arena(workspace);
  const Memory<T> memory(arena, in, executor.workers);
  const Heads heads{in};
  const Tiling tiling(in.dhv, heads.count(), executor.workers);
  const bool sigmoid_gate = in.gate == XLSTM_GATE_SIGMOID, normalize = !sigmoid_gate || in.normalize;
  const T scale = T(1 / ::sqrt(double(in.dqk)));

  parallel_tasks(executor, heads.count() * tiling.count, [&](int64_t task, int32_t worker) {
    const Head h = heads[task / tiling.count];
    const int64_t tile = task % tiling.count, column = tile * tiling.width;
    const int64_t width = in.dhv - column < tiling.width ? in.dhv - column : tiling.width;
    T* q = memory.rows + worker * Memory<T>::per_worker(in);
    T *k = q + in.dqk + 16, *n = k + in.dqk + 16, *v = n + in.dqk + 16, *out = v + in.dhv + 16;
    C* c = static_cast<C*>(p.c_last) + h.state * in.dqk * in.dhv + column;
    const C* c_before =
        in.c_initial ? static_cast<const C*>(in.c_initial) + h.state * in.dqk * in.dhv + column : nullptr;
    double m = in.m_initial ? double(static_cast<const T*>(in.m_initial)[h.state]) : 0.0;
    for (int64_t d = 0; d < in.dqk; ++d)
      n[d] = in.n_initial ? static_cast<const T*>(in.n_initial)[h.state * in.dqk + d] : T(0);
    if (!c_before) {
      for (int64_t d = 0; d < in.dqk; ++d)
        for (int64_t j = 0; j < width; ++j) c[d * in.dhv + j] = 0;
      c_before = c;
    }
    const Rows<T> rows_q = rows_of<T>(in.q, h, in.dqk), rows_k = rows_of<T>(in.k, h, in.dqk);
    for (int64_t t = h.begin; t < h.end; ++t) {
      rows_q.read(t, q);
      for (int64_t d = 0; d < in.dqk; ++d) q[d] *= scale;
      rows_k.read(t, k);
      load_row(v, at(in.v, h), in.v.dtype, t * in.v.stride[2] + column, width);
      const TokenGates g = token_gates(in, h, t);
      const Decay<T> d = decay<T>(sigmoid_gate, g, m);
      m = d.m;
      T l;
      if constexpr (sizeof(C) == sizeof(T)) {
        l = update_n(d, q, k, n, in.dqk);
        update_c(d, c_before, c, in.dhv, q, k, v, out, in.dqk, width);
      } else {
        float *v_pairs = out + in.dhv + 16, *h_pairs = v_pairs + 2 * padded_pairs(in.dhv + 16);
        auto* bits = reinterpret_cast<uint32_t*>(h_pairs + 2 * padded_pairs(in.dhv + 16));
        fill_row_bits(d, h.head, n, bits, in.dqk);
        l = update_n(d, q, k, n, in.dqk);
        split_pairs(v, v_pairs, width);
        update_rounded_c(d, c_before, c, in.dhv, q, k, bits, column, v_pairs, h_pairs, in.dqk, width);
        join_pairs(h_pairs, out, width);
      }
      c_before = c;
      const T inverse = T(1 / normaliser(normalize, l, m, in.eps));
      for (int64_t j = 0; j < width; ++j) out[j] *= inverse;
      store_row(p.h.data, p.h.dtype, offset(p.h, h) + t * p.h.stride[2] + column, out, width);
      if (tile == 0 && p.l) static_cast<T*>(p.l)[h.row + t] = l;
    }
    if (tile != 0) return;
    for (int64_t d = 0; d < in.dqk; ++d) memory.n[h.state * in.dqk + d] = n[d];
    memory.m[h.state] = T(m);
  });
  memcpy(p.n_last, memory.n, heads.count() * in.dqk * sizeof(T));
  memcpy(p.m_last, memory.m, heads.count() * sizeof(T));
}

}  // namespace

size_t recurrent_workspace(const xlstm_mlstm_forward& p, int64_t workers) {
  Arena counter(nullptr);
  if (p.in.q.dtype == XLSTM_FLOAT64)
    Memory<double>(counter, p.in, workers);
  else
    Memory<float>(counter, p.in, workers);
  return counter.used();
}
void recurrent(const xlstm_mlstm_forward& p, void* workspace, const Executor& executor) {
  if (p.in.q.dtype == XLSTM_FLOAT64)
    run<double>(p, workspace, executor);
  else if (p.in.bfloat16_c)
    run<float, uint16_t>(p, workspace, executor);
  else
    run<float>(p, workspace, executor);
}

}  // namespace xlstm::XLSTM_ISA::mlstm
