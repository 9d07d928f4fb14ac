// SPDX-License-Identifier: Apache-2.0
// The attention calls of the C API on a GPU.
#include "api/check_values.h"
#include "api/entry.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "attention/backward/backward_call.h"
#include "attention/dispatch/forward_call.h"
#include "attention/gpu/kernels.h"

namespace xlstm {
namespace {

void check_forward(const xlstm_attention_forward& p, bool on_host) {
  check_attention_forward(p, on_host);
  has_gpu_dtype("q", p.in.q.dtype);
  if (is_float8(p.in.k.dtype) && p.in.q.dtype == XLSTM_FLOAT32)
    invalid("q: expected bfloat16 or float16 on a GPU with k and v in floats of 8 bits");
}
void check_backward(const xlstm_attention_backward& p, bool on_host) {
  check_attention_backward(p, on_host);
  has_gpu_dtype("q", p.in.q.dtype);
}
void check_append(const xlstm_attention_append& p, bool on_host) {
  check_attention_append(p, on_host);
  has_gpu_dtype("x", p.from.dtype);
  if (is_float8(p.to.dtype) && p.from.dtype == XLSTM_FLOAT32)
    invalid("x: expected bfloat16 or float16 on a GPU for a cache in floats of 8 bits");
}
void check_combine(const xlstm_attention_combine& p, bool on_host) {
  check_attention_combine(p, on_host);
  has_gpu_dtype("out_partial", p.wide);
}

constexpr GpuEntry<xlstm_attention_forward, gpu::attention::ForwardCallPlan> kForward = {
    check_forward, gpu::attention::plan_attention_forward_call, gpu::attention::attention_forward_workspace,
    gpu::attention::attention_forward, gpu::attention::attention_forward_workspace_anywhere};
constexpr GpuEntry<xlstm_attention_backward, gpu::attention::AttentionBackwardPlan> kBackward = {
    check_backward, gpu::attention::plan_attention_backward_call, gpu::attention::attention_backward_workspace,
    gpu::attention::attention_backward};
constexpr GpuEntry<xlstm_attention_append, NoPlan> kAppend = {
    check_append, kNoPlan, kNoWorkspace,
    [](const auto& p, const NoPlan&, void*, void* stream) { gpu::attention::attention_append(p, stream); }};
constexpr GpuEntry<xlstm_attention_combine, NoPlan> kCombine = {
    check_combine, kNoPlan, kNoWorkspace,
    [](const auto& p, const NoPlan&, void*, void* stream) { gpu::attention::attention_combine(p, stream); }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;
#endif

XLSTM_GPU_WORKSPACE(xlstm_gpu_attention_forward_workspace, xlstm_attention_forward, kForward)
XLSTM_GPU_WORKSPACE(xlstm_gpu_attention_backward_workspace, xlstm_attention_backward, kBackward)
XLSTM_GPU_WORKSPACE(xlstm_gpu_attention_append_workspace, xlstm_attention_append, kAppend)
XLSTM_GPU_WORKSPACE(xlstm_gpu_attention_combine_workspace, xlstm_attention_combine, kCombine)

XLSTM_GPU_CALL(xlstm_gpu_attention_forward_pass, xlstm_attention_forward, kForward)
XLSTM_GPU_CALL(xlstm_gpu_attention_backward_pass, xlstm_attention_backward, kBackward)
XLSTM_GPU_CALL(xlstm_gpu_attention_append_tokens, xlstm_attention_append, kAppend)
XLSTM_GPU_CALL(xlstm_gpu_attention_combine_parts, xlstm_attention_combine, kCombine)
