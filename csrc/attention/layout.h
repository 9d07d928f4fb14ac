// SPDX-License-Identifier: Apache-2.0
// Where the tokens of a sequence lie, whatever layout a call has: rows of a batch, packed sequences, pages. For the
// host and for GPU kernels; what the host cannot read of a GPU's index tensors is cut off here, so that a wrong one
// reads other tokens than were meant but nothing outside the tensors.
//
// The query heads that share a key head are one matrix of rows.
#pragma once

#include "base/host_device.h"
#include "xlstm_hip.h"

namespace xlstm {

// Always inlined: the linker would take one instruction set's copy for all (tile/cpu_panels.h).
#define XLSTM_PLACE XLSTM_HOST_DEVICE inline __attribute__((always_inline))

template <class Int>
struct QueryRow {
  Int head, query;
};
template <class Int>  // 32 bits where there are registers for no more
XLSTM_PLACE QueryRow<Int> query_row(Int key_head, uint32_t row, uint32_t group) {
  return {key_head * group + row % group, Int(row / group)};
}

struct AttentionLayout {
  const xlstm_attention& in;
  int64_t index, first_query, queries, first_token, first_key, keys, kv_row;
  int64_t capacity;  // keys that there is room for, those before first_key and after the last one included

  XLSTM_PLACE AttentionLayout(const xlstm_attention& in, int64_t b)
      : in(in),
        index(b),
        first_query(0),
        queries(in.length_q),
        first_token(0),
        first_key(0),
        kv_row(b),
        capacity(in.length_k) {
    if (in.cu_seqlens_q) {
      first_query = within(in.cu_seqlens_q[b], in.total_q);
      queries = within(in.cu_seqlens_q[b + 1] - first_query, least(in.total_q - first_query, in.length_q));
    }
    if (in.cu_seqlens_k) {
      first_token = within(in.cu_seqlens_k[b], in.total_k);
      capacity = within(in.cu_seqlens_k[b + 1] - first_token, least(in.total_k - first_token, in.length_k));
    }
    if (in.leftpad_k) first_key = within(in.leftpad_k[b], capacity);
    const int64_t end = in.seqused_k ? within(in.seqused_k[b], capacity) : capacity;
    keys = end > first_key ? end - first_key : 0;
    if (in.cache_batch_idx) kv_row = within(in.cache_batch_idx[b], in.cache_batch - 1);
  }

  XLSTM_PLACE int64_t group() const { return uint32_t(in.heads_q) / uint32_t(in.heads_k); }
  XLSTM_PLACE int64_t rows() const { return queries * group(); }

  // Offset of a query's features, or of its lse.
  XLSTM_PLACE int64_t query(const xlstm_tensor& x, int64_t head, int64_t i) const {
    const int64_t row = in.cu_seqlens_q ? 0 : index * x.stride[0];
    return row + (first_query + i) * x.stride[2] + head * x.stride[1];
  }
  template <class Int>
  XLSTM_PLACE int64_t query(const xlstm_tensor& x, const QueryRow<Int>& row) const {
    return query(x, row.head, row.query);
  }
  XLSTM_PLACE int64_t row(const xlstm_tensor& x, int64_t key_head, int64_t r) const {
    return query(x, query_row(key_head, uint32_t(r), uint32_t(group())));
  }
  // Of the token at place t: key j of the sequence is at first_key + j.
  XLSTM_PLACE int64_t key(const xlstm_tensor& x, int64_t head, int64_t t) const {
    int64_t place;
    if (in.block_table)
      place = page(t) * x.stride[0] + in_page(t) * x.stride[2];
    else if (in.cu_seqlens_k)
      place = (first_token + t) * x.stride[2];
    else
      place = kv_row * x.stride[0] + t * x.stride[2];
    return place + head * x.stride[1];
  }
  // With block_table: the page of the token at place t, and its place there.
  XLSTM_PLACE int64_t page(int64_t t) const {
    const uint32_t entry = uint32_t(t) / uint32_t(in.page_size);
    return within(in.block_table[index * in.block_table_stride + entry], in.pages - 1);
  }
  XLSTM_PLACE int64_t in_page(int64_t t) const { return uint32_t(t) % uint32_t(in.page_size); }

 private:
  XLSTM_PLACE static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
  XLSTM_PLACE static int64_t within(int64_t x, int64_t most) { return x < 0 ? 0 : least(x, most); }
};

#undef XLSTM_PLACE

}  // namespace xlstm
