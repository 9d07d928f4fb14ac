// SPDX-License-Identifier: Apache-2.0
// The CPU kernels of the layers as a table: one per instruction set, filled by *_cpu.cpp, chosen in api/.
#pragma once

#include <stddef.h>

#include "base/executor.h"
#include "xlstm_hip.h"

namespace xlstm {

struct LayerCpuKernels {
  void (*norm_forward)(const xlstm_norm_forward&, const Executor&);
  size_t (*norm_backward_workspace)(const xlstm_norm_backward&, int64_t workers);
  void (*norm_backward)(const xlstm_norm_backward&, void* workspace, const Executor&);
  void (*soft_cap_forward)(const xlstm_soft_cap&, const Executor&);
  void (*soft_cap_backward)(const xlstm_soft_cap&, const Executor&);
  void (*swiglu_forward)(const xlstm_swiglu&, const Executor&);
  void (*swiglu_backward)(const xlstm_swiglu&, const Executor&);
  void (*cross_entropy_forward)(const xlstm_cross_entropy&, const Executor&);
  void (*cross_entropy_backward)(const xlstm_cross_entropy&, const Executor&);
};

}  // namespace xlstm
