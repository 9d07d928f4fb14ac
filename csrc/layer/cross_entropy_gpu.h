// SPDX-License-Identifier: Apache-2.0
// Cross entropy of soft-capped logits on a GPU: the maths of cross_entropy_cpu.cpp.
//
// Forward, a block has a row and reads it once; each thread keeps the greatest y of its own classes and a sum of exps
// that is rescaled when that grows, and the threads' are then made one in a fixed order. Backward, a block has 4096
// classes of a row; a thread reads its logits before it writes their gradient, so both may be in one place.
#pragma once

#include "layer/plan.h"
#include "layer/rows_gpu.h"

namespace xlstm::gpu {

XLSTM_DEVICE float capped(float x, float cap) { return cap == 0 ? x : cap * soft_tanh(x / cap); }

constexpr float kNothing = -__builtin_inff();
// What exps are taken relative to: with nothing but -inf so far, e^-inf is added.
XLSTM_DEVICE float shift_of(float most) { return most == kNothing ? 0.0f : most; }

template <class E, bool kWhole>
__global__ __launch_bounds__(kMostLayerThreads) void cross_entropy_rows(xlstm_cross_entropy p) {
  __shared__ float lds[kMostWaves];
  const int64_t row = blockIdx.x;
  const float cap = float(p.cap);
  float most = kNothing, total = 0;
  for (int64_t at = kChunk * int64_t(threadIdx.x); at < p.classes; at += kChunk * int64_t(blockDim.x)) {
    Chunk y = load_chunk<E, kWhole>(p.logits, row, at, p.classes);
    float now = most;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      y.value[j] = at + j < p.classes ? capped(y.value[j], cap) : kNothing;
      now = fmaxf(now, y.value[j]);
    }
    const float shift = shift_of(now);
    total *= expf(most - shift);
    most = now;
    each([&](float& v) { total += expf(v - shift); }, y);
  }
  const Group block{int(blockDim.x)};
  const float own = most;
  most = reduce(block, most, lds, [](float a, float b) { return fmaxf(a, b); });
  total = sum(block, total * expf(own - shift_of(most)), lds);
  if (threadIdx.x) return;
  float* const exps = static_cast<float*>(p.exps) + 2 * row;
  exps[0] = most;
  exps[1] = total;
  const int64_t target = class_of(p, row);
  float loss = 0;
  if (target != p.ignore_index) {
    loss = __builtin_nanf("");
    if (target >= 0 && target < p.classes) {
      const Chunk y = load_chunk<E, false>(p.logits, row, target, target + 1);
      loss = most - capped(y.value[0], cap) + logf(total);
    }
  }
  static_cast<float*>(p.loss)[row] = loss;
}

struct CrossEntropyBackwardParams {
  xlstm_cross_entropy call;
  unsigned row_blocks;
};

template <class E, bool kWhole>
__global__ __launch_bounds__(kLayerThreads) void cross_entropy_backward_rows(CrossEntropyBackwardParams params) {
  const xlstm_cross_entropy& p = params.call;
  const int64_t row = blockIdx.x / params.row_blocks, first = blockIdx.x % params.row_blocks;
  const int64_t target = class_of(p, row);
  const bool ignored = target == p.ignore_index;
  const float cap = float(p.cap), most = static_cast<const float*>(p.exps)[2 * row];
  const float inverse_total = 1.0f / static_cast<const float*>(p.exps)[2 * row + 1];
  const float dloss = ignored ? 0.0f : static_cast<const float*>(p.dloss)[row * p.dloss_stride];
#pragma unroll
  for (int k = 0; k < kPointwiseChunks; ++k) {
    const int64_t at = kChunk * ((first * kPointwiseChunks + k) * kLayerThreads + threadIdx.x);
    if (at >= p.classes) return;
    Chunk y = load_chunk<E, kWhole>(p.logits, row, at, p.classes);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float v = capped(y.value[j], cap), t = cap == 0 ? 0.0f : v / cap;
      const float d = expf(v - most) * inverse_total - (at + j == target ? 1.0f : 0.0f);
      y.value[j] = ignored ? 0.0f : d * dloss * (1.0f - t * t);
    }
    store_chunk<E, kWhole>(p.dlogits, row, at, p.classes, y);
  }
}

}  // namespace xlstm::gpu
