// SPDX-License-Identifier: Apache-2.0
// The recurrent cells on a GPU as the C API calls them. No function synchronises, allocates or queries the device. A
// launch that fails throws std::runtime_error.
#pragma once

#include <cstddef>

#include "slstm/gpu/plan.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::slstm {

CellPlan plan_call(const xlstm_slstm_forward&, const Chip&);
CellPlan plan_call(const xlstm_slstm_backward&, const Chip&);
size_t workspace(const CellPlan&);
void forward(const xlstm_slstm_forward&, const CellPlan&, void* workspace, void* stream);
void backward(const xlstm_slstm_backward&, const CellPlan&, void* workspace, void* stream);

}  // namespace xlstm::gpu::slstm
