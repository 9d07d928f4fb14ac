// SPDX-License-Identifier: Apache-2.0
// What attention's forward kernels are given, and which part of the call a block has.
#pragma once

#include "attention/forward/forward_plan.h"
#include "attention/gpu/combine_parts.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {

struct ForwardParams {
  xlstm_attention_forward call;
  int64_t blocks, splits;                     // of the plan
  bool whole_q, whole_k, whole_v, whole_out;  // rows are whole pieces of 16 bytes, at multiples of 16
  ForwardParts parts;                         // with splits
};

// Of 2-byte dtypes where the plan says so, in a library for CUDA.
template <class E>
void launch_attend_hopper(const AttentionForwardPlan&, const ForwardParams&, Stream);

// Of the kernels for few rows against many keys: decoding and MLA.
struct FewRowsParams {
  xlstm_attention_forward call;
  int64_t blocks, splits;  // along the rows, along the keys
  bool whole_out;          // rows of out have whole pieces, at multiples of 16 bytes
  ForwardParts parts;      // with splits
};

// What a block of threads has.
struct ForwardBlock {
  ForwardPlace place;
  AttentionLayout at;
  int64_t key_head, first;  // of its rows

  XLSTM_DEVICE ForwardBlock(const ForwardParams& p, int rows)
      : place(forward_place(blockIdx.x, p.call.in.batch * p.call.in.heads_k, p.splits, p.blocks)),
        at(p.call.in, uint32_t(place.head) / uint32_t(p.call.in.heads_k)),
        key_head(uint32_t(place.head) % uint32_t(p.call.in.heads_k)),
        first(place.rows * rows) {}
  XLSTM_DEVICE bool empty() const { return first >= at.rows(); }
};

}  // namespace xlstm::gpu::attention
