// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of the recurrent cells as a table: one per instruction set, filled by *_cpu.cpp, chosen in api/.
#pragma once

#include "base/executor.h"
#include "slstm/cpu/plan.h"
#include "xlstm_hip.h"

namespace xlstm {

struct SlstmCpuKernels {
  size_t (*forward_workspace)(const xlstm_slstm_forward&, const SlstmCpuPlan&);
  void (*forward)(const xlstm_slstm_forward&, const SlstmCpuPlan&, void* workspace, const Executor&);
  size_t (*backward_workspace)(const xlstm_slstm_backward&, const SlstmCpuPlan&);
  void (*backward)(const xlstm_slstm_backward&, const SlstmCpuPlan&, void* workspace, const Executor&);
};

}  // namespace xlstm
