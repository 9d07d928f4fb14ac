// SPDX-License-Identifier: Apache-2.0
// Soft cap and SwiGLU on a GPU, forward and backward, rounded once: a thread has chunks of eight features, two at a
// time, whose loads are all under way before the first is used. Memory binds.
#pragma once

#include "layer/plan.h"
#include "layer/rows_gpu.h"

namespace xlstm::gpu {

struct SoftCapForward {
  using Params = xlstm_soft_cap;
  static constexpr int kInputs = 1, kOutputs = 1;
  XLSTM_DEVICE static const xlstm_rows& input(const Params& p, int) { return p.x; }
  XLSTM_DEVICE static const xlstm_rows& output(const Params& p, int) { return p.y; }
  XLSTM_DEVICE static void apply(const Params& p, Chunk* c) {
    const float cap = float(p.cap);
    each([=](float& x) { x = cap * soft_tanh(x / cap); }, c[0]);
  }
};

struct SoftCapBackward {
  using Params = xlstm_soft_cap;
  static constexpr int kInputs = 2, kOutputs = 1;
  XLSTM_DEVICE static const xlstm_rows& input(const Params& p, int n) { return n ? p.x : p.dy; }
  XLSTM_DEVICE static const xlstm_rows& output(const Params& p, int) { return p.dx; }
  XLSTM_DEVICE static void apply(const Params& p, Chunk* c) {
    const float cap = float(p.cap);
    each(
        [=](float& d, float& x) {  // 1 - tanh^2 would cancel
          const float e = expf(-2.0f * __builtin_fabsf(x / cap)), sum = 1.0f + e;
          d *= 4.0f * e / (sum * sum);
        },
        c[0], c[1]);
  }
};

struct SwigluForward {
  using Params = xlstm_swiglu;
  static constexpr int kInputs = 2, kOutputs = 1;
  XLSTM_DEVICE static const xlstm_rows& input(const Params& p, int n) { return n ? p.up : p.gate; }
  XLSTM_DEVICE static const xlstm_rows& output(const Params& p, int) { return p.y; }
  XLSTM_DEVICE static void apply(const Params&, Chunk* c) {
    each([](float& g, float& u) { g = g / (1.0f + expf(-g)) * u; }, c[0], c[1]);
  }
};

struct SwigluBackward {
  using Params = xlstm_swiglu;
  static constexpr int kInputs = 3, kOutputs = 2;
  XLSTM_DEVICE static const xlstm_rows& input(const Params& p, int n) { return n == 0 ? p.gate : n == 1 ? p.up : p.dy; }
  XLSTM_DEVICE static const xlstm_rows& output(const Params& p, int n) { return n ? p.dup : p.dgate; }
  XLSTM_DEVICE static void apply(const Params&, Chunk* c) {
    each(
        [](float& g, float& u, float& d) {
          const float s = sigmoid(g), silu = g * s;
          g = d * u * (s + silu * (1.0f - s));
          u = d * silu;
        },
        c[0], c[1], c[2]);
  }
};

template <class Op>
struct PointwiseParams {
  typename Op::Params call;
  int64_t chunks;       // of all rows
  unsigned row_chunks;  // of a row; not looked at with one row
};

template <class Op, class E, bool kWhole>
__global__ __launch_bounds__(kLayerThreads) void pointwise(PointwiseParams<Op> p) {
  const int64_t first = int64_t(blockIdx.x) * (kPointwiseChunks * kLayerThreads) + threadIdx.x;
  const int64_t features = p.call.features;
  int64_t row[kPointwiseChunks], at[kPointwiseChunks];
  Chunk c[kPointwiseChunks][Op::kInputs];
#pragma unroll
  for (int k = 0; k < kPointwiseChunks; ++k) {
    const int64_t chunk = first + k * kLayerThreads;
    row[k] = p.call.rows == 1 ? 0 : unsigned(chunk) / p.row_chunks;
    at[k] = p.call.rows == 1 ? kChunk * chunk : int64_t(kChunk) * (unsigned(chunk) % p.row_chunks);
    if (chunk >= p.chunks) at[k] = features;
#pragma unroll
    for (int n = 0; n < Op::kInputs; ++n)
      if (at[k] < features) c[k][n] = load_chunk<E, kWhole>(Op::input(p.call, n), row[k], at[k], features);
  }
#pragma unroll
  for (int k = 0; k < kPointwiseChunks; ++k) {
    if (at[k] >= features) return;
    Op::apply(p.call, c[k]);
#pragma unroll
    for (int n = 0; n < Op::kOutputs; ++n)
      store_chunk<E, kWhole>(Op::output(p.call, n), row[k], at[k], features, c[k][n]);
  }
}

}  // namespace xlstm::gpu
