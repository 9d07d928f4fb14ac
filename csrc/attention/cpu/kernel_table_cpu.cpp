// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/kernel_table.h"
#include "tile/cpu_panels.h"

#define XLSTM_TEXT_(x) #x
#define XLSTM_TEXT(x) XLSTM_TEXT_(x)

namespace xlstm::XLSTM_ISA::attention {

size_t attention_forward_workspace(const xlstm_attention_forward&, const AttentionCpuPlan&);
void attention_forward(const xlstm_attention_forward&, const AttentionCpuPlan&, void*, const Executor&);
size_t attention_backward_workspace(const xlstm_attention_backward&, const AttentionBackwardCpuPlan&);
void attention_backward(const xlstm_attention_backward&, const AttentionBackwardCpuPlan&, void*, const Executor&);
size_t attention_append_workspace(const xlstm_attention_append&, int64_t);
void attention_append(const xlstm_attention_append&, void*, const Executor&);
size_t attention_combine_workspace(const xlstm_attention_combine&, int64_t);
void attention_combine(const xlstm_attention_combine&, void*, const Executor&);

extern const AttentionCpuKernels attention_kernels;
const AttentionCpuKernels attention_kernels = {XLSTM_TEXT(XLSTM_ISA),
                                               NR<float>,
                                               NR<double>,
                                               attention_forward_workspace,
                                               attention_forward,
                                               attention_backward_workspace,
                                               attention_backward,
                                               attention_append_workspace,
                                               attention_append,
                                               attention_combine_workspace,
                                               attention_combine};

}  // namespace xlstm::XLSTM_ISA::attention
