// SPDX-License-Identifier: Apache-2.0
// Norms of heads, forward, on a GPU: the maths of norm_cpu.cpp.
//
//     c = x + residual, less its mean over the head where that is asked for
//     y = (c / sqrt(mean of c^2 + eps) weight + bias) sigmoid(gate)
//
// A group of threads, part of a wave or a block, owns one head of one row. The group has as many threads as give each
// four chunks of eight features (two where chunks are floats: plan.h). The chunks stay in registers in the format of
// memory, so that x is read from memory once. Longer heads go to the kernel for Any dtype, which reads the chunks
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

template <class E, bool kAligned>
__global__ __launch_bounds__(kMaxGroup, (kResidentBlocks<E, kAligned>)) void norm_forward_rows(
    XLSTM_PARAM NormForwardParams params) {
  constexpr int kChunks = kForwardChunks<E, kAligned>, kWeights = kChunks / 2;  // weights in registers at a time
  const NormForwardParams& p = params;
  using Raw = RawChunk<E, kAligned>;
  __shared__ float lds[Exchange::kFloats];
  pdl_trigger();
  pdl_wait();
  Exchange exchange{p.group, lds};
  const xlstm_norm& in = p.call.in;
  const NormDtypes& dtypes = p.dtypes;
  const int item = blockIdx.x * p.group.of_block() + p.group.in_block();
  const bool has_head = item < p.heads_of_rows;  // lanes without a head shuffle too, with the others of their wave
  const unsigned row = has_head ? item / unsigned(in.heads) : 0, head = has_head ? item % unsigned(in.heads) : 0;
  const int64_t from = head * in.features;
  HeadChunks<E, kAligned, kChunks> x(p.group, has_head ? int(in.features) : 0);
  const auto row_at = [&](const xlstm_rows& rows) { return row_start<E>(rows, row * rows.stride + from); };
  const auto load = [&](const RowStart& row, int at) { return load_at<E, kAligned>(row, at, int(in.features)); };
  const auto store = [&](const RowStart& row, int at, const Raw& raw) {
    store_at<E, kAligned>(row, at, int(in.features), raw);
  };
  const auto load_chunks = [&]<int n>(const xlstm_rows& rows, const RowStart& row, Raw(&raw)[n], int first = 0) {
    const auto offset = [&](int k) { return x.offset_or_first(first + k, in); };
    if (rows.data) load_each<E, kAligned>(row, offset, int(in.features), raw);
  };
  Raw second[kChunks];  // the residual, or the gate where there is no residual
  const xlstm_rows& second_rows = in.residual.data ? in.residual : in.gate;
  load_chunks(in.x, row_at(in.x), x.chunk);
  load_chunks(second_rows, row_at(second_rows), second);

  if (in.residual.data) {
    const auto add_residual = [&](Raw& a, const Raw& b, int at) {
      add<E, kAligned>(a, b, dtypes.sum);
      store(row_at(p.call.sum), at, a);
    };
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (x.offset(k) < x.features) add_residual(x.chunk[k], second[k], x.offset(k));
    load_chunks(in.gate, row_at(in.gate), second);
    x.each_remaining([&](int at) {
      Raw sum = load(row_at(in.x), at);
      add_residual(sum, load(row_at(in.residual), at), at);
    });
  }

  const auto load_x = [&](int at) { return load(row_at(in.residual.data ? p.call.sum : in.x), at); };
  const float inverse_features = 1.0f / float(int(in.features));
  float mean = 0, squares = 0;
  if (in.centred) {
    x.each_chunk(load_x, [&](Chunk& c, int) { each([&](float& v) { mean += v; }, c); });
    mean = exchange.sum(mean) * inverse_features;
  }
  x.each_chunk(load_x, [&](Chunk& c, int at) {
    if (in.centred) subtract<kAligned>(c, mean, in.features - at);
    each([&](float& d) { squares += d * d; }, c);
  });
  const float rstd = reciprocal_sqrt(exchange.sum(squares) * inverse_features + float(in.eps));

  const RowStart y_row = row_at(p.call.y), weight_row = row_start<E>(in.weight, from);
  const auto finish = [&](const Raw& raw, int at, const Raw& weight, const Raw& gate) {
    Chunk c = unpack(raw);
    if (in.centred) each([&](float& v) { v -= mean; }, c);
    each([&](float& v) { v *= rstd; }, c);
    Raw y = rounded<E, kAligned>(c, dtypes.n);
    if (in.weight.data) multiply<E, kAligned>(y, weight, dtypes.weighted);
    if (in.bias.data) add<E, kAligned>(y, load(row_start<E>(in.bias, from), at), dtypes.z);
    if (in.gate.data) {
      Chunk s = unpack(gate);
      each([](float& v) { v = sigmoid(v); }, s);
      multiply<E, kAligned>(y, rounded<E, kAligned>(s, dtypes.gate), dtypes.y);
    }
    store(y_row, at, y);
  };
#pragma unroll
  for (int k0 = 0; k0 < kChunks; k0 += kWeights) {
    Raw weight[kWeights];
    load_chunks(in.weight, weight_row, weight, k0);
#pragma unroll
    for (int k = k0; k < k0 + kWeights; ++k)
      if (x.offset(k) < x.features) finish(x.chunk[k], x.offset(k), weight[k - k0], second[k]);
  }
  x.each_remaining([&](int at) {
    finish(load_x(at), at, in.weight.data ? load(weight_row, at) : Raw{},
           in.gate.data ? load(row_at(in.gate), at) : Raw{});
  });
}

}  // namespace xlstm::gpu::layer
