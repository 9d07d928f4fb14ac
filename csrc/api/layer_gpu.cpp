// SPDX-License-Identifier: Apache-2.0
// The layer calls of the C API on a GPU.
#include "api/entry.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "layer/gpu/kernels.h"

namespace xlstm {
namespace {

using gpu::Chip;

// A call that needs no workspace.
template <class Params, void (*kCheck)(const Params&, bool), void (*kLaunch)(const Params&, const Chip&, void*)>
constexpr GpuEntry<Params, Chip> kInPlace = {
    kCheck, kPlanIsChip, [](const auto&, const Chip&) { return size_t(0); },
    [](const auto& p, const Chip& chip, void*, void* stream) { kLaunch(p, chip, stream); }};

constexpr GpuEntry<xlstm_norm_backward, Chip> kNormBackward = {
    check_norm_backward, kPlanIsChip, gpu::layer::norm_backward_workspace, gpu::layer::norm_backward};
constexpr auto& kNormForward = kInPlace<xlstm_norm_forward, check_norm_forward, gpu::layer::norm_forward>;
constexpr auto& kSoftCapForward = kInPlace<xlstm_soft_cap, check_soft_cap_forward, gpu::layer::soft_cap_forward>;
constexpr auto& kSoftCapBackward = kInPlace<xlstm_soft_cap, check_soft_cap_backward, gpu::layer::soft_cap_backward>;
constexpr auto& kSwigluForward = kInPlace<xlstm_swiglu, check_swiglu_forward, gpu::layer::swiglu_forward>;
constexpr auto& kSwigluBackward = kInPlace<xlstm_swiglu, check_swiglu_backward, gpu::layer::swiglu_backward>;
constexpr auto& kCrossEntropyForward =
    kInPlace<xlstm_cross_entropy, check_cross_entropy_forward, gpu::layer::cross_entropy_forward>;
constexpr auto& kCrossEntropyBackward =
    kInPlace<xlstm_cross_entropy, check_cross_entropy_backward, gpu::layer::cross_entropy_backward>;

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
