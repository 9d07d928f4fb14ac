// SPDX-License-Identifier: Apache-2.0
// The launches of products on matrix units, each format of weights compiled by itself (gemm_mma/gemm_mma.hip).
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
void launch_matrix(const char* name, const MatrixPlan&, const ProductParams&, Stream);

// The same by clusters, in a library for CUDA.
template <class Weights>
void launch_cluster(const char* name, const ClusterPlan&, const ProductParams&, Stream);

// What blocks of a model multiply, in turn, and what comes behind the last.
struct BlockProducts {
  ProductParams projections, output, up, down;
};
struct WholeCall {
  const xlstm_decode& model;
  const BlockProducts* block;
  const ProductParams& head;
  float* settling;  // n and m of all heads
  float* passed;    // see WholePassed
};
// A whole step in one launch, likewise.
template <class Weights>
void launch_whole(const WholePlan&, const WholeCall&, Stream);

}  // namespace xlstm::gpu::engine
