// SPDX-License-Identifier: Apache-2.0
// The rows of a head's queries or keys in memory, for kernels that load tiles of either side.
#pragma once

#include "attention/layout.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::attention {

template <class E>
XLSTM_DEVICE TokenRows<E> query_rows(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t features,
                                     bool aligned16) {
  return {global(static_cast<const E*>(x.data)) + at.query(x, head, 0), x.stride[2], int(features), aligned16};
}
// Offset of the token in slot t: AttentionLayout::key() without pages and without a cache.
XLSTM_DEVICE int64_t key_offset(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t t) {
  return (at.in.cu_seqlens_k ? 0 : at.index * x.stride[0]) + (at.first_token + t) * x.stride[2] + head * x.stride[1];
}
template <class E>
XLSTM_DEVICE TokenRows<E> key_rows(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t features,
                                   bool aligned16) {
  return {global(static_cast<const E*>(x.data)) + key_offset(at, x, head, at.first_key), x.stride[2], int(features),
          aligned16};
}

}  // namespace xlstm::gpu::attention
