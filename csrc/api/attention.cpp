// SPDX-License-Identifier: Apache-2.0
// The attention calls of the C API on a CPU.
#include "api/attention.h"

#include "api/cpu_kernels.h"
#include "api/entry.h"
#include "attention/cpu/kernel_table.h"

namespace xlstm {
namespace {

const AttentionCpuKernels& kernels() { return cpu_kernels().attention; }

AttentionShape shape_of(const xlstm_attention& in, bool wants_probs) {
  return {in.batch,   in.heads_k, in.length_q * (in.heads_q / in.heads_k), in.length_k, attention_panel(in.q.dtype),
          wants_probs};
}

constexpr CpuEntry<xlstm_attention_forward, AttentionCpuPlan> kForward = {
    check_attention_forward,
    [](const auto& p, int32_t threads) {
      return plan_attention_cpu(shape_of(p.in, p.probs.data != nullptr), p.in.block_size, p.splits, threads);
    },
    [](const auto& p, const auto& plan) { return kernels().forward_workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      kernels().forward(p, plan, workspace, executor);
    }};

constexpr CpuEntry<xlstm_attention_backward, AttentionBackwardCpuPlan> kBackward = {
    check_attention_backward,
    [](const auto& p, int32_t threads) {
      return plan_attention_backward_cpu(shape_of(p.in, false), p.in.block_size, p.row_panels, p.parts, threads);
    },
    [](const auto& p, const auto& plan) { return kernels().backward_workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      kernels().backward(p, plan, workspace, executor);
    }};

constexpr CpuEntry<xlstm_attention_append> kAppend = {
    check_attention_append, [](const auto&, int32_t threads) { return Workers{threads}; },
    [](const auto& p, const auto& plan) { return kernels().append_workspace(p, plan.workers); },
    [](const auto& p, const auto&, void* workspace, const Executor& executor) {
      kernels().append(p, workspace, executor);
    }};

constexpr CpuEntry<xlstm_attention_combine> kCombine = {
    check_attention_combine, [](const auto&, int32_t threads) { return Workers{threads}; },
    [](const auto& p, const auto& plan) { return kernels().combine_workspace(p, plan.workers); },
    [](const auto& p, const auto&, void* workspace, const Executor& executor) {
      kernels().combine(p, workspace, executor);
    }};

}  // namespace

int64_t attention_panel(xlstm_dtype dtype) { return dtype == XLSTM_FLOAT64 ? kernels().wide_panel : kernels().panel; }

}  // namespace xlstm

using namespace xlstm;

size_t xlstm_attention_forward_workspace(const xlstm_attention_forward* p, int32_t threads) {
  return workspace_bytes(kForward, p, threads);
}
size_t xlstm_attention_backward_workspace(const xlstm_attention_backward* p, int32_t threads) {
  return workspace_bytes(kBackward, p, threads);
}
size_t xlstm_attention_append_workspace(const xlstm_attention_append* p, int32_t threads) {
  return workspace_bytes(kAppend, p, threads);
}
size_t xlstm_attention_combine_workspace(const xlstm_attention_combine* p, int32_t threads) {
  return workspace_bytes(kCombine, p, threads);
}

xlstm_status xlstm_attention_forward_pass(const xlstm_attention_forward* p, const xlstm_runtime* r) {
  return call(kForward, p, r);
}
xlstm_status xlstm_attention_backward_pass(const xlstm_attention_backward* p, const xlstm_runtime* r) {
  return call(kBackward, p, r);
}
xlstm_status xlstm_attention_append_tokens(const xlstm_attention_append* p, const xlstm_runtime* r) {
  return call(kAppend, p, r);
}
xlstm_status xlstm_attention_combine_parts(const xlstm_attention_combine* p, const xlstm_runtime* r) {
  return call(kCombine, p, r);
}
