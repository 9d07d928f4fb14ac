// SPDX-License-Identifier: Apache-2.0
// From a product's plan to the launch of pack_kernel.
#include "arch/launch.h"
#include "engine/gemm_mma/gemm_mma_launch.h"
#include "engine/gemm_mma/pack_inputs.h"

namespace xlstm::gpu::engine {

void launch_pack(const GemmParams& product, int bits, const GemmMmaPlan& plan, const Chip& chip, Stream stream) {
  const int chunks = packed_steps(chip.family, product.columns) * kStepFeatures / kChunkFeatures;
  const Grid grid{packed_rows(product.batch, plan.batch), kPackThreads, chunks * 4, plan.early_launch};
  const PackParams params{product, bits, plan.batch, has_gates(product, bits)};
  launch("decode input", bits < 16 ? pack_kernel<true> : pack_kernel<false>, grid, stream, params);
}

}  // namespace xlstm::gpu::engine
