// SPDX-License-Identifier: Apache-2.0
// Defines launch_forward_hopper().
#include "attention/forward/forward_hopper.h"
#include "attention/gpu/hopper_launch.h"

namespace xlstm::gpu::attention {

template <class E>
void launch_forward_hopper(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  const xlstm_attention& in = p.call.in;
  const HopperForwardParams all{
      p, query_map(in, in.q, in.dqk), {}, key_map(in, in.k, in.dqk), key_map(in, in.v, in.dv)};
  if (plan.head.dqk == 64)
    return launch_hopper_attention("attention forward", forward_hopper_kernel<E, 64>, forward_hopper_shape(64), all,
                                   stream);
  launch_hopper_attention("attention forward", forward_hopper_kernel<E, 128>, forward_hopper_shape(128), all, stream);
}

template void launch_forward_hopper<BFloat16>(const AttentionForwardPlan&, const ForwardParams&, Stream);
template void launch_forward_hopper<Float16>(const AttentionForwardPlan&, const ForwardParams&, Stream);

}  // namespace xlstm::gpu::attention
