// SPDX-License-Identifier: Apache-2.0
// The common schedule and CDNA's, which the launches name and these tests do not run.
#include <stdexcept>

#include "engine/megakernel_cdna/megakernel_cdna_launch.h"
#include "layer/gpu/kernels.h"
#include "mlstm/chunkwise/launch.h"

namespace xlstm::gpu {

void no_common_schedule() { throw std::logic_error("the emulator has the Hopper schedule alone"); }

namespace mlstm {
template <class E, class Output>
void launch_walk(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*, Stream) {
  no_common_schedule();
}
template <class E>
void launch_before_walks(const WalkPlan&, const Chip&, const BeforeWalks&, Stream) {
  no_common_schedule();
}
template void launch_before_walks<float>(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);
template void launch_before_walks<BFloat16>(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);
template void launch_before_walks<Float16>(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);

template void launch_walk<float, output::h>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                            Stream);
template void launch_walk<float, output::dq>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                             Stream);
template void launch_walk<float, output::dk>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                             Stream);
template void launch_walk<float, output::dv>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                             Stream);
template void launch_walk<BFloat16, output::h>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                               Stream);
template void launch_walk<BFloat16, output::dq>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                                Stream);
template void launch_walk<BFloat16, output::dk>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                                Stream);
template void launch_walk<BFloat16, output::dv>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                                Stream);
template void launch_walk<Float16, output::h>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                              Stream);
template void launch_walk<Float16, output::dq>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                               Stream);
template void launch_walk<Float16, output::dk>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                               Stream);
template void launch_walk<Float16, output::dv>(const WalkPlan&, const Chip&, const WalkParams&, const float*, float*,
                                               Stream);
}  // namespace mlstm

namespace engine {
template <class Weights>
void launch_megakernel_cdna(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream) {
  no_common_schedule();
}
template void launch_megakernel_cdna<Bfloat16Weights>(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);
template void launch_megakernel_cdna<Float16Weights>(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);
template void launch_megakernel_cdna<ByteWeights>(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);
template void launch_megakernel_cdna<NibbleWeights>(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);
template void launch_megakernel_cdna<E4m3fnWeights>(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);
template void launch_megakernel_cdna<E4m3fnuzWeights>(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);
}  // namespace engine

namespace layer {
Groups plan_norm_forward_call(const xlstm_norm_forward&, const Chip&) {
  no_common_schedule();
  return {};
}
void norm_forward(const xlstm_norm_forward&, const Groups&, void*) { no_common_schedule(); }
}  // namespace layer

}  // namespace xlstm::gpu
