// SPDX-License-Identifier: Apache-2.0
#include "layer/gpu/cross_entropy.h"
#include "layer/gpu/kernels.h"
#include "layer/gpu/launch.h"

namespace xlstm::gpu::layer {
namespace {

void check_size(const xlstm_cross_entropy& p) {
  if (p.classes > 1 << 30) throw std::runtime_error("cross entropy: more classes than a GPU call takes, 2^30");
}

}  // namespace

PersistentPlan plan_cross_entropy_call(const xlstm_cross_entropy& p, const Chip& chip) {
  check_size(p);
  return plan_cross_entropy(chip, p.rows, p.classes);
}

void cross_entropy_forward(const xlstm_cross_entropy& p, const PersistentPlan& plan, void* stream) {
  const CrossEntropyParams params{p, int(plan.slices), Group(plan.lanes)};
  with_kind<false>(p.rows, p.classes, {&p.logits}, [&](auto kind) {
    using K = decltype(kind);
    launch("cross entropy", cross_entropy_rows<typename K::Element, K::kAligned>, {plan.blocks, plan.threads, 0},
           static_cast<Stream>(stream), params);
  });
}

void cross_entropy_backward(const xlstm_cross_entropy& call, void* stream) {
  check_size(call);
  constexpr int64_t kBlock = kClassChunks * kLayerThreads * kChunk;
  const CrossEntropyBackwardParams p{call, unsigned(ceil_div(call.classes, kBlock))};
  with_kind<false>(call.rows, call.classes, {&call.logits, &call.dlogits}, [&](auto kind) {
    using K = decltype(kind);
    launch("cross entropy, backward", cross_entropy_backward_rows<typename K::Element, K::kAligned>,
           {call.rows * p.row_blocks, kLayerThreads, 0}, static_cast<Stream>(stream), p);
  });
}

}  // namespace xlstm::gpu::layer
