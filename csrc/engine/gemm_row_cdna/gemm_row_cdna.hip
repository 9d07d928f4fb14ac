// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of gemm_row_cdna_kernel, whose elements are formats of weights that are integers.
// Compiled once for each XLSTM_ELEMENT of: ByteWeights NibbleWeights
#include "arch/launch.h"
#include "engine/gemm_row_cdna/gemm_row_cdna.h"
#include "engine/gemm_row_cdna/gemm_row_cdna_launch.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_row_cdna(const char* name, const GemmRowCdnaPlan& plan, const GemmParams& p, Stream stream) {
  GemmRowCdnaParams params{p, plan.gate_blocks, plan.sums_at};
  params.gemm.units = plan.units, params.gemm.gate_units = plan.gate_units;
  params.gemm.residual = p.output == Output::add ? p.to[0] : p.x;  // loaded without a branch
  launch(name, gemm_row_cdna_kernel<Weights>, {plan.blocks, kRowCdnaThreads, plan.lds_bytes}, stream, params);
}

template void launch_gemm_row_cdna<XLSTM_ELEMENT>(const char*, const GemmRowCdnaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
