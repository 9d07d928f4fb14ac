// SPDX-License-Identifier: Apache-2.0
// Shapes of attention's Hopper kernels (forward_hopper.h, backward_hopper.h): constexpr, so that kernels, plans and
// tests use the same numbers. MLA's shape is in mla_hopper_shape.h.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace xlstm::gpu::attention {

// Two consumer warpgroups and the producer's. A consumer warpgroup owns 64 tokens.
constexpr int kHopperAttentionThreads = 384, kWarpgroupOwned = 64;
constexpr int kLimitsBytes = 16;    // of HopperSmem::Limits
constexpr int kHopperBoxRows = 64;  // of a TMA load, where it divides the tokens

struct HopperAttentionShape {
  int features;             // of q, k, v and out: one of hopper_features()
  bool of_keys;             // a block owns keys; otherwise queries
  int owned;                // matrices of owned tokens: k and v, q and dout, or q alone
  int tile;                 // tokens of a tile (of two matrices)
  int stages[2];            // tiles in the pipeline, of the first and of the second matrix
  bool released_apart;      // consumers release a tile's first matrix before its second, not both at once
  bool owned_in_registers;  // consumers hold the owned tokens in registers, which halves the reads of shared memory
  bool early_dp;            // backward: the dP product of a tile starts together with its scores
  bool with_queries;        // lse and D of a tile's queries are loaded with the tile
  bool shared_rows;         // the consumer warpgroups own the same tokens, and the first sends weights to the second
  bool turns;               // they issue their products in turns
  bool persistent;          // a block takes items (its tokens of a head) in turn; there are as many as multiprocessors

  constexpr int owned_rows() const { return shared_rows ? kWarpgroupOwned : 2 * kWarpgroupOwned; }

  constexpr int tile_box() const { return tile % kHopperBoxRows ? tile : kHopperBoxRows; }
  constexpr int matrix_bytes(int tokens) const { return tokens * features * 2; }
  constexpr int row_stats_bytes() const { return with_queries ? 2 * 4 * tile : 0; }
  constexpr int weights_bytes() const { return shared_rows ? 4 * owned_rows() * tile : 0; }
  // Three for the owned tokens and a tile's tail; one per stage of each matrix, and as many or one for their release;
  // two for weights.
  constexpr int barriers() const {
    return 3 + stages[0] + stages[1] + stages[0] + (released_apart ? stages[1] : 0) + 2 * shared_rows;
  }
  constexpr int lds_bytes() const {
    return owned * matrix_bytes(owned_rows()) + (stages[0] + stages[1]) * matrix_bytes(tile) + weights_bytes() +
           stages[0] * row_stats_bytes() + kLimitsBytes + 8 * barriers();
  }
};

// The features of the kernel that takes these head dims; what a head dim has less is zeros. 0: none does.
constexpr int hopper_features(int64_t dqk, int64_t dv) {
  for (const int features : {64, 128, 192, 256})
    if (dqk <= features && dv <= features) return features;
  return 0;
}

// Registers of a thread: half a register of out per feature, one register of scores per two tokens of a tile, half as
// many for the weights, and a quarter of a register per feature of q. With more than 128 features q stays in shared
// memory, where two stages fit beside it of 80 keys or of 112: a product of 64 by 80 scores takes longer than reading
// its operands, one of 64 by 64 as long.
constexpr HopperAttentionShape forward_hopper_shape(int features) {
  if (features > 128)
    return {features, false, 1, features == 256 ? 80 : 112, {2, 2}, true, false, false, false, false, false, true};
  const int stages = features == 128 ? 3 : 4;
  return {features, false, 1, 128, {stages, stages}, false, true, false, false, false, false, true};
}

// Registers of a thread: one each for scores and dP per two tokens of a tile, half of that as operands, and half a
// register of sums per feature of dq, of dk and of dv. Where registers are short, the dP product starts only when the
// operands of the sums are no longer needed. With more than 128 features a warpgroup has registers for one matrix of
// sums (backward_hopper_wide.h), and there are as many stages as fit in shared memory: for dq of 256 features two tiles
// of k and one of v.
constexpr HopperAttentionShape backward_hopper_shape(int features, bool of_keys) {
  if (features > 128) {
    const int stages = features == 256 ? 2 : 3, second_stages = of_keys ? stages : stages - 1;
    const bool turns = of_keys || features == 192;  // dq of 256 was slower: its one stage of v would have less time
    return {features, of_keys, 2, 64, {stages, second_stages}, true, false, false, of_keys, of_keys, turns, false};
  }
  const bool registers_short = of_keys && features == 128, wide = !of_keys && features == 64;
  return {features,         of_keys, 2,     wide ? 128 : 64, {4, 4}, false, !registers_short && !wide,
          !registers_short, of_keys, false, false,           false};
}

// Calls that these kernels support: 2-byte elements, and scores that are only scaled products.
constexpr bool suits_hopper_attention(int element_bytes, bool has_score_mod, int64_t dqk, int64_t dv) {
  return element_bytes == 2 && !has_score_mod && hopper_features(dqk, dv) != 0;
}

}  // namespace xlstm::gpu::attention
