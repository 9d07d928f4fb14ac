// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of gemm_row_cdna_kernel, whose elements are formats of weights.
// Compiled once for each XLSTM_ELEMENT of: Bfloat16Weights Float16Weights ByteWeights NibbleWeights
// Compiled once for each XLSTM_ELEMENT of: E4m3fnWeights E4m3fnuzWeights
#include "arch/launch.h"
#include "engine/gemm_row_cdna/gemm_row_cdna.h"
#include "engine/gemm_row_cdna/gemm_row_cdna_launch.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_row_cdna(const char* name, const GemmRowCdnaPlan& plan, const GemmParams& p, Stream stream) {
  if constexpr (!kHasHopperKernels) {
    GemmRowCdnaParams params{p, plan.gate_blocks, plan.sums_at};
    params.gemm.units = plan.units, params.gemm.gate_units = plan.gate_units;
    params.gemm.residual = p.output == Output::add ? p.to[0] : p.x;  // loaded without a branch
    launch(name, gemm_row_cdna_kernel<Weights>, {plan.blocks, kRowCdnaThreads, plan.lds_bytes}, stream, params);
  }
}

template void launch_gemm_row_cdna<XLSTM_ELEMENT>(const char*, const GemmRowCdnaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
