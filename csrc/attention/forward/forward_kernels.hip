// SPDX-License-Identifier: Apache-2.0
// Turns a plan into the launch of the forward kernel.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

#include "arch/launch.h"
#include "attention/forward/probabilities.h"

namespace xlstm::gpu::attention {

namespace {

template <class E, int kDqk, int kDv>
void launch_class(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  if (plan.has_score_mod)
    launch("attention forward", forward_kernel<E, kDqk, kDv, true>, grid, stream, p);
  else if constexpr (sizeof(E) == 2)
    launch("attention forward", forward_kernel<E, kDqk, kDv, false>, grid, stream, p);
  if (plan.splits > 1) combine_forward_parts(p.call, p.parts, plan.splits, stream);
  if (!p.call.probs.data) return;
  ForwardParams unsplit = p;
  unsplit.splits = 1;
  launch("attention weights", probabilities_kernel<E, kDqk, kDv>,
         {plan.grid / plan.splits, plan.shape.threads, plan.shape.lds_bytes}, stream, unsplit);
}

}  // namespace

template <class E>
void launch_forward(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  if (plan.head.dqk == 64) return launch_class<E, 64, 64>(plan, p, stream);
  if (plan.head.dqk == 128) return launch_class<E, 128, 128>(plan, p, stream);
  if (plan.head.dqk == 192) return launch_class<E, 192, 128>(plan, p, stream);
  launch_class<E, 256, 256>(plan, p, stream);
}

template void launch_forward<XLSTM_ELEMENT>(const AttentionForwardPlan&, const ForwardParams&, Stream);

}  // namespace xlstm::gpu::attention
