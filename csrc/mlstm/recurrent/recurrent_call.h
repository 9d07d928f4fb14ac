// SPDX-License-Identifier: Apache-2.0
// The recurrent mLSTM on a GPU as the C API and a model's step call it, in the manner of chunkwise_call.h.
#pragma once

#include <cstddef>

#include "arch/chip.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::mlstm {

size_t recurrent_workspace(const xlstm_mlstm_forward&, const Chip&);
void recurrent(const xlstm_mlstm_forward&, const Chip&, void* workspace, void* stream);

}  // namespace xlstm::gpu::mlstm
