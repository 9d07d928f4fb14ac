// SPDX-License-Identifier: Apache-2.0
// The calls beside attention itself as the C API calls them on a GPU, in the manner of dispatch/forward_call.h.
#pragma once

#include "xlstm_hip.h"

namespace xlstm::gpu::attention {

void attention_append(const xlstm_attention_append&, void* stream);
void attention_combine(const xlstm_attention_combine&, void* stream);

}  // namespace xlstm::gpu::attention
