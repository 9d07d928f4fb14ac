// SPDX-License-Identifier: Apache-2.0
// Norms of heads, backward, on a GPU: the maths of norm_cpu.cpp.
//
// A head of a row belongs to a group of threads, as many as make two chunks of eight features for each (plan.h); these
// stay in registers as they lie in memory. A group has one head of every slices-th row, and keeps its sums of dweight
// and dbias in registers; it leaves them in its row of the workspace, and sum_slices adds the slices in their order, so
// that the sums are the same bits each time. Of longer heads the kernel for Any dtype reads the rest again, from L1 or
// L2, and has its sums in the workspace all along.
//
// With c = x - mean and g = dy sigmoid(gate) weight, all that a row asks of its group are sums of c^2, g and g c: they
// meet at one barrier, behind another for the mean where that is subtracted. Then
//     n = c rstd        dx = rstd (g - mean of g - n mean of (g n)) + dsum        dweight += n dy sigmoid(gate).
// A group that meets at barriers is a block of its own. Where a chunk of two bytes and no dbias leave registers for it,
// a row's loads are under way while the one before is summed up and written: 64 bytes a thread, 96 with a gate or dsum,
// 32 and 48 KB on an H200's multiprocessor at any time, and weights are loaded once.
//
// Floor: x, dy, gate, dsum read once and dx, dgate written once; memory binds. Of a copy's bandwidth RMSNorm's backward
// has 80 % on an H200, the others more: bringing lines to L2 a row earlier still changed nothing, so it is not latency.
#pragma once

#include "layer/gpu/norm_heads.h"

namespace xlstm::gpu::layer {

struct NormBackwardParams {
  xlstm_norm_backward call;
  int items, slices;
  Group group;
  float *dweight, *dbias;  // (slices, heads * features), or null
};

// kGate and kBias: whether there may be a gate and dbias.
template <class E, bool kAligned, bool kGate, bool kBias>
__global__ __launch_bounds__(kMaxGroup) void norm_backward_rows(XLSTM_PARAM NormBackwardParams params) {
  constexpr int kChunks = kRegisterChunks;
  constexpr bool kPrefetch = kTwoByte<E, kAligned> && !kBias;  // registers have room for the next row
  using Raw = RawChunk<E, kAligned>;
  const NormBackwardParams& p = params;
  __shared__ float lds[Exchange::kFloats];
  Exchange exchange{p.group, lds};
  const xlstm_norm& in = p.call.in;
  const int item = blockIdx.x * p.group.of_block() + p.group.in_block();
  const int heads = int(in.heads), slice = item / heads, all_rows = int(in.rows);
  const int64_t from = item % heads * in.features, end = from + in.features, width = in.heads * in.features;
  const xlstm_rows dweights{p.dweight, XLSTM_FLOAT32, width}, dbiases{p.dbias, XLSTM_FLOAT32, width};
  HeadChunks<E, kAligned, kChunks> x(p.group, 0);
  Chunk dweight[kChunks], dbias[kBias ? kChunks : 1];
#pragma unroll
  for (Chunk& c : dweight) clear(c);
#pragma unroll
  for (Chunk& c : dbias) clear(c);

  const auto ask = [&](const xlstm_norm& in, const xlstm_rows& rows, int64_t start, Raw(&raw)[kChunks]) {
    const auto offset = [&](int k) { return x.offset_or_first(k, in); };
    if (rows.data) load_each<E, kAligned>(row_start<E>(rows, start), offset, int(in.features), raw);
  };
  // Beside x and dy: gate, or dsum without one.
  const auto ask_row = [&](int row, Raw(&to_x)[kChunks], Raw(&to_dy)[kChunks], Raw(&to_beside)[kChunks]) {
    const xlstm_norm_backward& call = reload_params(kernel_params(params))->call;
    const auto start = [&](const xlstm_rows& rows) { return row * rows.stride + from; };
    const xlstm_rows& beside = kGate && call.in.gate.data ? call.in.gate : call.dsum;
    ask(call.in, call.in.x, start(call.in.x), to_x);
    ask(call.in, call.dy, start(call.dy), to_dy);
    ask(call.in, beside, start(beside), to_beside);
  };
  Raw kept_weight[kChunks], next_x[kChunks], next_dy[kChunks], next_beside[kChunks];
  if constexpr (kPrefetch) {
    ask(in, in.weight, from, kept_weight);
    ask_row(slice < all_rows ? slice : 0, next_x, next_dy, next_beside);
  }

  // As many rows for every group: barriers and shuffles are met by all. A group beyond the slices has none.
  for (int row = slice, first = 0; first < all_rows; row += p.slices, first += p.slices) {
    const xlstm_norm_backward& call = reload_params(kernel_params(params))->call;
    const xlstm_norm& in = call.in;
    const bool gated = kGate && in.gate.data;
    x.features = item < p.items && row < all_rows ? int(in.features) : 0;
    const auto row_of = [&](const xlstm_rows& rows) {
      return row_start<E>(rows, (row < all_rows ? row : all_rows - 1) * rows.stride + from);
    };
    const auto load = [&](const RowStart& row, int at) { return load_at<E, kAligned>(row, at, int(in.features)); };
    const auto load_if = [&](const xlstm_rows& rows, int at) { return rows.data ? load(row_of(rows), at) : Raw{}; };
    const auto store = [&](const RowStart& row, int at, const Chunk& c) {
      store_at<E, kAligned>(row, at, int(in.features), pack_chunk<E, kAligned>(c));
    };
    Raw dy[kChunks], beside[kChunks];
    if constexpr (kPrefetch) {
#pragma unroll
      for (int k = 0; k < kChunks; ++k) x.chunk[k] = next_x[k], dy[k] = next_dy[k], beside[k] = next_beside[k];
      if (row + p.slices < all_rows) ask_row(row + p.slices, next_x, next_dy, next_beside);
    } else {
      ask_row(row < all_rows ? row : all_rows - 1, x.chunk, dy, beside);
    }

    const auto load_x = [&](int at) { return load(row_of(in.x), at); };
    const float inverse_features = 1.0f / float(int(in.features));
    float mean = 0;
    if (in.centred) {
      x.each_chunk(load_x, [&](Chunk& c, int) { each([&](float& v) { mean += v; }, c); });
      mean = exchange.sum(mean) * inverse_features;
    }
    const auto centred = [&](const Raw& raw, int at) {
      Chunk c = unpack(raw);
      if (in.centred) subtract<kAligned>(c, mean, in.features - at);
      return c;
    };
    const auto opened = [&](const Raw& raw) {
      Chunk s = unpack(raw);
      each([](float& v) { v = sigmoid(v); }, s);
      return s;
    };
    const auto weigh = [&](Chunk& c, const Raw& weight) {
      if (!in.weight.data) return;
      Chunk w = unpack(weight);
      each([](float& v, float& other) { v *= other; }, c, w);
    };
    const RowStart weights = row_start<E>(in.weight, from);
    const auto weight_at = [&](int at) { return in.weight.data ? load(weights, at) : Raw{}; };
    const auto weight_of = [&](int k) { return kPrefetch ? kept_weight[k] : weight_at(x.offset(k)); };
    const auto all_made_here = [&] {
#pragma unroll
      for (int k = 0; k < kChunks; ++k) opaque(x.chunk[k]), opaque(dy[k]), opaque(beside[k]);
    };

    float squares = 0, sum_g = 0, sum_gc = 0;
    const auto count = [&](const Raw& raw, const Raw& raw_dy, const Raw& gate, const Raw& weight, int at) {
      Chunk c = centred(raw, at), g = unpack(raw_dy);
      if (gated) {
        Chunk s = opened(gate);
        each([](float& v, float& open) { v *= open; }, g, s);
      }
      weigh(g, weight);
      each([&](float& v, float& flows) { squares += v * v, sum_gc += v * flows; }, c, g);
      if (in.centred) each([&](float& flows) { sum_g += flows; }, g);
    };
    all_made_here();
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (x.offset(k) < x.features) count(x.chunk[k], dy[k], beside[k], weight_of(k), x.offset(k));
    x.each_remaining(
        [&](int at) { count(load_x(at), load(row_of(call.dy), at), load_if(in.gate, at), weight_at(at), at); });
    if (in.centred) {
      float sums[] = {squares, sum_gc, sum_g};
      exchange.sums(sums);
      squares = sums[0], sum_gc = sums[1], sum_g = sums[2];
    } else {
      float sums[] = {squares, sum_gc};
      exchange.sums(sums);
      squares = sums[0], sum_gc = sums[1];
    }

    const float rstd = reciprocal_sqrt(squares * inverse_features + float(in.eps));
    const float of_n = -rstd * rstd * (sum_gc * inverse_features),
                of_all = -rstd * (sum_g * inverse_features);  // what they take from dx
    const auto write_gate = [&](Chunk z, const Chunk& d, const Chunk& s, const Raw& weight, int at) {
      weigh(z, weight);
      if (in.bias.data) {
        Chunk b = unpack(load(row_start<E>(in.bias, from), at));
        each([](float& v, float& other) { v += other; }, z, b);
      }
#pragma unroll
      for (int j = 0; j < kChunk; ++j) z.value[j] *= d.value[j] * s.value[j] * (1.0f - s.value[j]);
      store(row_of(call.dgate), at, z);
    };
    const auto finish = [&](const Raw& raw, const Raw& raw_dy, const Raw& gate, const Raw& dsum, const Raw& weight,
                            int at, Chunk& to_weight, Chunk& to_bias) {
      Chunk n = centred(raw, at), d = unpack(raw_dy);
      each([&](float& v) { v *= rstd; }, n);
      if (gated) {
        Chunk s = opened(gate);
        write_gate(n, d, s, weight, at);
        each([](float& v, float& open) { v *= open; }, d, s);
      }
      each([](float& to, float& v, float& flows) { to += v * flows; }, to_weight, n, d);
      if (kBias && p.dbias) each([](float& to, float& flows) { to += flows; }, to_bias, d);
      weigh(d, weight);
      each([&](float& v, float& other) { v = __builtin_fmaf(other, of_n, __builtin_fmaf(v, rstd, of_all)); }, d, n);
      if (call.dsum.data) {
        Chunk more = unpack(dsum);
        each([](float& v, float& other) { v += other; }, d, more);
      }
      store(row_of(call.dx), at, d);
    };
    all_made_here();
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int at = x.offset(k);
      if (at < x.features)
        finish(x.chunk[k], dy[k], beside[k], gated ? load_if(call.dsum, at) : beside[k], weight_of(k), at, dweight[k],
               dbias[kBias ? k : 0]);
    }
    x.each_remaining([&](int at) {
      Chunk to_weight, to_bias;
      clear(to_weight), clear(to_bias);
      if (first && p.dweight) to_weight = load_chunk<float, false>(dweights, slice, from + at, end);
      if (first && kBias && p.dbias) to_bias = load_chunk<float, false>(dbiases, slice, from + at, end);
      finish(load_x(at), load(row_of(call.dy), at), load_if(in.gate, at), load_if(call.dsum, at), weight_at(at), at,
             to_weight, to_bias);
      if (p.dweight) store_chunk<float, false>(dweights, slice, from + at, end, to_weight);
      if (kBias && p.dbias) store_chunk<float, false>(dbiases, slice, from + at, end, to_bias);
    });
  }
  if (item >= p.items) return;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    if (x.offset(k) >= in.features) continue;
    if (p.dweight) store_chunk<float, false>(dweights, slice, from + x.offset(k), end, dweight[k]);
    if constexpr (kBias)
      if (p.dbias) store_chunk<float, false>(dbiases, slice, from + x.offset(k), end, dbias[k]);
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

}  // namespace xlstm::gpu::layer
