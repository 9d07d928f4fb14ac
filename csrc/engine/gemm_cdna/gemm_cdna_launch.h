// SPDX-License-Identifier: Apache-2.0
// The launch of gemm_cdna_kernel, which gemm_cdna.hip defines: it is compiled once for each format of weights; and the
// launch that packs x for it.
#pragma once

#include "arch/runtime.h"
#include "engine/gemm_cdna/gemm_cdna_plan.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_cdna(const char* name, const GemmCdnaPlan&, const GemmParams&, Stream);
void launch_pack_cdna(const GemmShape&, const GemmCdnaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
