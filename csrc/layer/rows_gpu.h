// SPDX-License-Identifier: Apache-2.0
// Rows of features for the GPU kernels of the layers.
//
// A thread takes chunks of eight features: 16 bytes of a two-byte dtype, twice that of float, in accesses of 16 bytes
// where all chunks are whole and aligned to them (kWhole) and one by one elsewhere. A kernel is compiled for each dtype
// that all of its tensors may share, and once for Any: dtypes that are mixed, found in the params; one branch a chunk,
// the same in all threads. Inside all is float.
#pragma once

#include "arch/gpu.h"
#include "layer/dtypes.h"

namespace xlstm::gpu {

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

template <class E>
XLSTM_DEVICE void unpack(const Piece* pieces, Chunk& c) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) {
    if constexpr (sizeof(E) == 4)
      c.value[j] = as_float(pieces[j / 4].word[j % 4]);
    else
      c.value[j] = j % 2 ? high_float(E{}, pieces[0].word[j / 2]) : low_float(E{}, pieces[0].word[j / 2]);
  }
}

// Features [at, at + 8) of a row of `features`; zeros beyond.
template <class E, bool kWhole>
XLSTM_DEVICE Chunk load_chunk(const xlstm_rows& x, int64_t row, int64_t at, int64_t features) {
  Chunk c;
  if constexpr (__is_same(E, Any)) {
    with_dtype(x.dtype, [&](auto e) { c = load_chunk<decltype(e), kWhole>(x, row, at, features); });
  } else {
    const E* from = global(static_cast<const E*>(x.data)) + (row * x.stride + at);
    if constexpr (kWhole) {
      Piece pieces[sizeof(E) / 2];
#pragma unroll
      for (int j = 0; j < int(sizeof(E)) / 2; ++j) pieces[j] = read_piece(reinterpret_cast<const Piece*>(from) + j);
      unpack<E>(pieces, c);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) c.value[j] = at + j < features ? to_float(from[j]) : 0.0f;
    }
  }
  return c;
}

template <class E, bool kWhole>
XLSTM_DEVICE void store_chunk(const xlstm_rows& x, int64_t row, int64_t at, int64_t features, const Chunk& c) {
  if constexpr (__is_same(E, Any)) {
    with_dtype(x.dtype, [&](auto e) { store_chunk<decltype(e), kWhole>(x, row, at, features, c); });
  } else {
    E* to = global(static_cast<E*>(x.data)) + (row * x.stride + at);
    if constexpr (kWhole) {
      Piece pieces[sizeof(E) / 2];
#pragma unroll
      for (int w = 0; w < int(sizeof(E)) * 2; ++w) {
        if constexpr (sizeof(E) == 4)
          pieces[w / 4].word[w % 4] = as_bits(c.value[w]);
        else
          pieces[0].word[w] = pack_exact(E{}, c.value[2 * w], c.value[2 * w + 1]);
      }
#pragma unroll
      for (int j = 0; j < int(sizeof(E)) / 2; ++j) reinterpret_cast<Piece*>(to)[j] = pieces[j];
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j)
        if (at + j < features) to[j] = from_float<E>(c.value[j]);
    }
  }
}

XLSTM_DEVICE void clear(Chunk& c) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) c.value[j] = 0;
}

// As it would come back from memory of this dtype.
template <class E>
XLSTM_DEVICE void round_chunk(Chunk& c, xlstm_dtype dtype) {
  if constexpr (__is_same(E, Any)) {
    with_dtype(dtype, [&](auto e) { round_chunk<decltype(e)>(c, dtype); });
  } else if constexpr (sizeof(E) == 2) {
#pragma unroll
    for (int j = 0; j < kChunk; ++j) c.value[j] = to_float(from_float<E>(c.value[j]));
  }
}

// f(value, other values...) of each feature.
template <class F, class... Chunks>
XLSTM_DEVICE void each(F&& f, Chunk& c, Chunks&... others) {
#pragma unroll
  for (int j = 0; j < kChunk; ++j) f(c.value[j], others.value[j]...);
}

XLSTM_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// As the CPU's: an odd polynomial near zero, where exp would leave no digits.
XLSTM_DEVICE float soft_tanh(float x) {
  const float z = x * x;
  float p = -0.00566477536f;
  p = p * z + 0.02059568f;
  p = p * z - 0.0537226793f;
  p = p * z + 0.133311502f;
  p = p * z - 0.333332616f;
  return z < 0.390625f ? x * z * p + x : 1.0f - 2.0f / (expf(x + x) + 1.0f);
}

// ---- which threads share a row

constexpr int kMostWaves = 32;  // of a block of 1024

// A power of two of threads: part of a wave, or a block.
struct Group {
  int lanes;

  XLSTM_DEVICE int lane() const { return threadIdx.x & (lanes - 1); }
  XLSTM_DEVICE int in_block() const { return threadIdx.x / unsigned(lanes); }
  XLSTM_DEVICE int of_block() const { return blockDim.x / unsigned(lanes); }
};

// op over the group's values of x, in an order that follows from the lanes alone. lds: kMostWaves floats.
template <class Op>
XLSTM_DEVICE float reduce(Group group, float x, float* lds, Op&& op) {
  const int inside = group.lanes < kWave ? group.lanes : kWave;
  for (int mask = 1; mask < inside; mask *= 2) x = op(x, shuffle_xor(x, mask));
  if (group.lanes <= kWave) return x;
  __syncthreads();  // what was there before has been read
  if (lane_id() == 0) lds[wave_id()] = x;
  __syncthreads();
  x = lds[0];
  for (int wave = 1; wave < group.lanes / kWave; ++wave) x = op(x, lds[wave]);
  return x;
}

XLSTM_DEVICE float sum(Group group, float x, float* lds) {
  return reduce(group, x, lds, [](float a, float b) { return a + b; });
}

}  // namespace xlstm::gpu
