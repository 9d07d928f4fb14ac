// SPDX-License-Identifier: Apache-2.0
// Rows of features for the GPU kernels of the layers.
//
// A thread takes chunks of eight features: 16 bytes of a two-byte dtype, twice that of float, in accesses of 16 bytes
// where all chunks are whole and aligned to them (kWhole) and one by one elsewhere. A kernel is compiled for each dtype
// that all of its tensors may share, and once for Any: dtypes that are mixed, found in the params; one branch a chunk,
// the same in all threads. Inside all is float.
#pragma once

#include "arch/elementwise.h"
#include "layer/dtypes.h"
#include "layer/gpu/plan.h"

namespace xlstm::gpu::layer {

constexpr int kChunk = 8;
struct Any {};  // whatever the tensor says

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

// A chunk as it lies in memory, not looked at: its loads may be under way. Of mixed dtypes it is floats.
template <class E>
struct PackedChunk {
  Vec16 piece[sizeof(E) / 2];
};
template <class E, bool kWhole>
constexpr bool kPacked = kWhole && !std::is_same_v<E, Any>;
template <class E, bool kWhole>
using RawChunk = std::conditional_t<kPacked<E, kWhole>, PackedChunk<E>, Chunk>;

// Chunks of two-byte elements take half as many registers: so many blocks of kMostGroup threads share a multiprocessor.
template <class E, bool kWhole>
constexpr bool kSmall = kPacked<E, kWhole> && sizeof(E) == 2;
template <class E, bool kWhole>
constexpr int kBlocksAtOnce = kSmall<E, kWhole> ? kThreadsAtOnce / kMostGroup : 1;
template <class E, bool kWhole>
constexpr int kForwardChunks = kSmall<E, kWhole> ? kSmallChunks : kKeptChunks;

XLSTM_DEVICE Chunk unpack(const Chunk& c) { return c; }
template <class E>
XLSTM_DEVICE Chunk unpack(const PackedChunk<E>& raw) {
  Chunk c;
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if constexpr (sizeof(E) == 4)
      c.value[j] = as_float(raw.piece[j / 4].word[j % 4]);
    else
      c.value[j] = j % 2 ? high_float(E{}, raw.piece[0].word[j / 2]) : low_float(E{}, raw.piece[0].word[j / 2]);
  }
  return c;
}

using gpu::opaque;  // of one value; here of chunks
XLSTM_DEVICE void opaque(Chunk& c) {
#pragma unroll
  for (float& v : c.value) v = as_float(opaque(as_bits(v)));
}
template <class E>
XLSTM_DEVICE void opaque(PackedChunk<E>& raw) {
#pragma unroll
  for (Vec16& piece : raw.piece) opaque(piece);
}

// A row, from x.data[start] on: addresses of its features are this and a few more.
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

// Features [at, at + 8) of a row of `features`; zeros beyond.
template <class E, bool kWhole, class At>
XLSTM_DEVICE RawChunk<E, kWhole> load_at(const RowStart& row, At at, At features) {
  RawChunk<E, kWhole> raw;
  if constexpr (std::is_same_v<E, Any>) {
    with_dtype(row.dtype, [&](auto e) { raw = unpack(load_at<decltype(e), kWhole>(row, at, features)); });
  } else {
    const E* from = static_cast<const E*>(row.data) + at;
    if constexpr (kWhole) {
#pragma unroll
      for (int j = 0; j < int(sizeof(E)) / 2; ++j) raw.piece[j] = read_vec16(reinterpret_cast<const Vec16*>(from) + j);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) raw.value[j] = at + j < features ? to_float(from[j]) : 0.0f;
    }
  }
  return raw;
}
template <class E, bool kWhole>
XLSTM_DEVICE RawChunk<E, kWhole> load_raw(const xlstm_rows& x, int64_t row, int64_t at, int64_t features) {
  return load_at<E, kWhole>(row_start<E>(x, row * x.stride), at, features);
}
template <class E, bool kWhole>
XLSTM_DEVICE Chunk load_chunk(const xlstm_rows& x, int64_t row, int64_t at, int64_t features) {
  return unpack(load_raw<E, kWhole>(x, row, at, features));
}

// Those at place(k) of a row, all asked for before the first is looked at.
template <class E, bool kWhole, int n, class Place>
XLSTM_DEVICE void load_each(const RowStart& row, Place&& place, int features, RawChunk<E, kWhole> (&raw)[n]) {
  if constexpr (std::is_same_v<E, Any>) {
    with_dtype(row.dtype, [&](auto e) {
      RawChunk<decltype(e), kWhole> own[n];
      load_each<decltype(e), kWhole>(row, place, features, own);
#pragma unroll
      for (int k = 0; k < n; ++k) raw[k] = unpack(own[k]);
    });
  } else {
#pragma unroll
    for (int k = 0; k < n; ++k) raw[k] = load_at<E, kWhole>(row, place(k), features);
  }
}

// Of all chunks.
template <int n>
XLSTM_DEVICE Extremes extremes(const Chunk (&chunks)[n]) {
  Extremes of{chunks[0].value[0], chunks[0].value[0]};
#pragma unroll
  for (const Chunk& c : chunks)
#pragma unroll
    for (float v : c.value) of = {max_num(of.most, v), min_num(of.least, v)};
  return of;
}
template <class E, int n>
XLSTM_DEVICE Extremes extremes(const PackedChunk<E> (&chunks)[n]) {
  constexpr int kVec16s = int(sizeof(E)) / 2;
  Vec16 pieces[n * kVec16s];
#pragma unroll
  for (int j = 0; j < n * kVec16s; ++j) pieces[j] = chunks[j / kVec16s].piece[j % kVec16s];
  return extremes(E{}, pieces);
}

// Exactly what store_chunk() would leave in memory.
template <class E, bool kWhole>
XLSTM_DEVICE RawChunk<E, kWhole> pack_chunk(const Chunk& c) {
  if constexpr (kPacked<E, kWhole>) {
    PackedChunk<E> raw;
#pragma unroll
    for (int w = 0; w < int(sizeof(E)) * 2; ++w) {
      if constexpr (sizeof(E) == 4)
        raw.piece[w / 4].word[w % 4] = as_bits(c.value[w]);
      else
        raw.piece[0].word[w] = pack_exact(E{}, c.value[2 * w], c.value[2 * w + 1]);
    }
    return raw;
  } else {
    return c;
  }
}

template <class E, bool kWhole, class At>
XLSTM_DEVICE void store_at(const RowStart& row, At at, At features, const RawChunk<E, kWhole>& raw) {
  if constexpr (std::is_same_v<E, Any>) {
    with_dtype(row.dtype,
               [&](auto e) { store_at<decltype(e), kWhole>(row, at, features, pack_chunk<decltype(e), kWhole>(raw)); });
  } else {
    E* to = static_cast<E*>(row.data) + at;
    if constexpr (kWhole) {
#pragma unroll
      for (int j = 0; j < int(sizeof(E)) / 2; ++j) reinterpret_cast<Vec16*>(to)[j] = raw.piece[j];
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        if (at + j < features) to[j] = from_float<E>(raw.value[j]);
    }
  }
}
template <class E, bool kWhole>
XLSTM_DEVICE void store_chunk(const xlstm_rows& x, int64_t row, int64_t at, int64_t features, const Chunk& c) {
  store_at<E, kWhole>(row_start<E>(x, row * x.stride), at, features, pack_chunk<E, kWhole>(c));
}

XLSTM_DEVICE void clear(Chunk& c) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) c.value[j] = 0;
}

// As it would come back from memory of this dtype.
template <class E>
XLSTM_DEVICE void round_chunk(Chunk& c, xlstm_dtype dtype) {
  if constexpr (std::is_same_v<E, Any>) {
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

// f(value, other values...) of each feature.
template <class F, class... Chunks>
XLSTM_DEVICE void each(F&& f, Chunk& c, Chunks&... others) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) f(c.value[j], others.value[j]...);
}

// As it would come back from memory of this dtype, to go on with.
template <class E, bool kWhole>
XLSTM_DEVICE RawChunk<E, kWhole> rounded(Chunk c, xlstm_dtype dtype) {
  if constexpr (!kSmall<E, kWhole>) round_chunk<E>(c, dtype);
  return pack_chunk<E, kWhole>(c);
}
// Products and sums of such, rounded to this dtype.
template <class E, bool kWhole>
XLSTM_DEVICE void multiply(RawChunk<E, kWhole>& raw, const RawChunk<E, kWhole>& by, xlstm_dtype dtype) {
  if constexpr (kSmall<E, kWhole>) {
#pragma unroll
    for (int w = 0; w < 4; ++w) raw.piece[0].word[w] = mul_pair(E{}, raw.piece[0].word[w], by.piece[0].word[w]);
  } else {
    Chunk c = unpack(raw), other = unpack(by);
    each([](float& v, float& o) { v *= o; }, c, other);
    raw = rounded<E, kWhole>(c, dtype);
  }
}
template <class E, bool kWhole>
XLSTM_DEVICE void add(RawChunk<E, kWhole>& raw, const RawChunk<E, kWhole>& more, xlstm_dtype dtype) {
  if constexpr (kSmall<E, kWhole>) {
#pragma unroll
    for (int w = 0; w < 4; ++w) raw.piece[0].word[w] = add_pair(E{}, raw.piece[0].word[w], more.piece[0].word[w]);
  } else {
    Chunk c = unpack(raw), other = unpack(more);
    each([](float& v, float& o) { v += o; }, c, other);
    raw = rounded<E, kWhole>(c, dtype);
  }
}

XLSTM_DEVICE float sum_of(Chunk c) {
#pragma unroll
  for (int apart = 1; apart < kChunk; apart *= 2)
#pragma unroll
    for (int j = 0; j < kChunk; j += 2 * apart) c.value[j] += c.value[j + apart];
  return c.value[0];
}

XLSTM_DEVICE float sigmoid(float x) { return reciprocal_fast(1.0f + exp2_fast(-kLog2E * x)); }

// As the CPU's: an odd polynomial near zero, where exp would leave no digits.
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

// A power of two of threads: part of a wave, or whole waves of a block.
struct Group {
  int lanes, log2 = 0;

  explicit Group(int lanes_) : lanes(lanes_) {
    while (1 << log2 < lanes) ++log2;
  }
  XLSTM_DEVICE int lane() const { return threadIdx.x & (lanes - 1); }
  XLSTM_DEVICE int in_block() const { return threadIdx.x >> log2; }
  XLSTM_DEVICE int of_block() const { return blockDim.x >> log2; }
};

constexpr int kMostWaves = kMostGroup / kWave, kMostSums = 3;

// What a block's groups pass between their waves: two halves that take turns, so that there is one barrier each time.
// All groups of a block reduce together.
struct Exchange {
  static constexpr int kHalf = kMostSums * kMostWaves, kFloats = 2 * kHalf;

  Group group;
  float* lds;  // kFloats
  int half = 0;

  // op over the group's values of each x, in an order that follows from the lanes alone.
  template <int n, class Op>
  XLSTM_DEVICE void reduce(float (&x)[n], Op&& op) {
    static_assert(n <= kMostSums);
    among<kWave>(group.lanes, x, op);
    if (group.lanes <= kWave) return;
#pragma unroll
    for (int v = 0; v < n; ++v)
      if (lane_id() == 0) lds[half + v * kMostWaves + wave_id()] = x[v];
    __syncthreads();
    const int waves = group.lanes / kWave, from = half + (wave_id() & -waves) + (lane_id() & (waves - 1));
#pragma unroll
    for (int v = 0; v < n; ++v) x[v] = lds[from + v * kMostWaves];
    half ^= kHalf;
    among<kMostWaves>(waves, x, op);
  }
  template <int n>
  XLSTM_DEVICE void sums(float (&x)[n]) {
    reduce(x, [](float a, float b) { return a + b; });
  }
  XLSTM_DEVICE float sum(float x) {
    float one[] = {x};
    sums(one);
    return one[0];
  }
  XLSTM_DEVICE float most(float x) {
    float one[] = {x};
    reduce(one, [](float a, float b) { return max_num(a, b); });
    return one[0];
  }

 private:
  template <int kMost, int n, class Op>
  XLSTM_DEVICE static void among(int lanes, float (&x)[n], Op&& op) {
#pragma unroll
    for (int mask = 1; mask < kMost; mask *= 2)
#pragma unroll
      for (int v = 0; v < n; ++v) {
        const float other = shuffle_xor(x[v], mask);
        if (mask < lanes) x[v] = op(x[v], other);
      }
  }
};

}  // namespace xlstm::gpu::layer
