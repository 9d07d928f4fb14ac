// SPDX-License-Identifier: Apache-2.0
// Soft cap and SwiGLU on a GPU, forward and backward, rounded once:
//     y = cap tanh(x / cap)        dx = dy (1 - tanh(x / cap)^2)
//     y = gate sigmoid(gate) up    dgate = dy up (s + gate s (1 - s)), dup = dy gate s, with s = sigmoid(gate)
//
// A thread has a few chunks of eight features and issues all their loads before it uses the first.
//
// Floor: memory binds, while an element takes no more than some 25 instructions for its four bytes. So contiguous rows
// are treated as one row, and exps and reciprocals are the approximate ones.
#pragma once

#include "layer/gpu/rows.h"

namespace xlstm::gpu::layer {

struct SoftCapForward {
  using Params = xlstm_soft_cap;
  static constexpr int kInputs = 1, kOutputs = 1;
  XLSTM_DEVICE static const xlstm_rows& input(const Params& p, int) { return p.x; }
  XLSTM_DEVICE static const xlstm_rows& output(const Params& p, int) { return p.y; }
  XLSTM_DEVICE static void apply(const Params& p, Chunk* c) {
    const float cap = float(p.cap), scale = 1.0f / cap;
    each([=](float& x) { x = cap * soft_tanh(x * scale); }, c[0]);
  }
};

struct SoftCapBackward {
  using Params = xlstm_soft_cap;
  static constexpr int kInputs = 2, kOutputs = 1;
  XLSTM_DEVICE static const xlstm_rows& input(const Params& p, int n) { return n ? p.x : p.dy; }
  XLSTM_DEVICE static const xlstm_rows& output(const Params& p, int) { return p.dx; }
  XLSTM_DEVICE static void apply(const Params& p, Chunk* c) {
    const float scale = -2 * kLog2E / float(p.cap);
    each(
        [=](float& d, float& x) {  // 1 - tanh^2 would cancel
          const float e = exp2_fast(__builtin_fabsf(x) * scale), r = reciprocal_fast(1.0f + e);
          d *= 4.0f * e * r * r;
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
    each([](float& g, float& u) { g = g * sigmoid(g) * u; }, c[0], c[1]);
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
  unsigned row_chunks;  // of a row; not used with one row
};

// Chunks of a thread that are in flight together: as many as registers allow.
template <class E, bool kAligned>
constexpr int kPointwiseChunks = kPacked<E, kAligned> && sizeof(E) == 2 ? 4 : 2;

template <class Op, class E, bool kAligned>
__global__ __launch_bounds__(kLayerThreads) void pointwise(PointwiseParams<Op> p) {
  constexpr int kChunks = kPointwiseChunks<E, kAligned>;
  const int64_t first = int64_t(blockIdx.x) * (kChunks * kLayerThreads) + threadIdx.x;
  const int64_t features = p.call.features;
  int64_t row[kChunks], at[kChunks];
  RawChunk<E, kAligned> raw[kChunks][Op::kInputs];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {  // a chunk past the end loads chunk 0, whose values are not used
    const int64_t chunk = first + k * kLayerThreads, loaded = chunk < p.chunks ? chunk : 0;
    row[k] = p.call.rows == 1 ? 0 : unsigned(loaded) / p.row_chunks;
    at[k] = kChunk * (p.call.rows == 1 ? loaded : int64_t(unsigned(loaded) % p.row_chunks));
#pragma unroll
    for (int n = 0; n < Op::kInputs; ++n)
      raw[k][n] = load_raw<E, kAligned>(Op::input(p.call, n), row[k], at[k], features);
  }
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    if (first + k * kLayerThreads >= p.chunks) return;
    Chunk c[Op::kInputs];
#pragma unroll
    for (int n = 0; n < Op::kInputs; ++n) c[n] = unpack(raw[k][n]);
    Op::apply(p.call, c);
#pragma unroll
    for (int n = 0; n < Op::kOutputs; ++n)
      store_chunk<E, kAligned>(Op::output(p.call, n), row[k], at[k], features, c[n]);
  }
}

}  // namespace xlstm::gpu::layer
