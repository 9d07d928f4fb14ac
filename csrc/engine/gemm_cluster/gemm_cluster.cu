// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of gemm_cluster_kernel (engine/gemm_cluster/gemm_cluster.h).
#include "arch/launch.h"
#include "engine/gemm_cluster/gemm_cluster.h"
#include "engine/gemm_cluster/gemm_cluster_launch.h"

namespace xlstm::gpu::engine {

template <class Weights>
void launch_gemm_cluster(const char* name, const ClusterPlan& plan, const GemmParams& p, Stream stream) {
  const ClusterItems items = cluster_items(p);
  const ClusterParams params{p,
                             plan,
                             items,
                             items.total() / plan.clusters,
                             items.total() % plan.clusters,
                             cluster_smem(Weights::kBits, plan.batch, plan.parts(), plan.part_steps, plan.owned)};
  const Grid grid{int64_t(plan.clusters) * plan.passes * plan.parts(), 32 * cluster_warps(plan.batch), plan.lds_bytes,
                  true, plan.parts()};
  if constexpr (Weights::kGroups) {
    if (plan.batch == 1) return launch(name, gemm_cluster_kernel<Weights, 1>, grid, stream, params);
    if (plan.batch == 16) return launch(name, gemm_cluster_kernel<Weights, 16>, grid, stream, params);
  }
  launch(name, gemm_cluster_kernel<Weights, 8>, grid, stream, params);
}

template void launch_gemm_cluster<ByteWeights>(const char*, const ClusterPlan&, const GemmParams&, Stream);
template void launch_gemm_cluster<Bfloat16Weights>(const char*, const ClusterPlan&, const GemmParams&, Stream);
template void launch_gemm_cluster<NibbleWeights>(const char*, const ClusterPlan&, const GemmParams&, Stream);

}  // namespace xlstm::gpu::engine
