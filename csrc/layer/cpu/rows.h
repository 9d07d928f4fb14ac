// SPDX-License-Identifier: Apache-2.0
// Rows of features for the CPU kernels of the layers: a tile of a row, widened, in L1, and the split of rows into
// tasks.
//
// Memory binds all of these kernels, so a tile is loaded as often as its maths needs it: only the first load comes from
// further away than L1 or L2.
#pragma once

#include "layer/dtypes.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::layer {

constexpr int kTile = 512;  // features

template <class T>
constexpr xlstm_dtype kStoredAs = sizeof(T) == 8 ? XLSTM_FLOAT64 : XLSTM_FLOAT32;

// Features of one row, with zeros up to the end of the last vector.
template <class T>
struct Tile {
  alignas(kVectorBytes) T value[kTile];

  void load(const xlstm_rows& x, int64_t row, int64_t at, int n) {
    load_row(value, x.data, x.dtype, row * x.stride + at, n);
    for (int j = n; j % kLanes<T> != 0; ++j) value[j] = 0;
  }
  void store(const xlstm_rows& x, int64_t row, int64_t at, int n) const {
    store_row(x.data, x.dtype, row * x.stride + at, value, n);
  }
  void round(xlstm_dtype dtype, int n) {
    if (dtype == kStoredAs<T>) return;
    alignas(kVectorBytes) char narrow[kTile * sizeof(T)];
    store_row(narrow, dtype, 0, value, n);
    load_row(value, narrow, dtype, 0, n);
  }
};

// Calls f(at, n) for the tiles of a row.
template <class F>
inline void for_tiles(int64_t features, F&& f) {
  for (int64_t at = 0; at < features; at += kTile) f(at, int(features - at < kTile ? features - at : kTile));
}

// Calls f(vector of each tile...) for the vectors of the tiles, which f may change.
template <class T, class F, class... Tiles>
inline void for_vectors(int n, F&& f, Tiles&... tiles) {
  for (int j = 0; j < n; j += kLanes<T>) f(*reinterpret_cast<Vec<T>*>(tiles.value + j)...);
}

template <class T>
inline T sum_lanes(Vec<T> v) {
  T sum = 0;
  for (int e = 0; e < kLanes<T>; ++e) sum += v[e];
  return sum;
}

template <class T>
inline Vec<T> sigmoid(Vec<T> x) {
  return T(1) / (T(1) + exp(-x));
}

// One thread takes so many elements: waking another thread for fewer takes longer.
constexpr int64_t kTaskElements = 16384;

template <class F>
inline void parallel_elements(Executor executor, int64_t tasks, int64_t elements, F&& f) {
  const int64_t max_workers = 1 + elements / kTaskElements;
  if (max_workers < executor.workers) executor.workers = int32_t(max_workers);
  if (executor.workers > 1 && tasks > 1) return parallel_tasks(executor, tasks, f);
  for (int64_t task = 0; task < tasks; ++task) f(task, 0);
}

// Calls f(row, at, n) for every tile of every row, in tasks of several rows, or of a part of a long row's features.
template <class F>
inline void parallel_tiles(const Executor& executor, int64_t rows, int64_t features, F&& f) {
  const int64_t parts = features > kTaskElements ? (features + kTaskElements - 1) / kTaskElements : 1;
  const int64_t rows_per_task = parts > 1 || features == 0 ? 1 : kTaskElements / features;
  const int64_t groups = (rows + rows_per_task - 1) / rows_per_task;
  parallel_elements(executor, groups * parts, rows * features, [&](int64_t task, int32_t) {
    const int64_t first = task / parts * rows_per_task, begin = task % parts * kTaskElements;
    const int64_t end = features - begin < kTaskElements ? features : begin + kTaskElements;
    for (int64_t row = first; row < rows && row < first + rows_per_task; ++row)
      for_tiles(end - begin, [&](int64_t at, int n) { f(row, begin + at, n); });
  });
}

}  // namespace xlstm::XLSTM_ISA::layer
