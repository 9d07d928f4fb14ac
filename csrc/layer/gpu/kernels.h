// SPDX-License-Identifier: Apache-2.0
// The GPU kernels of the layers as the C API calls them. No function synchronises, allocates or queries the device. A
// launch that fails throws std::runtime_error.
#pragma once

#include <cstddef>

#include "arch/chip.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::layer {

void norm_forward(const xlstm_norm_forward&, const Chip&, void* stream);
size_t norm_backward_workspace(const xlstm_norm_backward&, const Chip&);
void norm_backward(const xlstm_norm_backward&, const Chip&, void* workspace, void* stream);
void soft_cap_forward(const xlstm_soft_cap&, const Chip&, void* stream);
void soft_cap_backward(const xlstm_soft_cap&, const Chip&, void* stream);
void swiglu_forward(const xlstm_swiglu&, const Chip&, void* stream);
void swiglu_backward(const xlstm_swiglu&, const Chip&, void* stream);
void cross_entropy_forward(const xlstm_cross_entropy&, const Chip&, void* stream);
void cross_entropy_backward(const xlstm_cross_entropy&, const Chip&, void* stream);

}  // namespace xlstm::gpu::layer
