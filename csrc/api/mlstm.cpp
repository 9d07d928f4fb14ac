// SPDX-License-Identifier: Apache-2.0
// The mLSTM calls of the C API on a CPU: check, plan, run.
#include "api/mlstm.h"

#include <algorithm>
#include <stdexcept>

#include "api/call.h"
#include "arch/cpu/isa.h"
#include "base/threads.h"
#include "mlstm/cpu/kernel_table.h"

namespace xlstm {

#define XLSTM_DECLARE_TABLE(isa)              \
  namespace isa::mlstm {                      \
  extern const MlstmCpuKernels mlstm_kernels; \
  }
XLSTM_FOR_EACH_ISA(XLSTM_DECLARE_TABLE)
#undef XLSTM_DECLARE_TABLE

namespace {

const MlstmCpuKernels& kernels() {
  switch (cpu_isa()) {
#define XLSTM_TABLE_CASE(isa) \
  case Isa::isa:              \
    return isa::mlstm::mlstm_kernels;
    XLSTM_FOR_EACH_ISA(XLSTM_TABLE_CASE)
#undef XLSTM_TABLE_CASE
  }
  throw std::logic_error("no CPU kernels");
}

int32_t threads_or_all(int32_t threads) { return threads > 0 ? threads : hardware_threads(); }

MlstmCpuPlan plan(const xlstm_mlstm& in, int32_t threads) {
  int64_t longest = in.cu_seqlens ? 0 : in.length;
  for (int64_t n = 0; in.cu_seqlens && n < in.sequences; ++n)
    longest = std::max(longest, in.cu_seqlens[n + 1] - in.cu_seqlens[n]);
  const int64_t sequences = in.cu_seqlens ? in.sequences : in.batch;
  return plan_mlstm_cpu(sequences, in.heads, longest, in.chunk_size, threads_or_all(threads), in.segments);
}

Executor executor(const xlstm_runtime& r, int64_t workers) {
  return {int32_t(workers), r.parallel ? r.parallel : run_on_own_threads, r.self};
}

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_mlstm_chunkwise_workspace(const xlstm_mlstm_forward* p, int32_t threads) {
  return counted([&] {
    check_chunkwise(given(p), true);
    return kernels().chunkwise_workspace(*p, plan(p->in, threads));
  });
}

size_t xlstm_mlstm_recurrent_workspace(const xlstm_mlstm_forward* p, int32_t threads) {
  return counted([&] {
    check_recurrent(given(p), true);
    return kernels().recurrent_workspace(*p, threads_or_all(threads));
  });
}

size_t xlstm_mlstm_backward_workspace(const xlstm_mlstm_backward* p, int32_t threads) {
  return counted([&] {
    check_backward(given(p), true);
    return kernels().backward_workspace(*p, plan(p->in, threads));
  });
}

xlstm_status xlstm_mlstm_chunkwise(const xlstm_mlstm_forward* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_chunkwise(given(p), true);
    const MlstmCpuPlan cut = plan(p->in, given(r).threads);
    check_workspace(r->workspace, r->workspace_bytes, kernels().chunkwise_workspace(*p, cut) + kWorkspaceAlignment);
    kernels().chunkwise(*p, cut, aligned(r->workspace), executor(*r, cut.workers));
  });
}

xlstm_status xlstm_mlstm_recurrent(const xlstm_mlstm_forward* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_recurrent(given(p), true);
    const int32_t threads = threads_or_all(given(r).threads);
    check_workspace(r->workspace, r->workspace_bytes, kernels().recurrent_workspace(*p, threads) + kWorkspaceAlignment);
    kernels().recurrent(*p, aligned(r->workspace), executor(*r, threads));
  });
}

xlstm_status xlstm_mlstm_backward_pass(const xlstm_mlstm_backward* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_backward(given(p), true);
    const MlstmCpuPlan cut = plan(p->in, given(r).threads);
    check_workspace(r->workspace, r->workspace_bytes, kernels().backward_workspace(*p, cut) + kWorkspaceAlignment);
    kernels().backward(*p, cut, aligned(r->workspace), executor(*r, cut.workers));
  });
}

const char* xlstm_cpu_isa(void) {
  const char* name = "";
  guarded([&] { name = isa_name(cpu_isa()); });
  return name;
}
