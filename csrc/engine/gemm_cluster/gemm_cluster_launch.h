// SPDX-License-Identifier: Apache-2.0
// Hopper: the launch of y = W x by clusters of thread blocks. CUDA libraries only.
#pragma once

#include "arch/runtime.h"
#include "engine/gemm_cluster/gemm_cluster_plan.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_cluster(const char* name, const ClusterPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
