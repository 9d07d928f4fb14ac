// SPDX-License-Identifier: Apache-2.0
// Rows of features for the GPU kernels of the layers.
//
// A thread handles chunks of eight features: 16 bytes of a two-byte dtype, 32 bytes of float. Accesses are vectors of
// 16 bytes where all chunks are complete and aligned to 16 bytes (kAligned), and single elements elsewhere. A kernel is
// compiled for each dtype that all of its tensors may share, norms for the two mixtures of training too (Mixed), and
// once for Any, which reads the tensors' dtypes from the params: one uniform branch a chunk, behind which the load must
// have arrived. Registers hold float.
#pragma once

#include "arch/elementwise.h"
#include "layer/dtypes.h"
#include "layer/gpu/plan.h"

namespace xlstm::gpu::layer {

constexpr int kChunk = 8;
struct Any {};  // the dtype that the tensor's params name
// What autocast makes: weights are float, what products read and write is of Y, and what a norm is of (x, the sum with
// the residual, their gradients) is of X.
template <class X_, class Y_>
struct Mixed {
  using X = X_;
  using Y = Y_;
};
template <class E>
struct Roles {
  using X = E;
  using Y = E;
  using Weight = E;
  static constexpr bool is_mixed = std::is_same_v<E, Any>;
};
template <class X_, class Y_>
struct Roles<Mixed<X_, Y_>> {
  using X = X_;
  using Y = Y_;
  using Weight = float;
  static constexpr bool is_mixed = true;
};

struct Chunk {
  float value[kChunk];
};

template <class F>
XLSTM_DEVICE void with_dtype(xlstm_dtype dtype, F&& f) {
  if (dtype == XLSTM_FLOAT32)
    f(float{});
  else if (dtype == XLSTM_BFLOAT16)
    f(BFloat16{});
  else
    f(Float16{});
}

// A chunk in the format of memory. Its loads may still be in flight, as no instruction has used it. Where dtypes
// differ, a raw chunk is a Chunk of floats.
template <class E>
struct PackedChunk {
  Vec16 vec[sizeof(E) / 2];
};
template <class E, bool kAligned>
constexpr bool kPacked = kAligned && !Roles<E>::is_mixed;
template <class E, bool kAligned>
using RawChunk = std::conditional_t<kPacked<E, kAligned>, PackedChunk<E>, Chunk>;

// Chunks of two-byte elements take half as many registers, so kResidentBlocks blocks of kMaxGroup threads share a
// multiprocessor.
template <class E, bool kAligned>
constexpr bool kTwoByte = kPacked<E, kAligned> && sizeof(E) == 2;
template <class E, bool kAligned>
constexpr int kResidentBlocks = kTwoByte<E, kAligned> ? kResidentThreads / kMaxGroup : 1;
template <class E, bool kAligned>
constexpr int kForwardChunks = kTwoByte<E, kAligned> ? kTwoByteChunks : kRegisterChunks;

XLSTM_DEVICE Chunk unpack(const Chunk& c) { return c; }
template <class E>
XLSTM_DEVICE Chunk unpack(const PackedChunk<E>& raw) {
  Chunk c;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if constexpr (sizeof(E) == 4)
      c.value[j] = as_float(raw.vec[j / 4].word[j % 4]);
    else
      c.value[j] = j % 2 ? high_float(E{}, raw.vec[0].word[j / 2]) : low_float(E{}, raw.vec[0].word[j / 2]);
  }
  return c;
}

using gpu::opaque;  // for single values; the overloads below are for chunks
XLSTM_DEVICE void opaque(Chunk& c) {
#pragma unroll
  for (float& v : c.value) v = as_float(opaque(as_bits(v)));
}
template <class E>
XLSTM_DEVICE void opaque(PackedChunk<E>& raw) {
#pragma unroll
  for (Vec16& vec : raw.vec) opaque(vec);
}

// A row that begins at x.data[start]: a feature's address is this one and an offset.
struct RowStart {
  void* data;
  xlstm_dtype dtype;
};
template <class E>
XLSTM_DEVICE RowStart row_start(const xlstm_rows& x, int64_t start) {
  const auto from = [&](auto e) -> void* { return opaque(static_cast<decltype(e)*>(x.data) + start); };
  if constexpr (std::is_same_v<E, Any>)
    return {x.dtype == XLSTM_FLOAT32 ? from(float{}) : from(BFloat16{}), x.dtype};
  else
    return {from(E{}), x.dtype};
}

// Loads features [at, at + 8) of a row of `features`; features beyond the row are zeros.
template <class E, bool kAligned, class At>
XLSTM_DEVICE RawChunk<E, kAligned> load_at(const RowStart& row, At at, At features) {
  RawChunk<E, kAligned> raw;
  if constexpr (std::is_same_v<E, Any>) {
    with_dtype(row.dtype, [&](auto e) { raw = unpack(load_at<decltype(e), kAligned>(row, at, features)); });
  } else {
    const E* from = static_cast<const E*>(row.data) + at;
    if constexpr (kAligned) {
#pragma unroll
      for (int j = 0; j < int(sizeof(E)) / 2; ++j) raw.vec[j] = read_vec16(reinterpret_cast<const Vec16*>(from) + j);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) raw.value[j] = at + j < features ? to_float(from[j]) : 0.0f;
    }
  }
  return raw;
}
template <class E, bool kAligned>
XLSTM_DEVICE RawChunk<E, kAligned> load_raw(const xlstm_rows& x, int64_t row, int64_t at, int64_t features) {
  return load_at<E, kAligned>(row_start<E>(x, row * x.stride), at, features);
}
template <class E, bool kAligned>
XLSTM_DEVICE Chunk load_chunk(const xlstm_rows& x, int64_t row, int64_t at, int64_t features) {
  return unpack(load_raw<E, kAligned>(x, row, at, features));
}

// Loads the chunks at offset(k) of a row: issues all loads before an instruction uses the first.
template <class E, bool kAligned, int n, class Offset>
XLSTM_DEVICE void load_each(const RowStart& row, Offset&& offset, int features, RawChunk<E, kAligned> (&raw)[n]) {
  if constexpr (std::is_same_v<E, Any>) {
    with_dtype(row.dtype, [&](auto e) {
      RawChunk<decltype(e), kAligned> typed[n];
      load_each<decltype(e), kAligned>(row, offset, features, typed);
#pragma unroll
      for (int k = 0; k < n; ++k) raw[k] = unpack(typed[k]);
    });
  } else {
#pragma unroll
    for (int k = 0; k < n; ++k) raw[k] = load_at<E, kAligned>(row, offset(k), features);
  }
}

// The extremes of all chunks.
template <int n>
XLSTM_DEVICE Extremes extremes(const Chunk (&chunks)[n]) {
  Extremes of{chunks[0].value[0], chunks[0].value[0]};
#pragma unroll
  for (const Chunk& c : chunks)
#pragma unroll
    for (float v : c.value) of = {max_num(of.max, v), min_num(of.min, v)};
  return of;
}
template <class E, int n>
XLSTM_DEVICE Extremes extremes(const PackedChunk<E> (&chunks)[n]) {
  constexpr int kVec16s = int(sizeof(E)) / 2;
  Vec16 vecs[n * kVec16s];
#pragma unroll
  for (int j = 0; j < n * kVec16s; ++j) vecs[j] = chunks[j / kVec16s].vec[j % kVec16s];
  return extremes(E{}, vecs);
}

// The chunk in exactly the format that store_chunk() stores.
template <class E, bool kAligned>
XLSTM_DEVICE RawChunk<E, kAligned> pack_chunk(const Chunk& c) {
  if constexpr (kPacked<E, kAligned>) {
    PackedChunk<E> raw;
#pragma unroll
    for (int w = 0; w < int(sizeof(E)) * 2; ++w) {
      if constexpr (sizeof(E) == 4)
        raw.vec[w / 4].word[w % 4] = as_bits(c.value[w]);
      else
        raw.vec[0].word[w] = pack_exact(E{}, c.value[2 * w], c.value[2 * w + 1]);
    }
    return raw;
  } else {
    return c;
  }
}

template <class E, bool kAligned, class At>
XLSTM_DEVICE void store_at(const RowStart& row, At at, At features, const RawChunk<E, kAligned>& raw) {
  if constexpr (std::is_same_v<E, Any>) {
    with_dtype(row.dtype, [&](auto e) {
      store_at<decltype(e), kAligned>(row, at, features, pack_chunk<decltype(e), kAligned>(raw));
    });
  } else {
    E* to = static_cast<E*>(row.data) + at;
    if constexpr (kAligned) {
#pragma unroll
      for (int j = 0; j < int(sizeof(E)) / 2; ++j) reinterpret_cast<Vec16*>(to)[j] = raw.vec[j];
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        if (at + j < features) to[j] = from_float<E>(raw.value[j]);
    }
  }
}
template <class E, bool kAligned>
XLSTM_DEVICE void store_chunk(const xlstm_rows& x, int64_t row, int64_t at, int64_t features, const Chunk& c) {
  store_at<E, kAligned>(row_start<E>(x, row * x.stride), at, features, pack_chunk<E, kAligned>(c));
}

// Stores a chunk of E in the dtype of the row, To.
template <class To, class E, bool kAligned>
XLSTM_DEVICE void store_as(const RowStart& row, int at, int features, const RawChunk<E, kAligned>& raw) {
  if constexpr (std::is_same_v<To, E>)
    store_at<To, kAligned>(row, at, features, raw);
  else
    store_at<To, kAligned>(row, at, features, pack_chunk<To, kAligned>(unpack(raw)));
}

XLSTM_DEVICE void clear(Chunk& c) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) c.value[j] = 0;
}

// Rounds a chunk as a store and a load in this dtype would.
template <class E>
XLSTM_DEVICE void round_chunk(Chunk& c, xlstm_dtype dtype) {
  if constexpr (Roles<E>::is_mixed) {
    with_dtype(dtype, [&](auto e) { round_chunk<decltype(e)>(c, dtype); });
  } else if constexpr (sizeof(E) == 2) {
#pragma unroll
    for (int j = 0; j < kChunk; j += 2) {
      const uint32_t pair = pack_exact(E{}, c.value[j], c.value[j + 1]);
      c.value[j] = low_float(E{}, pair);
      c.value[j + 1] = high_float(E{}, pair);
    }
  }
}

// Calls f(value, other values...) for each feature.
template <class F, class... Chunks>
XLSTM_DEVICE void each(F&& f, Chunk& c, Chunks&... others) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) f(c.value[j], others.value[j]...);
}

XLSTM_DEVICE void pack_into(Chunk& to, const Chunk& c) { to = c; }
template <class E>
XLSTM_DEVICE void pack_into(PackedChunk<E>& to, const Chunk& c) {
  to = pack_chunk<E, true>(c);
}

// The raw chunk, rounded as a store and a load in this dtype would round it, for further operations.
template <class E, bool kAligned>
XLSTM_DEVICE RawChunk<E, kAligned> rounded(Chunk c, xlstm_dtype dtype) {
  if constexpr (!kTwoByte<E, kAligned>) round_chunk<E>(c, dtype);
  return pack_chunk<E, kAligned>(c);
}
// Products and sums of rounded chunks, rounded to this dtype.
template <class E, bool kAligned, class Raw, class By>
XLSTM_DEVICE void multiply(Raw& raw, const By& by, xlstm_dtype dtype) {
  if constexpr (kTwoByte<E, kAligned>) {
#pragma unroll
    for (int w = 0; w < 4; ++w) raw.vec[0].word[w] = mul_pair(E{}, raw.vec[0].word[w], by.vec[0].word[w]);
  } else {
    Chunk c = unpack(raw), other = unpack(by);
    each([](float& v, float& o) { v *= o; }, c, other);
    round_chunk<E>(c, dtype);
    pack_into(raw, c);
  }
}
template <class E, bool kAligned, class Raw, class Added>
XLSTM_DEVICE void add(Raw& raw, const Added& added, xlstm_dtype dtype) {
  if constexpr (kTwoByte<E, kAligned>) {
#pragma unroll
    for (int w = 0; w < 4; ++w) raw.vec[0].word[w] = add_pair(E{}, raw.vec[0].word[w], added.vec[0].word[w]);
  } else {
    Chunk c = unpack(raw), other = unpack(added);
    each([](float& v, float& o) { v += o; }, c, other);
    round_chunk<E>(c, dtype);
    pack_into(raw, c);
  }
}

XLSTM_DEVICE float sum_of(Chunk c) {
#pragma unroll
  for (int distance = 1; distance < kChunk; distance *= 2)
#pragma unroll
    for (int j = 0; j < kChunk; j += 2 * distance) c.value[j] += c.value[j + distance];
  return c.value[0];
}

XLSTM_DEVICE float sigmoid(float x) { return reciprocal_fast(1.0f + exp2_fast(-kLog2E * x)); }

// tanh as on the CPU: an odd polynomial near zero, where the formula with exp would cancel.
XLSTM_DEVICE float soft_tanh(float x) {
  const float z = x * x;
  float p = -0.00566477536f;
  p = p * z + 0.02059568f;
  p = p * z - 0.0537226793f;
  p = p * z + 0.133311502f;
  p = p * z - 0.333332616f;
  return z < 0.390625f ? x * z * p + x : 1.0f - 2.0f * reciprocal_fast(exp2_fast(2 * kLog2E * x) + 1.0f);
}

// ---- which threads share a row

// The threads that share a row: a power of two of them, either part of a wave or a number of waves of a block.
struct Group {
  int lanes, log2 = 0;

  explicit Group(int lanes_) : lanes(lanes_) {
    while (1 << log2 < lanes) ++log2;
  }
  XLSTM_DEVICE int lane() const { return threadIdx.x & (lanes - 1); }
  XLSTM_DEVICE int in_block() const { return threadIdx.x >> log2; }
  XLSTM_DEVICE int of_block() const { return blockDim.x >> log2; }
};

constexpr int kMaxWaves = kMaxGroup / kWave, kMaxSums = 3;

// Reductions over groups, through shared memory where a group has more than one wave. The two halves of the buffer
// alternate, so that a reduction needs one barrier. All groups of a block must reduce together.
struct Exchange {
  static constexpr int kHalf = kMaxSums * kMaxWaves, kFloats = 2 * kHalf;

  Group group;
  float* lds;  // kFloats
  int half = 0;

  // Reduces each x over the group by op, in an order that depends on the lanes alone.
  template <int n, class Op>
  XLSTM_DEVICE void reduce(float (&x)[n], Op&& op) {
    static_assert(n <= kMaxSums);
    reduce_lanes<kWave>(group.lanes, x, op);
    if (group.lanes <= kWave) return;
#pragma unroll
    for (int v = 0; v < n; ++v)
      if (lane_id() == 0) lds[half + v * kMaxWaves + wave_id()] = x[v];
    __syncthreads();
    const int waves = group.lanes / kWave, from = half + (wave_id() & -waves) + (lane_id() & (waves - 1));
#pragma unroll
    for (int v = 0; v < n; ++v) x[v] = lds[from + v * kMaxWaves];
    half ^= kHalf;
    reduce_lanes<kMaxWaves>(waves, x, op);
  }
  template <int n>
  XLSTM_DEVICE void sums(float (&x)[n]) {
    reduce(x, [](float a, float b) { return a + b; });
  }
  XLSTM_DEVICE float sum(float x) {
    float values[] = {x};
    sums(values);
    return values[0];
  }
  XLSTM_DEVICE float max(float x) {
    float values[] = {x};
    reduce(values, [](float a, float b) { return max_num(a, b); });
    return values[0];
  }

 private:
  template <int kMaxLanes, int n, class Op>
  XLSTM_DEVICE static void reduce_lanes(int lanes, float (&x)[n], Op&& op) {
#pragma unroll
    for (int mask = 1; mask < kMaxLanes; mask *= 2)
#pragma unroll
      for (int v = 0; v < n; ++v) {
        const float other = shuffle_xor(x[v], mask);
        if (mask < lanes) x[v] = op(x[v], other);
      }
  }
};

}  // namespace xlstm::gpu::layer
