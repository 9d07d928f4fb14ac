// SPDX-License-Identifier: Apache-2.0
// How attention's kernels lie on Hopper (forward_hopper.h, backward_hopper.h): constexpr, so that kernels, plans and
// tests have one answer. MLA's is mla_hopper_shape.h.
#pragma once

namespace xlstm::gpu::attention {

// Two warpgroups own 64 tokens each; one more copies.
constexpr int kHopperOwned = 128, kHopperAttentionThreads = 384;
constexpr int kLimitsBytes = 16;  // of what masks ask: HopperRoom::Limits

struct HopperRoomShape {
  int features;       // of q, k, v and out: 64 or 128
  bool of_keys;       // what a block owns: keys, or queries
  int owned;          // matrices of them: k and v, q and dout, or q alone
  int tile, stages;   // tokens of a tile of two matrices, and tiles that there is room for
  bool held;          // what is owned is in registers: shared memory is read half as much then
  bool early_dp;      // backward: a tile's dP is asked for with its scores
  bool with_queries;  // lse and D of a tile's queries lie beside it

  constexpr int matrix_bytes(int tokens) const { return tokens * features * 2; }
  constexpr int facts_bytes() const { return with_queries ? 2 * 4 * tile : 0; }
  constexpr int barriers() const { return 3 + 3 * stages; }  // what is owned, a tile's tail; of each stage
  constexpr int lds_bytes() const {
    return owned * matrix_bytes(kHopperOwned) + stages * (2 * matrix_bytes(tile) + facts_bytes()) + kLimitsBytes +
           8 * barriers();
  }
};

// A thread has half a register of out for each feature, one of scores for every two tokens of a tile, half as many for
// weights, and a quarter of one for each feature of q.
constexpr HopperRoomShape attend_shape(int features) {
  return {features, false, 1, 128, features == 128 ? 3 : 4, true, false, false};
}

// Scores and dP of a tile are a register each for every two of its tokens, and half of one as operands, beside half a
// register of sums for each feature of dq, of dk and of dv. Where registers are short, dP is asked for when operands of
// sums have left theirs.
constexpr HopperRoomShape gradient_shape(int features, bool of_keys) {
  const bool short_of = of_keys && features == 128, wide = !of_keys && features == 64;
  return {features, of_keys, 2, wide ? 128 : 64, 4, !short_of && !wide, !short_of, of_keys};
}

// Calls that have them: of 2-byte elements, whose scores are products alone, and head dims that fill a kernel's panels.
constexpr bool suits_hopper_attention(int element_bytes, bool bent, int dqk, int dv) {
  return element_bytes == 2 && !bent && dqk == dv && dqk <= 128;
}

}  // namespace xlstm::gpu::attention
