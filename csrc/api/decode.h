// SPDX-License-Identifier: Apache-2.0
// What the decode call of the C API does first.
#pragma once

#include "api/xlstm_hip.h"

namespace xlstm {

// Throws std::invalid_argument that names the argument. on_host: tokens can be read.
void check_decode(const xlstm_decode&, bool on_host);

}  // namespace xlstm
