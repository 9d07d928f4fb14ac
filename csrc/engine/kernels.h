// SPDX-License-Identifier: Apache-2.0
// Decoding on a GPU as the C API calls it: workspace and a stream in, launches out. Nothing waits, allocates or
// reads the device.
#pragma once

#include <cstddef>

#include "arch/chip.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::engine {

size_t decode_workspace(const xlstm_decode&, const Chip&);
void decode_step(const xlstm_decode&, const Chip&, void* workspace, void* stream);
void draw_tokens(const xlstm_draw&, void* stream);

}  // namespace xlstm::gpu::engine
