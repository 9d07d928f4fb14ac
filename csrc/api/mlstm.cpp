// SPDX-License-Identifier: Apache-2.0
// The mLSTM calls of the C API on a CPU.
#include "api/cpu_kernels.h"
#include "api/entry.h"
#include "arch/cpu/isa.h"
#include "mlstm/cpu/kernel_table.h"

namespace xlstm {
namespace {

const MlstmCpuKernels& kernels() { return cpu_kernels().mlstm; }

MlstmCpuPlan plan(const xlstm_mlstm& in, int32_t threads) {
  return plan_mlstm_cpu(sequences_of(in), in.heads, longest_sequence(in), in.chunk_size, threads, in.segments);
}

constexpr CpuEntry<xlstm_mlstm_forward, MlstmCpuPlan> kChunkwise = {
    check_chunkwise, [](const xlstm_mlstm_forward& p, int32_t threads) { return plan(p.in, threads); },
    [](const auto& p, const auto& plan) { return kernels().chunkwise_workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      kernels().chunkwise(p, plan, workspace, executor);
    }};

constexpr CpuEntry<xlstm_mlstm_forward> kRecurrent = {
    check_recurrent, [](const auto&, int32_t threads) { return Workers{threads}; },
    [](const auto& p, const auto& plan) { return kernels().recurrent_workspace(p, plan.workers); },
    [](const auto& p, const auto&, void* workspace, const Executor& executor) {
      kernels().recurrent(p, workspace, executor);
    }};

constexpr CpuEntry<xlstm_mlstm_backward, MlstmCpuPlan> kBackward = {
    check_backward, [](const xlstm_mlstm_backward& p, int32_t threads) { return plan(p.in, threads); },
    [](const auto& p, const auto& plan) { return kernels().backward_workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      kernels().backward(p, plan, workspace, executor);
    }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_mlstm_chunkwise_workspace(const xlstm_mlstm_forward* p, int32_t threads) {
  return workspace_bytes(kChunkwise, p, threads);
}
size_t xlstm_mlstm_recurrent_workspace(const xlstm_mlstm_forward* p, int32_t threads) {
  return workspace_bytes(kRecurrent, p, threads);
}
size_t xlstm_mlstm_backward_workspace(const xlstm_mlstm_backward* p, int32_t threads) {
  return workspace_bytes(kBackward, p, threads);
}

xlstm_status xlstm_mlstm_chunkwise(const xlstm_mlstm_forward* p, const xlstm_runtime* r) {
  return call(kChunkwise, p, r);
}
xlstm_status xlstm_mlstm_recurrent(const xlstm_mlstm_forward* p, const xlstm_runtime* r) {
  return call(kRecurrent, p, r);
}
xlstm_status xlstm_mlstm_backward_pass(const xlstm_mlstm_backward* p, const xlstm_runtime* r) {
  return call(kBackward, p, r);
}

const char* xlstm_cpu_isa(void) {
  const char* name = "";
  guarded([&] { name = isa_name(cpu_isa()); });
  return name;
}
