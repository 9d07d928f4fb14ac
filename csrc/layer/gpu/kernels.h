// SPDX-License-Identifier: Apache-2.0
// The GPU kernels of the layers as the C API calls them. No function synchronises, allocates or queries the device. A
// launch that fails throws std::runtime_error.
#pragma once

#include <cstddef>

#include "layer/gpu/plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::layer {

Groups plan_norm_forward_call(const xlstm_norm_forward&, const Chip&);
void norm_forward(const xlstm_norm_forward&, const Groups&, void* stream);
PersistentPlan plan_norm_backward_call(const xlstm_norm_backward&, const Chip&);
size_t norm_backward_workspace(const xlstm_norm_backward&, const PersistentPlan&);
void norm_backward(const xlstm_norm_backward&, const PersistentPlan&, void* workspace, void* stream);
void soft_cap_forward(const xlstm_soft_cap&, void* stream);
void soft_cap_backward(const xlstm_soft_cap&, void* stream);
void swiglu_forward(const xlstm_swiglu&, void* stream);
void swiglu_backward(const xlstm_swiglu&, void* stream);
PersistentPlan plan_cross_entropy_call(const xlstm_cross_entropy&, const Chip&);
void cross_entropy_forward(const xlstm_cross_entropy&, const PersistentPlan&, void* stream);
void cross_entropy_backward(const xlstm_cross_entropy&, void* stream);

}  // namespace xlstm::gpu::layer
