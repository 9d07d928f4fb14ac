// SPDX-License-Identifier: Apache-2.0
// What every mLSTM call of the C API checks first. They throw std::invalid_argument that names the argument.
// on_host: cu_seqlens can be read.
#pragma once

#include "xlstm_hip.h"

namespace xlstm {

void check_chunkwise(const xlstm_mlstm_forward&, bool on_host);
void check_recurrent(const xlstm_mlstm_forward&, bool on_host);
void check_backward(const xlstm_mlstm_backward&, bool on_host);

}  // namespace xlstm
