// SPDX-License-Identifier: Apache-2.0
// The layer calls of the C API on a CPU: check, run.
#include "api/layer.h"

#include <stdexcept>

#include "api/call.h"
#include "arch/cpu/isa.h"
#include "base/threads.h"
#include "layer/cpu/kernel_table.h"

namespace xlstm {

#define XLSTM_DECLARE_TABLE(isa)              \
  namespace isa::layer {                      \
  extern const LayerCpuKernels layer_kernels; \
  }
XLSTM_FOR_EACH_ISA(XLSTM_DECLARE_TABLE)
#undef XLSTM_DECLARE_TABLE

namespace {

const LayerCpuKernels& kernels() {
  switch (cpu_isa()) {
#define XLSTM_TABLE_CASE(isa) \
  case Isa::isa:              \
    return isa::layer::layer_kernels;
    XLSTM_FOR_EACH_ISA(XLSTM_TABLE_CASE)
#undef XLSTM_TABLE_CASE
  }
  throw std::logic_error("no CPU kernels");
}

int32_t threads_or_all(int32_t threads) { return threads > 0 ? threads : hardware_threads(); }

Executor executor(const xlstm_runtime& r) {
  return {threads_or_all(r.threads), r.parallel ? r.parallel : run_on_own_threads, r.self};
}

template <class Params>
xlstm_status call(const Params* p, const xlstm_runtime* r, void (&check)(const Params&, bool),
                  void (*LayerCpuKernels::*kernel)(const Params&, const Executor&)) {
  return guarded([&] {
    check(given(p), true);
    (kernels().*kernel)(*p, executor(given(r)));
  });
}

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_norm_backward_workspace(const xlstm_norm_backward* p, int32_t threads) {
  return counted([&] {
    check_norm_backward(given(p), true);
    return kernels().norm_backward_workspace(*p, threads_or_all(threads));
  });
}

xlstm_status xlstm_norm_backward_pass(const xlstm_norm_backward* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_norm_backward(given(p), true);
    const size_t bytes = kernels().norm_backward_workspace(*p, threads_or_all(given(r).threads));
    check_workspace(r->workspace, r->workspace_bytes, bytes + kWorkspaceAlignment);
    kernels().norm_backward(*p, aligned(r->workspace), executor(*r));
  });
}

xlstm_status xlstm_norm_forward_pass(const xlstm_norm_forward* p, const xlstm_runtime* r) {
  return call(p, r, check_norm_forward, &LayerCpuKernels::norm_forward);
}
xlstm_status xlstm_soft_cap_forward_pass(const xlstm_soft_cap* p, const xlstm_runtime* r) {
  return call(p, r, check_soft_cap_forward, &LayerCpuKernels::soft_cap_forward);
}
xlstm_status xlstm_soft_cap_backward_pass(const xlstm_soft_cap* p, const xlstm_runtime* r) {
  return call(p, r, check_soft_cap_backward, &LayerCpuKernels::soft_cap_backward);
}
xlstm_status xlstm_swiglu_forward_pass(const xlstm_swiglu* p, const xlstm_runtime* r) {
  return call(p, r, check_swiglu_forward, &LayerCpuKernels::swiglu_forward);
}
xlstm_status xlstm_swiglu_backward_pass(const xlstm_swiglu* p, const xlstm_runtime* r) {
  return call(p, r, check_swiglu_backward, &LayerCpuKernels::swiglu_backward);
}
xlstm_status xlstm_cross_entropy_forward_pass(const xlstm_cross_entropy* p, const xlstm_runtime* r) {
  return call(p, r, check_cross_entropy_forward, &LayerCpuKernels::cross_entropy_forward);
}
xlstm_status xlstm_cross_entropy_backward_pass(const xlstm_cross_entropy* p, const xlstm_runtime* r) {
  return call(p, r, check_cross_entropy_backward, &LayerCpuKernels::cross_entropy_backward);
}
