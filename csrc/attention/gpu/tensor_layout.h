// SPDX-License-Identifier: Apache-2.0
// How a call's tensors lie in memory: whether kernels can load them by vectors of 16 bytes, or by TMA.
#pragma once

#include "base/tensors.h"

namespace xlstm::gpu::attention {

// Whether rows consist of 16-byte vectors at multiples of 16 bytes, and 32 bits can address a tile of the tensor's
// tokens.
inline bool is_aligned16(const xlstm_tensor& x, int64_t features) {
  const int64_t bytes = element_bytes(x);
  bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && features * bytes % 16 == 0;
  for (const int64_t stride : x.stride) aligned = aligned && stride * bytes % 16 == 0;
  return aligned && x.stride[2] >= 0 && x.stride[2] * bytes < int64_t(1) << 24;
}

// Whether TMA can load the tensor: 16-byte aligned rows, at least one row, and strides that are not negative.
inline bool has_tma_layout(const xlstm_tensor& x, int64_t features, const int64_t (&sizes)[3]) {
  return has_forward_strides(x, sizes) && is_aligned16(x, features);
}
inline bool has_query_tma_layout(const xlstm_attention& in, const xlstm_tensor& x, int64_t features) {
  const bool packed = in.cu_seqlens_q != nullptr;
  return has_tma_layout(x, features, {packed ? 1 : in.batch, in.heads_q, packed ? in.total_q : in.length_q});
}
inline bool has_key_tma_layout(const xlstm_attention& in, const xlstm_tensor& x, int64_t features) {
  const bool packed = in.cu_seqlens_k != nullptr;
  return !in.block_table && !in.cache_batch_idx &&
         has_tma_layout(x, features, {packed ? 1 : in.batch, in.heads_k, packed ? in.total_k : in.length_k});
}

}  // namespace xlstm::gpu::attention
