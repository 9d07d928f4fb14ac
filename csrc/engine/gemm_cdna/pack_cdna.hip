// SPDX-License-Identifier: Apache-2.0
// From a product's plan to the launch of pack_cdna_kernel.
#include "arch/launch.h"
#include "base/numbers.h"
#include "engine/gemm_cdna/gemm_cdna_launch.h"
#include "engine/gemm_cdna/pack_cdna.h"

namespace xlstm::gpu::engine {

void launch_pack_cdna(const GemmShape& shape, const GemmCdnaPlan& plan, const GemmParams& product, Stream stream) {
  const int64_t rows = ceil_div(int64_t(product.batch), int64_t(plan.batch)) * plan.batch;
  const Grid grid{rows, kPackCdnaThreads, kPackCdnaThreads / wave_size(Family::cdna) * 4};
  const PackCdnaParams params{product, shape.bits, plan.batch, shape.gates};
  const auto kernel = shape.integers    ? pack_cdna_kernel<true, true>
                      : shape.bits < 16 ? pack_cdna_kernel<false, true>
                                        : pack_cdna_kernel<false, false>;
  launch("decode input", kernel, grid, stream, params);
}

}  // namespace xlstm::gpu::engine
