// SPDX-License-Identifier: Apache-2.0
#include "slstm/cpu/kernel_table.h"

namespace xlstm::XLSTM_ISA::slstm {

size_t forward_workspace(const xlstm_slstm_forward&, const SlstmCpuPlan&);
void forward(const xlstm_slstm_forward&, const SlstmCpuPlan&, void*, const Executor&);
size_t backward_workspace(const xlstm_slstm_backward&, const SlstmCpuPlan&);
void backward(const xlstm_slstm_backward&, const SlstmCpuPlan&, void*, const Executor&);

extern const SlstmCpuKernels slstm_kernels;
const SlstmCpuKernels slstm_kernels = {forward_workspace, forward, backward_workspace, backward};

}  // namespace xlstm::XLSTM_ISA::slstm
