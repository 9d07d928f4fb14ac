// SPDX-License-Identifier: Apache-2.0
// The launch of gemm_row_cdna_kernel, which gemm_row_cdna.hip defines: it is compiled once for each format of weights.
#pragma once

#include "arch/runtime.h"
#include "engine/gemm_row_cdna/gemm_row_cdna_plan.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_row_cdna(const char* name, const GemmRowCdnaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
