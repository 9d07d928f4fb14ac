// SPDX-License-Identifier: Apache-2.0
// The decode calls of the C API on a CPU: check, plan, run.
#include "api/engine.h"

#include <stdexcept>

#include "api/call.h"
#include "arch/cpu/isa.h"
#include "base/threads.h"
#include "engine/cpu/kernel_table.h"

namespace xlstm {

#define XLSTM_DECLARE_TABLE(isa)                \
  namespace isa::engine {                       \
  extern const DecodeCpuKernels decode_kernels; \
  }
XLSTM_FOR_EACH_ISA(XLSTM_DECLARE_TABLE)
#undef XLSTM_DECLARE_TABLE

namespace {

const DecodeCpuKernels& kernels() {
  switch (cpu_isa()) {
#define XLSTM_TABLE_CASE(isa) \
  case Isa::isa:              \
    return isa::engine::decode_kernels;
    XLSTM_FOR_EACH_ISA(XLSTM_TABLE_CASE)
#undef XLSTM_TABLE_CASE
  }
  throw std::logic_error("no CPU kernels");
}

int64_t bytes_of(const xlstm_linear& w) {
  const int64_t bits = w.bits ? w.bits : w.dtype == XLSTM_FLOAT32 ? 32 : 16;
  return w.data ? w.rows * w.columns * bits / 8 : 0;
}

DecodeCpuPlan plan(const xlstm_decode& p, int32_t threads) {
  int64_t bytes = bytes_of(p.head);
  for (int64_t n = 0; n < p.blocks; ++n) {
    const xlstm_decode_block& b = p.block[n];
    for (const xlstm_linear* w : {&b.q, &b.k, &b.v, &b.o, &b.i, &b.f, &b.out, &b.gate, &b.up, &b.down})
      bytes += bytes_of(*w);
  }
  return plan_decode_cpu(bytes, threads > 0 ? threads : hardware_threads());
}

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_decode_workspace(const xlstm_decode* p, int32_t threads) {
  return counted([&] {
    check_decode(given(p), true);
    return kernels().workspace(*p, plan(*p, threads));
  });
}

xlstm_status xlstm_decode_step(const xlstm_decode* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_decode(given(p), true);
    const DecodeCpuPlan cut = plan(*p, given(r).threads);
    check_workspace(r->workspace, r->workspace_bytes, kernels().workspace(*p, cut) + kWorkspaceAlignment);
    kernels().step(*p, cut, aligned(r->workspace),
                   {int32_t(cut.workers), r->parallel ? r->parallel : run_on_own_threads, r->self});
  });
}

xlstm_status xlstm_draw_tokens(const xlstm_draw* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_draw(given(p));
    const int32_t threads = given(r).threads > 0 ? r->threads : hardware_threads();
    kernels().sample(*p, {threads, r->parallel ? r->parallel : run_on_own_threads, r->self});
  });
}
