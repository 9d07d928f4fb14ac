// SPDX-License-Identifier: Apache-2.0
// From a plan to the launches of gemm_stream_k_kernel (engine/gemm_mma/gemm_stream_k.h), whose elements are formats of
// weights.
// Compiled once for each XLSTM_ELEMENT of: Bfloat16Weights Float16Weights ByteWeights NibbleWeights
// Compiled once for each XLSTM_ELEMENT of: E4m3fnWeights E4m3fnuzWeights
#include <algorithm>

#include "arch/launch.h"
#include "engine/gemm_mma/gemm_stream_k.h"
#include "engine/gemm_mma/gemm_stream_k_launch.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_stream_k(const char* name, const GemmMmaPlan& plan, const GemmParams& all_params, Stream stream) {
  const Grid grid{plan.blocks, kStreamKThreads, plan.lds_bytes, plan.early_launch};
  GemmParams p = all_params;
  p.stages = plan.stages, p.blocks = int(plan.blocks);
  if (plan.batch == 16) return launch(name, gemm_stream_k_kernel<Weights, 16>, grid, stream, p);
  if (plan.batch == 32) return launch(name, gemm_stream_k_kernel<Weights, 32>, grid, stream, p);
  if (plan.batch == 64) return launch(name, gemm_stream_k_kernel<Weights, 64>, grid, stream, p);
  if constexpr (!Weights::kConverted) launch(name, gemm_stream_k_kernel<Weights, 128>, grid, stream, p);
}

template void launch_gemm_stream_k<XLSTM_ELEMENT>(const char*, const GemmMmaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
