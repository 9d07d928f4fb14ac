// SPDX-License-Identifier: Apache-2.0
// Addresses of new tokens in a KV cache, and the rotary embedding of a feature; for the host and for GPU kernels.
#pragma once

#include "attention/layout.h"
#include "attention/rules.h"
#include "xlstm_hip.h"

namespace xlstm {

// Offset of new token t of sequence b in p.to, or -1 if the cache is full. The host refuses such a call where it can
// read the index tensors; a GPU kernel leaves such a token out.
XLSTM_RULE int64_t append_offset(const xlstm_attention_append& p, int64_t b, int64_t t) {
  if (!p.to_cache) return b * p.to.stride[0] + t * p.to.stride[2];
  const int64_t position = (p.start ? p.start[b] : 0) + t;
  if (position < 0 || position >= p.cache_length) return -1;
  if (p.block_table) {
    const int64_t page = p.block_table[b * p.block_table_stride + position / p.page_size];
    return page < 0 || page >= p.pages ? -1 : page * p.to.stride[0] + position % p.page_size * p.to.stride[2];
  }
  const int64_t row = p.cache_batch_idx ? p.cache_batch_idx[b] : b;
  return p.cache_batch_idx && (row < 0 || row >= p.cache_batch) ? -1 : row * p.to.stride[0] + position * p.to.stride[2];
}

// Row of the rotary tables for new token t of sequence b, clamped to the rows that the tables have.
XLSTM_RULE int64_t rotary_position(const xlstm_attention_append& p, int64_t b, int64_t t) {
  const int64_t position = (p.start ? p.start[b] : 0) + (p.same_position ? 0 : t);
  return position < 0 ? 0 : position < p.rotary_length ? position : p.rotary_length - 1;
}

// The other feature of a rotated pair, the pair's column in the tables, and whether `column` is its first feature.
struct RotaryPair {
  int64_t other, angle;
  bool first;
};
XLSTM_RULE RotaryPair rotary_pair(int64_t column, int64_t half, bool interleaved) {
  if (interleaved) return {column ^ 1, column / 2, column % 2 == 0};
  return {column < half ? column + half : column - half, column < half ? column : column - half, column < half};
}
template <class T>
XLSTM_RULE T rotated(T x, T other, T cos, T sin, bool first) {
  return first ? x * cos - other * sin : x * cos + other * sin;
}

}  // namespace xlstm
