// SPDX-License-Identifier: Apache-2.0
// What the decode calls of the C API do first.
#pragma once

#include "xlstm_hip.h"

namespace xlstm {

// Throws std::invalid_argument that names the argument. on_host: tokens can be read.
void check_decode(const xlstm_decode&, bool on_host);
void check_draw(const xlstm_draw&);

}  // namespace xlstm
