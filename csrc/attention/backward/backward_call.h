// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU as the C API calls it, in the manner of dispatch/forward_call.h.
#pragma once

#include <cstddef>

#include "attention/backward/backward_plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::attention {

AttentionBackwardPlan plan_attention_backward_call(const xlstm_attention_backward&, const Chip&);
size_t attention_backward_workspace(const xlstm_attention_backward&, const AttentionBackwardPlan&);
void attention_backward(const xlstm_attention_backward&, const AttentionBackwardPlan&, void* workspace, void* stream);

}  // namespace xlstm::gpu::attention
