// SPDX-License-Identifier: Apache-2.0
#include "arch/cpu/vector.h"
#include "engine/cpu/kernel_table.h"

#define XLSTM_TEXT_(x) #x
#define XLSTM_TEXT(x) XLSTM_TEXT_(x)

namespace xlstm::XLSTM_ISA::engine {

size_t decode_workspace(const xlstm_decode&, const DecodeCpuPlan&);
void decode_step(const xlstm_decode&, const DecodeCpuPlan&, void*, const Executor&);
size_t linear_workspace(const xlstm_linear_forward&, const DecodeCpuPlan&);
void linear(const xlstm_linear_forward&, const DecodeCpuPlan&, void*, const Executor&);
void sample_tokens(const xlstm_draw&, const Executor&);

extern const DecodeCpuKernels decode_kernels;
const DecodeCpuKernels decode_kernels = {XLSTM_TEXT(XLSTM_ISA), decode_workspace, decode_step,
                                         linear_workspace,      linear,           sample_tokens};

}  // namespace xlstm::XLSTM_ISA::engine
