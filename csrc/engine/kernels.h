// SPDX-License-Identifier: Apache-2.0
// The decode step, quantised linear layers and sampling on a GPU, as the C API calls them: they take a workspace and a
// stream and launch kernels. No function here waits for the GPU, allocates memory or reads device memory.
#pragma once

#include <cstddef>

#include "arch/chip.h"
#include "engine/linear/linear_plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::engine {

size_t decode_workspace(const xlstm_decode&, const Chip&);
void decode_step(const xlstm_decode&, const Chip&, void* workspace, void* stream);
// A plan whose batch is 0 where no kernel takes the call.
LinearPlan plan_linear_call(const xlstm_linear_forward&, const Chip&);
size_t linear_workspace(const xlstm_linear_forward&, const LinearPlan&);
void linear(const xlstm_linear_forward&, const LinearPlan&, void* workspace, void* stream);
void sample_tokens(const xlstm_draw&, void* stream);

}  // namespace xlstm::gpu::engine
