// SPDX-License-Identifier: Apache-2.0
// The attention calls of the C API on a CPU: check, plan, run.
#include "api/attention.h"

#include <algorithm>
#include <stdexcept>

#include "api/call.h"
#include "arch/cpu/isa.h"
#include "attention/cpu/kernel_table.h"
#include "base/threads.h"

namespace xlstm {

#define XLSTM_DECLARE_TABLE(isa)                      \
  namespace isa::attention {                          \
  extern const AttentionCpuKernels attention_kernels; \
  }
XLSTM_FOR_EACH_ISA(XLSTM_DECLARE_TABLE)
#undef XLSTM_DECLARE_TABLE

namespace {

const AttentionCpuKernels& kernels() {
  switch (cpu_isa()) {
#define XLSTM_TABLE_CASE(isa) \
  case Isa::isa:              \
    return isa::attention::attention_kernels;
    XLSTM_FOR_EACH_ISA(XLSTM_TABLE_CASE)
#undef XLSTM_TABLE_CASE
  }
  throw std::logic_error("no CPU kernels");
}

int32_t threads_or_all(int32_t threads) { return threads > 0 ? threads : hardware_threads(); }

Executor executor(const xlstm_runtime& r, int64_t workers) {
  return {int32_t(workers), r.parallel ? r.parallel : run_on_own_threads, r.self};
}

AttentionShape shape_of(const xlstm_attention& in, bool whole_rows) {
  return {in.batch,
          in.heads_k,
          in.length_q * (in.heads_q / in.heads_k),
          in.length_k,
          in.q.dtype == XLSTM_FLOAT64 ? kernels().wide_panel : kernels().panel,
          whole_rows};
}
AttentionCpuPlan plan(const xlstm_attention_forward& p, int32_t threads) {
  return plan_attention_cpu(shape_of(p.in, p.probs.data != nullptr), p.in.block_size, p.splits,
                            threads_or_all(threads));
}
AttentionBackwardCpuPlan plan(const xlstm_attention_backward& p, int32_t threads) {
  return plan_attention_backward_cpu(shape_of(p.in, false), p.in.block_size, p.row_panels, p.parts,
                                     threads_or_all(threads));
}

// Check, count, run: the same for every call.
template <class Params, class Check, class Count>
size_t count(const Params* p, int32_t threads, Check check, Count needed) {
  return counted([&] {
    check(given(p), true);
    return needed(*p, threads);
  });
}
template <class Params, class Check, class Count, class Run>
xlstm_status call(const Params* p, const xlstm_runtime* r, Check check, Count needed, Run run) {
  return guarded([&] {
    check(given(p), true);
    const xlstm_runtime& runtime = given(r);
    check_workspace(runtime.workspace, runtime.workspace_bytes, needed(*p, runtime.threads) + kWorkspaceAlignment);
    run(*p, runtime.threads, aligned(runtime.workspace));
  });
}

size_t forward_bytes(const xlstm_attention_forward& p, int32_t threads) {
  return kernels().forward_workspace(p, plan(p, threads));
}
size_t backward_bytes(const xlstm_attention_backward& p, int32_t threads) {
  return kernels().backward_workspace(p, plan(p, threads));
}
size_t append_bytes(const xlstm_attention_append& p, int32_t threads) {
  return kernels().append_workspace(p, threads_or_all(threads));
}
size_t combine_bytes(const xlstm_attention_combine& p, int32_t threads) {
  return kernels().combine_workspace(p, threads_or_all(threads));
}

}  // namespace

int64_t attention_panel(xlstm_dtype dtype) { return dtype == XLSTM_FLOAT64 ? kernels().wide_panel : kernels().panel; }

}  // namespace xlstm

using namespace xlstm;

size_t xlstm_attention_forward_workspace(const xlstm_attention_forward* p, int32_t threads) {
  return count(p, threads, check_attention_forward, forward_bytes);
}
size_t xlstm_attention_backward_workspace(const xlstm_attention_backward* p, int32_t threads) {
  return count(p, threads, check_attention_backward, backward_bytes);
}
size_t xlstm_attention_append_workspace(const xlstm_attention_append* p, int32_t threads) {
  return count(p, threads, check_attention_append, append_bytes);
}
size_t xlstm_attention_combine_workspace(const xlstm_attention_combine* p, int32_t threads) {
  return count(p, threads, [](const auto& x, bool) { check_attention_combine(x); }, combine_bytes);
}

xlstm_status xlstm_attention_forward_pass(const xlstm_attention_forward* p, const xlstm_runtime* r) {
  return call(p, r, check_attention_forward, forward_bytes, [&](const auto& x, int32_t threads, void* workspace) {
    const AttentionCpuPlan cut = plan(x, threads);
    kernels().forward(x, cut, workspace, executor(*r, cut.workers));
  });
}
xlstm_status xlstm_attention_backward_pass(const xlstm_attention_backward* p, const xlstm_runtime* r) {
  return call(p, r, check_attention_backward, backward_bytes, [&](const auto& x, int32_t threads, void* workspace) {
    const AttentionBackwardCpuPlan cut = plan(x, threads);
    kernels().backward(x, cut, workspace, executor(*r, cut.workers));
  });
}
xlstm_status xlstm_attention_append_tokens(const xlstm_attention_append* p, const xlstm_runtime* r) {
  return call(p, r, check_attention_append, append_bytes, [&](const auto& x, int32_t threads, void* workspace) {
    kernels().append(x, workspace, executor(*r, threads_or_all(threads)));
  });
}
xlstm_status xlstm_attention_combine_parts(const xlstm_attention_combine* p, const xlstm_runtime* r) {
  return call(
      p, r, [](const auto& x, bool) { check_attention_combine(x); }, combine_bytes,
      [&](const auto& x, int32_t threads, void* workspace) {
        kernels().combine(x, workspace, executor(*r, threads_or_all(threads)));
      });
}
