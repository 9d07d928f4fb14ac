// SPDX-License-Identifier: Apache-2.0
// Parameters of attention's forward kernels, and the block's part of the call.
#pragma once

#include "attention/forward/forward_plan.h"
#include "attention/gpu/combine_parts.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {

struct ForwardParams {
  xlstm_attention_forward call;
  int64_t blocks, splits;                                     // of the plan
  bool q_aligned16, k_aligned16, v_aligned16, out_aligned16;  // rows consist of 16-byte vectors, at multiples of 16
  ForwardParts parts;                                         // with splits
};

// forward_kernels.hip, and for keys of 8 bits forward_float8_kernels.hip; CMake compiles them once per dtype.
template <class Elements>
void launch_forward(const AttentionForwardPlan&, const ForwardParams&, Stream);
// The launch of the Hopper kernel, for 2-byte dtypes, in a library for CUDA.
template <class E>
void launch_forward_hopper(const AttentionForwardPlan&, const ForwardParams&, Stream);

// A block's part of the call.
struct ForwardBlock {
  ForwardCoord coord;
  AttentionLayout at;
  int64_t key_head, first;  // first of its rows

  XLSTM_DEVICE ForwardBlock(const ForwardParams& p, int rows)
      : coord(forward_coord(blockIdx.x, p.call.in.batch * p.call.in.heads_k, p.splits, p.blocks)),
        at(p.call.in, uint32_t(coord.head) / uint32_t(p.call.in.heads_k)),
        key_head(uint32_t(coord.head) % uint32_t(p.call.in.heads_k)),
        first(coord.rows * rows) {}
  XLSTM_DEVICE bool empty() const { return first >= at.rows(); }
};

}  // namespace xlstm::gpu::attention
