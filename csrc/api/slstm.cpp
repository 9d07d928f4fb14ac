// SPDX-License-Identifier: Apache-2.0
// The recurrent cells' calls of the C API on a CPU.
#include "api/cpu_kernels.h"
#include "api/entry.h"
#include "slstm/cpu/kernel_table.h"
#include "slstm/layout.h"

namespace xlstm {
namespace {

SlstmCpuPlan plan(const xlstm_slstm& in, int32_t threads) {
  return plan_slstm_cpu(sequences_of(in), in.heads, longest_sequence(in), threads);
}

constexpr CpuEntry<xlstm_slstm_forward, SlstmCpuPlan> kForward = {
    check_slstm_forward, [](const xlstm_slstm_forward& p, int32_t threads) { return plan(p.in, threads); },
    [](const auto& p, const auto& plan) { return cpu_kernels().slstm.forward_workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      cpu_kernels().slstm.forward(p, plan, workspace, executor);
    }};

constexpr CpuEntry<xlstm_slstm_backward, SlstmCpuPlan> kBackward = {
    check_slstm_backward, [](const xlstm_slstm_backward& p, int32_t threads) { return plan(p.in, threads); },
    [](const auto& p, const auto& plan) { return cpu_kernels().slstm.backward_workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      cpu_kernels().slstm.backward(p, plan, workspace, executor);
    }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;

int64_t xlstm_slstm_padded(int64_t units) { return xlstm::slstm::padded_units(units); }

size_t xlstm_slstm_forward_workspace(const xlstm_slstm_forward* p, int32_t threads) {
  return workspace_bytes(kForward, p, threads);
}
size_t xlstm_slstm_backward_workspace(const xlstm_slstm_backward* p, int32_t threads) {
  return workspace_bytes(kBackward, p, threads);
}

xlstm_status xlstm_slstm_forward_pass(const xlstm_slstm_forward* p, const xlstm_runtime* r) {
  return call(kForward, p, r);
}
xlstm_status xlstm_slstm_backward_pass(const xlstm_slstm_backward* p, const xlstm_runtime* r) {
  return call(kBackward, p, r);
}
