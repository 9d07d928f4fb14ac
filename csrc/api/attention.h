// SPDX-License-Identifier: Apache-2.0
// For plans without a call: the rows of a register tile of the CPU attention kernels that run here.
#pragma once

#include "xlstm_hip.h"

namespace xlstm {

int64_t attention_panel(xlstm_dtype);

}  // namespace xlstm
