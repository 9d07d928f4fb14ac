// SPDX-License-Identifier: Apache-2.0
// The GPU kernels of the mLSTM as the C API calls them: a plan, workspace and a stream in, launches out. Nothing waits,
// allocates or reads the device. A launch that fails throws std::runtime_error.
#pragma once

#include <cstddef>

#include "api/xlstm_hip.h"
#include "mlstm/plan_gpu.h"

namespace xlstm::gpu {

size_t chunkwise_workspace(const xlstm_mlstm_forward&, const ForwardPlan&);
void chunkwise(const xlstm_mlstm_forward&, const ForwardPlan&, void* workspace, void* stream);

size_t backward_workspace(const xlstm_mlstm_backward&, const BackwardPlan&);
void backward(const xlstm_mlstm_backward&, const BackwardPlan&, void* workspace, void* stream);

size_t recurrent_workspace(const xlstm_mlstm_forward&, const Chip&);
void recurrent(const xlstm_mlstm_forward&, const Chip&, void* workspace, void* stream);

}  // namespace xlstm::gpu
