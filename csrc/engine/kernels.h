// SPDX-License-Identifier: Apache-2.0
// The decode step and sampling on a GPU, with quantised linear layers by engine/linear/linear.h, as the C API calls
// them: they take a workspace and a stream and launch kernels. No function here waits for the GPU, allocates memory or
// reads device memory.
#pragma once

#include <cstddef>

#include "arch/chip.h"
#include "engine/linear/linear.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::engine {

size_t decode_workspace(const xlstm_decode&, const Chip&);
void decode_step(const xlstm_decode&, const Chip&, void* workspace, void* stream);
void sample_tokens(const xlstm_draw&, void* stream);

}  // namespace xlstm::gpu::engine
