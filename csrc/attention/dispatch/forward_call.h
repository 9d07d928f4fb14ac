// SPDX-License-Identifier: Apache-2.0
// Attention forward on a GPU as the C API calls it: params, a plan, workspace and a stream in, launches out. No
// function waits, allocates or reads the device. A launch that fails throws std::runtime_error; a call that no kernel
// supports throws std::invalid_argument, which names the argument.
#pragma once

#include <cstddef>
#include <variant>

#include "attention/decode/decode_plan.h"
#include "attention/forward/forward_plan.h"
#include "attention/mla/mla_plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::attention {

// The kernel that a forward call takes, and its plan. A plan depends on where the tensors lie; workspace_anywhere is
// enough wherever they do.
using ForwardCallPlan = std::variant<AttentionForwardPlan, DecodePlan, MlaPlan>;
ForwardCallPlan plan_attention_forward_call(const xlstm_attention_forward&, const Chip&);
size_t attention_forward_workspace(const xlstm_attention_forward&, const ForwardCallPlan&);
size_t attention_forward_workspace_anywhere(const xlstm_attention_forward&, const Chip&);
void attention_forward(const xlstm_attention_forward&, const ForwardCallPlan&, void* workspace, void* stream);

}  // namespace xlstm::gpu::attention
