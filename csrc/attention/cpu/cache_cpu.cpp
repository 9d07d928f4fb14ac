// SPDX-License-Identifier: Apache-2.0
// The steps around attention with a KV cache, on a CPU: appending new tokens to the cache, rotary embedding, and the
// combination of split-KV parts. Decode itself is the forward of few rows (forward_cpu.cpp), its keys split into parts.
//
// A task owns one token of one sequence with all its heads. Each feature is read and written once: memory binds.
#include "attention/append.h"
#include "attention/cpu/combine_parts.h"
#include "attention/cpu/kernel_table.h"
#include "base/arena.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::attention {
namespace {

template <class T>
void rotate(const xlstm_attention_append& p, int64_t position, const T* x, T* y, T* cos, T* sin) {
  const int64_t half = p.rotary_dim / 2, pair_distance = p.interleaved ? 1 : half, step = p.interleaved ? 2 : 1;
  load_row(cos, p.cos, p.from.dtype, position * half, half);
  load_row(sin, p.sin, p.from.dtype, position * half, half);
  for (int64_t j = 0; j < half; ++j) {
    const T a = x[j * step], b = x[j * step + pair_distance];
    y[j * step] = rotated(a, b, cos[j], sin[j], true);
    y[j * step + pair_distance] = rotated(b, a, cos[j], sin[j], false);
  }
}

template <class T>
T* rows_of_workers(Arena& arena, int64_t workers, int64_t width) {
  return arena.take<T>(workers * width);
}
int64_t append_width(const xlstm_attention_append& p) { return round_up(2 * p.features + p.rotary_dim, 16); }

template <class T>
void append(const xlstm_attention_append& p, void* workspace, const Executor& executor) {
  Arena arena(workspace);
  const int64_t width = append_width(p);
  T* rows = rows_of_workers<T>(arena, executor.workers, width);
  parallel_tasks(executor, p.batch * p.length, [&](int64_t task, int32_t worker) {
    const int64_t b = task / p.length, t = task % p.length, to = append_offset(p, b, t);
    T *x = rows + worker * width, *y = x + p.features, *cos = y + p.features, *sin = cos + p.rotary_dim / 2;
    for (int64_t head = 0; head < p.heads; ++head) {
      const int64_t from = b * p.from.stride[0] + head * p.from.stride[1] + t * p.from.stride[2];
      load_row(x, p.from.data, p.from.dtype, from, p.features);
      memcpy(y, x, size_t(p.features) * sizeof(T));
      if (p.cos) rotate(p, rotary_position(p, b, t), x, y, cos, sin);
      if (p.descale.data) {
        const T by = T(descale_of(p.descale, b, head));
        for (int64_t j = 0; j < p.features; ++j) y[j] /= by;
      }
      store_row(p.to.data, p.to.dtype, to + head * p.to.stride[1], y, p.features);
    }
  });
}

template <class T>
void combine(const xlstm_attention_combine& p, void* workspace, const Executor& executor) {
  Arena arena(workspace);
  T* rows = rows_of_workers<T>(arena, executor.workers, p.dv);
  const T *outs = static_cast<const T*>(p.out_partial), *lses = static_cast<const T*>(p.lse_partial);
  parallel_tasks(executor, p.batch * p.length, [&](int64_t task, int32_t worker) {
    const int64_t b = task / p.length, t = task % p.length;
    for (int64_t head = 0; head < p.heads; ++head) {
      T* row = rows + worker * p.dv;
      const T lse =
          combine_row(outs + b * p.out_stride[1] + t * p.out_stride[2] + head * p.out_stride[3], p.out_stride[0],
                      lses + b * p.lse_stride[1] + t * p.lse_stride[2] + head * p.lse_stride[3], p.lse_stride[0],
                      p.splits, p.dv, row);
      const auto at = [&](const xlstm_tensor& x) { return b * x.stride[0] + head * x.stride[1] + t * x.stride[2]; };
      store_row(p.out.data, p.out.dtype, at(p.out), row, p.dv);
      static_cast<T*>(p.lse.data)[at(p.lse)] = seen_lse(lse);
    }
  });
}

template <class F>
auto with_wide(xlstm_dtype dtype, F&& f) {
  return dtype == XLSTM_FLOAT64 ? f(double{}) : f(float{});
}

}  // namespace

size_t attention_append_workspace(const xlstm_attention_append& p, int64_t workers) {
  return with_wide(p.from.dtype, [&](auto x) {
    Arena counter(nullptr);
    rows_of_workers<decltype(x)>(counter, workers, append_width(p));
    return counter.used();
  });
}
void attention_append(const xlstm_attention_append& p, void* workspace, const Executor& executor) {
  with_wide(p.from.dtype, [&](auto x) { append<decltype(x)>(p, workspace, executor); });
}
size_t attention_combine_workspace(const xlstm_attention_combine& p, int64_t workers) {
  return with_wide(p.wide, [&](auto x) {
    Arena counter(nullptr);
    rows_of_workers<decltype(x)>(counter, workers, p.dv);
    return counter.used();
  });
}
void attention_combine(const xlstm_attention_combine& p, void* workspace, const Executor& executor) {
  with_wide(p.wide, [&](auto x) { combine<decltype(x)>(p, workspace, executor); });
}

}  // namespace xlstm::XLSTM_ISA::attention
