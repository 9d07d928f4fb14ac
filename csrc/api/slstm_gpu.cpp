// SPDX-License-Identifier: Apache-2.0
// The recurrent cells' calls of the C API on a GPU.
#include "api/entry.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "slstm/gpu/call.h"

namespace xlstm {
namespace {

void check_forward(const xlstm_slstm_forward& p, bool on_host) {
  check_slstm_forward(p, on_host);
  has_gpu_dtype("dtype", p.in.dtype);
}
void check_backward(const xlstm_slstm_backward& p, bool on_host) {
  check_slstm_backward(p, on_host);
  has_gpu_dtype("dtype", p.in.dtype);
}

constexpr GpuEntry<xlstm_slstm_forward, gpu::slstm::CellPlan> kForward = {
    check_forward, [](const auto& p, const gpu::Chip& chip) { return gpu::slstm::plan_call(p, chip); },
    [](const auto&, const auto& plan) { return gpu::slstm::workspace(plan); },
    [](const auto& p, const auto& plan, void* workspace, void* stream) {
      gpu::slstm::forward(p, plan, workspace, stream);
    }};

constexpr GpuEntry<xlstm_slstm_backward, gpu::slstm::CellPlan> kBackward = {
    check_backward, [](const auto& p, const gpu::Chip& chip) { return gpu::slstm::plan_call(p, chip); },
    [](const auto&, const auto& plan) { return gpu::slstm::workspace(plan); },
    [](const auto& p, const auto& plan, void* workspace, void* stream) {
      gpu::slstm::backward(p, plan, workspace, stream);
    }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;
#endif

XLSTM_GPU_WORKSPACE(xlstm_gpu_slstm_forward_workspace, xlstm_slstm_forward, kForward)
XLSTM_GPU_WORKSPACE(xlstm_gpu_slstm_backward_workspace, xlstm_slstm_backward, kBackward)

XLSTM_GPU_CALL(xlstm_gpu_slstm_forward_pass, xlstm_slstm_forward, kForward)
XLSTM_GPU_CALL(xlstm_gpu_slstm_backward_pass, xlstm_slstm_backward, kBackward)
