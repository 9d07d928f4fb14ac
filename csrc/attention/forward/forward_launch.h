// SPDX-License-Identifier: Apache-2.0
// Turns a plan into the launch of the forward kernel.
#pragma once

#include "arch/launch.h"
#include "attention/forward/probabilities.h"

namespace xlstm::gpu::attention {

template <class Elements, int kDqk, int kDv>
void launch_forward_class(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  if (plan.has_score_mod)
    launch("attention forward", forward_kernel<Elements, kDqk, kDv, true>, grid, stream, p);
  else if constexpr (sizeof(QueryOf<Elements>) == 2)
    launch("attention forward", forward_kernel<Elements, kDqk, kDv, false>, grid, stream, p);
  if (plan.splits > 1) combine_forward_parts(p.call, p.parts, plan.splits, stream);
  if (!p.call.probs.data) return;
  ForwardParams unsplit = p;
  unsplit.splits = 1;
  launch("attention weights", probabilities_kernel<Elements, kDqk, kDv>,
         {plan.grid / plan.splits, plan.shape.threads, plan.shape.lds_bytes}, stream, unsplit);
}

template <class Elements>
void launch_forward(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  if (plan.head.dqk == 64) return launch_forward_class<Elements, 64, 64>(plan, p, stream);
  if (plan.head.dqk == 128) return launch_forward_class<Elements, 128, 128>(plan, p, stream);
  if (plan.head.dqk == 192) return launch_forward_class<Elements, 192, 128>(plan, p, stream);
  launch_forward_class<Elements, 256, 256>(plan, p, stream);
}

}  // namespace xlstm::gpu::attention
