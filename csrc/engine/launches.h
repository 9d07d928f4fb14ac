// SPDX-License-Identifier: Apache-2.0
// Launch functions of the GPU decode engine's kernels. gemm_mma/gemm_mma.hip is compiled once for each format of
// weights.
#pragma once

#include "arch/fragments.h"
#include "engine/gemm_cluster/gemm_cluster_plan.h"
#include "engine/gemm_mma/gemm_mma_plan.h"
#include "engine/megakernel/megakernel_plan.h"
#include "engine/params.h"

namespace xlstm::gpu::engine {

struct Bfloat16Weights;
struct Float16Weights;
struct ByteWeights;
struct NibbleWeights;

template <class Weights>
void launch_gemm_mma(const char* name, const GemmMmaPlan&, const GemmParams&, Stream);

// Hopper: y = W x by clusters of thread blocks. CUDA libraries only.
template <class Weights>
void launch_gemm_cluster(const char* name, const ClusterPlan&, const GemmParams&, Stream);

// The matrix products of one block of the model, in the order in which a step runs them.
struct BlockGemms {
  GemmParams projections, output, up, down;
};
struct MegakernelCall {
  const xlstm_decode& model;
  const BlockGemms* block;
  const GemmParams& head;
  float* pending_state;  // n and m of all heads after this token, until every tile has read the old ones
  float* mailboxes;      // laid out by struct Mailboxes
};
// Hopper: a decode step in one persistent launch. CUDA libraries only.
template <class Weights>
void launch_megakernel(const MegakernelPlan&, const MegakernelCall&, Stream);

}  // namespace xlstm::gpu::engine
