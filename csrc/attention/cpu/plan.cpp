// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/plan.h"

#include <algorithm>

#include "base/numbers.h"

namespace xlstm {
namespace {

constexpr int64_t kDefaultBlock = 128, kDefaultBackwardBlock = 64, kDefaultBackwardPanels = 4;

}  // namespace

AttentionCpuPlan plan_attention_cpu(const AttentionShape& shape, int64_t block_k, int64_t splits, int64_t threads) {
  constexpr int64_t kMaxPanels = 32, kLargePanels = 8, kTasksPerThread = 4, kMinTiles = 4;
  const int64_t heads = std::max<int64_t>(1, shape.batch * shape.heads_k);
  const int64_t panels = std::max<int64_t>(1, ceil_div(shape.rows, shape.panel));
  AttentionCpuPlan plan;
  plan.block_k = block_k ? block_k : kDefaultBlock;
  int64_t each = std::min(kMaxPanels, panels);
  // Large blocks must be twice as many: threads that idle during the last blocks cost more than the packing saves.
  const auto enough = [&] {
    return heads * ceil_div(panels, each) >= (each > kLargePanels ? 2 : 1) * kTasksPerThread * threads;
  };
  while (each > 1 && threads > 1 && !enough()) each = (each + 1) / 2;
  plan.rows = each * shape.panel;
  plan.blocks = ceil_div(panels, each);
  plan.splits = splits;
  if (shape.wants_probs) plan.splits = 1;
  if (plan.splits == 0) {
    const int64_t wanted = ceil_div(threads, heads * plan.blocks);
    const int64_t max_splits = ceil_div(shape.keys, plan.block_k) / kMinTiles;
    plan.splits = std::max<int64_t>(1, std::min({wanted, max_splits, kMaxSplits}));
  }
  plan.workers = std::max<int64_t>(1, std::min(threads, heads * plan.blocks * plan.splits));
  return plan;
}

AttentionBackwardCpuPlan plan_attention_backward_cpu(const AttentionShape& shape, int64_t block_k, int64_t row_panels,
                                                     int64_t parts, int64_t threads) {
  const int64_t heads = std::max<int64_t>(1, shape.batch * shape.heads_k);
  const int64_t panels = std::max<int64_t>(1, ceil_div(shape.rows, shape.panel));
  AttentionBackwardCpuPlan plan;
  plan.block_k = block_k ? block_k : kDefaultBackwardBlock;
  plan.group = std::min(row_panels ? row_panels : kDefaultBackwardPanels, panels) * shape.panel;
  const int64_t groups = ceil_div(panels * shape.panel, plan.group);
  plan.parts = parts ? parts : std::max<int64_t>(1, std::min(ceil_div(threads, heads), groups));
  plan.workers = std::max<int64_t>(1, std::min(threads, heads * plan.parts));
  return plan;
}

}  // namespace xlstm
