// SPDX-License-Identifier: Apache-2.0
// The launch plan of attention's backward pass on a GPU: a pure function of shape and chip, so that tests run anywhere.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "attention/backward/backward_shape.h"
#include "attention/gpu/hopper_shape.h"

namespace xlstm::gpu::attention {

// The inputs of a plan.
struct AttentionBackwardCall {
  int64_t batch, heads_q, heads_k, queries, keys, total_q, dqk, dv;  // queries, keys: of the longest sequence
  bool packed;                                                       // total_q queries of all sequences in one row
  int element_bytes;
  bool has_score_mod;            // scores are not just products, of any sign: softcap, ALiBi, dropout
  bool panels;                   // TMA can load all tensors; the workspace does not depend on it
  int64_t parts = 0;             // that the caller asks for; 0 lets the plan choose
  bool common_schedule = false;  // the caller wants the kernels of every chip
  bool vectors = false;          // rows of all tensors are vectors of 16 bytes
  bool deterministic = false;    // no sum may depend on the order in which blocks run
  bool even = false;             // every query of every sequence sees every key
};

struct AttentionBackwardPlan {
  int dqk, dv;         // of the kernels
  bool has_score_mod;  // the kernels with softcap, ALiBi and dropout (and of all float calls)
  BackwardShape of_keys, of_queries;
  int64_t slots, blocks_delta;  // queries of a head with row statistics; blocks of them, of the longest sequence
  int64_t blocks_k, blocks_q;   // along the keys and the queries of the longest sequence
  int64_t parts;                // into which the rows of a key head are divided
  int64_t whole_k;              // of blocks_k the first, whose rows are not divided
  int64_t sums;                 // floats of all parts; 0 with one
  bool one_pass;                // dq is added by atomics (backward_cdna.h), with blocks and parts of of_keys
  int64_t dq_sums;              // floats of these sums
  bool hopper;                  // the Hopper kernels (backward_hopper.h), with backward_hopper_shape()'s blocks

  int64_t divided_k() const { return blocks_k - whole_k; }
  int64_t walks() const { return whole_k + divided_k() * parts; }  // of a key head: blocks of the launch
};

// Throws std::invalid_argument, naming the argument, where no kernel supports the call.
AttentionBackwardPlan plan_attention_backward(const AttentionBackwardCall&, const Chip&);

}  // namespace xlstm::gpu::attention
