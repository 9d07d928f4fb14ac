// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of the kernel that multiplies on matrix units.
// Compiled once for each XLSTM_ELEMENT, a format of weights, of: Bfloat16Weights Float16Weights ByteWeights
// NibbleWeights

#include "arch/launch.h"
#include "engine/gemm_mma/gemm_mma.h"
#include "engine/launches.h"

namespace xlstm::gpu::engine {

namespace {

template <class Weights, int kBatch>
void launch_rows(const char* name, const MatrixPlan& plan, const ProductParams& given, Stream stream) {
  const Grid grid{plan.blocks, kMatrixThreads, plan.lds_bytes, plan.early};
  ProductParams p = given;
  p.stage_tiles = plan.stage_tiles, p.blocks = int(plan.blocks);
  if constexpr (kBatch <= 8)
    if (plan.rows == 16) return launch(name, matrix_products<Weights, kBatch, 16>, grid, stream, p);
  if constexpr (kBatch >= 16 && !Weights::kGroups)
    if (plan.rows == 64) return launch(name, matrix_products<Weights, kBatch, 64>, grid, stream, p);
  launch(name, matrix_products<Weights, kBatch, 32>, grid, stream, p);
}

}  // namespace

template <class Weights>
void launch_matrix(const char* name, const MatrixPlan& plan, const ProductParams& p, Stream stream) {
  if (plan.batch == 1) return launch_rows<Weights, 1>(name, plan, p, stream);
  if (plan.batch == 8) return launch_rows<Weights, 8>(name, plan, p, stream);
  if (plan.batch == 16) return launch_rows<Weights, 16>(name, plan, p, stream);
  if constexpr (!Weights::kConverted) launch_rows<Weights, 32>(name, plan, p, stream);
}

template void launch_matrix<XLSTM_ELEMENT>(const char* name, const MatrixPlan&, const ProductParams&, Stream);

}  // namespace xlstm::gpu::engine
