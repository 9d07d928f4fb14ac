// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of the mLSTM as a table: one per instruction set, filled by *_cpu.cpp, chosen in api/.
#pragma once

#include "base/executor.h"
#include "mlstm/cpu/plan.h"
#include "xlstm_hip.h"

namespace xlstm {

struct MlstmCpuKernels {
  const char* isa;
  size_t (*chunkwise_workspace)(const xlstm_mlstm_forward&, const MlstmCpuPlan&);
  void (*chunkwise)(const xlstm_mlstm_forward&, const MlstmCpuPlan&, void* workspace, const Executor&);
  size_t (*backward_workspace)(const xlstm_mlstm_backward&, const MlstmCpuPlan&);
  void (*backward)(const xlstm_mlstm_backward&, const MlstmCpuPlan&, void* workspace, const Executor&);
  size_t (*recurrent_workspace)(const xlstm_mlstm_forward&, int64_t workers);
  void (*recurrent)(const xlstm_mlstm_forward&, void* workspace, const Executor&);
};

}  // namespace xlstm
