// SPDX-License-Identifier: Apache-2.0
// The calls beside attention itself as the C API calls them on a GPU, in the manner of dispatch/forward_call.h.
#pragma once

#include <cstddef>

#include "arch/chip.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::attention {

size_t attention_append_workspace(const xlstm_attention_append&, const Chip&);
void attention_append(const xlstm_attention_append&, const Chip&, void* workspace, void* stream);

size_t attention_combine_workspace(const xlstm_attention_combine&, const Chip&);
void attention_combine(const xlstm_attention_combine&, const Chip&, void* workspace, void* stream);

}  // namespace xlstm::gpu::attention
