// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of the decode engine, one table for each instruction set; api/ chooses.
#pragma once

#include "base/executor.h"
#include "engine/cpu/plan.h"
#include "xlstm_hip.h"

namespace xlstm {

struct DecodeCpuKernels {
  const char* isa;
  size_t (*workspace)(const xlstm_decode&, const DecodeCpuPlan&);
  void (*step)(const xlstm_decode&, const DecodeCpuPlan&, void* workspace, const Executor&);
  size_t (*linear_workspace)(const xlstm_linear_forward&, const DecodeCpuPlan&);
  void (*linear)(const xlstm_linear_forward&, const DecodeCpuPlan&, void* workspace, const Executor&);
  void (*sample)(const xlstm_draw&, const Executor&);
};

}  // namespace xlstm
