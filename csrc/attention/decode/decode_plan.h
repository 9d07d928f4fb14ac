// SPDX-License-Identifier: Apache-2.0
// Which calls the decode kernel takes, and their launch plan: pure functions of shape and chip, so that tests run
// anywhere.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/decode/decode_shape.h"
#include "attention/forward/forward_plan.h"
#include "base/numbers.h"

namespace xlstm::gpu::attention {

constexpr int64_t kMaxDecodeRowBlocks = 2;  // per key head: with more, waves better share keys in LDS
constexpr int64_t kMaxParts = 1024;

struct DecodePlan {
  HeadClass head;
  DecodeShape shape;
  int64_t blocks;  // along the rows
  int64_t splits;  // along the keys
  int64_t grid;
};

// Number of split-KV parts for `blocks` blocks that each walk a full sequence, so that every multiprocessor always has
// work: the smallest number that comes within a twentieth of the best. A part has at least `min_keys` keys. All blocks
// run at once if that keeps the share `enough` of the multiprocessors busy.
inline int64_t parts_that_fill(int64_t blocks, int64_t at_once, int64_t keys, int64_t min_keys, double enough = 1) {
  int64_t max_parts = std::min({kMaxParts, keys / min_keys, ceil_div(at_once, blocks) * 2});
  const auto busy = [&](int64_t parts) {
    const int64_t all = blocks * parts, rounds = ceil_div(all, at_once);
    return double(all) / double(rounds * at_once);
  };
  if (const int64_t in_one_round = at_once / blocks; in_one_round > 0 && busy(in_one_round) >= enough)
    max_parts = std::min(max_parts, in_one_round);
  double best = busy(1);
  for (int64_t parts = 2; parts <= max_parts; ++parts) best = std::max(best, busy(parts));
  for (int64_t parts = 1; parts < max_parts; ++parts)
    if (busy(parts) >= 0.95 * best) return parts;
  return std::max<int64_t>(1, max_parts);
}

inline HeadClass decode_class(const AttentionCall& call) {  // without features: no class
  for (const HeadClass& head : kHeadClasses)
    if (call.dqk <= head.dqk && call.dv <= head.dv) return head;
  return {};
}

// Whether the rows of a key head are few and a decode kernel exists. The forward kernel takes dropout and
// probabilities.
inline bool has_few_rows(const AttentionCall& call, const Chip& chip) {
  const HeadClass head = decode_class(call);
  return call.queries * (call.heads_q / call.heads_k) <= kMaxDecodeRowBlocks * kDecodeRows && head.dqk != 0 &&
         has_decode(chip.family, call.element_bytes, head);
}

// splits: 0 lets the plan choose.
inline DecodePlan plan_decode(const AttentionCall& call, int64_t splits, const Chip& chip) {
  DecodePlan plan{};
  plan.head = decode_class(call);
  plan.shape = decode_shape(chip.family, call.element_bytes, plan.head);
  const int64_t rows = call.queries * (call.heads_q / call.heads_k), heads = call.batch * call.heads_k;
  plan.blocks = std::max<int64_t>(1, ceil_div(rows, kDecodeRows));
  const int64_t at_once = int64_t(chip.compute_units) * plan.shape.blocks;
  plan.splits = splits ? splits : parts_that_fill(std::max<int64_t>(1, heads * plan.blocks), at_once, call.keys, 256);
  plan.grid = heads * plan.blocks * plan.splits;
  return plan;
}

}  // namespace xlstm::gpu::attention
