// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of the forward kernel, for one dtype: included by one file per dtype, so that they compile
// side by side.
#pragma once

#include "arch/launch.h"
#include "attention/forward_gpu.h"

namespace xlstm::gpu {

template <class E>
void launch_forward(const AttentionForwardPlan&, const ForwardParams&, Stream);

namespace {

template <class E, int kDqk, int kDv>
void launch_class(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  const Grid grid{plan.grid, plan.shape.threads, plan.shape.lds_bytes};
  if constexpr (sizeof(E) == 2)
    if (!plan.full) return launch("attention forward", attend<E, kDqk, kDv, false>, grid, stream, p);
  launch("attention forward", attend<E, kDqk, kDv, true>, grid, stream, p);
}

}  // namespace

template <class E>
void launch_forward(const AttentionForwardPlan& plan, const ForwardParams& p, Stream stream) {
  if (plan.head.dqk == 64) return launch_class<E, 64, 64>(plan, p, stream);
  if (plan.head.dqk == 128) return launch_class<E, 128, 128>(plan, p, stream);
  if (plan.head.dqk == 192) return launch_class<E, 192, 128>(plan, p, stream);
  launch_class<E, 256, 256>(plan, p, stream);
}

}  // namespace xlstm::gpu
