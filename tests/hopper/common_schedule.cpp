// SPDX-License-Identifier: Apache-2.0
// The common schedule and CDNA's, which the launches name and these tests do not run.
#include <stdexcept>

#include "engine/megakernel_cdna/megakernel_cdna_launch.h"
#include "layer/gpu/kernels.h"
#include "mlstm/chunkwise/launch.h"

namespace xlstm::gpu {

void no_common_schedule() { throw std::logic_error("the emulator has the Hopper schedule alone"); }

namespace mlstm {
template <class E>
void launch_forward_walk(const WalkPlan&, const Chip&, const WalkParams&, Stream) {
  no_common_schedule();
}
template void launch_forward_walk<float>(const WalkPlan&, const Chip&, const WalkParams&, Stream);
template void launch_forward_walk<BFloat16>(const WalkPlan&, const Chip&, const WalkParams&, Stream);
template void launch_forward_walk<Float16>(const WalkPlan&, const Chip&, const WalkParams&, Stream);
template <class E>
void launch_backward_walks(const BackwardPlan&, const BackwardWalks&, Stream) {
  no_common_schedule();
}
template void launch_backward_walks<float>(const BackwardPlan&, const BackwardWalks&, Stream);
template void launch_backward_walks<BFloat16>(const BackwardPlan&, const BackwardWalks&, Stream);
template void launch_backward_walks<Float16>(const BackwardPlan&, const BackwardWalks&, Stream);
template <class E>
void launch_before_walks(const WalkPlan&, const Chip&, const BeforeWalks&, Stream) {
  no_common_schedule();
}
template void launch_before_walks<float>(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);
template void launch_before_walks<BFloat16>(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);
template void launch_before_walks<Float16>(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);
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
