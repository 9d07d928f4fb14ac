// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of the mLSTM as a table: one per instruction set, filled by *_cpu.cpp, chosen in api/.
#pragma once

#include "api/xlstm_hip.h"
#include "mlstm/plan.h"

namespace xlstm {

// Where tasks run: parallel(n, f) calls f(task, worker) for every task in [0, n); worker < workers.
struct Executor {
  int32_t workers;
  void (*parallel)(void* self, int32_t workers, void (*body)(void*, int32_t), void* arg);
  void* self;
};

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
