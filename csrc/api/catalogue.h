// SPDX-License-Identifier: Apache-2.0
// The library's kernels: one row per op and device. A new kernel adds its row to this table.
#pragma once

namespace xlstm {

struct KernelEntry {
  const char* op;      // the torch op
  const char* device;  // torch's device type
  const char* dtypes;  // of q, k, v
  const char* states;  // the dtype of states and sums
  const char* source;
};

inline constexpr const char* kAllDtypes = "float32 bfloat16 float16 float64";
[[maybe_unused]] inline constexpr const char* kGpuDtypes = "float32 bfloat16 float16";
inline constexpr const char* kWide = "float32, float64 with float64";
inline constexpr KernelEntry kCatalogue[] = {
    {"mlstm_chunkwise", "cpu", kAllDtypes, kWide, "csrc/mlstm/cpu/chunkwise_cpu.cpp"},
    {"mlstm_chunkwise_states", "cpu", kAllDtypes, kWide, "csrc/mlstm/cpu/chunkwise_cpu.cpp"},
    {"mlstm_sequence", "cpu", kAllDtypes, kWide, "csrc/mlstm/cpu/recurrent_cpu.cpp"},
    {"mlstm_backward", "cpu", kAllDtypes, kWide, "csrc/mlstm/cpu/chunkwise_cpu.cpp"},
    {"mlstm_backward_states", "cpu", kAllDtypes, kWide, "csrc/mlstm/cpu/chunkwise_cpu.cpp"},
    {"mlstm_step", "cpu", kAllDtypes, kWide, "csrc/mlstm/cpu/recurrent_cpu.cpp"},
    {"mlstm_step_", "cpu", kAllDtypes, kWide, "csrc/mlstm/cpu/recurrent_cpu.cpp"},
    {"attention_forward", "cpu", kAllDtypes, kWide, "csrc/attention/cpu/forward_cpu.cpp"},
    {"attention_forward_probs", "cpu", kAllDtypes, kWide, "csrc/attention/cpu/forward_cpu.cpp"},
    {"attention_backward", "cpu", kAllDtypes, kWide, "csrc/attention/cpu/backward_cpu.cpp"},
    {"attention_rotary", "cpu", kAllDtypes, kWide, "csrc/attention/cpu/cache_cpu.cpp"},
    {"attention_append_", "cpu", kAllDtypes, kWide, "csrc/attention/cpu/cache_cpu.cpp"},
    {"attention_combine", "cpu", "float32 float64", kWide, "csrc/attention/cpu/cache_cpu.cpp"},
    {"rms_norm", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/norm_cpu.cpp"},
    {"add_rms_norm", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/norm_cpu.cpp"},
    {"rms_norm_backward", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/norm_cpu.cpp"},
    {"head_norm_gate", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/norm_cpu.cpp"},
    {"head_norm_gate_backward", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/norm_cpu.cpp"},
    {"soft_cap", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/pointwise_cpu.cpp"},
    {"soft_cap_backward", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/pointwise_cpu.cpp"},
    {"swiglu", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/pointwise_cpu.cpp"},
    {"swiglu_fused", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/pointwise_cpu.cpp"},
    {"swiglu_backward", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/pointwise_cpu.cpp"},
    {"swiglu_fused_backward", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/pointwise_cpu.cpp"},
    {"cross_entropy", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/cross_entropy_cpu.cpp"},
    {"cross_entropy_backward", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/cross_entropy_cpu.cpp"},
    {"cross_entropy_backward_", "cpu", kAllDtypes, kWide, "csrc/layer/cpu/cross_entropy_cpu.cpp"},
    {"decode_step_", "cpu", "float32 bfloat16 float16 int8 int4", "float32", "csrc/engine/cpu/step_cpu.cpp"},
    {"quantized_linear", "cpu", "float32 bfloat16 float16 int8 int4", "float32", "csrc/engine/linear/linear_cpu.cpp"},
    {"draw_tokens_", "cpu", "float32", "int64", "csrc/engine/sampling/sampling_cpu.cpp"},
    {"slstm_forward", "cpu", kAllDtypes, kWide, "csrc/slstm/cpu/forward_cpu.cpp"},
    {"slstm_step_", "cpu", kAllDtypes, kWide, "csrc/slstm/cpu/forward_cpu.cpp"},
    {"slstm_backward", "cpu", kAllDtypes, kWide, "csrc/slstm/cpu/backward_cpu.cpp"},
#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
    {"decode_step_", "cuda", "float32 bfloat16 float16 int8 int4", "float32", "csrc/engine/step.hip"},
    {"draw_tokens_", "cuda", "float32", "int64", "csrc/engine/sampling/sampling.hip"},
    {"slstm_forward", "cuda", kGpuDtypes, "float32", "csrc/slstm/gpu/cell_kernels.hip"},
    {"slstm_step_", "cuda", kGpuDtypes, "float32", "csrc/slstm/gpu/cell_kernels.hip"},
    {"slstm_backward", "cuda", kGpuDtypes, "float32", "csrc/slstm/gpu/cell_kernels.hip"},
    {"mlstm_chunkwise", "cuda", kGpuDtypes, "float32", "csrc/mlstm/chunkwise/chunkwise.hip"},
    {"mlstm_chunkwise_states", "cuda", kGpuDtypes, "float32", "csrc/mlstm/chunkwise/chunkwise.hip"},
    {"mlstm_sequence", "cuda", kGpuDtypes, "float32", "csrc/mlstm/recurrent/recurrent.hip"},
    {"mlstm_backward", "cuda", kGpuDtypes, "float32", "csrc/mlstm/chunkwise/chunkwise.hip"},
    {"mlstm_backward_states", "cuda", kGpuDtypes, "float32", "csrc/mlstm/chunkwise/chunkwise.hip"},
    {"mlstm_step", "cuda", kGpuDtypes, "float32", "csrc/mlstm/recurrent/recurrent.hip"},
    {"mlstm_step_", "cuda", kGpuDtypes, "float32", "csrc/mlstm/recurrent/recurrent.hip"},
    {"rms_norm", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/norm.hip"},
    {"add_rms_norm", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/norm.hip"},
    {"rms_norm_backward", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/norm.hip"},
    {"head_norm_gate", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/norm.hip"},
    {"head_norm_gate_backward", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/norm.hip"},
    {"soft_cap", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/pointwise.hip"},
    {"soft_cap_backward", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/pointwise.hip"},
    {"swiglu", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/pointwise.hip"},
    {"swiglu_fused", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/pointwise.hip"},
    {"swiglu_backward", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/pointwise.hip"},
    {"swiglu_fused_backward", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/pointwise.hip"},
    {"cross_entropy", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/cross_entropy.hip"},
    {"cross_entropy_backward", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/cross_entropy.hip"},
    {"cross_entropy_backward_", "cuda", kGpuDtypes, "float32", "csrc/layer/gpu/cross_entropy.hip"},
    {"attention_forward", "cuda", kGpuDtypes, "float32", "csrc/attention/dispatch/forward.hip"},
    {"attention_forward_probs", "cuda", kGpuDtypes, "float32", "csrc/attention/dispatch/forward.hip"},
    {"attention_backward", "cuda", kGpuDtypes, "float32", "csrc/attention/backward/backward.hip"},
    {"attention_rotary", "cuda", kGpuDtypes, "float32", "csrc/attention/gpu/append.hip"},
    {"attention_append_", "cuda", kGpuDtypes, "float32", "csrc/attention/gpu/append.hip"},
    {"attention_combine", "cuda", "float32", "float32", "csrc/attention/gpu/combine_parts.hip"},
#endif
#if defined(XLSTM_HIP_GPU_CUDA)
    {"quantized_linear", "cuda", "bfloat16 int8 int4", "float32", "csrc/engine/linear/linear.hip"},
#endif
};

}  // namespace xlstm
