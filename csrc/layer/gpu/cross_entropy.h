// SPDX-License-Identifier: Apache-2.0
// Cross entropy of soft-capped logits on a GPU: the maths of cross_entropy_cpu.cpp.
//
//     y = cap tanh(x / cap), or x without a cap        loss = max y + log sum exp(y - max y) - y[target]
//     dx = dloss (exp(y - max y) / sum - [class == target]) (1 - (y / cap)^2)        (the last factor with a cap)
//
// Forward, the kernel is persistent: a group of threads, one wave or a few where there are many classes, loops over
// rows. Each thread always has loads of four chunks of eight classes in flight, also across the end of a row. A thread
// does an online softmax over its classes: it keeps their maximum and a sum of exps, which it rescales once for each
// four chunks. The group then reduces the threads' sums in a fixed order. Backward, a block has 8192 classes of a row;
// a thread loads all its logits before it stores their gradient, so the gradient may overwrite the logits.
//
// Floor: memory binds, but closely. At the bandwidth of an H200 one multiprocessor has time for 13 instructions for a
// logit of two bytes, and its special function units for 1.7. A tanh made of an exp and a reciprocal would take two of
// these before the softmax's exp. So the tanh of two-byte logits up to the cap is a polynomial: 12 instructions in all,
// one of them an exp.
#pragma once

#include "layer/gpu/plan.h"
#include "layer/gpu/rows.h"

namespace xlstm::gpu::layer {

constexpr float kNegativeInfinity = -__builtin_inff();

// Computes the exponent of e^y = 2^(a factor) from a logit x. For two-byte logits up to the cap, a = x and the factor
// is a polynomial in x^2; elsewhere a = y. The polynomial tanh(z) = z P(z^2) is minimax on [-1, 1] and has an error of
// 2.8e-6, so y has an error of 8e-5 with a cap of 30. The rounding of a bfloat16 logit is 2e-3 |x|, of a float16 logit
// 2.4e-4. The y of a logit does not depend on its position.
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

  // Whether the polynomial holds for both extremes, and so for all logits between them.
  XLSTM_DEVICE bool within_cap(const Extremes& x) const { return by_polynomial && x.max <= cap && x.min >= -cap; }
  // Replaces x by a and computes its factor.
  XLSTM_DEVICE void split(Chunk& x, Chunk& factor, bool within_cap) const {
    if (within_cap)
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
  // dy / dx = 1 - tanh^2 from x. slope_within_cap() computes `times` dy / dx from the exponent of a logit within the
  // cap.
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
  XLSTM_DEVICE float exponent_within_cap(float x) const { return x * polynomial(x); }
  XLSTM_DEVICE float slope_within_cap(float exponent, float times) const {
    const float unit = scale / kLog2E;
    return __builtin_fmaf(exponent * (-unit * unit * times), exponent, times);
  }

 private:
  XLSTM_DEVICE bool split(float& x, float& factor) const {
    const bool is_within_cap = by_polynomial && x >= -cap && x <= cap;
    factor = is_within_cap ? polynomial(x) : kLog2E;
    if (capped && !is_within_cap) x = cap * soft_tanh(x * scale);
    return is_within_cap;
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

// The online softmax over some classes: the maximum logit, the maximum's exponent, and the sum of 2^(exponent -
// maximum's exponent).
struct RunningSum {
  float max = kNegativeInfinity, exponent = kNegativeInfinity, total = 0;

  // The exponent that is subtracted. While all logits are -inf it is 0, so that each adds 2^-inf.
  XLSTM_DEVICE float shift() const { return exponent == kNegativeInfinity ? 0.0f : exponent; }
  template <class Make>
  XLSTM_DEVICE void raise_max(float logit, const Make& exponents) {
    if (logit == max) return;
    const float old = exponent;
    max = logit;
    exponent = exponents.exponent(logit);
    total *= exp2_fast(old - shift());
  }
};

// A thread's part of the rows that its group handles: batches of kBatchChunks chunks of classes. `next`, the batch that
// is being loaded, and the exponents are parameters, not members: so the compiler has them in registers from the start.
template <class E, bool kAligned>
struct ClassBatches {
  using Raw = RawChunk<E, kAligned>;

  const xlstm_cross_entropy& p;
  int classes, first, step, batch;  // first: this thread's first class; step, batch: from a chunk, a batch to the next

  XLSTM_DEVICE ClassBatches(const xlstm_cross_entropy& call, const Group& group)
      : p(call),
        classes(int(p.classes)),
        first(kChunk * group.lane()),
        step(kChunk * group.lanes),
        batch(kBatchChunks * step) {}

  // Issues the load of chunk k of the batch that begins at this thread's class `at`. A chunk outside the row loads
  // classes that the row has: they leave the maximum as it is, and are not added to the sum.
  XLSTM_DEVICE void load(Raw (&next)[kBatchChunks], int k, const RowStart& row, int at) const {
    const int fallback = at < classes ? at : 0, first_class = at + k * step < classes ? at + k * step : fallback;
    next[k] = load_at<E, kAligned>(row, first_class, classes);
    if constexpr (!kAligned)
#pragma unroll
      for (int j = 1; j < kChunk; ++j)
        if (first_class + j >= classes) next[k].value[j] = next[k].value[0];
  }

  // The online softmax over this thread's classes of a row. The row's first batch is in `next` before, the following
  // row's first batch after.
  XLSTM_DEVICE RunningSum sum_of_row(Raw (&next)[kBatchChunks], const Exponents<kTwoByte<E, kAligned>>& exponents,
                                     bool has_row, int64_t row_offset, int64_t following_offset) const {
    const int row_classes = int(opaque(uint32_t(has_row ? classes : 0)));
    RunningSum running;
    for (int start = 0; start < classes; start += batch) {
      const int at = start + first, classes_left = int(opaque(uint32_t(row_classes - at)));
      const bool is_last_batch = classes - start <= batch;
      const RowStart next_row = row_start<E>(p.logits, is_last_batch ? following_offset : row_offset);
      const int next_at = int(opaque(uint32_t(is_last_batch ? first : at + batch)));
      const Extremes logits = extremes(next);
      running.raise_max(max_num(running.max, logits.max), exponents);
      const float shift = running.shift();
      const bool within_cap = exponents.within_cap(logits);
#pragma unroll
      for (int k = 0; k < kBatchChunks; ++k) {
        if (k * step < classes_left) {
          Chunk c = unpack(next[k]), factor;
          exponents.split(c, factor, within_cap);
#pragma unroll
          for (int j = 0; j < kChunk; ++j) {
            const float exponent = __builtin_fmaf(c.value[j], factor.value[j], -shift);
            c.value[j] = kAligned || k * step + j < classes_left ? exp2_fast(exponent) : 0.0f;
          }
          running.total += sum_of(c);
        }
        load(next, k, next_row, next_at);
      }
    }
    return running;
  }
};

template <class E, bool kAligned>
__global__ __launch_bounds__(kMaxGroup,
                             (kResidentBlocks<E, kAligned>)) void cross_entropy_rows(CrossEntropyParams params) {
  __shared__ float lds[Exchange::kFloats];
  const xlstm_cross_entropy& p = params.call;
  Exchange exchange{params.group, lds};
  const Exponents<kTwoByte<E, kAligned>> exponents(p.cap);
  const int slice = blockIdx.x * params.group.of_block() + params.group.in_block();
  const ClassBatches<E, kAligned> batches(p, params.group);
  RawChunk<E, kAligned> next[kBatchChunks];
  const auto start_of = [&](int64_t row) { return (row < p.rows ? row : p.rows - 1) * p.logits.stride; };
#pragma unroll
  for (int k = 0; k < kBatchChunks; ++k) batches.load(next, k, row_start<E>(p.logits, start_of(slice)), batches.first);
  int64_t following_target = slice < p.rows ? class_of(p, slice) : 0;

  // Every group makes the same number of iterations, because all threads must take part in barriers and shuffles.
  for (int64_t row = slice, round_start = 0; round_start < p.rows; row += params.slices, round_start += params.slices) {
    const int64_t following = row + params.slices, target = following_target;
    const int64_t row_offset = start_of(row), following_offset = start_of(following);
    const bool has_row = row < p.rows, in_range = has_row && target >= 0 && target < batches.classes;
    const float at_target = in_range ? load_chunk<E, false>(p.logits, row, target, target + 1).value[0] : 0.0f;
    if (following < p.rows) following_target = class_of(p, following);
    RunningSum running = batches.sum_of_row(next, exponents, has_row, row_offset, following_offset);
    running.raise_max(exchange.max(running.max), exponents);
    // The maximum y is rounded: the last exp corrects the sum by the rounding error.
    const float max = exponents.y(running.max), correction = __builtin_fmaf(kLog2E, max, -running.shift());
    const float total = exchange.sum(running.total) * exp2_fast(-correction);
    if (batches.first || !has_row) continue;
    float* const exps = static_cast<float*>(p.exps) + 2 * row;
    exps[0] = max;
    exps[1] = total;
    float loss = 0;
    if (target != p.ignore_index) loss = in_range ? max - exponents.y(at_target) + logf(total) : __builtin_nanf("");
    static_cast<float*>(p.loss)[row] = loss;
  }
}

struct CrossEntropyBackwardParams {
  xlstm_cross_entropy call;
  unsigned row_blocks;
};

template <class E, bool kAligned>
__global__ __launch_bounds__(kLayerThreads) void cross_entropy_backward_rows(CrossEntropyBackwardParams params) {
  const xlstm_cross_entropy& p = params.call;
  const int64_t row = blockIdx.x / params.row_blocks;
  const int classes = int(p.classes);
  const int begin = kChunk * (blockIdx.x % params.row_blocks * (kClassChunks * kLayerThreads) + threadIdx.x);
  const auto class_of_chunk = [&](int k) { return begin + k * (kChunk * kLayerThreads); };
  const RowStart from = row_start<E>(p.logits, row * p.logits.stride),
                 to = row_start<E>(p.dlogits, row * p.dlogits.stride);
  // A chunk outside the row loads this thread's first chunk again: other threads may already store to other chunks.
  RawChunk<E, kAligned> raw[kClassChunks];
  const int first = begin < classes ? begin : 0;
  load_each<E, kAligned>(
      from, [&](int k) { return class_of_chunk(k) < classes ? class_of_chunk(k) : first; }, classes, raw);
  const int64_t target = class_of(p, row);
  const bool ignored = target == p.ignore_index;
  const float max = static_cast<const float*>(p.exps)[2 * row];
  const float inverse_total = 1.0f / static_cast<const float*>(p.exps)[2 * row + 1];
  const float dloss = ignored ? 0.0f : static_cast<const float*>(p.dloss)[row * p.dloss_stride];
  const Exponents<kTwoByte<E, kAligned>> exponents(p.cap);
  // A probability is 2^(exponent - shift) scale; the scale corrects the rounding error of the shift.
  const float shift = kLog2E * max, scale = exp2_fast(__builtin_fmaf(-kLog2E, max, shift)) * inverse_total;
  const bool within_cap = exponents.within_cap(extremes(raw));
#pragma unroll
  for (int k = 0; k < kClassChunks; ++k) {
    const int at = class_of_chunk(k);
    if (at >= classes) return;
    Chunk x = unpack(raw[k]), slope, d;  // slope: times dloss
    if (ignored) {
      clear(d);
    } else {
      if (within_cap) {
        each([&](float& v, float& x) { v = exponents.exponent_within_cap(x); }, d, x);
        each([&](float& v, float& e) { v = exponents.slope_within_cap(e, dloss); }, slope, d);
        each([&](float& v) { v = exp2_fast(v - shift) * scale; }, d);
      } else {
        Chunk factor;
        each([&](float& v, float& x) { v = dloss * exponents.slope(x); }, slope, x);
        exponents.split(x, factor, within_cap);
        each([&](float& v, float& x, float& f) { v = exp2_fast(__builtin_fmaf(x, f, -shift)) * scale; }, d, x, factor);
      }
      if (uint64_t(target - at) < kChunk)
#pragma unroll
        for (int j = 0; j < kChunk; ++j) d.value[j] -= at + j == target ? 1.0f : 0.0f;
      each([&](float& v, float& slope) { v *= slope; }, d, slope);
    }
    store_at<E, kAligned>(to, at, classes, pack_chunk<E, kAligned>(d));
  }
}

}  // namespace xlstm::gpu::layer
