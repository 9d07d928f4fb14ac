// SPDX-License-Identifier: Apache-2.0
// Norms of heads, forward, on a GPU: the maths of norm_cpu.cpp.
//
// A head of a row belongs to a group of threads, part of a wave or a block, as many as make four chunks of eight
// features for each (two where chunks are floats: plan.h); these stay in registers as they lie in memory, so that x
// comes from there once. Longer heads go to the kernel for Any dtype, which reads what it does not keep again, from L1
// or L2. A group has one head and is done: the multiprocessor has other blocks, whose loads are under way while this
// one sums. A group that meets at a barrier is a block of its own.
//
// All that a head needs is asked for at once, x and beside it the residual or the gate; weight, which L1 has, behind
// the sums. On an H200 a thread has so 64 bytes under way, 128 with a residual or gate, and a multiprocessor 64 or 128
// KB; latency asks for some 20. A row's bits follow from its group's lanes alone.
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

template <class E, bool kWhole>
__global__ __launch_bounds__(kMostGroup,
                             (kBlocksAtOnce<E, kWhole>)) void norm_forward_rows(XLSTM_PARAM NormForwardParams params) {
  constexpr int kChunks = kForwardChunks<E, kWhole>, kWeights = kChunks / 2;  // weights in registers at a time
  const NormForwardParams& p = params;
  using Raw = RawChunk<E, kWhole>;
  __shared__ float lds[Exchange::kFloats];
  pdl_trigger();
  pdl_wait();
  Exchange all{p.group, lds};
  const xlstm_norm& in = p.call.in;
  const NormDtypes& to = p.dtypes;
  const int item = blockIdx.x * p.group.of_block() + p.group.in_block();
  const bool here = item < p.heads_of_rows;  // lanes of a wave shuffle together, those without a head too
  const unsigned row = here ? item / unsigned(in.heads) : 0, head = here ? item % unsigned(in.heads) : 0;
  const int64_t from = head * in.features;
  HeadChunks<E, kWhole, kChunks> x(p.group, here ? int(in.features) : 0);
  const auto row_of = [&](const xlstm_rows& rows) { return row_start<E>(rows, row * rows.stride + from); };
  const auto load = [&](const RowStart& row, int at) { return load_at<E, kWhole>(row, at, int(in.features)); };
  const auto store = [&](const RowStart& row, int at, const Raw& raw) {
    store_at<E, kWhole>(row, at, int(in.features), raw);
  };
  const auto ask = [&]<int n>(const xlstm_rows& rows, const RowStart& row, Raw(&raw)[n], int first = 0) {
    const auto place = [&](int k) { return x.place_or_first(first + k, in); };
    if (rows.data) load_each<E, kWhole>(row, place, int(in.features), raw);
  };
  Raw beside[kChunks];  // residual, or gate without one
  const xlstm_rows& other = in.residual.data ? in.residual : in.gate;
  ask(in.x, row_of(in.x), x.kept);
  ask(other, row_of(other), beside);

  if (in.residual.data) {
    const auto sum_of = [&](Raw& a, const Raw& b, int at) {
      add<E, kWhole>(a, b, to.sum);
      store(row_of(p.call.sum), at, a);
    };
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (x.place(k) < x.features) sum_of(x.kept[k], beside[k], x.place(k));
    ask(in.gate, row_of(in.gate), beside);
    x.each_beyond([&](int at) {
      Raw own = load(row_of(in.x), at);
      sum_of(own, load(row_of(in.residual), at), at);
    });
  }

  const auto load_x = [&](int at) { return load(row_of(in.residual.data ? p.call.sum : in.x), at); };
  const float share = 1.0f / float(int(in.features));
  float mean = 0, squares = 0;
  if (in.centred) {
    x.each_chunk(load_x, [&](Chunk& c, int) { each([&](float& v) { mean += v; }, c); });
    mean = all.sum(mean) * share;
  }
  x.each_chunk(load_x, [&](Chunk& c, int at) {
    if (in.centred) subtract<kWhole>(c, mean, in.features - at);
    each([&](float& d) { squares += d * d; }, c);
  });
  const float rstd = reciprocal_sqrt(all.sum(squares) * share + float(in.eps));

  const RowStart y_row = row_of(p.call.y), weight_row = row_start<E>(in.weight, from);
  const auto finish = [&](const Raw& raw, int at, const Raw& w, const Raw& o) {
    Chunk c = unpack(raw);
    if (in.centred) each([&](float& v) { v -= mean; }, c);
    each([&](float& v) { v *= rstd; }, c);
    Raw y = rounded<E, kWhole>(c, to.n);
    if (in.weight.data) multiply<E, kWhole>(y, w, to.weighted);
    if (in.bias.data) add<E, kWhole>(y, load(row_start<E>(in.bias, from), at), to.z);
    if (in.gate.data) {
      Chunk s = unpack(o);
      each([](float& v) { v = sigmoid(v); }, s);
      multiply<E, kWhole>(y, rounded<E, kWhole>(s, to.gate), to.y);
    }
    store(y_row, at, y);
  };
#pragma unroll
  for (int k0 = 0; k0 < kChunks; k0 += kWeights) {
    Raw weight[kWeights];
    ask(in.weight, weight_row, weight, k0);
#pragma unroll
    for (int k = k0; k < k0 + kWeights; ++k)
      if (x.place(k) < x.features) finish(x.kept[k], x.place(k), weight[k - k0], beside[k]);
  }
  x.each_beyond([&](int at) {
    finish(load_x(at), at, in.weight.data ? load(weight_row, at) : Raw{},
           in.gate.data ? load(row_of(in.gate), at) : Raw{});
  });
}

}  // namespace xlstm::gpu::layer
