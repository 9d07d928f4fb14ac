// SPDX-License-Identifier: Apache-2.0
// The checks that every call of the C API makes first. They throw std::invalid_argument that names the argument.
// on_host: the call runs on a CPU, so index tensors (cu_seqlens, block tables, tokens, targets) can be read, and there
// are kernels for float64.
#pragma once

#include "xlstm_hip.h"

namespace xlstm {

void check_chunkwise(const xlstm_mlstm_forward&, bool on_host);
void check_recurrent(const xlstm_mlstm_forward&, bool on_host);
void check_backward(const xlstm_mlstm_backward&, bool on_host);

void check_attention_forward(const xlstm_attention_forward&, bool on_host);
void check_attention_backward(const xlstm_attention_backward&, bool on_host);
void check_attention_append(const xlstm_attention_append&, bool on_host);
void check_attention_combine(const xlstm_attention_combine&, bool on_host);

void check_norm_forward(const xlstm_norm_forward&, bool on_host);
void check_norm_backward(const xlstm_norm_backward&, bool on_host);
void check_soft_cap_forward(const xlstm_soft_cap&, bool on_host);
void check_soft_cap_backward(const xlstm_soft_cap&, bool on_host);
void check_swiglu_forward(const xlstm_swiglu&, bool on_host);
void check_swiglu_backward(const xlstm_swiglu&, bool on_host);
void check_cross_entropy_forward(const xlstm_cross_entropy&, bool on_host);
void check_cross_entropy_backward(const xlstm_cross_entropy&, bool on_host);

void check_decode(const xlstm_decode&, bool on_host);
void check_linear_forward(const xlstm_linear_forward&, bool on_host);
void check_draw(const xlstm_draw&, bool on_host);

void check_slstm_forward(const xlstm_slstm_forward&, bool on_host);
void check_slstm_backward(const xlstm_slstm_backward&, bool on_host);

}  // namespace xlstm
