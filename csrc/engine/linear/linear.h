// SPDX-License-Identifier: Apache-2.0
// Quantised linear layers on a GPU, as engine/kernels.h has the decode step.
#pragma once

#include <cstddef>

#include "arch/chip.h"
#include "engine/linear/linear_plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::engine {

// A plan whose batch is 0 where no kernel takes the call.
LinearPlan plan_linear_call(const xlstm_linear_forward&, const Chip&);
size_t linear_workspace(const xlstm_linear_forward&, const LinearPlan&);
void linear(const xlstm_linear_forward&, const LinearPlan&, void* workspace, void* stream);

}  // namespace xlstm::gpu::engine
