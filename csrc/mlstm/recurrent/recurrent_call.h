// SPDX-License-Identifier: Apache-2.0
// The recurrent mLSTM on a GPU as the C API and a model's step call it, in the manner of chunkwise_call.h.
#pragma once

#include <cstddef>

#include "mlstm/recurrent/recurrent_plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::mlstm {

RecurrentPlan plan_recurrent_call(const xlstm_mlstm_forward&, const Chip&);
// Enough for every plan of the call, since a plan depends on where the tensors lie.
size_t recurrent_workspace(const xlstm_mlstm_forward&);
void recurrent(const xlstm_mlstm_forward&, const RecurrentPlan&, void* workspace, void* stream);

}  // namespace xlstm::gpu::mlstm
