// SPDX-License-Identifier: Apache-2.0
// Soft cap and SwiGLU on a CPU, forward and backward, rounded once:
//
//     y = cap tanh(x / cap)     y = gate sigmoid(gate) up
//
// A tile is loaded, changed in place and stored. Floor: memory binds, or with few elements the call itself.
#include "layer/cpu/kernel_table.h"
#include "layer/cpu/rows.h"

namespace xlstm::XLSTM_ISA::layer {
namespace {

template <class T>
void run_soft_cap(const xlstm_soft_cap& p, bool forward, const Executor& executor) {
  const T cap = T(p.cap);
  parallel_tiles(executor, p.rows, p.features, [&](int64_t row, int64_t at, int n) {
    Tile<T> x, dy;
    x.load(p.x, row, at, n);
    if (forward) {
      for_vectors<T>(n, [=](Vec<T>& v) { v = cap * tanh(v / cap); }, x);
      return x.store(p.y, row, at, n);
    }
    dy.load(p.dy, row, at, n);
    for_vectors<T>(
        n,
        [=](Vec<T>& d, Vec<T>& v) {  // 1 - tanh^2 would cancel
          const Vec<T> z = v / cap, e = exp(z > T(0) ? -z - z : z + z), sum = T(1) + e;
          d *= T(4) * e / (sum * sum);
        },
        dy, x);
    dy.store(p.dx, row, at, n);
  });
}

template <class T>
void run_swiglu(const xlstm_swiglu& p, bool forward, const Executor& executor) {
  parallel_tiles(executor, p.rows, p.features, [&](int64_t row, int64_t at, int n) {
    Tile<T> gate, up, dy;
    gate.load(p.gate, row, at, n);
    up.load(p.up, row, at, n);
    if (forward) {
      for_vectors<T>(n, [](Vec<T>& g, Vec<T>& u) { g = g / (T(1) + exp(-g)) * u; }, gate, up);
      return gate.store(p.y, row, at, n);
    }
    dy.load(p.dy, row, at, n);
    for_vectors<T>(
        n,
        [](Vec<T>& g, Vec<T>& u, Vec<T>& d) {
          const Vec<T> s = sigmoid<T>(g), silu = g * s;
          g = d * u * (s + silu * (T(1) - s));
          u = d * silu;
        },
        gate, up, dy);
    gate.store(p.dgate, row, at, n);
    up.store(p.dup, row, at, n);
  });
}

void soft_cap(const xlstm_soft_cap& p, bool forward, const Executor& executor) {
  p.x.dtype == XLSTM_FLOAT64 ? run_soft_cap<double>(p, forward, executor) : run_soft_cap<float>(p, forward, executor);
}

void swiglu(const xlstm_swiglu& p, bool forward, const Executor& executor) {
  promoted(p.gate.dtype, p.up.dtype) == XLSTM_FLOAT64 ? run_swiglu<double>(p, forward, executor)
                                                      : run_swiglu<float>(p, forward, executor);
}

}  // namespace

void soft_cap_forward(const xlstm_soft_cap& p, const Executor& executor) { soft_cap(p, true, executor); }
void soft_cap_backward(const xlstm_soft_cap& p, const Executor& executor) { soft_cap(p, false, executor); }
void swiglu_forward(const xlstm_swiglu& p, const Executor& executor) { swiglu(p, true, executor); }
void swiglu_backward(const xlstm_swiglu& p, const Executor& executor) { swiglu(p, false, executor); }

}  // namespace xlstm::XLSTM_ISA::layer
