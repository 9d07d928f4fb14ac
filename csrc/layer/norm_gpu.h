// SPDX-License-Identifier: Apache-2.0
// Norms on a GPU: the maths of norm_cpu.cpp.
//
// A head of a row belongs to a group of threads, part of a wave or a block, as many as make two chunks of eight
// features for each (plan.h); these stay in registers, so that x comes from memory once. What is beyond, with more than
// 16384 features, is read again, from L1 or L2.
//
// Backward, a group has one head of every slices-th row; dy and gate are read twice, the second time from L1 or L2,
// rather than held in registers. It keeps its sums of dweight and dbias in registers, those of
// further chunks in its row of the workspace, and leaves all of them there; sum_slices adds the slices in their order,
// so that the sums are the same bits each time.
//
// Floor: x, residual, gate read once and sum, y written once; memory binds.
#pragma once

#include "layer/plan.h"
#include "layer/rows_gpu.h"

namespace xlstm::gpu {

struct NormForwardParams {
  xlstm_norm_forward call;
  NormDtypes dtypes;
  int items;  // rows * heads
  Group group;
};

struct NormBackwardParams {
  xlstm_norm_backward call;
  int items, slices;
  Group group;
  float *dweight, *dbias;  // (slices, heads * features), or null
};

// A head's features as its group holds them: f(chunk, at) for each chunk of this thread, kept or loaded anew by `load`.
struct HeadChunks {
  Chunk kept[kKeptChunks];
  int64_t features;  // 0 without a head
  Group group;

  XLSTM_DEVICE int64_t place(int k) const { return int64_t(kChunk) * (group.lane() + k * group.lanes); }

  template <class Load, class F>
  XLSTM_DEVICE void each_chunk(Load&& load, F&& f) {
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k)
      if (place(k) < features) f(kept[k], place(k));
    for (int k = kKeptChunks; place(k) < features; ++k) {
      Chunk c = load(place(k));
      f(c, place(k));
    }
  }
};

// mean and 1 / deviation. Of the last chunk, features beyond the head count for nothing.
template <class Load>
XLSTM_DEVICE void moments(HeadChunks& x, Load&& load, const xlstm_norm& in, float* lds, float& mean, float& rstd) {
  mean = 0;
  if (in.centred) {
    float part = 0;
    x.each_chunk(load, [&](Chunk& c, int64_t) { each([&](float& v) { part += v; }, c); });
    mean = sum(x.group, part, lds) / float(int(in.features));
  }
  float part = 0;
  x.each_chunk(load, [&](Chunk& c, int64_t at) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      const float d = at + j < x.features ? c.value[j] - mean : 0.0f;
      part += d * d;
    }
  });
  rstd = 1.0f / sqrtf(sum(x.group, part, lds) / float(int(in.features)) + float(in.eps));
}

template <class E, bool kWhole>
__global__ __launch_bounds__(1024) void norm_forward_rows(NormForwardParams p) {
  __shared__ float lds[kMostWaves];
  const xlstm_norm& in = p.call.in;
  const NormDtypes& to = p.dtypes;
  const int item = blockIdx.x * p.group.of_block() + p.group.in_block();
  const int64_t row = item / int(in.heads), from = item % int(in.heads) * in.features, end = from + in.features;
  HeadChunks x;
  x.features = item < p.items ? in.features : 0;
  x.group = p.group;
  const auto load = [&](const xlstm_rows& rows, int64_t at) {
    return load_chunk<E, kWhole>(rows, row, from + at, end);
  };
  const xlstm_rows& source = in.residual.data ? p.call.sum : in.x;
  const auto load_x = [&](int64_t at) { return load(source, at); };
  const auto add = [&](Chunk& c, int64_t at) {
    Chunk r = load(in.residual, at);
    each([](float& v, float& other) { v += other; }, c, r);
    round_chunk<E>(c, to.sum);
    store_chunk<E, kWhole>(p.call.sum, row, from + at, end, c);
  };
#pragma unroll
  for (int k = 0; k < kKeptChunks; ++k)
    if (x.place(k) < x.features) x.kept[k] = load(in.x, x.place(k));
  if (in.residual.data) x.each_chunk([&](int64_t at) { return load(in.x, at); }, add);

  float mean, rstd;
  moments(x, load_x, in, lds, mean, rstd);
  x.each_chunk(load_x, [&](Chunk& c, int64_t at) {
    each([&](float& v) { v = (v - mean) * rstd; }, c);
    round_chunk<E>(c, to.n);
    if (in.weight.data) {
      Chunk w = load_chunk<E, kWhole>(in.weight, 0, from + at, end);
      each([](float& v, float& other) { v *= other; }, c, w);
      round_chunk<E>(c, to.weighted);
    }
    if (in.bias.data) {
      Chunk b = load_chunk<E, kWhole>(in.bias, 0, from + at, end);
      each([](float& v, float& other) { v += other; }, c, b);
      round_chunk<E>(c, to.z);
    }
    if (in.gate.data) {
      Chunk o = load(in.gate, at);
      each([](float& v) { v = sigmoid(v); }, o);
      round_chunk<E>(o, to.gate);
      each([](float& v, float& s) { v *= s; }, c, o);
    }
    store_chunk<E, kWhole>(p.call.y, row, from + at, end, c);
  });
}

template <class E, bool kWhole>
__global__ __launch_bounds__(kMostBackwardThreads) void norm_backward_rows(const NormBackwardParams params) {
  const NormBackwardParams& p = params;
  __shared__ float lds[kMostWaves];
  const xlstm_norm& in = p.call.in;
  const int item = blockIdx.x * p.group.of_block() + p.group.in_block();
  const int heads = int(in.heads), slice = item / heads;
  const int64_t from = item % heads * in.features, end = from + in.features, width = in.heads * in.features;
  const xlstm_rows dweights{p.dweight, XLSTM_FLOAT32, width}, dbiases{p.dbias, XLSTM_FLOAT32, width};
  HeadChunks x;
  x.group = p.group;
  Chunk dweight[kKeptChunks], dbias[kKeptChunks];
#pragma unroll
  for (int k = 0; k < kKeptChunks; ++k) clear(dweight[k]), clear(dbias[k]);

  // As many rows for every group: barriers and shuffles are met by all. A group beyond the slices has none.
  for (int turn = 0; turn < (in.rows + p.slices - 1) / p.slices; ++turn) {
    const xlstm_norm_backward& call = read_here(only_param(params))->call;
    const xlstm_norm& in = call.in;
    const int64_t row = slice + int64_t(turn) * p.slices;
    x.features = item < p.items && row < in.rows ? in.features : 0;
    const auto load = [&](const xlstm_rows& rows, int64_t at) {
      return load_chunk<E, kWhole>(rows, row, from + at, end);
    };
    const auto load_x = [&](int64_t at) { return load(in.x, at); };
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k)
      if (x.place(k) < x.features) x.kept[k] = load_x(x.place(k));
    float mean, rstd, sum_g = 0, sum_gn = 0;
    moments(x, load_x, in, lds, mean, rstd);

    // dz of a chunk, whose x has become n. gate(o, flows, z): what becomes of the gate's gradient.
    const auto flow = [&](Chunk& n, int64_t at, auto&& gate) {
      each([&](float& v) { v = (v - mean) * rstd; }, n);
      Chunk d = load(call.dy, at);
      if (in.gate.data) {
        Chunk o = load(in.gate, at);
        each([](float& v) { v = sigmoid(v); }, o);
        gate(o, d, n, at);
        each([](float& v, float& s) { v *= s; }, d, o);
      }
      return d;
    };
    const auto weigh = [&](Chunk& c, int64_t at) {
      if (!in.weight.data) return;
      Chunk w = load_chunk<E, kWhole>(in.weight, 0, from + at, end);
      each([](float& v, float& other) { v *= other; }, c, w);
    };
    const auto write_gate = [&](Chunk& s, Chunk& d, const Chunk& n, int64_t at) {
      Chunk z = n;
      weigh(z, at);
      if (in.bias.data) {
        Chunk b = load_chunk<E, kWhole>(in.bias, 0, from + at, end);
        each([](float& v, float& other) { v += other; }, z, b);
      }
#pragma unroll
      for (int j = 0; j < kChunk; ++j) z.value[j] *= d.value[j] * s.value[j] * (1.0f - s.value[j]);
      store_chunk<E, kWhole>(call.dgate, row, from + at, end, z);
    };
    const auto count = [&](Chunk n, int64_t at, Chunk& to_weight, Chunk& to_bias) {
      Chunk d = flow(n, at, write_gate);
      each([](float& to, float& v, float& flows) { to += v * flows; }, to_weight, n, d);
      each([](float& to, float& flows) { to += flows; }, to_bias, d);
      weigh(d, at);
      each([&](float& v, float& other) { sum_g += v, sum_gn += v * other; }, d, n);
    };
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k)
      if (x.place(k) < x.features) count(x.kept[k], x.place(k), dweight[k], dbias[k]);
    for (int k = kKeptChunks; x.place(k) < x.features; ++k) {
      const int64_t at = x.place(k);
      Chunk to_weight, to_bias;
      clear(to_weight), clear(to_bias);
      if (turn && p.dweight) to_weight = load_chunk<float, false>(dweights, slice, from + at, end);
      if (turn && p.dbias) to_bias = load_chunk<float, false>(dbiases, slice, from + at, end);
      count(load_x(at), at, to_weight, to_bias);
      if (p.dweight) store_chunk<float, false>(dweights, slice, from + at, end, to_weight);
      if (p.dbias) store_chunk<float, false>(dbiases, slice, from + at, end, to_bias);
    }

    const float mean_gn = sum(p.group, sum_gn, lds) / float(int(in.features));
    const float mean_g = in.centred ? sum(p.group, sum_g, lds) / float(int(in.features)) : 0.0f;
    x.each_chunk(load_x, [&](Chunk& n, int64_t at) {
      Chunk d = flow(n, at, [](Chunk&, Chunk&, const Chunk&, int64_t) {});
      weigh(d, at);
      each([&](float& v, float& other) { v = (v - mean_g - other * mean_gn) * rstd; }, d, n);
      if (call.dsum.data) {
        Chunk more = load(call.dsum, at);
        each([](float& v, float& other) { v += other; }, d, more);
      }
      store_chunk<E, kWhole>(call.dx, row, from + at, end, d);
    });
  }
  if (item >= p.items) return;
#pragma unroll
  for (int k = 0; k < kKeptChunks; ++k) {
    if (x.place(k) >= in.features) continue;
    if (p.dweight) store_chunk<float, false>(dweights, slice, from + x.place(k), end, dweight[k]);
    if (p.dbias) store_chunk<float, false>(dbiases, slice, from + x.place(k), end, dbias[k]);
  }
}

struct SumSlicesParams {
  const float* from;  // (slices, width)
  int slices;
  int64_t width;
  xlstm_rows to;
};

constexpr int kSliceColumns = 32, kSliceRows = kLayerThreads / kSliceColumns;

// A block has 32 columns and goes over the slices in eight strides.
template <int>
__global__ __launch_bounds__(kLayerThreads) void sum_slices(SumSlicesParams p) {
  __shared__ float part[kSliceRows][kSliceColumns];
  const int column = threadIdx.x % kSliceColumns, first = threadIdx.x / kSliceColumns;
  const int64_t at = int64_t(blockIdx.x) * kSliceColumns + column;
  float total = 0;
  if (at < p.width)
    for (int slice = first; slice < p.slices; slice += kSliceRows) total += p.from[slice * p.width + at];
  part[first][column] = total;
  __syncthreads();
  if (first || at >= p.width) return;
#pragma unroll
  for (int row = 1; row < kSliceRows; ++row) total += part[row][column];
  with_dtype(p.to.dtype, [&](auto e) { static_cast<decltype(e)*>(p.to.data)[at] = from_float<decltype(e)>(total); });
}

}  // namespace xlstm::gpu
