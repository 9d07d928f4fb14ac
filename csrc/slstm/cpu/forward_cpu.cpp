// SPDX-License-Identifier: Apache-2.0
// sLSTM and LSTM on a CPU, forward: a task walks the tokens of some sequences of one head.
//
// A token is a product of the rows' hidden states with the head's matrix, P by 4 P, and a few dozen instructions for
// each vector of units. Floor: the matrix comes from L2 for each token, 256 KiB in float32 at 128 units, and the
// multiply-adds bind from four rows on.
#include "slstm/cpu/tokens.h"

namespace xlstm::XLSTM_ISA::slstm {
namespace {

template <class T>
HeadMatrix<T> matrix_of(const xlstm_slstm& in) {
  return {kGates * padded_units(in.units), padded_units(in.units)};
}

template <class T>
struct Memory {
  T *packed, *scratch;                // the matrices; per worker
  T *x, *h, *raw, *c, *n, *m, *kept;  // per worker, rows of padded units: of x and raw 4, of kept a token's 6

  Memory(Arena& arena, const xlstm_slstm& in, const SlstmCpuPlan& plan) {
    const HeadMatrix<T> matrix = matrix_of<T>(in);
    const int64_t units = padded_units(in.units), all = plan.workers * plan.rows * units;
    packed = plan.is_packed ? arena.take<T>(in.heads * matrix.packed_size()) : nullptr;
    scratch = arena.take<T>(plan.workers * matrix.scratch_size());
    x = arena.take<T>(plan.workers * kGates * units);
    h = arena.take<T>(all);
    raw = arena.take<T>(plan.workers * plan.rows * padded<T>(matrix.outputs));
    c = arena.take<T>(all);
    n = arena.take<T>(all);
    m = arena.take<T>(all);
    kept = arena.take<T>(plan.workers * 2 * kKept * units);
  }
};

template <class T>
void run(const xlstm_slstm_forward& p, const SlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  using Maths = VectorMaths<T>;
  using V = Vec<T>;
  const xlstm_slstm& in = p.in;
  const HeadMatrix<T> matrix = matrix_of<T>(in);
  const int64_t units = in.units, row = matrix.sums, raw_row = padded<T>(matrix.outputs);
  Arena arena(workspace);
  const Memory<T> memory(arena, in, plan);
  constexpr xlstm_dtype wide = kWideDtype<T>;
  if (plan.is_packed) pack_matrices(in, matrix, memory.packed, memory.scratch, executor);

  const Tasks tasks{in, plan.rows};
  parallel_tasks(executor, tasks.count(), [&](int64_t index, int32_t worker) {
    const Task task = tasks[index];
    const Rows<T> weights = matrix.rows(in.recurrent, in.dtype, task.head);
    T* scratch = memory.scratch + worker * matrix.scratch_size();
    T* x = memory.x + worker * kGates * row;
    T* kept_rows = memory.kept + worker * 2 * kKept * row;
    T *h = memory.h + worker * plan.rows * row, *raw = memory.raw + worker * plan.rows * raw_row;
    T *c = memory.c + worker * plan.rows * row, *n = memory.n + worker * plan.rows * row;
    T* m = memory.m + worker * plan.rows * row;

    int64_t longest = 0;
    for (int64_t r = 0; r < task.rows; ++r) {
      const int64_t sequence = task.first + r, state = sequence * in.heads + task.head;
      longest = tasks.length(sequence) > longest ? tasks.length(sequence) : longest;
      load_state(h + r * row, in.h_initial, in.dtype, state, units, row);
      load_state(c + r * row, in.c_initial, wide, state, units, row);
      load_state(n + r * row, in.n_initial, wide, state, units, row);
      load_state(m + r * row, in.m_initial, wide, state, units, row);
      if (in.cell == XLSTM_CELL_LSTM) continue;
      for (int64_t j = 0; j < row; ++j)
        if (n[r * row + j] == 0) c[r * row + j] = 0, m[r * row + j] = -T(__builtin_inff());
    }

    for (int64_t t = 0; t < longest; ++t) {
      if (plan.is_packed)
        matrix.product(memory.packed + task.head * matrix.packed_size(), h, task.rows, raw);
      else
        matrix.product_as_it_lies(weights, h, task.rows, raw, scratch);
      for (int64_t r = 0; r < task.rows; ++r) {
        const int64_t sequence = task.first + r;
        if (t >= tasks.length(sequence)) continue;
        const int64_t batch = tasks.batch_row(sequence), token = tasks.token(sequence, t);
        for (int64_t g = 0; g < kGates; ++g) {
          const int64_t at = batch * p.x_stride[0] + (tasks.begin(sequence) + t) * p.x_stride[1] + g * p.x_stride[2] +
                             task.head * p.x_stride[3];
          load_row(x + g * row, p.x, in.dtype, at, units);
          const T* bias = static_cast<const T*>(p.bias) + (g * in.heads + task.head) * units;
          for (int64_t j = 0; p.bias && j < units; ++j) x[g * row + j] += bias[j];
          for (int64_t j = units; j < row; ++j) x[g * row + j] = 0;
        }
        const T* recurrent = raw + r * raw_row;
        each_vector<T>(row, [&](int64_t j) {
          const auto sum = [&](int64_t g) { return load(x + g * row + j) + load(recurrent + g * row + j); };
          States<Maths> s{load(c + r * row + j), load(n + r * row + j), load(m + r * row + j)};
          Kept<Maths> kept;
          const V out = forward_token<Maths>(in.cell, Gates<Maths>{sum(0), sum(1), sum(2), sum(3)}, s, kept);
          store(c + r * row + j, s.c);
          store(n + r * row + j, s.n);
          store(m + r * row + j, s.m);
          store(h + r * row + j, out);
          const V values[] = {kept.z, kept.o, kept.slope, kept.decay, kept.c, kept.n};
          for (int v = 0; p.gates && v < 2 * kKept; ++v) store(kept_rows + v * row + j, values[v]);
        });
        const int64_t at = (token * in.heads + task.head) * units;
        store_row(p.h, in.dtype, at, h + r * row, units);
        load_row(h + r * row, p.h, in.dtype, at, units);  // the next token reads h as it was rounded
        if (p.m) store_row(p.m, wide, at, m + r * row, units);
        for (int64_t v = 0; p.gates && v < kKept; ++v) {
          const int64_t of_value = ((token * kKept + v) * in.heads + task.head) * units;
          store_row(p.gates, in.dtype, of_value, kept_rows + v * row, units);
          store_row(p.memory, wide, of_value, kept_rows + (kKept + v) * row, units);
        }
      }
    }

    for (int64_t r = 0; p.h_last && r < task.rows; ++r) {
      const int64_t at = ((task.first + r) * in.heads + task.head) * units;
      store_row(p.h_last, in.dtype, at, h + r * row, units);
      store_row(p.c_last, wide, at, c + r * row, units);
      if (in.cell == XLSTM_CELL_LSTM) continue;
      store_row(p.n_last, wide, at, n + r * row, units);
      store_row(p.m_last, wide, at, m + r * row, units);
    }
  });
}

}  // namespace

size_t forward_workspace(const xlstm_slstm_forward& p, const SlstmCpuPlan& plan) {
  return memory_size<Memory>(p.in, plan);
}
void forward(const xlstm_slstm_forward& p, const SlstmCpuPlan& plan, void* workspace, const Executor& executor) {
  p.in.dtype == XLSTM_FLOAT64 ? run<double>(p, plan, workspace, executor) : run<float>(p, plan, workspace, executor);
}

}  // namespace xlstm::XLSTM_ISA::slstm
