// SPDX-License-Identifier: Apache-2.0
// The attention calls of the C API on a GPU.
#include "api/entry.h"

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#include "attention/gpu/kernels.h"

namespace xlstm {
namespace {

using gpu::Chip;

void check_forward(const xlstm_attention_forward& p, bool on_host) {
  check_attention_forward(p, on_host);
  has_gpu_dtype("q", p.in.q.dtype);
}
void check_backward(const xlstm_attention_backward& p, bool on_host) {
  check_attention_backward(p, on_host);
  has_gpu_dtype("q", p.in.q.dtype);
}
void check_append(const xlstm_attention_append& p, bool on_host) {
  check_attention_append(p, on_host);
  has_gpu_dtype("x", p.from.dtype);
}
void check_combine(const xlstm_attention_combine& p, bool on_host) {
  check_attention_combine(p, on_host);
  has_gpu_dtype("out_partial", p.wide);
}

// A call's kernels follow from the chip: attention/*/*.hip compute their plans when they launch.
template <class Params, void (*kCheck)(const Params&, bool), size_t (*kWorkspace)(const Params&, const Chip&),
          void (*kRun)(const Params&, const Chip&, void*, void*)>
constexpr GpuEntry<Params, Chip> kEntry = {kCheck, [](const auto&, const Chip& chip) { return chip; }, kWorkspace,
                                           kRun};

constexpr auto& kForward = kEntry<xlstm_attention_forward, check_forward, gpu::attention::attention_forward_workspace,
                                  gpu::attention::attention_forward>;
constexpr auto& kBackward = kEntry<xlstm_attention_backward, check_backward,
                                   gpu::attention::attention_backward_workspace, gpu::attention::attention_backward>;
constexpr auto& kAppend = kEntry<xlstm_attention_append, check_append, gpu::attention::attention_append_workspace,
                                 gpu::attention::attention_append>;
constexpr auto& kCombine = kEntry<xlstm_attention_combine, check_combine, gpu::attention::attention_combine_workspace,
                                  gpu::attention::attention_combine>;

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
