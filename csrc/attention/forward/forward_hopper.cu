// SPDX-License-Identifier: Apache-2.0
// launch_attend_hopper().
#include "attention/forward/forward_hopper.h"
#include "attention/gpu/hopper_launch.h"

namespace xlstm::gpu::attention {

template <class E>
void launch_attend_hopper(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  const xlstm_attention& in = p.call.in;
  const HopperForwardParams all{
      p, query_map(in, in.q, in.dqk), {}, key_map(in, in.k, in.dqk), key_map(in, in.v, in.dv)};
  if (plan.head.dqk == 64)
    return launch_hopper_attention("attention forward", attend_hopper<E, 64>, attend_shape(64), all, stream);
  launch_hopper_attention("attention forward", attend_hopper<E, 128>, attend_shape(128), all, stream);
}

template void launch_attend_hopper<BFloat16>(const AttentionForwardPlan&, const ForwardParams&, Stream);
template void launch_attend_hopper<Float16>(const AttentionForwardPlan&, const ForwardParams&, Stream);

}  // namespace xlstm::gpu::attention
