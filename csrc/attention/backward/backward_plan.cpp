// SPDX-License-Identifier: Apache-2.0
#include "attention/backward/backward_plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/numbers.h"

namespace xlstm::gpu::attention {
namespace {

constexpr int64_t kMaxParts = 32, kMinTiles = 8;

// Blocks with as much work each, as many at once as there are compute units: into how many parts the rows of those that
// are left for the last round are divided, so that it is over soonest. `tiles`: of a block. A part stores its sums,
// which are read again, in about the time of kMinTiles tiles (predicted for an MI300X), and the sum is a launch more.
int64_t parts_of_last_round(int64_t blocks, int64_t compute_units, int64_t tiles) {
  const auto time = [&](int64_t parts) {  // in tiles
    const double rounds = double(ceil_div(blocks * parts, compute_units)), all = double(blocks * parts);
    return rounds * double(tiles) / double(parts) + (parts > 1 ? kMinTiles * (1 + all / double(compute_units)) : 0);
  };
  int64_t best = 1;
  for (int64_t parts = 2; parts <= std::min(kMaxParts, tiles / kMinTiles); ++parts)
    if (time(parts) < time(best)) best = parts;
  return best;
}

}  // namespace

AttentionBackwardPlan plan_attention_backward(const AttentionBackwardCall& call, const Chip& chip) {
  constexpr int kMaxBackwardHeadDim = 256;
  if (call.dqk > kMaxBackwardHeadDim || call.dv > kMaxBackwardHeadDim)
    throw std::invalid_argument(std::string(call.dqk > kMaxBackwardHeadDim ? "q" : "v") +
                                ": expected a head dim of at most " + std::to_string(kMaxBackwardHeadDim) +
                                " on a GPU, got " + std::to_string(std::max(call.dqk, call.dv)));
  AttentionBackwardPlan p{};
  const int64_t both = std::max(call.dqk, call.dv);
  p.dqk = both <= 64 ? 64 : both <= 128 ? 128 : call.dqk <= 192 && call.dv <= 128 ? 192 : 256;
  p.dv = p.dqk == 192 ? 128 : p.dqk;
  p.has_score_mod = call.has_score_mod || call.element_bytes == 4;
  p.of_keys = key_gradients_shape(chip.family, call.element_bytes, p.dqk, p.dv);
  p.one_pass = chip.family == Family::cdna && call.element_bytes == 2 && !call.has_score_mod && call.vectors &&
               !call.deterministic && !call.common_schedule && call.dqk == call.dv && call.dqk == p.dqk &&
               (p.dqk == 64 || p.dqk == 128);
  if (p.one_pass) p.of_keys = one_pass_shape(chip.family, p.dqk);
  p.of_queries = query_gradients_shape(chip.family, call.element_bytes, p.dqk, p.dv);
  if (p.has_score_mod) p.of_keys.lds_bytes += p.of_keys.pairs_bytes;
  for (const BackwardShape& s : {p.of_keys, p.of_queries})
    if (s.lds_bytes > chip.lds_bytes)
      throw std::invalid_argument("q, v: head dims of " + std::to_string(call.dqk) + " and " + std::to_string(call.dv) +
                                  " need " + std::to_string(s.lds_bytes) + " bytes of LDS, this GPU has " +
                                  std::to_string(chip.lds_bytes));
  const int64_t pads = ceil_div(call.queries, kStatsPad);
  p.slots = (call.packed ? call.total_q / kStatsPad + call.batch + 1 : pads) * kStatsPad;
  p.dq_sums = p.one_pass ? (call.packed ? 1 : call.batch) * call.heads_q * p.slots * p.dqk : 0;
  p.blocks_delta = pads * (kStatsPad / kDeltaRows);
  p.blocks_k = ceil_div(call.keys, p.of_keys.owned);
  p.blocks_q = ceil_div(call.queries, p.of_queries.owned);
  const int64_t blocks = p.blocks_k * call.batch * call.heads_k;
  const int64_t tiles = ceil_div(call.queries, p.of_keys.tile) * (call.heads_q / std::max<int64_t>(1, call.heads_k));
  const bool hopper_takes = chip.hopper && call.panels && !call.common_schedule &&
                            suits_hopper_attention(call.element_bytes, call.has_score_mod, call.dqk, call.dv);
  // The Hopper kernels have no parts, and are as fast on a third of the chip as the common ones on all of it: on half
  // of it they were 1.4 to 1.7 times as fast.
  const int64_t hopper_rows = backward_hopper_shape(hopper_features(call.dqk, call.dv), true).owned_rows();
  const bool hopper_fills_chip =
      hopper_takes && 3 * ceil_div(call.keys, hopper_rows) * call.batch * call.heads_k >= chip.compute_units;
  p.parts = 1;
  if (blocks > 0 && call.parts)
    p.parts = call.parts;
  else if (blocks > 0 && !hopper_fills_chip)
    p.parts = std::clamp<int64_t>(std::min(chip.compute_units / blocks, tiles / kMinTiles), 1, kMaxParts);
  const int64_t heads = call.batch * call.heads_k;
  if (call.even && chip.family == Family::cdna && p.of_keys.blocks == 1 && blocks > 0 && !call.parts && p.parts == 1) {
    const int64_t whole = blocks / chip.compute_units * chip.compute_units / heads;
    p.parts = parts_of_last_round((p.blocks_k - whole) * heads, chip.compute_units, tiles);
    if (p.parts > 1) p.whole_k = whole;
  }
  if (p.parts > 1) p.sums = p.parts * p.divided_k() * heads * p.of_keys.owned * (p.dqk + p.dv);
  p.hopper = hopper_takes && p.parts == 1;
  return p;
}

}  // namespace xlstm::gpu::attention
