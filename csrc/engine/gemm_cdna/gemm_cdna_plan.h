// SPDX-License-Identifier: Apache-2.0
// Whether gemm_cdna_kernel takes a product of a decode step, and its grid: pure functions of shapes and the chip.
#pragma once

#include "engine/gemm_cdna/gemm_cdna_shape.h"
#include "engine/gemm_mma/gemm_mma_plan.h"

namespace xlstm::gpu::engine {

struct GemmCdnaPlan {
  int batch;         // rows of x at once, or 0: gemm_mma takes the product
  int rows, shards;  // of weights in a unit, for SwiGLU of each linear; blocks that share a unit's features
  int waves, wave_rows, chains;
  int lds_bytes;
  int64_t blocks;
};
GemmCdnaPlan plan_gemm_cdna(const GemmShape&, const Chip&);

// The memory that a product takes beside its tensors.
struct CdnaGemmBytes {
  int64_t x[2], rms_factors, partials, arrivals;
};
CdnaGemmBytes gemm_cdna_bytes(const GemmShape&, const GemmCdnaPlan&);

}  // namespace xlstm::gpu::engine
