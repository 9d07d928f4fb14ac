// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of gemm_cdna_kernel, whose elements are formats of weights.
// Compiled once for each XLSTM_ELEMENT of: Bfloat16Weights Float16Weights ByteWeights NibbleWeights
// Compiled once for each XLSTM_ELEMENT of: E4m3fnWeights E4m3fnuzWeights
#include "arch/launch.h"
#include "base/numbers.h"
#include "engine/gemm_cdna/gemm_cdna.h"
#include "engine/gemm_cdna/gemm_cdna_launch.h"

namespace xlstm::gpu::engine {

namespace {

template <class Weights, int kBatch>
void launch_rows(const char* name, const GemmCdnaPlan& plan, const GemmParams& all_params, Stream stream) {
  const Grid grid{plan.blocks, plan.waves * wave_size(Family::cdna), plan.lds_bytes};
  GemmParams p = all_params;
  p.unit_rows = plan.rows, p.wave_rows = plan.wave_rows;
  p.shard_bits = plan.shards / 2;
  const int linears = p.output == Output::swiglu ? 1 : p.linear_count;
  p.units_of_all = number_units(linears, plan.rows, [&](int j) { return p.linear[j].rows; }, p.first_unit);
  if (plan.chains == 1) return launch(name, gemm_cdna_kernel<Weights, kBatch, 1>, grid, stream, p);
  launch(name, gemm_cdna_kernel<Weights, kBatch, 2>, grid, stream, p);
}

}  // namespace

template <class Weights>
void launch_gemm_cdna(const char* name, const GemmCdnaPlan& plan, const GemmParams& p, Stream stream) {
  if constexpr (!kHasHopperKernels) {
    if constexpr (Weights::kIntegers)
      if (plan.batch == 8) return launch_rows<Weights, 8>(name, plan, p, stream);
    if (plan.batch == 16) return launch_rows<Weights, 16>(name, plan, p, stream);
    if (plan.batch == 32) return launch_rows<Weights, 32>(name, plan, p, stream);
    launch_rows<Weights, 64>(name, plan, p, stream);
  }
}

template void launch_gemm_cdna<XLSTM_ELEMENT>(const char* name, const GemmCdnaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
