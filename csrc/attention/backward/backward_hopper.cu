// SPDX-License-Identifier: Apache-2.0
// launch_gradients_hopper(): dk and dv, then dq.
#include "attention/backward/backward_hopper.h"
#include "attention/gpu/hopper_launch.h"

namespace xlstm::gpu::attention {
namespace {

template <class E, int kFeatures>
void launch_sides(const HopperBackwardParams& p, Stream stream) {
  launch_hopper_attention("attention dk, dv", attention_gradients_hopper<E, kFeatures, true>,
                          gradient_shape(kFeatures, true), p, stream);
  launch_hopper_attention("attention dq", attention_gradients_hopper<E, kFeatures, false>,
                          gradient_shape(kFeatures, false), p, stream);
}

}  // namespace

template <class E>
void launch_gradients_hopper(const AttentionBackwardPlan& plan, const BackwardParams& p, Stream stream) {
  const xlstm_attention& in = p.call.in;
  const HopperBackwardParams all{p, query_map(in, in.q, in.dqk), query_map(in, p.call.dout, in.dv),
                                 key_map(in, in.k, in.dqk), key_map(in, in.v, in.dv)};
  if (plan.dqk == 64) return launch_sides<E, 64>(all, stream);
  launch_sides<E, 128>(all, stream);
}

template void launch_gradients_hopper<BFloat16>(const AttentionBackwardPlan&, const BackwardParams&, Stream);
template void launch_gradients_hopper<Float16>(const AttentionBackwardPlan&, const BackwardParams&, Stream);

}  // namespace xlstm::gpu::attention
