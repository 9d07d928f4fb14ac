// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of the forward kernel, for one dtype: included by one file per dtype, so that they compile
// side by side.
#pragma once

#include "arch/launch.h"
#include "attention/weights_gpu.h"

namespace xlstm::gpu {

template <class E>
void launch_forward(const AttentionForwardPlan&, const ForwardParams&, Stream);

namespace {

template <class E, int kDqk, int kDv>
void launch_class(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  if (plan.full)
    launch("attention forward", attend<E, kDqk, kDv, true>, grid, stream, p);
  else if constexpr (sizeof(E) == 2)
    launch("attention forward", attend<E, kDqk, kDv, false>, grid, stream, p);
  if (plan.splits > 1) combine_forward_parts(p.call, p.parts, plan.splits, stream);
  if (!p.call.probs.data) return;
  ForwardParams unsplit = p;
  unsplit.splits = 1;
  launch("attention weights", write_weights<E, kDqk, kDv>,
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

// Each in a file of its own.
extern template void launch_forward<BFloat16>(const AttentionForwardPlan&, const ForwardParams&, Stream);
extern template void launch_forward<Float16>(const AttentionForwardPlan&, const ForwardParams&, Stream);
extern template void launch_forward<float>(const AttentionForwardPlan&, const ForwardParams&, Stream);

}  // namespace xlstm::gpu
