// SPDX-License-Identifier: Apache-2.0
// y = x W^T for quantised weights and few rows on a CPU: a task is some rows of W, which are read once, where they lie,
// and multiplied in float (engine/cpu/gemv.h) or by tiles (engine/cpu/byte_tiles.h). x is widened before, and for tiles
// made digits.
#include "base/arena.h"
#include "engine/cpu/gemv.h"
#include "engine/cpu/kernel_table.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::engine {
namespace {

struct Memory {
  int64_t columns, worker_floats;  // columns: padded
  float *x, *workers;              // workers: sums and scratch of each
  XDigits digits;

  Memory(Arena& arena, const xlstm_linear_forward& p, const DecodeCpuPlan& plan)
      : columns(padded_columns(p.weight.columns)),
        worker_floats(round_up(p.rows * plan.rows_at_once + product_scratch_floats(columns, p.rows), 64)) {
    x = arena.take<float>(p.rows * columns);
    workers = arena.take<float>(plan.workers * worker_floats);
    if (is_by_tiles(p.weight, p.rows)) digits = XDigits(arena, p.rows, columns);
  }
};

}  // namespace

size_t linear_workspace(const xlstm_linear_forward& p, const DecodeCpuPlan& plan) {
  Arena counter(nullptr);
  const Memory counted(counter, p, plan);
  return counter.used();
}

void linear(const xlstm_linear_forward& p, const DecodeCpuPlan& plan, void* workspace, const Executor& executor) {
  Arena arena(workspace);
  const Memory at(arena, p, plan);
  parallel_tasks(executor, p.rows, [&](int64_t b, int32_t) {
    float* to = at.x + b * at.columns;
    load_row(to, p.x.data, p.x.dtype, b * p.x.stride, p.weight.columns);
    for (int64_t j = p.weight.columns; j < at.columns; ++j) to[j] = 0;
    if (is_by_tiles(p.weight, p.rows)) at.digits.store_row(b, to, at.columns);
  });
  const int64_t tasks = (p.weight.rows + plan.rows_at_once - 1) / plan.rows_at_once;
  parallel_tasks(executor, tasks, [&](int64_t task, int32_t worker) {
    const int64_t begin = task * plan.rows_at_once, left = p.weight.rows - begin;
    const int64_t rows = left < plan.rows_at_once ? left : plan.rows_at_once;
    float* const y = at.workers + worker * at.worker_floats;
    float* const scratch = y + p.rows * plan.rows_at_once;
    multiply({p.weight, begin, begin + rows, at.x, at.columns, p.rows, at.digits, y, rows, scratch});
    for (int64_t b = 0; b < p.rows; ++b) store_row(p.y.data, p.y.dtype, b * p.y.stride + begin, y + b * rows, rows);
  });
}

}  // namespace xlstm::XLSTM_ISA::engine
