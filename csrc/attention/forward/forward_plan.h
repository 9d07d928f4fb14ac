// SPDX-License-Identifier: Apache-2.0
// The launch plan of an attention call on a GPU: a pure function of shape and chip, so that tests run anywhere.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "attention/forward/forward_shape.h"

namespace xlstm::gpu::attention {

// The inputs of a plan.
struct AttentionCall {
  int64_t batch, heads_q, heads_k, queries, keys, dqk, dv;  // queries, keys: of the longest sequence
  int element_bytes;
  bool has_score_mod;   // scores are not just a positive number times products: softcap, ALiBi, dropout, other scales
  bool panels = false;  // TMA can load q, k, v and out, and the caller does not ask for probabilities
  bool float8 = false;  // k and v are floats of 8 bits
  bool packed = false;  // sequences may have unlike lengths: packed, padded, or used in part
};

struct AttentionForwardPlan {
  HeadClass head;
  bool has_score_mod;  // the kernel with softcap, ALiBi and dropout (and of all float calls)
  ForwardShape shape;
  int64_t blocks;  // along the rows
  int64_t splits;  // along the keys
  int64_t grid;
  bool hopper;  // the Hopper kernel (forward_hopper.h), with forward_hopper_shape()'s blocks
};

// block_size, splits: 0 lets the plan choose. Throws std::invalid_argument, naming the argument, where no kernel
// supports the call.
AttentionForwardPlan plan_attention_forward(const AttentionCall&, int64_t block_size, int64_t splits, const Chip&);

}  // namespace xlstm::gpu::attention
