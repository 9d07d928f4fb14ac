// SPDX-License-Identifier: Apache-2.0
// Turns a plan into the launches of the backward kernels.
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

#include "arch/launch.h"
#include "attention/backward/backward_cdna.h"
#include "attention/backward/delta.h"

namespace xlstm::gpu::attention {

template <class E, int kQk, int kV>
void launch_sum_of_parts(const AttentionBackwardPlan& plan, const BackwardParams& p, Stream stream) {
  if (plan.parts > 1)
    launch("attention dk, dv of parts", sum_dkdv_kernel<E, kQk, kV>,
           {plan.divided_k() * p.heads_all_k(), plan.of_keys.threads, 0}, stream, p);
}

template <class E, int kQk, int kV, bool kHasScoreMod>
void launch_gradients(const AttentionBackwardPlan& plan, const BackwardParams& p, Stream stream) {
  launch("attention dk, dv", dkdv_kernel<E, kQk, kV, kHasScoreMod>,
         {plan.walks() * p.heads_all_k(), plan.of_keys.threads, plan.of_keys.lds_bytes}, stream, p);
  launch_sum_of_parts<E, kQk, kV>(plan, p, stream);
  launch("attention dq", dq_kernel<E, kQk, kV, kHasScoreMod>,
         {plan.blocks_q * p.heads_all_q(), plan.of_queries.threads, plan.of_queries.lds_bytes}, stream, p);
}

template <class E, int kFeatures>
void launch_one_pass(const AttentionBackwardPlan& plan, const BackwardParams& p, Stream stream) {
  launch("attention dq, dk, dv", one_pass_kernel<E, kFeatures>,
         {plan.walks() * p.heads_all_k(), plan.of_keys.threads, plan.of_keys.lds_bytes}, stream, p);
  launch_sum_of_parts<E, kFeatures, kFeatures>(plan, p, stream);
  launch("attention dq", round_dq_kernel<E, kFeatures>, {plan.blocks_delta * p.heads_all_q(), kDeltaThreads, 0}, stream,
         p);
}

template <class E, int kQk, int kV>
void launch_class(const AttentionBackwardPlan& plan, const BackwardParams& p, Stream stream) {
  if constexpr (sizeof(E) == 2)
    if (!plan.has_score_mod) return launch_gradients<E, kQk, kV, false>(plan, p, stream);
  launch_gradients<E, kQk, kV, true>(plan, p, stream);
}

template <class E>
void launch_backward(const AttentionBackwardPlan& plan, const BackwardParams& p, Stream stream) {
  launch("attention delta", delta_kernel<E>, {plan.blocks_delta * p.heads_all_q(), kDeltaThreads, 0}, stream, p);
  if (p.call.dsink) launch("attention dsink", dsink_kernel<E>, {p.call.in.heads_q, kDeltaThreads, 0}, stream, p);
  if constexpr (kHasHopperKernels && sizeof(E) == 2)
    if (plan.hopper) return launch_backward_hopper<E>(p, stream);
  if constexpr (!kAsyncCopies && sizeof(E) == 2)
    if (plan.one_pass)
      return plan.dqk == 64 ? launch_one_pass<E, 64>(plan, p, stream) : launch_one_pass<E, 128>(plan, p, stream);
  if (plan.dqk == 64) return launch_class<E, 64, 64>(plan, p, stream);
  if (plan.dqk == 128) return launch_class<E, 128, 128>(plan, p, stream);
  if (plan.dqk == 192) return launch_class<E, 192, 128>(plan, p, stream);
  launch_class<E, 256, 256>(plan, p, stream);
}

template void launch_backward<XLSTM_ELEMENT>(const AttentionBackwardPlan&, const BackwardParams&, Stream);

}  // namespace xlstm::gpu::attention
