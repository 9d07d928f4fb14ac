// SPDX-License-Identifier: Apache-2.0
// The calls of the decode engine on a GPU.
#include "api/entry.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "engine/kernels.h"

namespace xlstm {
namespace {

using gpu::Chip;

// A step's plan is the chip alone: each of its launches has a plan, made of where its tensors lie in the workspace.
constexpr GpuEntry<xlstm_decode, Chip> kStep = {check_decode, [](const auto&, const Chip& chip) { return chip; },
                                                gpu::engine::decode_workspace, gpu::engine::decode_step};
constexpr GpuEntry<xlstm_linear_forward, gpu::engine::LinearPlan> kLinear = {
    check_linear_forward, gpu::engine::plan_linear_call, gpu::engine::linear_workspace, gpu::engine::linear};
int32_t takes(const xlstm_linear_forward* p) {
  bool taken = false;
  guarded([&] {
    check_linear_forward(not_null(p), false);
    taken = gpu::engine::plan_linear_call(*p, gpu::current_chip()).batch > 0;
  });
  return taken;
}
constexpr GpuEntry<xlstm_draw, NoPlan> kDraw = {
    check_draw, kNoPlan, kNoWorkspace,
    [](const auto& p, const NoPlan&, void*, void* stream) { gpu::engine::sample_tokens(p, stream); }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;

int32_t xlstm_gpu_linear_forward_takes(const xlstm_linear_forward* p) { return takes(p); }
#else
int32_t xlstm_gpu_linear_forward_takes(const xlstm_linear_forward*) { return 0; }
#endif

XLSTM_GPU_WORKSPACE(xlstm_gpu_decode_workspace, xlstm_decode, kStep)
XLSTM_GPU_CALL(xlstm_gpu_decode_step, xlstm_decode, kStep)
XLSTM_GPU_WORKSPACE(xlstm_gpu_linear_forward_workspace, xlstm_linear_forward, kLinear)
XLSTM_GPU_CALL(xlstm_gpu_linear_forward_pass, xlstm_linear_forward, kLinear)
XLSTM_GPU_CALL(xlstm_gpu_draw_tokens, xlstm_draw, kDraw)
