// SPDX-License-Identifier: Apache-2.0
// sLSTM and LSTM on a CPU, backward: a task walks the tokens of some sequences of one head from the last to the first.
// A token's product is that of forward, with the matrix transposed: 4 P gradients give P.
#include "slstm/cpu/tokens.h"

namespace xlstm::XLSTM_ISA::slstm {
namespace {

template <class T>
HeadMatrix<T> matrix_of(const xlstm_slstm& in) {
  return {padded_units(in.units), kGates * padded_units(in.units)};
}

template <class T>
struct Memory {
  T *packed, *scratch;
  T* kept;  // per worker: the kept values of a token, c and n before it, dh, dc, dn and dm
  T *dh, *draw, *dbias, *dc, *dn, *du, *dlf;  // per worker, rows of padded units, of draw 4

  static constexpr int64_t kValues = 2 * kKept + 6;

  Memory(Arena& arena, const xlstm_slstm& in, const SlstmCpuPlan& plan) {
    const HeadMatrix<T> matrix = matrix_of<T>(in);
    const int64_t units = padded_units(in.units), all = plan.workers * plan.rows * units;
    packed = plan.is_packed ? arena.take<T>(in.heads * matrix.packed_size()) : nullptr;
    scratch = arena.take<T>(plan.workers * matrix.scratch_size());
    kept = arena.take<T>(plan.workers * kValues * units);
    dh = arena.take<T>(plan.workers * plan.rows * padded<T>(matrix.outputs));
    draw = arena.take<T>(all * kGates);
    dbias = arena.take<T>(all * kGates);
    dc = arena.take<T>(all);
    dn = arena.take<T>(all);
    du = arena.take<T>(all);
    dlf = arena.take<T>(all);
  }
};

template <class T>
void run(const xlstm_slstm_backward& p, const SlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  using Maths = VectorMaths<T>;
  using V = Vec<T>;
  const xlstm_slstm& in = p.in;
  const HeadMatrix<T> matrix = matrix_of<T>(in);
  const int64_t units = in.units, row = matrix.outputs, gates_row = matrix.sums, dh_row = padded<T>(matrix.outputs);
  Arena arena(workspace);
  const Memory<T> memory(arena, in, plan);
  constexpr xlstm_dtype wide = kWideDtype<T>;
  const bool is_lstm = in.cell == XLSTM_CELL_LSTM;
  if (plan.is_packed) pack_matrices(in, matrix, memory.packed, memory.scratch, executor);

  const Tasks tasks{in, plan.rows};
  parallel_tasks(executor, tasks.count(), [&](int64_t index, int32_t worker) {
    const Task task = tasks[index];
    const Rows<T> weights = matrix.rows(in.recurrent, in.dtype, task.head);
    T* scratch = memory.scratch + worker * matrix.scratch_size();
    T* value = memory.kept + worker * Memory<T>::kValues * row;
    T *dh = memory.dh + worker * plan.rows * dh_row, *draw = memory.draw + worker * plan.rows * gates_row;
    T* dbias = memory.dbias + worker * plan.rows * gates_row;
    T *dc = memory.dc + worker * plan.rows * row, *dn = memory.dn + worker * plan.rows * row;
    T *du = memory.du + worker * plan.rows * row, *dlf = memory.dlf + worker * plan.rows * row;

    int64_t longest = 0;
    for (int64_t r = 0; r < task.rows; ++r)
      longest = tasks.length(task.first + r) > longest ? tasks.length(task.first + r) : longest;
    for (T* x : {dc, dn, du, dlf})
      for (int64_t j = 0; j < task.rows * row; ++j) x[j] = 0;
    for (int64_t j = 0; j < task.rows * gates_row; ++j) draw[j] = dbias[j] = 0;
    for (int64_t j = 0; j < task.rows * dh_row; ++j) dh[j] = 0;

    for (int64_t t = longest - 1; t >= 0; --t) {
      for (int64_t r = 0; r < task.rows; ++r) {
        const int64_t sequence = task.first + r, state = sequence * in.heads + task.head;
        const int64_t last = tasks.length(sequence) - 1;
        if (t > last) continue;
        const int64_t token = tasks.token(sequence, t), at = (token * in.heads + task.head) * units;
        // Reads a row into the next place of `value`; without data it is zero.
        int64_t values = 0;
        const auto read = [&](const void* data, xlstm_dtype dtype, int64_t from) {
          load_state(value + values++ * row, static_cast<const char*>(data) + (data ? from * element_bytes(dtype) : 0),
                     dtype, 0, data ? units : 0, row);
        };
        const auto of_kept = [&](int64_t tok, int64_t v) { return ((tok * kKept + v) * in.heads + task.head) * units; };
        for (int64_t v = 0; v < kKept; ++v) read(p.gates, in.dtype, of_kept(token, v));
        for (int64_t v = 0; v < kKept; ++v) read(p.memory, wide, of_kept(token, v));
        for (int64_t v = 1; v < kKept; ++v) {
          const void* initial = v == 1 ? in.c_initial : in.n_initial;
          t > 0 ? read(p.memory, wide, of_kept(token - 1, v)) : read(initial, wide, state * units);
        }
        read(p.dh, in.dtype, at);
        const void *of_tokens[] = {p.dc, p.dn, p.dm}, *of_last[] = {p.dc_last, p.dn_last, p.dm_last};
        for (int v = 0; v < 3; ++v) {
          read(of_tokens[v], wide, at);
          const T* last_row = static_cast<const T*>(of_last[v]) + state * units;
          for (int64_t j = 0; t == last && of_last[v] && j < units; ++j) value[(values - 1) * row + j] += last_row[j];
        }
        each_vector<T>(row, [&](int64_t j) {
          const auto of = [&](int64_t v) { return load(value + v * row + j); };
          const int64_t here = r * row + j;
          const Kept<Maths> kept{of(0), of(1), of(2), of(3), of(4), of(5)};
          Carry<Maths> carry{load(dc + here), load(dn + here), load(du + here)};
          add_gradients<Maths>(carry, kept.c, kept.n, of(9), is_lstm ? V{} : of(10), is_lstm ? V{} : of(11));
          V dlf_of_token{};
          const Gates<Maths> d = backward_token<Maths>(in.cell, kept, States<Maths>{of(6), of(7), V{}},
                                                       of(8) + load(dh + r * dh_row + j), carry, dlf_of_token);
          const V gates[] = {d.i, d.f, d.z, d.o};
          for (int64_t g = 0; g < kGates; ++g) {
            const int64_t of_gate = r * gates_row + g * row + j;
            store(draw + of_gate, gates[g]);
            store(dbias + of_gate, load(dbias + of_gate) + gates[g]);
          }
          store(dc + here, carry.dc);
          store(dn + here, carry.dn);
          store(du + here, carry.du);
          store(dlf + here, dlf_of_token);
        });
        for (int64_t g = 0; g < kGates; ++g) {
          T* gate = draw + r * gates_row + g * row;
          for (int64_t j = units; j < row; ++j) gate[j] = 0;  // n and c are 0 there: 0 / 0
          store_row(p.dx, in.dtype, ((token * kGates + g) * in.heads + task.head) * units, gate, units);
        }
      }
      if (plan.is_packed)
        matrix.product(memory.packed + task.head * matrix.packed_size(), draw, task.rows, dh);
      else
        matrix.product_as_it_lies(weights, draw, task.rows, dh, scratch);
    }

    for (int64_t r = 0; p.dbias && r < task.rows; ++r)
      for (int64_t g = 0; g < kGates; ++g)
        store_row(p.dbias, wide, (((task.first + r) * kGates + g) * in.heads + task.head) * units,
                  dbias + r * gates_row + g * row, units);
    for (int64_t r = 0; p.dh_initial && r < task.rows; ++r) {
      const int64_t at = ((task.first + r) * in.heads + task.head) * units;
      store_row(p.dh_initial, wide, at, dh + r * dh_row, units);
      store_row(p.dc_initial, wide, at, dc + r * row, units);
      if (is_lstm) continue;
      store_row(p.dn_initial, wide, at, dn + r * row, units);
      store_row(p.dm_initial, wide, at, dlf + r * row, units);
    }
  });
}

}  // namespace

size_t backward_workspace(const xlstm_slstm_backward& p, const SlstmCpuPlan& plan) {
  return memory_size<Memory>(p.in, plan);
}
void backward(const xlstm_slstm_backward& p, const SlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  p.in.dtype == XLSTM_FLOAT64 ? run<double>(p, plan, workspace, executor) : run<float>(p, plan, workspace, executor);
}

}  // namespace xlstm::XLSTM_ISA::slstm
