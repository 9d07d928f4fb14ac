// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of decoding as a table: one per instruction set, chosen in api/.
#pragma once

#include "api/executor.h"
#include "api/xlstm_hip.h"
#include "decode/plan.h"

namespace xlstm {

struct DecodeCpuKernels {
  const char* isa;
  size_t (*workspace)(const xlstm_decode&, const DecodeCpuPlan&);
  void (*step)(const xlstm_decode&, const DecodeCpuPlan&, void* workspace, const Executor&);
  void (*draw)(const xlstm_draw&, const Executor&);
};

}  // namespace xlstm
