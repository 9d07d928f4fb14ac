// SPDX-License-Identifier: Apache-2.0
// What every attention call of the C API checks first. They throw std::invalid_argument that names the argument.
// on_host: index tensors can be read.
#pragma once

#include "xlstm_hip.h"

namespace xlstm {

void check_attention_forward(const xlstm_attention_forward&, bool on_host);
void check_attention_backward(const xlstm_attention_backward&, bool on_host);
void check_attention_append(const xlstm_attention_append&, bool on_host);
void check_attention_combine(const xlstm_attention_combine&);

// Rows of a register tile of the CPU kernels that run here.
int64_t attention_panel(xlstm_dtype);

}  // namespace xlstm
