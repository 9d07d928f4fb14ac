// SPDX-License-Identifier: Apache-2.0
// The address of each token of a sequence, for every layout that a call may have: rows of a batch, packed sequences,
// pages. Used by the host and by GPU kernels. The host cannot read index tensors that are on a GPU, so this file clamps
// their values: a wrong index reads other tokens than the caller meant, but nothing outside the tensors.
//
// The query heads that share a key head form one matrix of rows.
#pragma once

#include "base/host_device.h"
#include "xlstm_hip.h"

namespace xlstm {

// Always inlined: otherwise the linker would choose one instruction set's copy for all callers (tile/cpu_panels.h).
#define XLSTM_LAYOUT XLSTM_HOST_DEVICE inline __attribute__((always_inline))

template <class Int>
struct QueryRow {
  Int head, query;
};
template <class Int>  // 32 bits where registers are short
XLSTM_LAYOUT QueryRow<Int> query_row(Int key_head, uint32_t row, uint32_t group) {
  return {key_head * group + row % group, Int(row / group)};
}

// What 1 in a sequence's keys, or values, of a key head stands for.
XLSTM_LAYOUT float descale_of(const xlstm_descale& x, int64_t sequence, int64_t key_head) {
  return x.data ? x.data[sequence * x.stride[0] + key_head * x.stride[1]] : 1.0f;
}

struct AttentionLayout {
  const xlstm_attention& in;
  int64_t index, first_query, queries, first_token, first_key, keys, kv_row;
  int64_t capacity;  // keys that fit, including the slots before first_key and after the last key

  XLSTM_LAYOUT AttentionLayout(const xlstm_attention& in, int64_t b)
      : in(in),
        index(b),
        first_query(0),
        queries(in.length_q),
        first_token(0),
        first_key(0),
        kv_row(b),
        capacity(in.length_k) {
    if (in.cu_seqlens_q) {
      first_query = clamp(in.cu_seqlens_q[b], in.total_q);
      queries = clamp(in.cu_seqlens_q[b + 1] - first_query, min_of(in.total_q - first_query, in.length_q));
    }
    if (in.cu_seqlens_k) {
      first_token = clamp(in.cu_seqlens_k[b], in.total_k);
      capacity = clamp(in.cu_seqlens_k[b + 1] - first_token, min_of(in.total_k - first_token, in.length_k));
    }
    if (in.leftpad_k) first_key = clamp(in.leftpad_k[b], capacity);
    const int64_t end = in.seqused_k ? clamp(in.seqused_k[b], capacity) : capacity;
    keys = end > first_key ? end - first_key : 0;
    if (in.cache_batch_idx) kv_row = clamp(in.cache_batch_idx[b], in.cache_batch - 1);
  }

  XLSTM_LAYOUT int64_t group() const { return uint32_t(in.heads_q) / uint32_t(in.heads_k); }
  XLSTM_LAYOUT int64_t rows() const { return queries * group(); }

  // Offset of a query's features, or of its lse.
  XLSTM_LAYOUT int64_t query(const xlstm_tensor& x, int64_t head, int64_t i) const {
    const int64_t row = in.cu_seqlens_q ? 0 : index * x.stride[0];
    return row + (first_query + i) * x.stride[2] + head * x.stride[1];
  }
  template <class Int>
  XLSTM_LAYOUT int64_t query(const xlstm_tensor& x, const QueryRow<Int>& row) const {
    return query(x, row.head, row.query);
  }
  XLSTM_LAYOUT int64_t row(const xlstm_tensor& x, int64_t key_head, int64_t r) const {
    return query(x, query_row(key_head, uint32_t(r), uint32_t(group())));
  }
  // Offset of the token in slot t: key j of the sequence is in slot first_key + j.
  XLSTM_LAYOUT int64_t key(const xlstm_tensor& x, int64_t head, int64_t t) const {
    int64_t offset;
    if (in.block_table)
      offset = page(t) * x.stride[0] + in_page(t) * x.stride[2];
    else if (in.cu_seqlens_k)
      offset = (first_token + t) * x.stride[2];
    else
      offset = kv_row * x.stride[0] + t * x.stride[2];
    return offset + head * x.stride[1];
  }
  // With block_table: the page that holds slot t, and the slot's index in the page.
  XLSTM_LAYOUT int64_t page(int64_t t) const {
    const int32_t entry = in.block_table[index * in.block_table_stride + uint32_t(t) / uint32_t(in.page_size)];
    return clamp(entry, in.pages - 1);
  }
  XLSTM_LAYOUT int64_t in_page(int64_t t) const { return uint32_t(t) % uint32_t(in.page_size); }

 private:
  XLSTM_LAYOUT static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
  XLSTM_LAYOUT static int64_t clamp(int64_t x, int64_t max) { return x < 0 ? 0 : min_of(x, max); }
};

#undef XLSTM_LAYOUT

}  // namespace xlstm
