// SPDX-License-Identifier: Apache-2.0
// Cross entropy of soft-capped logits on a GPU: the maths of cross_entropy_cpu.cpp.
//
// Forward, a row belongs to a wave or, with many classes, a few: those walk over rows, each thread with four chunks of
// eight classes under way at any time, of the next row too. It keeps the greatest logit of its own classes and a sum of
// exps that is rescaled once for each four chunks, and the threads' are then made one in a fixed order. Backward, a
// block has 8192 classes of a row; a thread reads all its logits before it writes their gradient, so both may be in one
// place.
//
// Memory binds, but closely: at the bandwidth of an H200 one multiprocessor has 13 instructions for a logit of two
// bytes, and its special functions 1.7. A tanh of exps and an inverse would take two of those before the exp. So the
// tanh of two-byte logits up to the cap is a polynomial: 12 instructions in all, one of them an exp.
#pragma once

#include "layer/gpu/plan.h"
#include "layer/gpu/rows.h"

namespace xlstm::gpu::layer {

constexpr float kNothing = -__builtin_inff();

// Exponents of e^y = 2^(a factor), made of logits x: of two bytes and up to the cap a = x and the factor is a
// polynomial in x^2, elsewhere a = y. tanh(z) = z P(z^2), minimax on [-1, 1], is wrong by 2.8e-6: y by 8e-5 of a cap of
// 30, where the rounding of a bfloat16 logit is 2e-3 |x|, of a float16 2.4e-4. A logit has the same y wherever it
// stands.
template <bool kTwoBytes>
struct Exponents {
  static constexpr int kTerms = 5;

  float cap, scale;  // 1 / cap
  bool capped, by_polynomial;
  float term[kTerms];

  XLSTM_DEVICE explicit Exponents(double cap_) : cap(float(cap_)) {
    capped = cap != 0;
    scale = capped ? 1.0f / cap : 1.0f;
    by_polynomial = kTwoBytes && cap > 1e-3f && cap < 1e3f;  // else powers of the cap would be denormals or infinities
    const float of[kTerms] = {0.999968469f, -0.332658232f, 0.129220669f, -0.0432998637f, 0.00836588659f};
    float power = kLog2E;
#pragma unroll
    for (int k = 0; k < kTerms; ++k, power *= scale * scale) term[k] = of[k] * power;
  }

  // Whether these and all in between have the polynomial.
  XLSTM_DEVICE bool near(const Extremes& x) const { return by_polynomial && x.most <= cap && x.least >= -cap; }
  // x to a, and its factor.
  XLSTM_DEVICE void split(Chunk& x, Chunk& factor, bool near) const {
    if (near)
      each([&](float& v, float& f) { f = polynomial(v); }, x, factor);
    else
      each([&](float& v, float& f) { split(v, f); }, x, factor);
  }
  XLSTM_DEVICE float y(float x) const {
    float factor;
    return split(x, factor) ? x * factor * (1 / kLog2E) : x;
  }
  XLSTM_DEVICE float exponent(float x) const {
    float factor;
    split(x, factor);
    return x * factor;
  }
  // dy / dx = 1 - tanh^2 from x; times a number, from the exponent of one that is near.
  XLSTM_DEVICE float slope(float x) const {
    if (!capped) return 1.0f;
    if constexpr (kTwoBytes) {  // 1 - tanh^2 would cancel
      const float e = exp2_fast(__builtin_fabsf(x) * (-2 * kLog2E * scale)), r = reciprocal_fast(1.0f + e);
      return 4.0f * e * r * r;
    } else {
      const float t = soft_tanh(x * scale);
      return 1.0f - t * t;
    }
  }
  XLSTM_DEVICE float near_exponent(float x) const { return x * polynomial(x); }
  XLSTM_DEVICE float near_slope(float exponent, float times) const {
    const float unit = scale / kLog2E;
    return __builtin_fmaf(exponent * (-unit * unit * times), exponent, times);
  }

 private:
  XLSTM_DEVICE bool split(float& x, float& factor) const {
    const bool small = by_polynomial && x >= -cap && x <= cap;
    factor = small ? polynomial(x) : kLog2E;
    if (capped && !small) x = cap * soft_tanh(x * scale);
    return small;
  }
  XLSTM_DEVICE float polynomial(float x) const {
    const float square = x * x;
    float p = term[kTerms - 1];
#pragma unroll
    for (int k = kTerms - 2; k >= 0; --k) p = __builtin_fmaf(p, square, term[k]);
    return p;
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
  template <class Make>
  XLSTM_DEVICE void grow_to(float logit, const Make& make) {
    if (logit == most) return;
    const float old = exponent;
    most = logit;
    exponent = make.exponent(logit);
    total *= exp2_fast(old - shift());
  }
};

template <class E, bool kWhole>
__global__ __launch_bounds__(kMostGroup,
                             (kBlocksAtOnce<E, kWhole>)) void cross_entropy_rows(CrossEntropyParams params) {
  __shared__ float lds[Exchange::kFloats];
  const xlstm_cross_entropy& p = params.call;
  Exchange all{params.group, lds};
  const Exponents<kSmall<E, kWhole>> make(p.cap);
  const int classes = int(p.classes), slice = blockIdx.x * params.group.of_block() + params.group.in_block();
  const int first = kChunk * params.group.lane(), step = kChunk * params.group.lanes, batch = kBatchChunks * step;
  // The batch from a lane's class `at` on, asked for. What is not there is read from where something of the row is, and
  // counts for the greatest alone.
  RawChunk<E, kWhole> next[kBatchChunks];
  const auto ask = [&](int k, const RowStart& row, int at) {
    const int none = at < classes ? at : 0, place = at + k * step < classes ? at + k * step : none;
    next[k] = load_at<E, kWhole>(row, place, classes);
    if constexpr (!kWhole)
#pragma unroll
      for (int j = 1; j < kChunk; ++j)
        if (place + j >= classes) next[k].value[j] = next[k].value[0];
  };
  const auto start_of = [&](int64_t row) { return (row < p.rows ? row : p.rows - 1) * p.logits.stride; };
#pragma unroll
  for (int k = 0; k < kBatchChunks; ++k) ask(k, row_start<E>(p.logits, start_of(slice)), first);
  int64_t coming_target = slice < p.rows ? class_of(p, slice) : 0;

  // As many rows, and batches of them, for every group: barriers and shuffles are met by all.
  for (int64_t row = slice, turn = 0; turn < p.rows; row += params.slices, turn += params.slices) {
    const int64_t coming = row + params.slices, target = coming_target;
    const int64_t own_start = start_of(row), coming_start = start_of(coming);
    const bool here = row < p.rows, in_range = here && target >= 0 && target < classes;
    const float at_target = in_range ? load_chunk<E, false>(p.logits, row, target, target + 1).value[0] : 0.0f;
    if (coming < p.rows) coming_target = class_of(p, coming);
    const int own_classes = int(opaque(uint32_t(here ? classes : 0)));
    RunningSum own;
    for (int start = 0; start < classes; start += batch) {
      const int at = start + first, left = int(opaque(uint32_t(own_classes - at)));
      const bool ends = classes - start <= batch;
      const RowStart next_row = row_start<E>(p.logits, ends ? coming_start : own_start);
      const int next_at = int(opaque(uint32_t(ends ? first : at + batch)));
      const Extremes logits = extremes(next);
      own.grow_to(max_num(own.most, logits.most), make);
      const float shift = own.shift();
      const bool near = make.near(logits);
#pragma unroll
      for (int k = 0; k < kBatchChunks; ++k) {
        if (k * step < left) {
          Chunk c = unpack(next[k]), factor;
          make.split(c, factor, near);
#pragma unroll
          for (int j = 0; j < kChunk; ++j) {
            const float exponent = __builtin_fmaf(c.value[j], factor.value[j], -shift);
            c.value[j] = kWhole || k * step + j < left ? exp2_fast(exponent) : 0.0f;
          }
          own.total += sum_of(c);
        }
        ask(k, next_row, next_at);
      }
    }
    own.grow_to(all.most(own.most), make);
    // The greatest y is rounded: the last exp takes back what it was too large or small.
    const float most = make.y(own.most), lost = __builtin_fmaf(kLog2E, most, -own.shift());
    const float total = all.sum(own.total) * exp2_fast(-lost);
    if (first || !here) continue;
    float* const exps = static_cast<float*>(p.exps) + 2 * row;
    exps[0] = most;
    exps[1] = total;
    float loss = 0;
    if (target != p.ignore_index) loss = in_range ? most - make.y(at_target) + logf(total) : __builtin_nanf("");
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
  const int64_t row = blockIdx.x / params.row_blocks;
  const int classes = int(p.classes);
  const int begin = kChunk * (blockIdx.x % params.row_blocks * (kClassChunks * kLayerThreads) + threadIdx.x);
  const auto place = [&](int k) { return begin + k * (kChunk * kLayerThreads); };
  const RowStart from = row_start<E>(p.logits, row * p.logits.stride),
                 to = row_start<E>(p.dlogits, row * p.dlogits.stride);
  // What is not there is this thread's first chunk again: other threads may be writing elsewhere.
  RawChunk<E, kWhole> raw[kClassChunks];
  const int first = begin < classes ? begin : 0;
  load_each<E, kWhole>(from, [&](int k) { return place(k) < classes ? place(k) : first; }, classes, raw);
  const int64_t target = class_of(p, row);
  const bool ignored = target == p.ignore_index;
  const float most = static_cast<const float*>(p.exps)[2 * row];
  const float inverse_total = 1.0f / static_cast<const float*>(p.exps)[2 * row + 1];
  const float dloss = ignored ? 0.0f : static_cast<const float*>(p.dloss)[row * p.dloss_stride];
  const Exponents<kSmall<E, kWhole>> make(p.cap);
  // 2^(exponent - shift) scale: what the shift is too large or small is in the scale.
  const float shift = kLog2E * most, scale = exp2_fast(__builtin_fmaf(-kLog2E, most, shift)) * inverse_total;
  const bool near = make.near(extremes(raw));
#pragma unroll
  for (int k = 0; k < kClassChunks; ++k) {
    const int at = place(k);
    if (at >= classes) return;
    Chunk x = unpack(raw[k]), slope, d;  // slope: times dloss
    if (ignored) {
      clear(d);
    } else {
      if (near) {
        each([&](float& v, float& x) { v = make.near_exponent(x); }, d, x);
        each([&](float& v, float& e) { v = make.near_slope(e, dloss); }, slope, d);
        each([&](float& v) { v = exp2_fast(v - shift) * scale; }, d);
      } else {
        Chunk factor;
        each([&](float& v, float& x) { v = dloss * make.slope(x); }, slope, x);
        make.split(x, factor, near);
        each([&](float& v, float& x, float& f) { v = exp2_fast(__builtin_fmaf(x, f, -shift)) * scale; }, d, x, factor);
      }
      if (uint64_t(target - at) < kChunk)
#pragma unroll
        for (int j = 0; j < kChunk; ++j) d.value[j] -= at + j == target ? 1.0f : 0.0f;
      each([&](float& v, float& slope) { v *= slope; }, d, slope);
    }
    store_at<E, kWhole>(to, at, classes, pack_chunk<E, kWhole>(d));
  }
}

}  // namespace xlstm::gpu::layer
