// SPDX-License-Identifier: Apache-2.0
// Defines launch_forward_hopper().
#include "attention/forward/forward_hopper.h"
#include "attention/gpu/hopper_launch.h"

namespace xlstm::gpu::attention {

template <class E, int kFeatures>
void launch_features(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  constexpr HopperAttentionShape kShape = forward_hopper_shape(kFeatures);
  const xlstm_attention& in = p.call.in;
  const HopperForwardParams all{p,
                                query_map(in, in.q, in.dqk),
                                {},
                                key_map(in, in.k, in.dqk, kShape.tile_box()),
                                key_map(in, in.v, in.dv, kShape.tile_box())};
  launch_hopper_attention("attention forward", forward_hopper_kernel<E, kFeatures>, kShape, plan.grid, all, stream);
}

template <class E>
void launch_forward_hopper(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  switch (hopper_features(p.call.in.dqk, p.call.in.dv)) {
    case 64:
      return launch_features<E, 64>(plan, p, stream);
    case 128:
      return launch_features<E, 128>(plan, p, stream);
    case 192:
      return launch_features<E, 192>(plan, p, stream);
    default:
      return launch_features<E, 256>(plan, p, stream);
  }
}

template void launch_forward_hopper<BFloat16>(const AttentionForwardPlan&, const ForwardParams&, Stream);
template void launch_forward_hopper<Float16>(const AttentionForwardPlan&, const ForwardParams&, Stream);

}  // namespace xlstm::gpu::attention
