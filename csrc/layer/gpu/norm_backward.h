// SPDX-License-Identifier: Apache-2.0
// Norms of heads, backward, on a GPU: the maths of norm_cpu.cpp. With c = x - mean (where the norm is not centred,
// c = x, and dx has no mean of g), n = c rstd and g = dy sigmoid(gate) weight,
//     dx = rstd (g - mean of g - n mean of (g n)) + dsum         dweight = sum over rows of n dy sigmoid(gate)
//     dgate = dy (n weight + bias) sigmoid'(gate)                dbias = sum over rows of dy sigmoid(gate)
//
// A group of threads owns one head of every slices-th row and loops over these rows: the kernel is persistent. The
// group has as many threads as give each two chunks of eight features (plan.h), which stay in registers in the format
// of memory. A group keeps its sums of dweight and dbias in registers and stores them in its row of the workspace;
// sum_slices adds the slices in a fixed order, so that the sums have the same bits each time. For longer heads the
// kernel for Any dtype reads the chunks beyond the registers again, from L1 or L2, and keeps their sums in the
// workspace.
//
// For each row a group reduces the sums of c^2, g and g c behind one barrier, and the mean behind another where the
// norm is centred. A group that synchronises at barriers is a block. With two-byte chunks and without dbias the
// registers suffice to prefetch: the loads of a row are in flight while the group reduces and stores the row before it,
// 64 bytes a thread, 96 with a gate or dsum, so always 32 or 48 KB on an H200's multiprocessor. The weights are then
// loaded once.
//
// Floor: x, dy, gate, dsum read once and dx, dgate written once; memory binds. RMSNorm's backward has 80 % of a copy's
// bandwidth on an H200, the other norms more. Prefetching lines into L2 a row earlier still changed nothing, so latency
// does not bind.
#pragma once

#include "layer/gpu/norm_heads.h"

namespace xlstm::gpu::layer {

struct NormBackwardParams {
  xlstm_norm_backward call;
  int items, slices;  // an item is a head of a slice's rows
  Group group;
  float *dweight, *dbias;  // (slices, heads * features), or null
};

// A group's work. kGate and kBias: whether there may be a gate and dbias.
template <class E, bool kAligned, bool kGate, bool kBias>
struct NormBackward {
  static constexpr int kChunks = kRegisterChunks;
  using X = typename Roles<E>::X;  // of x, dsum and dx
  using Y = typename Roles<E>::Y;  // of dy, the gate and dgate
  using Weight = typename Roles<E>::Weight;
  using Second = std::conditional_t<kGate, Y, X>;  // of the gate, or dsum where there is no gate
  static_assert(!kGate || std::is_same_v<X, Y>);
  static constexpr bool kPrefetch = kTwoByte<X, kAligned> && !kBias;  // the registers suffice for the next row too
  using RawX = RawChunk<X, kAligned>;
  using RawY = RawChunk<Y, kAligned>;
  using RawWeight = RawChunk<Weight, kAligned>;
  using RawSecond = RawChunk<Second, kAligned>;

  // The row that the group handles.
  struct Row {
    const xlstm_norm_backward& call;
    int index;
    bool gated;
    RawY dy[kChunks];
    RawSecond second[kChunks];
    RowStart weight;
    float mean, rstd, n_factor, offset;  // dx = g rstd + n n_factor + offset

    XLSTM_DEVICE Row(const xlstm_norm_backward& call_, int index_)
        : call(call_), index(index_), gated(kGate && call_.in.gate.data) {}
  };
  // A thread's chunk of a row, at feature `at`. Inputs that the call does not have are not used.
  struct Inputs {
    const RawX& x;
    const RawY &dy, &gate;
    const RawWeight& weight;
    int at;
  };

  const NormBackwardParams& p;
  Exchange exchange;
  int item, slice;
  int64_t from, width;  // the head's first column, and the columns of all heads
  HeadChunks<E, kAligned, kChunks> x;
  Chunk dweight[kChunks], dbias[kBias ? kChunks : 1];
  RawWeight weight[kChunks];  // these with kPrefetch
  RawX next_x[kChunks];
  RawY next_dy[kChunks];
  RawSecond next_second[kChunks];

  XLSTM_DEVICE NormBackward(const NormBackwardParams& params, float* lds)
      : p(params), exchange{params.group, lds}, x(params.group, 0) {
    const xlstm_norm& in = p.call.in;
    item = blockIdx.x * p.group.of_block() + p.group.in_block();
    const int heads = int(in.heads);
    slice = item / heads;
    from = item % heads * in.features;
    width = in.heads * in.features;
#pragma unroll
    for (Chunk& c : dweight) clear(c);
#pragma unroll
    for (Chunk& c : dbias) clear(c);
  }

  XLSTM_DEVICE void run() {
    const int rows = int(p.call.in.rows);
    if constexpr (kPrefetch) {
      load_chunks<Weight>(p.call.in, p.call.in.weight, from, weight);
      load_inputs(slice < rows ? slice : 0, next_x, next_dy, next_second);
    }
    // Every group makes the same number of iterations, because all threads must take part in barriers and shuffles. A
    // group beyond the slices has no rows.
    for (int row = slice, first = 0; first < rows; row += p.slices, first += p.slices)
      handle_row(row, rows, first == 0);
    if (item < p.items) store_sums();
  }

 private:
  XLSTM_DEVICE void handle_row(int row, int rows, bool is_first) {
    const xlstm_norm_backward& call = reload_params(kernel_params(p))->call;
    Row r(call, row < rows ? row : rows - 1);
    x.features = item < p.items && row < rows ? int(call.in.features) : 0;
    if constexpr (kPrefetch) {
#pragma unroll
      for (int k = 0; k < kChunks; ++k) x.chunk[k] = next_x[k], r.dy[k] = next_dy[k], r.second[k] = next_second[k];
      if (row + p.slices < rows) load_inputs(row + p.slices, next_x, next_dy, next_second);
    } else {
      load_inputs(r.index, x.chunk, r.dy, r.second);
    }
    reduce(r);
    store_gradients(r, is_first);
  }

  // ---- loads and stores

  template <class T>
  XLSTM_DEVICE void load_chunks(const xlstm_norm& in, const xlstm_rows& rows, int64_t start,
                                RawChunk<T, kAligned> (&raw)[kChunks]) const {
    const auto offset = [&](int k) { return x.offset_or_first(k, in); };
    if (rows.data) load_each<T, kAligned>(row_start<T>(rows, start), offset, int(in.features), raw);
  }
  XLSTM_DEVICE void load_inputs(int row, RawX (&to_x)[kChunks], RawY (&to_dy)[kChunks],
                                RawSecond (&to_second)[kChunks]) const {
    const xlstm_norm_backward& call = reload_params(kernel_params(p))->call;
    const auto start = [&](const xlstm_rows& rows) { return row * rows.stride + from; };
    const xlstm_rows& second = kGate && call.in.gate.data ? call.in.gate : call.dsum;
    load_chunks<X>(call.in, call.in.x, start(call.in.x), to_x);
    load_chunks<Y>(call.in, call.dy, start(call.dy), to_dy);
    load_chunks<Second>(call.in, second, start(second), to_second);
  }
  template <class T>
  XLSTM_DEVICE RowStart start_of(const Row& r, const xlstm_rows& rows) const {
    return row_start<T>(rows, r.index * rows.stride + from);
  }
  template <class T>
  XLSTM_DEVICE static RawChunk<T, kAligned> load(const Row& r, const RowStart& row, int at) {
    return load_at<T, kAligned>(row, at, int(r.call.in.features));
  }
  template <class T>
  XLSTM_DEVICE RawChunk<T, kAligned> load_of(const Row& r, const xlstm_rows& rows, int at) const {
    return load<T>(r, start_of<T>(r, rows), at);
  }
  template <class T>
  XLSTM_DEVICE RawChunk<T, kAligned> load_if(const Row& r, const xlstm_rows& rows, int at) const {
    return rows.data ? load_of<T>(r, rows, at) : RawChunk<T, kAligned>{};
  }
  XLSTM_DEVICE static RawWeight weight_at(const Row& r, int at) {
    return r.call.in.weight.data ? load<Weight>(r, r.weight, at) : RawWeight{};
  }
  XLSTM_DEVICE RawWeight weight_of(const Row& r, int k) const {
    return kPrefetch ? weight[k] : weight_at(r, x.offset(k));
  }
  template <class T>
  XLSTM_DEVICE void store(const Row& r, const xlstm_rows& rows, int at, const Chunk& c) const {
    store_at<T, kAligned>(start_of<T>(r, rows), at, int(r.call.in.features), pack_chunk<T, kAligned>(c));
  }
  // The gate in the registers of a row. A kernel without gates never reads what this gives it.
  XLSTM_DEVICE static const RawY& gate_of(const Row& r, int k) {
    if constexpr (kGate)
      return r.second[k];
    else
      return r.dy[k];
  }
  // The compiler unpacks the row's chunks again after this point, rather than keep them as floats.
  XLSTM_DEVICE void make_opaque(Row& r) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) opaque(x.chunk[k]), opaque(r.dy[k]), opaque(r.second[k]);
  }

  // ---- the maths of a chunk

  XLSTM_DEVICE static Chunk centred(const Row& r, const Inputs& in) {
    Chunk c = unpack(in.x);
    if (r.call.in.centred) subtract<kAligned>(c, r.mean, r.call.in.features - in.at);
    return c;
  }
  XLSTM_DEVICE static Chunk sigmoid_of(const RawY& gate) {
    Chunk s = unpack(gate);
    each([](float& v) { v = sigmoid(v); }, s);
    return s;
  }
  XLSTM_DEVICE static void multiply_by(Chunk& c, Chunk factor) {
    each([](float& v, float& f) { v *= f; }, c, factor);
  }
  XLSTM_DEVICE static void add_to(Chunk& c, Chunk added) {
    each([](float& v, float& a) { v += a; }, c, added);
  }
  XLSTM_DEVICE static void multiply_by_weight(const Row& r, Chunk& c, const RawWeight& weight) {
    if (r.call.in.weight.data) multiply_by(c, unpack(weight));
  }

  // ---- the sums of a row

  XLSTM_DEVICE void reduce(Row& r) {
    const xlstm_norm& in = r.call.in;
    const float inverse_features = 1.0f / float(int(in.features));
    r.mean = 0;
    if (in.centred) {
      x.each_chunk([&](int at) { return load_of<X>(r, in.x, at); },
                   [&](Chunk& c, int) { each([&](float& v) { r.mean += v; }, c); });
      r.mean = exchange.sum(r.mean) * inverse_features;
    }
    r.weight = row_start<Weight>(in.weight, from);
    float squares = 0, sum_gc = 0, sum_g = 0;
    make_opaque(r);
#pragma unroll
    for (int k = 0; k < kChunks; ++k)
      if (x.offset(k) < x.features)
        add_chunk(r, {x.chunk[k], r.dy[k], gate_of(r, k), weight_of(r, k), x.offset(k)}, squares, sum_gc, sum_g);
    x.each_remaining([&](int at) {
      add_chunk(
          r, {load_of<X>(r, in.x, at), load_of<Y>(r, r.call.dy, at), load_if<Y>(r, in.gate, at), weight_at(r, at), at},
          squares, sum_gc, sum_g);
    });
    if (in.centred) {
      float sums[] = {squares, sum_gc, sum_g};
      exchange.sums(sums);
      squares = sums[0], sum_gc = sums[1], sum_g = sums[2];
    } else {
      float sums[] = {squares, sum_gc};
      exchange.sums(sums);
      squares = sums[0], sum_gc = sums[1];
    }
    r.rstd = reciprocal_sqrt(squares * inverse_features + float(in.eps));
    r.n_factor = -r.rstd * r.rstd * (sum_gc * inverse_features);
    r.offset = -r.rstd * (sum_g * inverse_features);
  }

  XLSTM_DEVICE static void add_chunk(const Row& r, const Inputs& in, float& squares, float& sum_gc, float& sum_g) {
    Chunk c = centred(r, in), g = unpack(in.dy);
    if (r.gated) multiply_by(g, sigmoid_of(in.gate));
    multiply_by_weight(r, g, in.weight);
    each([&](float& v, float& dv) { squares += v * v, sum_gc += v * dv; }, c, g);
    if (r.call.in.centred) each([&](float& dv) { sum_g += dv; }, g);
  }

  // ---- the gradients of a row

  XLSTM_DEVICE void store_gradients(Row& r, bool is_first) {
    const xlstm_norm& in = r.call.in;
    make_opaque(r);
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int at = x.offset(k);
      if (at < x.features)
        store_chunks(r, {x.chunk[k], r.dy[k], gate_of(r, k), weight_of(r, k), at}, dsum_of(r, k), dweight[k],
                     dbias[kBias ? k : 0]);
    }
    x.each_remaining([&](int at) {
      Chunk to_weight, to_bias;
      clear(to_weight), clear(to_bias);
      if (!is_first && p.dweight) to_weight = load_sums(p.dweight, at);
      if (!is_first && kBias && p.dbias) to_bias = load_sums(p.dbias, at);
      store_chunks(
          r, {load_of<X>(r, in.x, at), load_of<Y>(r, r.call.dy, at), load_if<Y>(r, in.gate, at), weight_at(r, at), at},
          load_if<X>(r, r.call.dsum, at), to_weight, to_bias);
      if (p.dweight) store_sums(sums_start(p.dweight), at, to_weight);
      if (kBias && p.dbias) store_sums(sums_start(p.dbias), at, to_bias);
    });
  }

  // The chunk of dsum, in the registers of `second` unless they have a gate.
  XLSTM_DEVICE RawX dsum_of(const Row& r, int k) const {
    if constexpr (kGate)
      return r.gated ? load_if<X>(r, r.call.dsum, x.offset(k)) : r.second[k];
    else
      return r.second[k];
  }

  // Stores a chunk of dx and dgate, and adds the chunk's part of dweight and dbias.
  XLSTM_DEVICE void store_chunks(const Row& r, const Inputs& in, const RawX& dsum, Chunk& to_weight,
                                 Chunk& to_bias) const {
    Chunk n = centred(r, in), d = unpack(in.dy);
    each([&](float& v) { v *= r.rstd; }, n);
    if (r.gated) {
      const Chunk s = sigmoid_of(in.gate);
      store_dgate(r, n, d, s, in);
      multiply_by(d, s);
    }
    each([](float& to, float& v, float& dv) { to += v * dv; }, to_weight, n, d);
    if (kBias && p.dbias) add_to(to_bias, d);
    multiply_by_weight(r, d, in.weight);
    each([&](float& v, float& nv) { v = __builtin_fmaf(nv, r.n_factor, __builtin_fmaf(v, r.rstd, r.offset)); }, d, n);
    if (r.call.dsum.data) add_to(d, unpack(dsum));
    store<X>(r, r.call.dx, in.at, d);
  }

  XLSTM_DEVICE void store_dgate(const Row& r, Chunk z, const Chunk& d, const Chunk& s, const Inputs& in) const {
    multiply_by_weight(r, z, in.weight);
    if (r.call.in.bias.data) add_to(z, unpack(load<Weight>(r, row_start<Weight>(r.call.in.bias, from), in.at)));
#pragma unroll
    for (int j = 0; j < kChunk; ++j) z.value[j] *= d.value[j] * s.value[j] * (1.0f - s.value[j]);
    store<Y>(r, r.call.dgate, in.at, z);
  }

  // ---- the sums over rows, in the workspace

  XLSTM_DEVICE RowStart sums_start(float* sums) const {
    return row_start<float>({sums, XLSTM_FLOAT32, width}, slice * width + from);
  }
  XLSTM_DEVICE Chunk load_sums(float* sums, int at) const {
    return load_at<float, false>(sums_start(sums), at, int(p.call.in.features));
  }
  XLSTM_DEVICE void store_sums(const RowStart& sums, int at, const Chunk& c) const {
    store_at<float, false>(sums, at, int(p.call.in.features), c);
  }
  XLSTM_DEVICE void store_sums() const {
    const RowStart to_weight = sums_start(p.dweight), to_bias = kBias ? sums_start(p.dbias) : RowStart{};
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int at = x.offset(k);
      if (at >= int(p.call.in.features)) continue;
      if (p.dweight) store_sums(to_weight, at, dweight[k]);
      if constexpr (kBias)
        if (p.dbias) store_sums(to_bias, at, dbias[k]);
    }
  }
};

template <class E, bool kAligned, bool kGate, bool kBias>
__global__ __launch_bounds__(kMaxGroup) void norm_backward_rows(XLSTM_PARAM NormBackwardParams params) {
  __shared__ float lds[Exchange::kFloats];
  NormBackward<E, kAligned, kGate, kBias>(params, lds).run();
}

struct SumSlicesParams {
  const float* from;  // (slices, width)
  int slices;
  int64_t width;
  xlstm_rows to;
};

constexpr int kSliceColumns = 32, kSliceRows = kLayerThreads / kSliceColumns;

// Adds the slices of 32 columns in a block, in eight strides, then in the order of the strides.
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
