// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of gemm_mma_kernel, whose elements are formats of weights.
// Compiled once for each XLSTM_ELEMENT of: Bfloat16Weights Float16Weights ByteWeights NibbleWeights
// Compiled once for each XLSTM_ELEMENT of: E4m3fnWeights E4m3fnuzWeights

#include "arch/launch.h"
#include "engine/gemm_mma/gemm_batch.h"
#include "engine/gemm_mma/gemm_mma.h"
#include "engine/gemm_mma/gemm_mma_launch.h"

namespace xlstm::gpu::engine {

namespace {

template <class Weights, int kBatch>
void launch_rows(const char* name, const GemmMmaPlan& plan, const GemmParams& all_params, Stream stream) {
  const Grid grid{plan.blocks, kGemmMmaThreads, plan.lds_bytes, plan.early_launch};
  GemmParams p = all_params;
  p.stage_tiles = plan.stage_tiles, p.blocks = int(plan.blocks);
  if constexpr (kBatch <= 8)
    if (plan.rows == 16) return launch(name, gemm_mma_kernel<Weights, kBatch, 16>, grid, stream, p);
  launch(name, gemm_mma_kernel<Weights, kBatch, 32>, grid, stream, p);
}

template <class Weights>
void launch_batch(const char* name, const GemmMmaPlan& plan, const GemmParams& all_params, Stream stream) {
  const Grid grid{plan.blocks, plan.row_waves * wave_size(Family::cdna), plan.lds_bytes};
  GemmParams p = all_params;
  p.unit_rows = plan.rows, p.wave_rows = plan.wave_rows;
  if (plan.shards > 1) return launch(name, gemm_batch_kernel<Weights, 1>, grid, stream, p);
  launch(name, gemm_batch_kernel<Weights, kBatchShards>, grid, stream, p);
}

}  // namespace

template <class Weights>
void launch_gemm_mma(const char* name, const GemmMmaPlan& plan, const GemmParams& p, Stream stream) {
  if constexpr (!kHasHopperKernels && !Weights::kIntegers)
    if (plan.shards) return launch_batch<Weights>(name, plan, p, stream);
  if (plan.batch == 1) return launch_rows<Weights, 1>(name, plan, p, stream);
  if (plan.batch == 8) return launch_rows<Weights, 8>(name, plan, p, stream);
  launch_rows<Weights, 16>(name, plan, p, stream);
}

template void launch_gemm_mma<XLSTM_ELEMENT>(const char* name, const GemmMmaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
