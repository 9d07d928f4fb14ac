// SPDX-License-Identifier: Apache-2.0
// Helpers that the attention launches on Hopper share: TMA tensor maps and the launch.
#pragma once

#include "arch/launch.h"
#include "attention/gpu/hopper_smem.h"

namespace xlstm::gpu::attention {

// box: tokens of a load.
inline CUtensorMap query_map(const xlstm_attention& in, const xlstm_tensor& x, int64_t features) {
  const bool packed = in.cu_seqlens_q != nullptr;
  return tensor_map(x.data, int(features), packed ? in.total_q : in.length_q, in.heads_q, packed ? 1 : in.batch,
                    x.stride, kHopperBoxRows);
}
inline CUtensorMap key_map(const xlstm_attention& in, const xlstm_tensor& x, int64_t features,
                           int box = kHopperBoxRows) {
  const bool packed = in.cu_seqlens_k != nullptr;
  return tensor_map(x.data, int(features), packed ? in.total_k : in.length_k, in.heads_k, packed ? 1 : in.batch,
                    x.stride, box);
}

// blocks: of the grid.
template <class Params>
void launch_hopper_attention(const char* name, void (*kernel)(HopperAttentionParams<Params>),
                             const HopperAttentionShape& shape, int64_t blocks, const HopperAttentionParams<Params>& p,
                             Stream stream) {
  launch(name, kernel, {blocks, kHopperAttentionThreads, shape.lds_bytes()}, stream, p);
}

}  // namespace xlstm::gpu::attention
