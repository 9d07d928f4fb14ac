// SPDX-License-Identifier: Apache-2.0
#include "attention/forward/forward_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "attention/gpu/hopper_shape.h"
#include "base/numbers.h"

namespace xlstm::gpu::attention {
namespace {

constexpr int64_t kMaxSplits = 128;
constexpr int64_t kMinSplitKeys = 256;  // per part: below that, combining costs more than it gains

HeadClass class_of(int64_t dqk, int64_t dv) {
  for (const HeadClass& head : kHeadClasses)
    if (dqk <= head.dqk && dv <= head.dv) return head;
  throw std::invalid_argument("q, v: expected head dims of at most " + std::to_string(kMaxHeadDim) + " on a GPU, got " +
                              std::to_string(dqk) + " and " + std::to_string(dv));
}

}  // namespace

AttentionForwardPlan plan_attention_forward(const AttentionCall& call, int64_t block_size, int64_t splits,
                                            const Chip& chip) {
  AttentionForwardPlan plan{};
  plan.head = class_of(call.dqk, call.dv);
  plan.has_score_mod = call.has_score_mod || call.element_bytes == 4;
  plan.shape = forward_shape(chip.family, call.element_bytes, plan.head, plan.has_score_mod);
  if (plan.shape.lds_bytes > chip.lds_bytes)
    throw std::invalid_argument("q, v: the kernel for head dims of " + std::to_string(call.dqk) + " and " +
                                std::to_string(call.dv) + " needs " + std::to_string(plan.shape.lds_bytes) +
                                " bytes of LDS, this GPU has " + std::to_string(chip.lds_bytes));
  if (block_size != 0 && block_size != plan.shape.keys)
    throw std::invalid_argument("block_size: expected " + std::to_string(plan.shape.keys) +
                                " for these head dims and this dtype on this GPU, got " + std::to_string(block_size));
  const int64_t heads = call.batch * call.heads_k, rows = call.queries * (call.heads_q / call.heads_k);
  plan.blocks = ceil_div(rows, plan.shape.rows);
  const int64_t blocks = std::max<int64_t>(1, heads * plan.blocks);
  const bool hopper_takes = chip.hopper && call.panels && block_size == 0 && splits <= 1 &&
                            suits_hopper_attention(call.element_bytes, call.has_score_mod, call.dqk, call.dv);
  const int64_t hopper_items =
      hopper_takes ? call.batch * call.heads_q *
                         ceil_div(call.queries, forward_hopper_shape(hopper_features(call.dqk, call.dv)).owned_rows())
                   : 0;
  plan.splits = splits;
  if (splits == 0) {  // as many as fill the chip, where blocks of rows do not
    const int64_t at_once = int64_t(chip.compute_units) * plan.shape.blocks;
    const int64_t max_splits = std::min(kMaxSplits, call.keys / kMinSplitKeys);
    plan.splits = 2 * blocks > at_once ? 1 : std::max<int64_t>(1, std::min(at_once / blocks, max_splits));
    // The Hopper kernel has no split-KV, and is as fast on half of the chip as the common kernel on all of it.
    if (2 * hopper_items > chip.compute_units) plan.splits = 1;
  }
  plan.hopper = hopper_takes && plan.splits == 1;
  // Persistent blocks, where the items have like lengths; otherwise the hardware balances them, with a block each.
  plan.grid = plan.hopper ? (call.packed ? hopper_items : std::min<int64_t>(hopper_items, chip.compute_units))
                          : heads * plan.blocks * plan.splits;
  return plan;
}

}  // namespace xlstm::gpu::attention
