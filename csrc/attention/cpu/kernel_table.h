// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of attention as a table: one per instruction set, filled by *_cpu.cpp, chosen in api/.
#pragma once

#include "attention/cpu/plan.h"
#include "base/executor.h"
#include "xlstm_hip.h"

namespace xlstm {

struct AttentionCpuKernels {
  const char* isa;
  int64_t panel, wide_panel;  // rows of a register tile in float and in double
  size_t (*forward_workspace)(const xlstm_attention_forward&, const AttentionCpuPlan&);
  void (*forward)(const xlstm_attention_forward&, const AttentionCpuPlan&, void* workspace, const Executor&);
  size_t (*backward_workspace)(const xlstm_attention_backward&, const AttentionBackwardCpuPlan&);
  void (*backward)(const xlstm_attention_backward&, const AttentionBackwardCpuPlan&, void* workspace, const Executor&);
  size_t (*append_workspace)(const xlstm_attention_append&, int64_t workers);
  void (*append)(const xlstm_attention_append&, void* workspace, const Executor&);
  size_t (*combine_workspace)(const xlstm_attention_combine&, int64_t workers);
  void (*combine)(const xlstm_attention_combine&, void* workspace, const Executor&);
};

}  // namespace xlstm
