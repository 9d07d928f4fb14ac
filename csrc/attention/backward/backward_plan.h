// SPDX-License-Identifier: Apache-2.0
// How attention's backward pass is cut up on a GPU: a pure function of shape and chip, so that it is tested anywhere.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "attention/backward/backward_shape.h"
#include "attention/gpu/hopper_shape.h"

namespace xlstm::gpu::attention {

// What a plan depends on.
struct AttentionBackwardCall {
  int64_t batch, heads_q, heads_k, queries, keys, total_q, dqk, dv;  // queries, keys: of the longest sequence
  bool packed;                                                       // total_q queries of all sequences in one row
  int element_bytes;
  bool bent;    // scores are more than products, of any sign: softcap, ALiBi, dropout
  bool panels;  // all tensors lie so that Hopper's bulk copies can take them; what a call needs is the same without
  int64_t parts = 0;             // that are asked for; 0 leaves them to the plan
  bool common_schedule = false;  // Hopper's own kernels are not wanted
};

struct AttentionBackwardPlan {
  int dqk, dv;  // the kernels'
  bool full;    // those that bend scores
  BackwardShape of_keys, of_queries;
  int64_t slots, blocks_delta;  // queries of a head that have facts; blocks of them, of the longest sequence
  int64_t blocks_k, blocks_q;   // along the keys and the queries of the longest sequence
  int64_t parts;                // that the rows of a key head are dealt out to
  int64_t sums;                 // floats of all parts; 0 with one
  bool hopper;                  // its own kernels (backward_hopper.h), which have blocks of kHopperOwned tokens
};

// Throws std::invalid_argument, naming the argument, where there is no kernel.
AttentionBackwardPlan plan_attention_backward(const AttentionBackwardCall&, const Chip&);

}  // namespace xlstm::gpu::attention
