// SPDX-License-Identifier: Apache-2.0
// Norms on a GPU: the maths of norm_cpu.cpp.
//
// A head of a row belongs to a group of threads, part of a wave or a block, as many as make two chunks of eight
// features for each (plan.h); these stay in registers, so that x comes from memory once. What is beyond, with more than
// 8192 features, is read again, from L1 or L2. A group has one head of every slices-th row.
//
// Forward, the next row is asked for as soon as the registers of this one's are free: x and the residual before the
// sums, which wait for shuffles and a barrier, the gate behind y. Weight stays in registers. So loads are always under
// way, and a row's bits follow from its group's lanes alone.
//
// Backward, x of the next row is asked for before the sums, dy and gate as soon as dx is made of this one's. A group
// keeps its sums of dweight and dbias in registers, those of further chunks in its row of the workspace, and leaves all
// of them there; sum_slices adds the slices in their order, so that the sums are the same bits each time.
//
// Floor: x, residual, gate read once and sum, y written once; memory binds.
#pragma once

#include "layer/plan.h"
#include "layer/rows_gpu.h"

namespace xlstm::gpu {

struct NormForwardParams {
  xlstm_norm_forward call;
  NormDtypes dtypes;
  int items, slices;  // items = slices * heads
  Group group;
};

struct NormBackwardParams {
  xlstm_norm_backward call;
  int items, slices;
  Group group;
  float *dweight, *dbias;  // (slices, heads * features), or null
};

// A head's features as its group holds them: f(chunk, at) for each chunk of this thread, kept or loaded anew by `load`.
template <class Raw>
struct HeadChunks {
  Raw kept[kKeptChunks];
  int features;  // 0 without a head
  Group group;

  XLSTM_DEVICE int place(int k) const { return kChunk * (group.lane() + k * group.lanes); }

  template <class Load, class F>
  XLSTM_DEVICE void each_chunk(Load&& load, F&& f) {
    const auto unpacked = [&](const Raw& raw, int at) {
      Chunk c = unpack(raw);
      f(c, at);
    };
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k)
      if (place(k) < features) unpacked(kept[k], place(k));
    for (int k = kKeptChunks; place(k) < features; ++k) unpacked(load(place(k)), place(k));
  }
};

// mean and 1 / deviation. Of the last chunk, features beyond the head count for nothing.
template <bool kWhole, class Raw, class Load>
XLSTM_DEVICE void moments(HeadChunks<Raw>& x, Load&& load, const xlstm_norm& in, Exchange& all, float& mean,
                          float& rstd) {
  const float share = 1.0f / float(int(in.features));
  mean = 0;
  if (in.centred) {
    float part = 0;
    x.each_chunk(load, [&](Chunk& c, int64_t) { each([&](float& v) { part += v; }, c); });
    mean = all.sum(part) * share;
  }
  float part = 0;
  x.each_chunk(load, [&](Chunk& c, int64_t at) {
    if (in.centred)
#pragma unroll
      for (int j = 0; j < kChunk; ++j) c.value[j] = kWhole || at + j < x.features ? c.value[j] - mean : 0.0f;
    each([&](float& d) { part += d * d; }, c);
  });
  rstd = inverse_root(all.sum(part) * share + float(in.eps));
}

template <class E, bool kWhole>
__global__ __launch_bounds__(kMostGroup,
                             (kBlocksAtOnce<E, kWhole>)) void norm_forward_rows(XLSTM_PARAM NormForwardParams params) {
  const NormForwardParams& p = params;
  using Raw = RawChunk<E, kWhole>;
  __shared__ float lds[2 * kMostWaves];
  Exchange all{p.group, lds};
  const xlstm_norm& in = p.call.in;
  const int item = blockIdx.x * p.group.of_block() + p.group.in_block(), slice = item / int(in.heads);
  const int64_t from = item % int(in.heads) * in.features, end = from + in.features;
  const int features = item < p.items ? int(in.features) : 0, all_rows = int(in.rows);
  HeadChunks<Raw> x;
  x.group = p.group;
  Raw weight[kKeptChunks], next_x[kKeptChunks], beside[kKeptChunks];  // beside it: residual, or gate without one
  const auto load = [&](const xlstm_rows& rows, int64_t row, int64_t at) {
    return load_raw<E, kWhole>(rows, row, from + at, end);
  };
  // What is not there is read from where something is, and not looked at.
  const auto ask = [&](const xlstm_rows& rows, int row, Raw(&raw)[kKeptChunks]) {
    if (!rows.data) return;
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k)
      raw[k] = load(rows, row < all_rows ? row : all_rows - 1, x.place(k) < int(in.features) ? x.place(k) : 0);
  };
  ask(in.x, slice, next_x);
  ask(in.residual.data ? in.residual : in.gate, slice, beside);
  ask(in.weight, 0, weight);

  // As many rows for every group: barriers and shuffles are met by all.
  for (int row = slice, first = 0; first < all_rows; row += p.slices, first += p.slices) {
    const NormForwardParams& p = *read_here(only_param(params));
    const xlstm_norm& in = p.call.in;
    const NormDtypes& to = p.dtypes;
    x.features = row < all_rows ? features : 0;
    const auto sum_of = [&](const Raw& a, const Raw& b, int64_t at) {
      Chunk c = unpack(a), other = unpack(b);
      each([](float& v, float& r) { v += r; }, c, other);
      round_chunk<E>(c, to.sum);
      const Raw sum = pack_chunk<E, kWhole>(c);
      store_raw<E, kWhole>(p.call.sum, row, from + at, end, sum);
      return sum;
    };
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k)
      if (x.place(k) < x.features) x.kept[k] = in.residual.data ? sum_of(next_x[k], beside[k], x.place(k)) : next_x[k];
    ask(in.x, row + p.slices, next_x);
    ask(in.residual, row + p.slices, beside);
    if (in.residual.data)
      for (int k = kKeptChunks; x.place(k) < x.features; ++k)
        sum_of(load(in.x, row, x.place(k)), load(in.residual, row, x.place(k)), x.place(k));

    const auto load_x = [&](int64_t at) { return load(in.residual.data ? p.call.sum : in.x, row, at); };
    float mean, rstd;
    moments<kWhole>(x, load_x, in, all, mean, rstd);
    const auto finish = [&](const Raw& raw, int64_t at, const Raw& w, const Raw& o) {
      Chunk c = unpack(raw);
      if (in.centred) each([&](float& v) { v -= mean; }, c);
      each([&](float& v) { v *= rstd; }, c);
      round_chunk<E>(c, to.n);
      if (in.weight.data) {
        Chunk other = unpack(w);
        each([](float& v, float& other) { v *= other; }, c, other);
        round_chunk<E>(c, to.weighted);
      }
      if (in.bias.data) {
        Chunk b = unpack(load(in.bias, 0, at));
        each([](float& v, float& other) { v += other; }, c, b);
        round_chunk<E>(c, to.z);
      }
      if (in.gate.data) {
        Chunk s = unpack(o);
        each([](float& v) { v = sigmoid(v); }, s);
        round_chunk<E>(s, to.gate);
        each([](float& v, float& s) { v *= s; }, c, s);
      }
      store_chunk<E, kWhole>(p.call.y, row, from + at, end, c);
    };
    const auto load_if = [&](const xlstm_rows& rows, int64_t row, int64_t at) {
      return rows.data ? load(rows, row, at) : Raw{};
    };
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k) {
      if (x.place(k) >= x.features) continue;
      made_here(weight[k]);
      finish(x.kept[k], x.place(k), weight[k], in.residual.data ? load_if(in.gate, row, x.place(k)) : beside[k]);
    }
    if (!in.residual.data) ask(in.gate, row + p.slices, beside);
    for (int k = kKeptChunks; x.place(k) < x.features; ++k) {
      const int64_t at = x.place(k);
      finish(load_x(at), at, load_if(in.weight, 0, at), load_if(in.gate, row, at));
    }
  }
}

template <class E, bool kWhole>
__global__ __launch_bounds__(kMostGroup) void norm_backward_rows(XLSTM_PARAM NormBackwardParams params) {
  using Raw = RawChunk<E, kWhole>;
  constexpr bool kAhead = kPacked<E, kWhole> && sizeof(E) == 2;  // else there are no registers for the next x
  const NormBackwardParams& p = params;
  __shared__ float lds[2 * kMostWaves];
  Exchange all{p.group, lds};
  const xlstm_norm& in = p.call.in;
  const int item = blockIdx.x * p.group.of_block() + p.group.in_block();
  const int heads = int(in.heads), slice = item / heads, all_rows = int(in.rows);
  const int64_t from = item % heads * in.features, end = from + in.features, width = in.heads * in.features;
  const xlstm_rows dweights{p.dweight, XLSTM_FLOAT32, width}, dbiases{p.dbias, XLSTM_FLOAT32, width};
  HeadChunks<Raw> x;
  x.group = p.group;
  Raw next_x[kKeptChunks], dy[kKeptChunks], beside[kKeptChunks];  // beside them: gate, or dsum without one
  Chunk dweight[kKeptChunks], dbias[kKeptChunks];
#pragma unroll
  for (int k = 0; k < kKeptChunks; ++k) clear(dweight[k]), clear(dbias[k]);
  // What is not there is read from where something is, and not looked at.
  const auto ask = [&](const xlstm_rows& rows, int row, int k, Raw& raw) {
    const int place = x.place(k) < int(in.features) ? x.place(k) : 0;
    if (rows.data) raw = load_raw<E, kWhole>(rows, row < all_rows ? row : all_rows - 1, from + place, end);
  };
#pragma unroll
  for (int k = 0; k < kKeptChunks; ++k) {
    ask(in.x, slice, k, next_x[k]);
    ask(p.call.dy, slice, k, dy[k]);
    ask(in.gate.data ? in.gate : p.call.dsum, slice, k, beside[k]);
  }

  // As many rows for every group: barriers and shuffles are met by all. A group beyond the slices has none.
  for (int row = slice, first = 0; first < all_rows; row += p.slices, first += p.slices) {
    const xlstm_norm_backward& call = read_here(only_param(params))->call;
    const xlstm_norm& in = call.in;
    const bool gated = in.gate.data;
    x.features = item < p.items && row < all_rows ? int(in.features) : 0;
    const auto load = [&](const xlstm_rows& rows, int64_t row, int64_t at) {
      return load_raw<E, kWhole>(rows, row, from + at, end);
    };
    const auto load_if = [&](const xlstm_rows& rows, int64_t row, int64_t at) {
      return rows.data ? load(rows, row, at) : Raw{};
    };
    const auto load_x = [&](int64_t at) { return load(in.x, row, at); };
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k) {
      x.kept[k] = next_x[k];
      if constexpr (kAhead) ask(in.x, row + p.slices, k, next_x[k]);
    }
    float mean, rstd, sum_g = 0, sum_gn = 0;
    moments<kWhole>(x, load_x, in, all, mean, rstd);

    const auto all_made_here = [&] {
#pragma unroll
      for (int k = 0; k < kKeptChunks; ++k) made_here(x.kept[k]), made_here(dy[k]), made_here(beside[k]);
    };
    const auto normed = [&](const Raw& raw) {
      Chunk n = unpack(raw);
      if (in.centred) each([&](float& v) { v -= mean; }, n);
      each([&](float& v) { v *= rstd; }, n);
      return n;
    };
    const auto opened = [&](const Raw& raw) {
      Chunk s = unpack(raw);
      each([](float& v) { v = sigmoid(v); }, s);
      return s;
    };
    const auto weigh = [&](Chunk& c, int64_t at) {
      if (!in.weight.data) return;
      Chunk w = unpack(load(in.weight, 0, at));
      each([](float& v, float& other) { v *= other; }, c, w);
    };
    const auto write_gate = [&](Chunk z, const Chunk& d, const Chunk& s, int64_t at) {
      weigh(z, at);
      if (in.bias.data) {
        Chunk b = unpack(load(in.bias, 0, at));
        each([](float& v, float& other) { v += other; }, z, b);
      }
#pragma unroll
      for (int j = 0; j < kChunk; ++j) z.value[j] *= d.value[j] * s.value[j] * (1.0f - s.value[j]);
      store_chunk<E, kWhole>(call.dgate, row, from + at, end, z);
    };
    const auto count = [&](const Raw& raw, const Raw& raw_dy, const Raw& gate, int64_t at, Chunk& to_weight,
                           Chunk& to_bias) {
      Chunk n = normed(raw), d = unpack(raw_dy);
      if (gated) {
        Chunk s = opened(gate);
        write_gate(n, d, s, at);
        each([](float& v, float& open) { v *= open; }, d, s);
      }
      each([](float& to, float& v, float& flows) { to += v * flows; }, to_weight, n, d);
      if (p.dbias) each([](float& to, float& flows) { to += flows; }, to_bias, d);
      weigh(d, at);
      each([&](float& v, float& other) { sum_g += v, sum_gn += v * other; }, d, n);
    };
    all_made_here();
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k)
      if (x.place(k) < x.features) count(x.kept[k], dy[k], beside[k], x.place(k), dweight[k], dbias[k]);
    for (int k = kKeptChunks; x.place(k) < x.features; ++k) {
      const int at = x.place(k);
      Chunk to_weight, to_bias;
      clear(to_weight), clear(to_bias);
      if (first && p.dweight) to_weight = load_chunk<float, false>(dweights, slice, from + at, end);
      if (first && p.dbias) to_bias = load_chunk<float, false>(dbiases, slice, from + at, end);
      count(load_x(at), load(call.dy, row, at), load_if(in.gate, row, at), at, to_weight, to_bias);
      if (p.dweight) store_chunk<float, false>(dweights, slice, from + at, end, to_weight);
      if (p.dbias) store_chunk<float, false>(dbiases, slice, from + at, end, to_bias);
    }

    const float share = 1.0f / float(int(in.features)), mean_gn = all.sum(sum_gn) * share;
    const float mean_g = in.centred ? all.sum(sum_g) * share : 0.0f;
    const auto finish = [&](const Raw& raw, const Raw& raw_dy, const Raw& gate, const Raw& dsum, int64_t at) {
      Chunk n = normed(raw), d = unpack(raw_dy);
      if (gated) {
        Chunk s = opened(gate);
        each([](float& v, float& open) { v *= open; }, d, s);
      }
      weigh(d, at);
      each([&](float& v, float& other) { v = (v - mean_g - other * mean_gn) * rstd; }, d, n);
      if (call.dsum.data) {
        Chunk more = unpack(dsum);
        each([](float& v, float& other) { v += other; }, d, more);
      }
      store_chunk<E, kWhole>(call.dx, row, from + at, end, d);
    };
    all_made_here();
#pragma unroll
    for (int k = 0; k < kKeptChunks; ++k) {
      const int at = x.place(k);
      if (at < x.features) finish(x.kept[k], dy[k], beside[k], gated ? load_if(call.dsum, row, at) : beside[k], at);
      if constexpr (!kAhead) ask(in.x, row + p.slices, k, next_x[k]);
      ask(call.dy, row + p.slices, k, dy[k]);
      ask(gated ? in.gate : call.dsum, row + p.slices, k, beside[k]);
    }
    for (int k = kKeptChunks; x.place(k) < x.features; ++k) {
      const int at = x.place(k);
      finish(load_x(at), load(call.dy, row, at), load_if(in.gate, row, at), load_if(call.dsum, row, at), at);
    }
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
