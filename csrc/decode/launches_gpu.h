// SPDX-License-Identifier: Apache-2.0
// The launches of products on matrix units, each format of weights in a file of its own.
#pragma once

#include "arch/gpu.h"
#include "decode/cluster_plan.h"
#include "decode/matrix_plan.h"
#include "decode/params_gpu.h"

namespace xlstm::gpu {

struct Bfloat16Weights;
struct Float16Weights;
struct ByteWeights;
struct NibbleWeights;

template <class Weights>
void launch_matrix(const char* name, const MatrixPlan&, const ProductParams&, Stream);

extern template void launch_matrix<Bfloat16Weights>(const char*, const MatrixPlan&, const ProductParams&, Stream);
extern template void launch_matrix<Float16Weights>(const char*, const MatrixPlan&, const ProductParams&, Stream);
extern template void launch_matrix<ByteWeights>(const char*, const MatrixPlan&, const ProductParams&, Stream);
extern template void launch_matrix<NibbleWeights>(const char*, const MatrixPlan&, const ProductParams&, Stream);

// The same by clusters, in a library for CUDA.
template <class Weights>
void launch_cluster(const char* name, const ClusterPlan&, const ProductParams&, Stream);

}  // namespace xlstm::gpu
