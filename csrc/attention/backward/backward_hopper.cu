// SPDX-License-Identifier: Apache-2.0
// Defines launch_backward_hopper(): dk and dv, then dq.
#include "attention/backward/backward_hopper.h"
#include "attention/gpu/hopper_launch.h"

namespace xlstm::gpu::attention {
namespace {

template <class E, int kFeatures>
void launch_sides(const HopperBackwardParams& p, Stream stream) {
  const xlstm_attention& in = p.of.call.in;
  constexpr HopperAttentionShape kOfKeys = backward_hopper_shape(kFeatures, true),
                                 kOfQueries = backward_hopper_shape(kFeatures, false);
  launch_hopper_attention("attention dk, dv", dkdv_hopper_kernel<E, kFeatures>, kOfKeys,
                          ceil_div(in.length_k, kOfKeys.owned_rows()) * in.batch * in.heads_k, p, stream);
  launch_hopper_attention("attention dq", dq_hopper_kernel<E, kFeatures>, kOfQueries,
                          ceil_div(in.length_q, kOfQueries.owned_rows()) * in.batch * in.heads_q, p, stream);
}

}  // namespace

template <class E>
void launch_backward_hopper(const BackwardParams& p, Stream stream) {
  const xlstm_attention& in = p.call.in;
  const HopperBackwardParams all{p, query_map(in, in.q, in.dqk), query_map(in, p.call.dout, in.dv),
                                 key_map(in, in.k, in.dqk), key_map(in, in.v, in.dv)};
  switch (hopper_features(in.dqk, in.dv)) {
    case 64:
      return launch_sides<E, 64>(all, stream);
    case 128:
      return launch_sides<E, 128>(all, stream);
    case 192:
      return launch_sides<E, 192>(all, stream);
    default:
      return launch_sides<E, 256>(all, stream);
  }
}

template void launch_backward_hopper<BFloat16>(const BackwardParams&, Stream);
template void launch_backward_hopper<Float16>(const BackwardParams&, Stream);

}  // namespace xlstm::gpu::attention
