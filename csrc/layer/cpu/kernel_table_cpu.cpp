// SPDX-License-Identifier: Apache-2.0
#include "arch/cpu/vector.h"
#include "layer/cpu/kernel_table.h"

namespace xlstm::XLSTM_ISA::layer {

void norm_forward(const xlstm_norm_forward&, const Executor&);
size_t norm_backward_workspace(const xlstm_norm_backward&, int64_t);
void norm_backward(const xlstm_norm_backward&, void*, const Executor&);
void soft_cap_forward(const xlstm_soft_cap&, const Executor&);
void soft_cap_backward(const xlstm_soft_cap&, const Executor&);
void swiglu_forward(const xlstm_swiglu&, const Executor&);
void swiglu_backward(const xlstm_swiglu&, const Executor&);
void cross_entropy_forward(const xlstm_cross_entropy&, const Executor&);
void cross_entropy_backward(const xlstm_cross_entropy&, const Executor&);

extern const LayerCpuKernels layer_kernels;
const LayerCpuKernels layer_kernels = {norm_forward,     norm_backward_workspace, norm_backward,
                                       soft_cap_forward, soft_cap_backward,       swiglu_forward,
                                       swiglu_backward,  cross_entropy_forward,   cross_entropy_backward};

}  // namespace xlstm::XLSTM_ISA::layer
