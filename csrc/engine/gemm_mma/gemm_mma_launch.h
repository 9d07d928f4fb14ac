// SPDX-License-Identifier: Apache-2.0
// The launch of gemm_mma, which gemm_mma.hip defines: it is compiled once for each format of weights.
#pragma once

#include "arch/runtime.h"
#include "engine/gemm_mma/gemm_mma_plan.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_mma(const char* name, const GemmMmaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
