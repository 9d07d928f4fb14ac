// SPDX-License-Identifier: Apache-2.0
// Cross entropy of soft-capped logits on a GPU: the maths of cross_entropy_cpu.cpp.
//
// Forward, a row belongs to a wave or, with many classes, a few: those walk over rows, each thread with four chunks of
// eight classes under way at any time, of the next row too. It keeps the greatest logit of its own classes and a sum of
// exps that is rescaled once for each four chunks, and the threads' are then made one in a fixed order. Backward, a block has
// 4096 classes of a row; a thread reads its logits before it writes their gradient, so both may be in one place.
//
// Memory binds, but closely: NVIDIA's multiprocessors make 16 exps or inverses a cycle, and two for each class are
// nearly as long as its two bytes. So four classes share an inverse (Exponents).
#pragma once

#include "layer/plan.h"
#include "layer/rows_gpu.h"

namespace xlstm::gpu {

constexpr float kNothing = -__builtin_inff();

// y of logits, in a form that is a step from e^y: 2^(factor form) is e^y up to a constant factor. The form is y itself
// or, for logits of two bytes, r in tanh(x / cap) = 1 - 2 r, r = 1 / (1 + e^(2 x / cap)): what it lacks near zero, digits, is
// no more than 2^-23 of the cap. It is that only for small caps: with a large one, y is a small part of it.
struct Exponents {
  float cap, scale, factor;
  bool by_inverse;

  XLSTM_DEVICE Exponents(double cap_, bool two_bytes) : cap(float(cap_)) {
    by_inverse = two_bytes && cap_ != 0 && cap_ <= 64;
    scale = cap == 0 ? 1.0f : (by_inverse ? 2 * kLog2E : 1.0f) / cap;
    factor = by_inverse ? -2 * kLog2E * cap : kLog2E;
  }
  XLSTM_DEVICE float y(float form) const { return by_inverse ? __builtin_fmaf(-2 * cap, form, cap) : form; }
  // dy / dx = 1 - tanh^2
  XLSTM_DEVICE float slope(float form) const {
    if (by_inverse) return 4.0f * __builtin_fmaf(-form, form, form);
    const float t = cap == 0 ? 0.0f : form * scale;
    return 1.0f - t * t;
  }
  XLSTM_DEVICE float form(float x) const {
    if (!by_inverse) return cap == 0 ? x : cap * soft_tanh(x * scale);
    const float a = bounded(x);
    return polished(a, inverse_fast(a));
  }
  XLSTM_DEVICE void forms(Chunk& c) const {
    if (!by_inverse)
      each([&](float& x) { x = form(x); }, c);
    else
      inverses(c.value), inverses(c.value + 4);
  }

 private:
  // 1 + e^(2 x / cap). Four of them have a product; beyond 2^31, tanh is 1.
  XLSTM_DEVICE float bounded(float x) const { return 1.0f + exp2_fast(at_most(x * scale, 31.0f)); }
  // Rounded once, but for the rarest ties: whichever the other three classes were.
  XLSTM_DEVICE static float polished(float a, float r) { return __builtin_fmaf(__builtin_fmaf(-a, r, 1.0f), r, r); }
  XLSTM_DEVICE void inverses(float* x) const {
    float a[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = bounded(x[j]);
    const float ab = a[0] * a[1], cd = a[2] * a[3], r = inverse_fast(ab * cd), of_ab = r * cd, of_cd = r * ab;
    x[0] = polished(a[0], of_ab * a[1]);
    x[1] = polished(a[1], of_ab * a[0]);
    x[2] = polished(a[2], of_cd * a[3]);
    x[3] = polished(a[3], of_cd * a[2]);
  }
};

struct CrossEntropyParams {
  xlstm_cross_entropy call;
  int slices;
  Group group;
};

// Of some classes: the greatest logit, its exponent as it is subtracted from others, and the sum of 2^(exponent - that).
struct RunningSum {
  float most = kNothing, exponent = kNothing, total = 0;

  // What is subtracted: with nothing but -inf so far, 2^-inf is added.
  XLSTM_DEVICE float shift() const { return exponent == kNothing ? 0.0f : exponent; }
  XLSTM_DEVICE void grow_to(float logit, const Exponents& make) {
    const float old = exponent;
    most = logit;
    exponent = make.factor * make.form(logit);
    total *= exp2_fast(old - shift());
  }
};

template <class E, bool kWhole>
__global__ __launch_bounds__(kMostGroup, (kBlocksAtOnce<E, kWhole>)) void cross_entropy_rows(CrossEntropyParams params) {
  __shared__ float lds[2 * kMostWaves];
  const xlstm_cross_entropy& p = params.call;
  Exchange all{params.group, lds};
  const Exponents make(p.cap, kPacked<E, kWhole> && sizeof(E) == 2);
  const int lane = params.group.lane(), step = kChunk * params.group.lanes;
  const int slice = blockIdx.x * params.group.of_block() + params.group.in_block();
  RawChunk<E, kWhole> next[kBatchChunks];
  const auto ask = [&](int k, int64_t row, int64_t batch) {
    const int64_t at = batch + k * step + kChunk * lane;
    if (row >= p.rows || at >= p.classes) return;
    next[k] = load_raw<E, kWhole>(p.logits, row, at, p.classes);
    if constexpr (!kWhole)
      for (int j = 1; j < kChunk; ++j)
        if (at + j >= p.classes) next[k].value[j] = kNothing;
  };
#pragma unroll
  for (int k = 0; k < kBatchChunks; ++k) ask(k, slice, 0);
  int64_t coming_target = slice < p.rows ? class_of(p, slice) : 0;

  for (int64_t row = slice, turn = 0; turn < p.rows; row += params.slices, turn += params.slices) {
    const int64_t classes = row < p.rows ? p.classes : 0, target = coming_target, coming = row + params.slices;
    const bool in_range = target >= 0 && target < classes;
    const float at_target = in_range ? load_chunk<E, false>(p.logits, row, target, target + 1).value[0] : 0.0f;
    if (coming < p.rows) coming_target = class_of(p, coming);
    RunningSum own;
    for (int64_t batch = 0; batch < p.classes; batch += kBatchChunks * step) {
      const bool ends = batch + kBatchChunks * step >= p.classes;
      const auto place = [&](int k) { return batch + k * step + kChunk * lane; };
      float most = own.most;
#pragma unroll
      for (int k = 0; k < kBatchChunks; ++k)
        if (place(k) < classes) most = greater(most, greatest(next[k]));
      own.grow_to(most, make);
#pragma unroll
      for (int k = 0; k < kBatchChunks; ++k) {
        if (place(k) >= classes) continue;
        Chunk c = unpack(next[k]);
        ask(k, ends ? coming : row, ends ? 0 : batch + kBatchChunks * step);
        make.forms(c);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) {
          const float exponent = __builtin_fmaf(make.factor, c.value[j], -own.shift());
          c.value[j] = kWhole || place(k) + j < classes ? exp2_fast(exponent) : 0.0f;
        }
#pragma unroll
        for (int apart = 1; apart < kChunk; apart *= 2)
#pragma unroll
          for (int j = 0; j < kChunk; j += 2 * apart) c.value[j] += c.value[j + apart];
        own.total += c.value[0];
      }
    }
    own.grow_to(all.reduce(own.most, [](float a, float b) { return greater(a, b); }), make);
    // The exponent that was subtracted is a rounded one: the last exp takes back what it was too large or small.
    const float form = make.form(own.most), lost = __builtin_fmaf(make.factor, form, -own.exponent);
    const float total = all.sum(own.total) * exp2_fast(-lost);
    if (lane || row >= p.rows) continue;
    float* const exps = static_cast<float*>(p.exps) + 2 * row;
    exps[0] = make.y(form);
    exps[1] = total;
    float loss = 0;
    if (target != p.ignore_index)
      loss = in_range ? make.y(form) - make.y(make.form(at_target)) + logf(total) : __builtin_nanf("");
    static_cast<float*>(p.loss)[row] = loss;
  }
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
  const float most = static_cast<const float*>(p.exps)[2 * row];
  const float inverse_total = 1.0f / static_cast<const float*>(p.exps)[2 * row + 1];
  const float dloss = ignored ? 0.0f : static_cast<const float*>(p.dloss)[row * p.dloss_stride];
  const Exponents make(p.cap, kPacked<E, kWhole> && sizeof(E) == 2);
#pragma unroll
  for (int k = 0; k < kPointwiseChunks; ++k) {
    const int64_t at = kChunk * ((first * kPointwiseChunks + k) * kLayerThreads + threadIdx.x);
    if (at >= p.classes) return;
    Chunk c = load_chunk<E, kWhole>(p.logits, row, at, p.classes);
    make.forms(c);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float form = c.value[j];
      const float d = exp2_fast(kLog2E * (make.y(form) - most)) * inverse_total - (at + j == target ? 1.0f : 0.0f);
      c.value[j] = ignored ? 0.0f : d * dloss * make.slope(form);
    }
    store_chunk<E, kWhole>(p.dlogits, row, at, p.classes, c);
  }
}

}  // namespace xlstm::gpu
