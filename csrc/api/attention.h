// SPDX-License-Identifier: Apache-2.0
// The rows of a register tile of this machine's CPU attention kernels, for plans that are computed without a call.
#pragma once

#include "xlstm_hip.h"

namespace xlstm {

int64_t attention_panel(xlstm_dtype);

}  // namespace xlstm
