// SPDX-License-Identifier: Apache-2.0
// How an attention call is cut up on a GPU: a pure function of shape and chip, so that it is tested anywhere.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "attention/forward/forward_shape.h"

namespace xlstm::gpu::attention {

// What a plan depends on.
struct AttentionCall {
  int64_t batch, heads_q, heads_k, queries, keys, dqk, dv;  // queries, keys: of the longest sequence
  int element_bytes;
  bool bent;            // scores are more than a positive number times products: softcap, ALiBi, dropout, other scales
  bool panels = false;  // q, k, v and out lie so that Hopper's bulk copies can take them, and nobody asks for weights
};

struct AttentionForwardPlan {
  HeadClass head;
  bool full;  // the kernel that bends scores
  ForwardShape shape;
  int64_t blocks;  // along the rows
  int64_t splits;  // along the keys
  int64_t grid;
  bool hopper;  // its own kernel (forward_hopper.h), which has blocks of kHopperOwned queries
};

// block_size, splits: 0 leaves them to the plan. Throws std::invalid_argument, naming the argument, where there is no
// kernel.
AttentionForwardPlan plan_attention_forward(const AttentionCall&, int64_t block_size, int64_t splits, const Chip&);

}  // namespace xlstm::gpu::attention
