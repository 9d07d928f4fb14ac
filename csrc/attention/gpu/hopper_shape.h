// SPDX-License-Identifier: Apache-2.0
// Shapes of attention's Hopper kernels (forward_hopper.h, backward_hopper.h): constexpr, so that kernels, plans and
// tests use the same numbers. MLA's shape is in mla_hopper_shape.h.
#pragma once

namespace xlstm::gpu::attention {

// Two consumer warpgroups own 64 tokens each; a third warpgroup is the producer.
constexpr int kHopperOwned = 128, kHopperAttentionThreads = 384;
constexpr int kLimitsBytes = 16;  // of HopperSmem::Limits

struct HopperAttentionShape {
  int features;             // of q, k, v and out: 64 or 128
  bool of_keys;             // a block owns keys; otherwise queries
  int owned;                // matrices of owned tokens: k and v, q and dout, or q alone
  int tile, stages;         // tokens of a tile (of two matrices); tiles in the pipeline
  bool owned_in_registers;  // consumers hold the owned tokens in registers, which halves the reads of shared memory
  bool early_dp;            // backward: the dP product of a tile starts together with its scores
  bool with_queries;        // lse and D of a tile's queries are loaded with the tile

  constexpr int matrix_bytes(int tokens) const { return tokens * features * 2; }
  constexpr int row_stats_bytes() const { return with_queries ? 2 * 4 * tile : 0; }
  constexpr int barriers() const {
    return 3 + 3 * stages;
  }  // three for the owned tokens and a tile's tail; three per stage
  constexpr int lds_bytes() const {
    return owned * matrix_bytes(kHopperOwned) + stages * (2 * matrix_bytes(tile) + row_stats_bytes()) + kLimitsBytes +
           8 * barriers();
  }
};

// Registers of a thread: half a register of out per feature, one register of scores per two tokens of a tile, half as
// many for the weights, and a quarter of a register per feature of q.
constexpr HopperAttentionShape forward_hopper_shape(int features) {
  return {features, false, 1, 128, features == 128 ? 3 : 4, true, false, false};
}

// Registers of a thread: one each for scores and dP per two tokens of a tile, half of that as operands, and half a
// register of sums per feature of dq, of dk and of dv. Where registers are short, the dP product starts only when the
// operands of the sums are no longer needed.
constexpr HopperAttentionShape backward_hopper_shape(int features, bool of_keys) {
  const bool registers_short = of_keys && features == 128, wide = !of_keys && features == 64;
  return {features, of_keys, 2, wide ? 128 : 64, 4, !registers_short && !wide, !registers_short, of_keys};
}

// Calls that these kernels support: 2-byte elements, scores that are only scaled products, and head dims that fill a
// kernel's panels.
constexpr bool suits_hopper_attention(int element_bytes, bool has_score_mod, int dqk, int dv) {
  return element_bytes == 2 && !has_score_mod && dqk == dv && dqk <= 128;
}

}  // namespace xlstm::gpu::attention
