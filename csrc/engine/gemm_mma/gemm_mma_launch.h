// SPDX-License-Identifier: Apache-2.0
// The launch of gemm_mma, which gemm_mma.hip defines: it is compiled once for each format of weights; and the launch
// that packs x for a plan that wants it packed.
#pragma once

#include <algorithm>

#include "arch/runtime.h"
#include "engine/gemm_mma/gemm_mma_plan.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_mma(const char* name, const GemmMmaPlan&, const GemmParams&, Stream);

// Whether some linears beside weights of fewer bits stayed bfloat16.
inline bool has_gates(const GemmParams& product, int bits) {
  const auto is_gate = [](const DeviceLinear& w) { return w.rows > 0 && !w.bits; };
  return bits < 16 && std::any_of(product.linear, product.linear + product.linear_count, is_gate);
}
void launch_pack(const GemmParams& product, int bits, const GemmMmaPlan&, const Chip&, Stream);

}  // namespace xlstm::gpu::engine
