// SPDX-License-Identifier: Apache-2.0
// Norms on a CPU: RMSNorm or LayerNorm of each head of a row, after a sum with a residual, before a gate.
//
//     x' = x + residual     n = (x' - mean) rstd     z = n weight + bias     y = sigmoid(gate) z
//
// and back, with g = dz weight, dz = dy sigmoid(gate), and without mean where it is not centred:
//
//     dx = rstd (g - mean g - n mean(g n)) + dsum     dweight = sum_rows dz n     dbias = sum_rows dz
//     dgate = dy z sigmoid(gate) sigmoid(-gate)
//
// Who owns what: a task owns some rows. Backward divides the rows into slices whose number follows from the shape
// alone. Each slice stores its sums of dweight and dbias in the workspace, and the slices are added in order, so that
// the number of threads changes no bit.
//
// Floor: memory binds. x, residual and gate are read once, sum and y are written once.
#include "base/arena.h"
#include "layer/cpu/kernel_table.h"
#include "layer/cpu/rows.h"

namespace xlstm::XLSTM_ISA::layer {
namespace {

template <class T>
struct Moments {
  T mean, rstd;
};

template <class T>
T squares(Tile<T>& x, int n, T mean) {
  Vec<T> sum[2] = {};
  for (int j = 0; j < n; j += kLanes<T>) {
    Vec<T> v = load(x.value + j) - mean;
    if (mean != 0 && j + kLanes<T> > n)
      for (int e = n - j; e < kLanes<T>; ++e) v[e] = 0;
    sum[j / kLanes<T> % 2] += v * v;
  }
  return sum_lanes<T>(sum[0] + sum[1]);
}

template <class T>
T total(Tile<T>& x, int n) {
  Vec<T> sum[2] = {};
  for (int j = 0; j < n; j += kLanes<T>) sum[j / kLanes<T> % 2] += load(x.value + j);
  return sum_lanes<T>(sum[0] + sum[1]);
}

// The moments of the head that begins at feature `from`. A head of one tile is already in x.
template <class T>
Moments<T> moments(const xlstm_norm& in, const xlstm_rows& rows, int64_t row, int64_t from, Tile<T>& x) {
  const auto sum_tiles = [&](auto&& f) {
    T sum = 0;
    for_tiles(in.features, [&](int64_t at, int n) {
      if (in.features > kTile) x.load(rows, row, from + at, n);
      sum += f(n);
    });
    return sum;
  };
  const T mean = in.centred ? sum_tiles([&](int n) { return total(x, n); }) / T(in.features) : T(0);
  const T variance = sum_tiles([&](int n) { return squares(x, n, mean); }) / T(in.features);
  return {mean, T(1 / ::sqrt(double(variance) + in.eps))};
}

template <class T>
void forward_head(const xlstm_norm_forward& p, const NormDtypes& dtypes, int64_t row, int64_t from) {
  const xlstm_norm& in = p.in;
  const xlstm_rows& rows = in.residual.data ? p.sum : in.x;
  Tile<T> x, other;
  if (in.residual.data)
    for_tiles(in.features, [&](int64_t at, int n) {
      x.load(in.x, row, from + at, n);
      other.load(in.residual, row, from + at, n);
      for_vectors<T>(n, [](Vec<T>& a, Vec<T>& b) { a += b; }, x, other);
      x.round(dtypes.sum, n);
      x.store(p.sum, row, from + at, n);
    });
  else if (in.features <= kTile)
    x.load(in.x, row, from, int(in.features));
  const Moments<T> m = moments(in, rows, row, from, x);
  for_tiles(in.features, [&](int64_t at, int n) {
    if (in.features > kTile) x.load(rows, row, from + at, n);
    for_vectors<T>(n, [&](Vec<T>& v) { v = (v - m.mean) * m.rstd; }, x);
    x.round(dtypes.n, n);
    if (in.weight.data) {
      other.load(in.weight, 0, from + at, n);
      for_vectors<T>(n, [](Vec<T>& v, Vec<T>& w) { v *= w; }, x, other);
      x.round(dtypes.weighted, n);
    }
    if (in.bias.data) {
      other.load(in.bias, 0, from + at, n);
      for_vectors<T>(n, [](Vec<T>& v, Vec<T>& b) { v += b; }, x, other);
      x.round(dtypes.z, n);
    }
    if (in.gate.data) {
      other.load(in.gate, row, from + at, n);
      for_vectors<T>(n, [](Vec<T>& o) { o = sigmoid<T>(o); }, other);
      other.round(dtypes.gate, n);
      for_vectors<T>(n, [](Vec<T>& v, Vec<T>& o) { v *= o; }, x, other);
    }
    x.store(p.y, row, from + at, n);
  });
}

template <class T>
void forward(const xlstm_norm_forward& p, const Executor& executor) {
  const xlstm_norm& in = p.in;
  const NormDtypes dtypes = dtypes_of(in);
  const int64_t width = in.heads * in.features, rows_per_task = 1 + kTaskElements / width;
  parallel_elements(executor, (in.rows + rows_per_task - 1) / rows_per_task, in.rows * width,
                    [&](int64_t task, int32_t) {
                      for (int64_t row = task * rows_per_task; row < in.rows && row < (task + 1) * rows_per_task; ++row)
                        for (int64_t head = 0; head < in.heads; ++head)
                          forward_head<T>(p, dtypes, row, head * in.features);
                    });
}

// The workspace of backward: dweight and dbias of each slice, and n and g of a head for each worker.
template <class T>
struct Memory {
  int64_t rows_of_slice, slices, width, padded;
  T *dweight, *dbias, *n, *g;
  size_t used;

  Memory(const xlstm_norm_backward& p, int64_t workers, void* workspace) {
    const int64_t rows = p.in.rows;
    rows_of_slice = rows < 16 ? 1 : rows > 16 * 64 ? 64 : rows / 16;
    slices = (rows + rows_of_slice - 1) / rows_of_slice;
    width = p.in.heads * p.in.features;
    padded = (p.in.features + kTile - 1) / kTile * kTile;
    Arena arena(workspace);
    dweight = p.dweight.data ? arena.take<T>(slices * width) : nullptr;
    dbias = p.dbias.data ? arena.take<T>(slices * width) : nullptr;
    n = arena.take<T>(workers * padded);
    g = arena.take<T>(workers * padded);
    used = arena.used();
  }
};

template <class T>
void add_to(T* __restrict sums, const Tile<T>& x, int n) {
  for (int j = 0; j < n; ++j) sums[j] += x.value[j];
}
template <class T>
void add_products_to(T* __restrict sums, const Tile<T>& x, const Tile<T>& y, int n) {
  for (int j = 0; j < n; ++j) sums[j] += x.value[j] * y.value[j];
}

template <class T>
void backward_head(const xlstm_norm_backward& p, int64_t row, int64_t from, T* dweight, T* dbias, T* row_n, T* row_g) {
  const xlstm_norm& in = p.in;
  Tile<T> x, dz, z, other, bias, weight;
  const bool one_tile = in.features <= kTile;  // then the head stays in x and dz
  if (one_tile) x.load(in.x, row, from, int(in.features));
  const Moments<T> m = moments(in, in.x, row, from, x);
  Vec<T> sum_g{}, sum_gn{};
  for_tiles(in.features, [&](int64_t at, int n) {
    if (!one_tile) x.load(in.x, row, from + at, n);
    for_vectors<T>(n, [&](Vec<T>& v) { v = (v - m.mean) * m.rstd; }, x);
    dz.load(p.dy, row, from + at, n);
    if (in.weight.data) weight.load(in.weight, 0, from + at, n);
    if (in.gate.data) {
      other.load(in.gate, row, from + at, n);
      for_vectors<T>(n, [](Vec<T>& to, Vec<T>& v) { to = v; }, z, x);
      if (in.weight.data) for_vectors<T>(n, [](Vec<T>& v, Vec<T>& w) { v *= w; }, z, weight);
      if (in.bias.data) {
        bias.load(in.bias, 0, from + at, n);
        for_vectors<T>(n, [](Vec<T>& v, Vec<T>& b) { v += b; }, z, bias);
      }
      for_vectors<T>(
          n,
          [](Vec<T>& o, Vec<T>& v, Vec<T>& d) {
            const Vec<T> s = sigmoid<T>(o), flows = d * s;
            o = flows * v * (T(1) - s);
            d = flows;
          },
          other, z, dz);
      other.store(p.dgate, row, from + at, n);
    }
    if (dbias) add_to(dbias + from + at, dz, n);
    if (dweight) add_products_to(dweight + from + at, x, dz, n);
    if (in.weight.data) for_vectors<T>(n, [](Vec<T>& d, Vec<T>& w) { d *= w; }, dz, weight);
    for_vectors<T>(n, [&](Vec<T>& d, Vec<T>& v) { sum_g += d, sum_gn += d * v; }, dz, x);
    if (one_tile) return;
    memcpy(row_n + at, x.value, sizeof x.value);
    memcpy(row_g + at, dz.value, sizeof dz.value);
  });
  const T mean_g = in.centred ? sum_lanes<T>(sum_g) / T(in.features) : T(0);
  const T mean_gn = sum_lanes<T>(sum_gn) / T(in.features);
  for_tiles(in.features, [&](int64_t at, int n) {
    if (!one_tile) {
      memcpy(x.value, row_n + at, sizeof x.value);
      memcpy(dz.value, row_g + at, sizeof dz.value);
    }
    for_vectors<T>(n, [&](Vec<T>& d, Vec<T>& v) { d = (d - mean_g - v * mean_gn) * m.rstd; }, dz, x);
    if (p.dsum.data) {
      other.load(p.dsum, row, from + at, n);
      for_vectors<T>(n, [](Vec<T>& d, Vec<T>& s) { d += s; }, dz, other);
    }
    dz.store(p.dx, row, from + at, n);
  });
}

// Adds the slices' sums in order.
template <class T>
void add_slices(const T* from, const Memory<T>& memory, const xlstm_rows& to) {
  for_tiles(memory.width, [&](int64_t at, int n) {
    double sum[kTile] = {};
    for (int64_t slice = 0; slice < memory.slices; ++slice)
      for (int j = 0; j < n; ++j) sum[j] += from[slice * memory.width + at + j];
    store_row(to.data, to.dtype, at, sum, n);
  });
}

template <class T>
void backward(const xlstm_norm_backward& p, void* workspace, const Executor& executor) {
  const xlstm_norm& in = p.in;
  const Memory<T> memory(p, executor.workers, workspace);
  const int64_t width = memory.width;
  parallel_elements(executor, memory.slices, in.rows * width, [&](int64_t slice, int32_t worker) {
    T* const dweight = memory.dweight ? memory.dweight + slice * width : nullptr;
    T* const dbias = memory.dbias ? memory.dbias + slice * width : nullptr;
    if (dweight) memset(dweight, 0, size_t(width) * sizeof(T));
    if (dbias) memset(dbias, 0, size_t(width) * sizeof(T));
    const int64_t end = (slice + 1) * memory.rows_of_slice;
    for (int64_t row = slice * memory.rows_of_slice; row < in.rows && row < end; ++row)
      for (int64_t head = 0; head < in.heads; ++head)
        backward_head<T>(p, row, head * in.features, dweight, dbias, memory.n + worker * memory.padded,
                         memory.g + worker * memory.padded);
  });
  if (memory.dweight) add_slices(memory.dweight, memory, p.dweight);
  if (memory.dbias) add_slices(memory.dbias, memory, p.dbias);
}

}  // namespace

void norm_forward(const xlstm_norm_forward& p, const Executor& executor) {
  is_double(p.in) ? forward<double>(p, executor) : forward<float>(p, executor);
}

size_t norm_backward_workspace(const xlstm_norm_backward& p, int64_t workers) {
  return is_double(p.in) ? Memory<double>(p, workers, nullptr).used : Memory<float>(p, workers, nullptr).used;
}

void norm_backward(const xlstm_norm_backward& p, void* workspace, const Executor& executor) {
  is_double(p.in) ? backward<double>(p, workspace, executor) : backward<float>(p, workspace, executor);
}

}  // namespace xlstm::XLSTM_ISA::layer
