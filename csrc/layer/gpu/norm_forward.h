// SPDX-License-Identifier: Apache-2.0
// Norms of heads, forward, on a GPU: the maths of norm_cpu.cpp.
//
//     c = x + residual, less its mean over the head where that is asked for
//     y = (c / sqrt(mean of c^2 + eps) weight + bias) sigmoid(gate)
//
// A group of threads, part of a wave or a block, owns one head of one row. The group has as many threads as give each
// four chunks of eight features (two where a tensor is of floats: plan.h). The chunks stay in registers in the format
// of memory, so that x is read from memory once. Longer heads go to the kernel for Any dtype, which reads the chunks
// beyond the registers again, from L1 or L2. A group ends after its head: the multiprocessor has other blocks, whose
// loads are in flight while this one sums. A group that synchronises at a barrier is a block.
//
// A thread issues all loads of its head at once, of x and of the residual or the gate; it loads the weight, which L1
// has, after the sums. On an H200 a thread thus has 64 bytes in flight, 128 with a residual or gate, and a
// multiprocessor 64 or 128 KB; to hide the latency some 20 KB suffice. The bits of a row depend on the lanes of its
// group alone.
//
// Floor: x, residual, gate read once and sum, y written once; memory binds.
#pragma once

#include "layer/gpu/norm_heads.h"

namespace xlstm::gpu::layer {

struct NormForwardParams {
  xlstm_norm_forward call;
  NormDtypes dtypes;
  int heads_of_rows;
  Group group;
};

// A group's work: one head of one row. Its chunks are parameters of the steps, not members: so the compiler has them in
// registers from the start.
template <class E, bool kAligned>
struct NormForward {
  static constexpr int kChunks = kForwardChunks<E, kAligned>, kWeights = kChunks / 2;  // weights in registers at a time
  using X = typename Roles<E>::X;                                                      // of x and the sum
  using Y = typename Roles<E>::Y;  // of the residual, the gate and y
  using Weight = typename Roles<E>::Weight;
  using Raw = RawChunk<E, kAligned>;  // while y is computed
  using RawX = RawChunk<X, kAligned>;
  using RawY = RawChunk<Y, kAligned>;
  using RawWeight = RawChunk<Weight, kAligned>;
  using Head = HeadChunks<E, kAligned, kChunks>;

  const NormForwardParams& p;
  const xlstm_norm& in;
  Exchange exchange;
  unsigned row;
  int64_t from;  // the head's first column
  int features;  // 0 without a head: such lanes shuffle too, with the others of their wave

  XLSTM_DEVICE NormForward(const NormForwardParams& params, float* lds)
      : p(params), in(p.call.in), exchange{p.group, lds} {
    const unsigned item = blockIdx.x * p.group.of_block() + p.group.in_block();
    const bool has_head = int(item) < p.heads_of_rows;
    unsigned head = 0;
    row = 0;
    if (has_head) row = item / unsigned(in.heads), head = item % unsigned(in.heads);
    from = head * in.features;
    features = has_head ? int(in.features) : 0;
  }

  XLSTM_DEVICE void run() {
    Head x(p.group, features);
    RawY second[kChunks];  // the residual, or the gate where there is no residual
    const xlstm_rows& second_rows = in.residual.data ? in.residual : in.gate;
    load_chunks<X>(x, in.x, row_at<X>(in.x), x.chunk);
    load_chunks<Y>(x, second_rows, row_at<Y>(second_rows), second);
    if (in.residual.data) add_residual(x, second);
    float mean, rstd;
    sum_up(x, mean, rstd);
    store_y(x, mean, rstd, second);
  }

 private:
  template <class T>
  XLSTM_DEVICE RowStart row_at(const xlstm_rows& rows) const {
    return row_start<T>(rows, row * rows.stride + from);
  }
  template <class T>
  XLSTM_DEVICE RawChunk<T, kAligned> load(const RowStart& row, int at) const {
    return load_at<T, kAligned>(row, at, int(in.features));
  }
  template <class T, int n>
  XLSTM_DEVICE void load_chunks(const Head& x, const xlstm_rows& rows, const RowStart& row,
                                RawChunk<T, kAligned> (&raw)[n], int first = 0) const {
    const auto offset = [&](int k) { return x.offset_or_first(first + k, in); };
    if (rows.data) load_each<T, kAligned>(row, offset, int(in.features), raw);
  }
  // A chunk of x + residual that is not in registers.
  XLSTM_DEVICE RawX load_x(int at) const { return load<X>(row_at<X>(in.residual.data ? p.call.sum : in.x), at); }

  // x += residual, which is stored. Then the registers of the residual get the gate.
  XLSTM_DEVICE void add_residual(Head& x, RawY (&second)[kChunks]) const {
    const auto add_chunk = [&](RawX& a, const RawY& b, int at) {
      add<E, kAligned>(a, b, p.dtypes.sum);
      store_at<X, kAligned>(row_at<X>(p.call.sum), at, int(in.features), a);
    };
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (x.offset(k) < x.features) add_chunk(x.chunk[k], second[k], x.offset(k));
    load_chunks<Y>(x, in.gate, row_at<Y>(in.gate), second);
    x.each_remaining([&](int at) {
      RawX sum = load<X>(row_at<X>(in.x), at);
      add_chunk(sum, load<Y>(row_at<Y>(in.residual), at), at);
    });
  }

  // The mean of the head, 0 where it is not asked for, and 1 / sqrt(mean of c^2 + eps).
  XLSTM_DEVICE void sum_up(Head& x, float& mean, float& rstd) {
    const auto load_again = [&](int at) { return load_x(at); };
    const float inverse_features = 1.0f / float(int(in.features));
    float sum = 0, squares = 0;
    mean = 0;
    if (in.centred) {
      x.each_chunk(load_again, [&](Chunk& c, int) { each([&](float& v) { sum += v; }, c); });
      mean = exchange.sum(sum) * inverse_features;
    }
    x.each_chunk(load_again, [&](Chunk& c, int at) {
      if (in.centred) subtract<kAligned>(c, mean, in.features - at);
      each([&](float& d) { squares += d * d; }, c);
    });
    rstd = reciprocal_sqrt(exchange.sum(squares) * inverse_features + float(in.eps));
  }

  XLSTM_DEVICE void store_y(const Head& x, float mean, float rstd, const RawY (&gate)[kChunks]) const {
    const RowStart y_row = row_at<Y>(p.call.y), weight_row = row_start<Weight>(in.weight, from);
    const auto finish = [&](const RawX& raw, int at, const RawWeight& weight, const RawY& gate) {
      store_as<Y, E, kAligned>(y_row, at, int(in.features), normalised(raw, at, mean, rstd, weight, gate));
    };
#pragma unroll
    for (int k0 = 0; k0 < kChunks; k0 += kWeights) {
      RawWeight weight[kWeights];
      load_chunks<Weight>(x, in.weight, weight_row, weight, k0);
#pragma unroll
      for (int k = k0; k < k0 + kWeights; ++k)
        if (x.offset(k) < x.features) finish(x.chunk[k], x.offset(k), weight[k - k0], gate[k]);
    }
    x.each_remaining([&](int at) {
      finish(load_x(at), at, in.weight.data ? load<Weight>(weight_row, at) : RawWeight{},
             in.gate.data ? load<Y>(row_at<Y>(in.gate), at) : RawY{});
    });
  }
  // The chunk of y at feature `at`. A weight and a gate that the call does not have are not used.
  XLSTM_DEVICE Raw normalised(const RawX& raw, int at, float mean, float rstd, const RawWeight& weight,
                              const RawY& gate) const {
    Chunk c = unpack(raw);
    if (in.centred) each([&](float& v) { v -= mean; }, c);
    each([&](float& v) { v *= rstd; }, c);
    Raw y = rounded<E, kAligned>(c, p.dtypes.n);
    if (in.weight.data) multiply<E, kAligned>(y, weight, p.dtypes.weighted);
    if (in.bias.data) add<E, kAligned>(y, load<Weight>(row_start<Weight>(in.bias, from), at), p.dtypes.z);
    if (in.gate.data) {
      Chunk s = unpack(gate);
      each([](float& v) { v = sigmoid(v); }, s);
      multiply<E, kAligned>(y, rounded<E, kAligned>(s, p.dtypes.gate), p.dtypes.y);
    }
    return y;
  }
};

template <class E, bool kAligned>
__global__ __launch_bounds__(kMaxGroup, (kResidentBlocks<E, kAligned>)) void norm_forward_rows(
    XLSTM_PARAM NormForwardParams params) {
  __shared__ float lds[Exchange::kFloats];
  pdl_trigger();
  pdl_wait();
  NormForward<E, kAligned>(params, lds).run();
}

}  // namespace xlstm::gpu::layer
