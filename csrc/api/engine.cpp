// SPDX-License-Identifier: Apache-2.0
// The calls of the decode engine on a CPU.
#include "api/cpu_kernels.h"
#include "api/entry.h"
#include "engine/cpu/kernel_table.h"

namespace xlstm {
namespace {

const DecodeCpuKernels& kernels() { return cpu_kernels().engine; }

int64_t bytes_of(const xlstm_linear& w) {
  const int64_t bits = w.bits ? w.bits : w.dtype == XLSTM_FLOAT32 ? 32 : 16;
  return w.data ? w.rows * w.columns * bits / 8 : 0;
}

int64_t weight_bytes(const xlstm_decode& p) {
  int64_t bytes = bytes_of(p.head);
  for (int64_t n = 0; n < p.blocks; ++n) {
    const xlstm_decode_block& b = p.block[n];
    for (const xlstm_linear* w : {&b.q, &b.k, &b.v, &b.o, &b.i, &b.f, &b.out, &b.gate, &b.up, &b.down})
      bytes += bytes_of(*w);
  }
  return bytes;
}

constexpr CpuEntry<xlstm_decode, DecodeCpuPlan> kStep = {
    check_decode, [](const auto& p, int32_t threads) { return plan_decode_cpu(weight_bytes(p), threads); },
    [](const auto& p, const auto& plan) { return kernels().workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      kernels().step(p, plan, workspace, executor);
    }};

constexpr CpuEntry<xlstm_linear_forward, DecodeCpuPlan> kLinear = {
    check_linear_forward, [](const auto& p, int32_t threads) { return plan_decode_cpu(bytes_of(p.weight), threads); },
    [](const auto& p, const auto& plan) { return kernels().linear_workspace(p, plan); },
    [](const auto& p, const auto& plan, void* workspace, const Executor& executor) {
      kernels().linear(p, plan, workspace, executor);
    }};

constexpr CpuEntry<xlstm_draw> kDraw = {
    check_draw, [](const auto&, int32_t threads) { return Workers{threads}; },
    [](const auto&, const auto&) { return size_t(0); },
    [](const auto& p, const auto&, void*, const Executor& executor) { kernels().sample(p, executor); }};

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_decode_workspace(const xlstm_decode* p, int32_t threads) { return workspace_bytes(kStep, p, threads); }
xlstm_status xlstm_decode_step(const xlstm_decode* p, const xlstm_runtime* r) { return call(kStep, p, r); }
size_t xlstm_linear_forward_workspace(const xlstm_linear_forward* p, int32_t threads) {
  return workspace_bytes(kLinear, p, threads);
}
xlstm_status xlstm_linear_forward_pass(const xlstm_linear_forward* p, const xlstm_runtime* r) {
  return call(kLinear, p, r);
}
xlstm_status xlstm_draw_tokens(const xlstm_draw* p, const xlstm_runtime* r) { return call(kDraw, p, r); }
