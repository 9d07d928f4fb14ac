// SPDX-License-Identifier: Apache-2.0
// NVIDIA: the launch of y = W x for more than eight rows of x, of the linears of this format alone. CUDA libraries
// only.
#pragma once

#include "arch/runtime.h"
#include "engine/gemm_mma/gemm_mma_plan.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_stream_k(const char* name, const GemmMmaPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
