// SPDX-License-Identifier: Apache-2.0
// The layer calls of the C API on a GPU.
#include "api/entry.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "layer/gpu/kernels.h"

namespace xlstm {
namespace {

using gpu::layer::Groups, gpu::layer::PersistentPlan;

constexpr GpuEntry<xlstm_norm_backward, PersistentPlan> kNormBackward = {
    check_norm_backward, gpu::layer::plan_norm_backward_call, gpu::layer::norm_backward_workspace,
    gpu::layer::norm_backward};
constexpr GpuEntry<xlstm_norm_forward, Groups> kNormForward = {
    check_norm_forward, gpu::layer::plan_norm_forward_call, kNoWorkspace,
    [](const auto& p, const Groups& plan, void*, void* stream) { gpu::layer::norm_forward(p, plan, stream); }};
constexpr GpuEntry<xlstm_cross_entropy, PersistentPlan> kCrossEntropyForward = {
    check_cross_entropy_forward, gpu::layer::plan_cross_entropy_call, kNoWorkspace,
    [](const auto& p, const PersistentPlan& plan, void*, void* stream) {
      gpu::layer::cross_entropy_forward(p, plan, stream);
    }};

// A call with neither a plan nor a workspace.
template <class Params, void (*kCheck)(const Params&, bool), void (*kLaunch)(const Params&, void* stream)>
constexpr GpuEntry<Params, NoPlan> kUnplanned = {
    kCheck, kNoPlan, kNoWorkspace, [](const auto& p, const NoPlan&, void*, void* stream) { kLaunch(p, stream); }};

constexpr auto& kSoftCapForward = kUnplanned<xlstm_soft_cap, check_soft_cap_forward, gpu::layer::soft_cap_forward>;
constexpr auto& kSoftCapBackward = kUnplanned<xlstm_soft_cap, check_soft_cap_backward, gpu::layer::soft_cap_backward>;
constexpr auto& kSwigluForward = kUnplanned<xlstm_swiglu, check_swiglu_forward, gpu::layer::swiglu_forward>;
constexpr auto& kSwigluBackward = kUnplanned<xlstm_swiglu, check_swiglu_backward, gpu::layer::swiglu_backward>;
constexpr auto& kCrossEntropyBackward =
    kUnplanned<xlstm_cross_entropy, check_cross_entropy_backward, gpu::layer::cross_entropy_backward>;

}  // namespace
}  // namespace xlstm

using namespace xlstm;
#endif

XLSTM_GPU_WORKSPACE(xlstm_gpu_norm_backward_workspace, xlstm_norm_backward, kNormBackward)
XLSTM_GPU_CALL(xlstm_gpu_norm_backward_pass, xlstm_norm_backward, kNormBackward)
XLSTM_GPU_CALL(xlstm_gpu_norm_forward_pass, xlstm_norm_forward, kNormForward)
XLSTM_GPU_CALL(xlstm_gpu_soft_cap_forward_pass, xlstm_soft_cap, kSoftCapForward)
XLSTM_GPU_CALL(xlstm_gpu_soft_cap_backward_pass, xlstm_soft_cap, kSoftCapBackward)
XLSTM_GPU_CALL(xlstm_gpu_swiglu_forward_pass, xlstm_swiglu, kSwigluForward)
XLSTM_GPU_CALL(xlstm_gpu_swiglu_backward_pass, xlstm_swiglu, kSwigluBackward)
XLSTM_GPU_CALL(xlstm_gpu_cross_entropy_forward_pass, xlstm_cross_entropy, kCrossEntropyForward)
XLSTM_GPU_CALL(xlstm_gpu_cross_entropy_backward_pass, xlstm_cross_entropy, kCrossEntropyBackward)
