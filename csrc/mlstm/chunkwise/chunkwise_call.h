// SPDX-License-Identifier: Apache-2.0
// The chunkwise mLSTM on a GPU as the C API calls it. Each function takes a plan, a workspace and a stream and enqueues
// launches. No function waits, allocates or reads device memory. A launch that fails throws std::runtime_error.
#pragma once

#include <cstddef>

#include "mlstm/chunkwise/chunkwise_plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::mlstm {

size_t chunkwise_workspace(const xlstm_mlstm_forward&, const ForwardPlan&);
void chunkwise(const xlstm_mlstm_forward&, const ForwardPlan&, void* workspace, void* stream);

size_t backward_workspace(const xlstm_mlstm_backward&, const BackwardPlan&);
void backward(const xlstm_mlstm_backward&, const BackwardPlan&, void* workspace, void* stream);

}  // namespace xlstm::gpu::mlstm
