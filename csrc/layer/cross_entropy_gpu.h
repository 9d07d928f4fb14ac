// SPDX-License-Identifier: Apache-2.0
// Cross entropy of soft-capped logits on a GPU: the maths of cross_entropy_cpu.cpp.
//
// Forward, a row belongs to a wave or, with many classes, a few: those walk over rows, each thread with four chunks of
// eight classes under way at any time, of the next row too. It keeps the greatest logit of its own classes and a sum of
// exps that is rescaled once for each four chunks, and the threads' are then made one in a fixed order. Backward, a
// block has 4096 classes of a row; a thread reads all its logits before it writes their gradient, so both may be in one
// place.
//
// Memory binds, but closely: NVIDIA's multiprocessors make 16 exps or inverses a cycle, and two for each class take
// nearly as long as its two bytes. So four classes share an inverse.
#pragma once

#include "layer/plan.h"
#include "layer/rows_gpu.h"

namespace xlstm::gpu {

constexpr float kNothing = -__builtin_inff();

// y of logits, in a form that is a step from e^y: 2^(factor form) is e^y up to a constant factor. The form is y itself
// or, for logits of two bytes, r in tanh(x / cap) = 1 - 2 r, r = 1 / (1 + e^(2 x / cap)), whose error is of the cap,
// not of y: 2^-22 of it. So that is for small caps.
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
    if (cap == 0) return x;
    return by_inverse ? inverse(x) : cap * soft_tanh(x * scale);
  }
  // Whether inverses can be shared up to this logit: four of them have a product.
  XLSTM_DEVICE bool shares(float most) const { return by_inverse && most * scale < 31; }
  XLSTM_DEVICE void forms(Chunk& c, bool shared) const {
    if (shared)
      inverses(c.value), inverses(c.value + 4);
    else if (by_inverse)
      each([&](float& x) { x = inverse(x); }, c);
    else if (cap != 0)
      each([&](float& x) { x = cap * soft_tanh(x * scale); }, c);
  }

 private:
  XLSTM_DEVICE float inverse(float x) const { return inverse_fast(1.0f + exp2_fast(x * scale)); }
  // Of a, b, c, d in 1 + a and so on.
  XLSTM_DEVICE void inverses(float* x) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = exp2_fast(x[j] * scale);
    const float b = 1.0f + x[1], ab = __builtin_fmaf(x[0], b, b), d = 1.0f + x[3], cd = __builtin_fmaf(x[2], d, d);
    const float r = inverse_fast(ab * cd), of_ab = r * cd, of_cd = r * ab;
    x[1] = __builtin_fmaf(of_ab, x[0], of_ab);
    x[0] = of_ab * b;
    x[3] = __builtin_fmaf(of_cd, x[2], of_cd);
    x[2] = of_cd * d;
  }
};

struct CrossEntropyParams {
  xlstm_cross_entropy call;
  int slices;
  Group group;
};

// Of some classes: the greatest logit, its exponent as it is subtracted from others, and the sum of 2^(exponent -
// that).
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
__global__ __launch_bounds__(kMostGroup,
                             (kBlocksAtOnce<E, kWhole>)) void cross_entropy_rows(CrossEntropyParams params) {
  __shared__ float lds[Exchange::kFloats];
  const xlstm_cross_entropy& p = params.call;
  Exchange all{params.group, lds};
  const Exponents make(p.cap, kPacked<E, kWhole> && sizeof(E) == 2);
  const int classes = int(p.classes), slice = blockIdx.x * params.group.of_block() + params.group.in_block();
  const int first = kChunk * params.group.lane(), step = kChunk * params.group.lanes, batch = kBatchChunks * step;
  // The batch at `at`, asked for. What is not there is read from where something is, and not looked at.
  RawChunk<E, kWhole> next[kBatchChunks];
  const auto ask = [&](int k, int64_t row_start, int at) {
    const int place = at + k * step < classes ? at + k * step : 0;
    next[k] = load_raw<E, kWhole>(p.logits, 0, row_start + place, row_start + classes);
    if constexpr (!kWhole)
#pragma unroll
      for (int j = 1; j < kChunk; ++j)
        if (place + j >= classes) next[k].value[j] = kNothing;
  };
  const auto start_of = [&](int64_t row) { return (row < p.rows ? row : p.rows - 1) * p.logits.stride; };
#pragma unroll
  for (int k = 0; k < kBatchChunks; ++k) ask(k, start_of(slice), first);
  int64_t coming_target = slice < p.rows ? class_of(p, slice) : 0;

  // As many rows, and batches of them, for every group: barriers and shuffles are met by all.
  for (int64_t row = slice, turn = 0; turn < p.rows; row += params.slices, turn += params.slices) {
    const int64_t coming = row + params.slices, target = coming_target;
    const bool here = row < p.rows, in_range = here && target >= 0 && target < classes;
    const float at_target = in_range ? load_chunk<E, false>(p.logits, row, target, target + 1).value[0] : 0.0f;
    if (coming < p.rows) coming_target = class_of(p, coming);
    RunningSum own;
    for (int start = 0; start < classes; start += batch) {
      const int at = start + first, left = here ? classes - at : 0;
      const bool ends = classes - start <= batch;
      const int64_t next_start = start_of(ends ? coming : row);
      const int next_at = ends ? first : at + batch;
      float most = own.most;
#pragma unroll
      for (int k = 0; k < kBatchChunks; ++k) most = greater(most, k * step < left ? greatest(next[k]) : kNothing);
      own.grow_to(most, make);
      const float shift = own.shift();
      const bool shared = make.shares(most);
#pragma unroll
      for (int k = 0; k < kBatchChunks; ++k) {
        Chunk c = unpack(next[k]);
        make.forms(c, shared);
#pragma unroll
        for (int j = 0; j < kChunk; ++j) {
          const float exponent = __builtin_fmaf(make.factor, c.value[j], -shift);
          c.value[j] = kWhole || k * step + j < left ? exp2_fast(exponent) : 0.0f;
        }
        own.total += k * step < left ? sum_of(c) : 0.0f;
        ask(k, next_start, next_at);
      }
    }
    own.grow_to(all.most(own.most), make);
    // The exponent that was subtracted is a rounded one: the last exp takes back what it was too large or small.
    const float form = make.form(own.most), lost = __builtin_fmaf(make.factor, form, -own.exponent);
    const float total = all.sum(own.total) * exp2_fast(-lost);
    if (first || !here) continue;
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
  const auto place = [&](int k) { return kChunk * ((first * kClassChunks + k) * kLayerThreads + threadIdx.x); };
  RawChunk<E, kWhole> raw[kClassChunks];
#pragma unroll
  for (int k = 0; k < kClassChunks; ++k)
    if (place(k) < p.classes) raw[k] = load_raw<E, kWhole>(p.logits, row, place(k), p.classes);
  const int64_t target = class_of(p, row);
  const bool ignored = target == p.ignore_index;
  const float most = static_cast<const float*>(p.exps)[2 * row];
  const float inverse_total = 1.0f / static_cast<const float*>(p.exps)[2 * row + 1];
  const float dloss = ignored ? 0.0f : static_cast<const float*>(p.dloss)[row * p.dloss_stride];
  const Exponents make(p.cap, kPacked<E, kWhole> && sizeof(E) == 2);
#pragma unroll
  for (int k = 0; k < kClassChunks; ++k) {
    const int64_t at = place(k);
    if (at >= p.classes) return;
    Chunk form = unpack(raw[k]), d;
    make.forms(form, make.shares(greatest(raw[k])));
    each([&](float& v, float& f) { v = exp2_fast(kLog2E * (make.y(f) - most)) * inverse_total; }, d, form);
    if (target >= at && target < at + kChunk)
#pragma unroll
      for (int j = 0; j < kChunk; ++j) d.value[j] -= at + j == target ? 1.0f : 0.0f;
    each([&](float& v, float& f) { v = ignored ? 0.0f : v * dloss * make.slope(f); }, d, form);
    store_chunk<E, kWhole>(p.dlogits, row, at, p.classes, d);
  }
}

}  // namespace xlstm::gpu
