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
constexpr GpuEntry<xlstm_draw, NoPlan> kDraw = {
    check_draw, kNoPlan, kNoWorkspace,
    [](const auto& p, const NoPlan&, void*, void* stream) { gpu::engine::sample_tokens(p, stream); }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;
#endif

XLSTM_GPU_WORKSPACE(xlstm_gpu_decode_workspace, xlstm_decode, kStep)
XLSTM_GPU_CALL(xlstm_gpu_decode_step, xlstm_decode, kStep)
XLSTM_GPU_CALL(xlstm_gpu_draw_tokens, xlstm_draw, kDraw)
