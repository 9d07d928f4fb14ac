// SPDX-License-Identifier: Apache-2.0
// The GPU kernels of attention as the C API calls them: params, a plan, workspace and a stream in, launches out. No
// function waits, allocates or reads the device. A launch that fails throws std::runtime_error; a call that no kernel
// supports throws std::invalid_argument, which names the argument.
#pragma once

#include <cstddef>
#include <variant>

#include "arch/chip.h"
#include "attention/backward/backward_plan.h"
#include "attention/decode/decode_plan.h"
#include "attention/forward/forward_plan.h"
#include "attention/mla/mla_plan.h"
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

// The kernel that a forward call takes, and its plan. A plan depends on where the tensors lie; workspace_anywhere is
// enough wherever they do.
using ForwardCallPlan = std::variant<AttentionForwardPlan, DecodePlan, MlaPlan>;
ForwardCallPlan plan_attention_forward_call(const xlstm_attention_forward&, const Chip&);
size_t attention_forward_workspace(const xlstm_attention_forward&, const ForwardCallPlan&);
size_t attention_forward_workspace_anywhere(const xlstm_attention_forward&, const Chip&);
void attention_forward(const xlstm_attention_forward&, const ForwardCallPlan&, void* workspace, void* stream);

AttentionBackwardPlan plan_attention_backward_call(const xlstm_attention_backward&, const Chip&);
size_t attention_backward_workspace(const xlstm_attention_backward&, const AttentionBackwardPlan&);
void attention_backward(const xlstm_attention_backward&, const AttentionBackwardPlan&, void* workspace, void* stream);

size_t attention_append_workspace(const xlstm_attention_append&, const Chip&);
void attention_append(const xlstm_attention_append&, const Chip&, void* workspace, void* stream);

size_t attention_combine_workspace(const xlstm_attention_combine&, const Chip&);
void attention_combine(const xlstm_attention_combine&, const Chip&, void* workspace, void* stream);

}  // namespace xlstm::gpu::attention
