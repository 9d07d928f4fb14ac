// SPDX-License-Identifier: Apache-2.0
// What every layer call of the C API checks first. They throw std::invalid_argument that names the argument.
// on_host: targets can be read, and float64 is there.
#pragma once

#include "xlstm_hip.h"

namespace xlstm {

void check_norm_forward(const xlstm_norm_forward&, bool on_host);
void check_norm_backward(const xlstm_norm_backward&, bool on_host);
void check_soft_cap_forward(const xlstm_soft_cap&, bool on_host);
void check_soft_cap_backward(const xlstm_soft_cap&, bool on_host);
void check_swiglu_forward(const xlstm_swiglu&, bool on_host);
void check_swiglu_backward(const xlstm_swiglu&, bool on_host);
void check_cross_entropy_forward(const xlstm_cross_entropy&, bool on_host);
void check_cross_entropy_backward(const xlstm_cross_entropy&, bool on_host);

}  // namespace xlstm
