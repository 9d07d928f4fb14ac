// SPDX-License-Identifier: Apache-2.0
// One token of one head on a CPU: the decay by its gates, and the update of n and of a tile of values of C and h. The
// recurrent kernel and the decode step consist of these functions.
#pragma once

#include "mlstm/cpu/sequences.h"
#include "mlstm/recurrence.h"

namespace xlstm::XLSTM_ISA::mlstm {

// How a head's values are split among tasks.
struct Tiling {
  int64_t width, count;  // values per task, tasks per head

  // Splits values only when the heads do not fill the workers, in full cache lines and at least 64 values per task.
  Tiling(int64_t dhv, int64_t heads, int64_t workers) {
    constexpr int64_t kMinWidth = 64;
    const int64_t wanted = (workers + heads - 1) / heads, max_tiles = (dhv + kMinWidth - 1) / kMinWidth;
    const int64_t tiles = wanted < max_tiles ? wanted : max_tiles;
    width = ((dhv + tiles - 1) / tiles + 15) / 16 * 16;
    count = (dhv + width - 1) / width;
  }
};

// The factors by which a token's gates decay a state whose stabiliser was m and scale the new token.
template <class T>
struct Decay {
  double m;  // the new stabiliser
  T forget, input;
};
template <class T>
inline Decay<T> decay(bool sigmoid_gate, const TokenGates& g, double m) {
  const double next = next_stabiliser(sigmoid_gate, g.lf, m, g.ig);
  return {next, T(::exp(g.lf + m - next)), T(::exp(g.ig - next))};
}

// n' = forget n + input k; returns l = q.n'.
template <class T>
inline T update_n(const Decay<T>& decay, const T* q, const T* k, T* n, int64_t dqk) {
  for (int64_t d = 0; d < dqk; ++d) n[d] = decay.forget * n[d] + decay.input * k[d];
  return T(dot(q, n, dqk));
}

// c' = forget c + (input k) v^T and h = q c', for `width` values; four rows of c at a time share the loads of v and h.
template <class T>
void update_c(const Decay<T>& decay, const T* c, T* c_next, int64_t stride, const T* q, const T* k, const T* v, T* h,
              int64_t dqk, int64_t width) {
  const T forget = decay.forget, input = decay.input;
  for (int64_t j = 0; j < width; ++j) h[j] = 0;
  int64_t d = 0;
  const int64_t vector_width = width / kLanes<T> * kLanes<T>;
  for (; d + 4 <= dqk; d += 4) {
    const T k0 = input * k[d], k1 = input * k[d + 1], k2 = input * k[d + 2], k3 = input * k[d + 3];
    const T *c0 = c + d * stride, *c1 = c0 + stride, *c2 = c1 + stride, *c3 = c2 + stride;
    T *o0 = c_next + d * stride, *o1 = o0 + stride, *o2 = o1 + stride, *o3 = o2 + stride;
    for (int64_t j = 0; j < vector_width; j += kLanes<T>) {
      const Vec<T> value = load(v + j);
      const Vec<T> x0 = load(c0 + j) * forget + value * k0, x1 = load(c1 + j) * forget + value * k1;
      const Vec<T> x2 = load(c2 + j) * forget + value * k2, x3 = load(c3 + j) * forget + value * k3;
      store(o0 + j, x0);
      store(o1 + j, x1);
      store(o2 + j, x2);
      store(o3 + j, x3);
      store(h + j, load(h + j) + (x0 * q[d] + x1 * q[d + 1]) + (x2 * q[d + 2] + x3 * q[d + 3]));
    }
    for (int64_t j = vector_width; j < width; ++j)
      for (int64_t r = d; r < d + 4; ++r) {
        const T x = c[r * stride + j] * forget + v[j] * (input * k[r]);
        c_next[r * stride + j] = x;
        h[j] += x * q[r];
      }
  }
  for (; d < dqk; ++d)
    for (int64_t j = 0; j < width; ++j) {
      const T x = c[d * stride + j] * forget + v[j] * (input * k[d]);
      c_next[d * stride + j] = x;
      h[j] += x * q[d];
    }
}

}  // namespace xlstm::XLSTM_ISA::mlstm
