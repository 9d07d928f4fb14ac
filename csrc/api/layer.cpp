// SPDX-License-Identifier: Apache-2.0
// The layer calls of the C API on a CPU.
#include "api/cpu_kernels.h"
#include "api/entry.h"
#include "layer/cpu/kernel_table.h"

namespace xlstm {
namespace {

const LayerCpuKernels& kernels() { return cpu_kernels().layer; }

// A call that needs no workspace.
template <class Params, void (*kCheck)(const Params&, bool),
          void (*LayerCpuKernels::*kKernel)(const Params&, const Executor&)>
constexpr CpuEntry<Params> kInPlace = {
    kCheck, [](const auto&, int32_t threads) { return Workers{threads}; },
    [](const auto&, const auto&) { return size_t(0); },
    [](const auto& p, const auto&, void*, const Executor& executor) { (kernels().*kKernel)(p, executor); }};

constexpr CpuEntry<xlstm_norm_backward> kNormBackward = {
    check_norm_backward, [](const auto&, int32_t threads) { return Workers{threads}; },
    [](const auto& p, const auto& plan) { return kernels().norm_backward_workspace(p, plan.workers); },
    [](const auto& p, const auto&, void* workspace, const Executor& executor) {
      kernels().norm_backward(p, workspace, executor);
    }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_norm_backward_workspace(const xlstm_norm_backward* p, int32_t threads) {
  return workspace_bytes(kNormBackward, p, threads);
}
xlstm_status xlstm_norm_backward_pass(const xlstm_norm_backward* p, const xlstm_runtime* r) {
  return call(kNormBackward, p, r);
}
xlstm_status xlstm_norm_forward_pass(const xlstm_norm_forward* p, const xlstm_runtime* r) {
  return call(kInPlace<xlstm_norm_forward, check_norm_forward, &LayerCpuKernels::norm_forward>, p, r);
}
xlstm_status xlstm_soft_cap_forward_pass(const xlstm_soft_cap* p, const xlstm_runtime* r) {
  return call(kInPlace<xlstm_soft_cap, check_soft_cap_forward, &LayerCpuKernels::soft_cap_forward>, p, r);
}
xlstm_status xlstm_soft_cap_backward_pass(const xlstm_soft_cap* p, const xlstm_runtime* r) {
  return call(kInPlace<xlstm_soft_cap, check_soft_cap_backward, &LayerCpuKernels::soft_cap_backward>, p, r);
}
xlstm_status xlstm_swiglu_forward_pass(const xlstm_swiglu* p, const xlstm_runtime* r) {
  return call(kInPlace<xlstm_swiglu, check_swiglu_forward, &LayerCpuKernels::swiglu_forward>, p, r);
}
xlstm_status xlstm_swiglu_backward_pass(const xlstm_swiglu* p, const xlstm_runtime* r) {
  return call(kInPlace<xlstm_swiglu, check_swiglu_backward, &LayerCpuKernels::swiglu_backward>, p, r);
}
xlstm_status xlstm_cross_entropy_forward_pass(const xlstm_cross_entropy* p, const xlstm_runtime* r) {
  return call(kInPlace<xlstm_cross_entropy, check_cross_entropy_forward, &LayerCpuKernels::cross_entropy_forward>, p,
              r);
}
xlstm_status xlstm_cross_entropy_backward_pass(const xlstm_cross_entropy* p, const xlstm_runtime* r) {
  return call(kInPlace<xlstm_cross_entropy, check_cross_entropy_backward, &LayerCpuKernels::cross_entropy_backward>, p,
              r);
}
