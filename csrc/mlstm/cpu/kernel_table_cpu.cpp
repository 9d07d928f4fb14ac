// SPDX-License-Identifier: Apache-2.0
#include "arch/cpu/vector.h"
#include "mlstm/cpu/kernel_table.h"

#define XLSTM_TEXT_(x) #x
#define XLSTM_TEXT(x) XLSTM_TEXT_(x)

namespace xlstm::XLSTM_ISA::mlstm {

size_t chunkwise_workspace(const xlstm_mlstm_forward&, const MlstmCpuPlan&);
void chunkwise(const xlstm_mlstm_forward&, const MlstmCpuPlan&, void*, const Executor&);
size_t backward_workspace(const xlstm_mlstm_backward&, const MlstmCpuPlan&);
void backward(const xlstm_mlstm_backward&, const MlstmCpuPlan&, void*, const Executor&);
size_t recurrent_workspace(const xlstm_mlstm_forward&, int64_t);
void recurrent(const xlstm_mlstm_forward&, void*, const Executor&);

extern const MlstmCpuKernels mlstm_kernels;
const MlstmCpuKernels mlstm_kernels = {XLSTM_TEXT(XLSTM_ISA),
                                       chunkwise_workspace,
                                       chunkwise,
                                       backward_workspace,
                                       backward,
                                       recurrent_workspace,
                                       recurrent};

}  // namespace xlstm::XLSTM_ISA::mlstm
