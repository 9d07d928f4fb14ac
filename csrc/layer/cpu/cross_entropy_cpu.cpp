// SPDX-License-Identifier: Apache-2.0
// Cross entropy of soft-capped logits on a CPU.
//
//     y = cap tanh(logits / cap)     sum = sum_c e^(y_c - max y)     loss = max y + log sum - y_target
//     dlogits_c = dloss (e^(y_c - max y) / sum - [c is target]) (1 - (y_c / cap)^2)
//
// Who owns what: a task owns a row and reads it once, a tile at a time. Forward is an online softmax: the maximum so
// far and a sum of exps that is rescaled when the maximum grows. So memory other than the logits is a few numbers per
// row.
//
// Floor: with many classes tanh and exp bind, else memory.
#include "layer/cpu/kernel_table.h"
#include "layer/cpu/rows.h"

namespace xlstm::XLSTM_ISA::layer {
namespace {

template <class T>
void cap_tile(Tile<T>& y, int n, T cap) {
  if (cap != 0) for_vectors<T>(n, [=](Vec<T>& v) { v = cap * tanh(v / cap); }, y);
}

template <class T>
void forward_row(const xlstm_cross_entropy& p, int64_t row) {
  const int64_t target = class_of(p, row);
  const T cap = T(p.cap);
  T row_max = -T(__builtin_inf()), at_target = 0;
  double sum = 0;
  Tile<T> y;
  for_tiles(p.classes, [&](int64_t at, int n) {
    y.load(p.logits, row, at, n);
    cap_tile(y, n, cap);
    if (target >= at && target < at + n) at_target = y.value[target - at];
    for (int j = n; j % kLanes<T> != 0; ++j) y.value[j] = -T(__builtin_inf());
    Vec<T> lane_max = broadcast(row_max), part{};
    for_vectors<T>(n, [&](Vec<T>& v) { lane_max = v > lane_max ? v : lane_max; }, y);
    T new_max = row_max;
    for (int e = 0; e < kLanes<T>; ++e) new_max = lane_max[e] > new_max ? lane_max[e] : new_max;
    const T shift = new_max == -T(__builtin_inf()) ? T(0) : new_max;  // after nothing but -inf, e^-inf is added
    for_vectors<T>(n, [&](Vec<T>& v) { part += exp(v - shift); }, y);
    sum = sum * ::exp(double(row_max) - double(shift)) + double(sum_lanes<T>(part));
    row_max = new_max;
  });
  T* const exps = static_cast<T*>(p.exps) + 2 * row;
  exps[0] = row_max;
  exps[1] = T(sum);
  const double loss = double(row_max) - double(at_target) + ::log(sum);
  static_cast<T*>(p.loss)[row] = target == p.ignore_index ? T(0) : T(loss);
}

template <class T>
void backward_row(const xlstm_cross_entropy& p, int64_t row) {
  const int64_t target = class_of(p, row);
  const bool ignored = target == p.ignore_index;
  const T cap = T(p.cap), row_max = static_cast<const T*>(p.exps)[2 * row];
  const T inverse = 1 / static_cast<const T*>(p.exps)[2 * row + 1];
  const T dloss = ignored ? T(0) : static_cast<const T*>(p.dloss)[row * p.dloss_stride];
  Tile<T> y, d;
  for_tiles(p.classes, [&](int64_t at, int n) {
    if (ignored) {
      memset(d.value, 0, sizeof d.value);
      return d.store(p.dlogits, row, at, n);
    }
    y.load(p.logits, row, at, n);
    cap_tile(y, n, cap);
    for_vectors<T>(n, [&](Vec<T>& v, Vec<T>& to) { to = exp(v - row_max) * inverse; }, y, d);
    if (target >= at && target < at + n) d.value[target - at] -= 1;
    for_vectors<T>(n, [&](Vec<T>& to) { to *= dloss; }, d);
    if (cap != 0)
      for_vectors<T>(
          n,
          [&](Vec<T>& v, Vec<T>& to) {
            const Vec<T> t = v / cap;
            to *= T(1) - t * t;
          },
          y, d);
    d.store(p.dlogits, row, at, n);
  });
}

}  // namespace

void cross_entropy_forward(const xlstm_cross_entropy& p, const Executor& executor) {
  parallel_elements(executor, p.rows, p.rows * p.classes, [&](int64_t row, int32_t) {
    p.logits.dtype == XLSTM_FLOAT64 ? forward_row<double>(p, row) : forward_row<float>(p, row);
  });
}

void cross_entropy_backward(const xlstm_cross_entropy& p, const Executor& executor) {
  parallel_elements(executor, p.rows, p.rows * p.classes, [&](int64_t row, int32_t) {
    p.logits.dtype == XLSTM_FLOAT64 ? backward_row<double>(p, row) : backward_row<float>(p, row);
  });
}

}  // namespace xlstm::XLSTM_ISA::layer
