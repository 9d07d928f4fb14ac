// SPDX-License-Identifier: Apache-2.0
// The kernels for few rows against many keys, decode and MLA: their parameters, the prologue that finds a block's part
// of the call, and their launches.
#pragma once

#include "attention/forward/forward_shape.h"
#include "attention/gpu/combine_parts.h"
#include "attention/gpu/score_rules.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {

struct FewRowsParams {
  xlstm_attention_forward call;
  int64_t blocks, splits;  // along the rows, along the keys
  bool out_aligned16;      // rows of out consist of 16-byte vectors, at multiples of 16 bytes
  ForwardParts parts;      // with splits
};

// A block's part of the call: kRows rows of one key head, and this split's tiles of kKeys keys.
template <int kRows, int kKeys>
struct FewRowsBlock {
  const FewRowsParams& p;
  ForwardCoord coord;
  AttentionLayout at;
  int64_t key_head, first, rows;  // rows [first, first + rows), as far as they exist

  XLSTM_DEVICE explicit FewRowsBlock(const FewRowsParams& params)
      : p(params),
        coord(forward_coord(blockIdx.x, p.call.in.batch * p.call.in.heads_k, p.splits, p.blocks)),
        at(p.call.in, uint32_t(coord.head) / uint32_t(p.call.in.heads_k)),
        key_head(uint32_t(coord.head) % uint32_t(p.call.in.heads_k)),
        first(coord.rows * kRows),
        rows(at.rows() - first) {}
  XLSTM_DEVICE bool empty() const { return rows <= 0; }
  XLSTM_DEVICE VisibleKeys visible() const { return {at, first, rows < kRows ? rows : kRows}; }

  struct TileRange {
    int from, to;
  };
  XLSTM_DEVICE TileRange tiles(const VisibleKeys& visible) const {
    const int origin = visible.begin / kKeys, count = (visible.end + kKeys - 1) / kKeys - origin;
    return {origin + part_of(count, coord.split, p.splits), origin + part_of(count, coord.split + 1, p.splits)};
  }
};

// decode_kernels.hip and mla_kernels.hip, and for keys of 8 bits decode_float8_kernels.hip and mla_float8_kernels.hip,
// define these; CMake compiles them once per dtype.
struct DecodePlan;
struct MlaPlan;
template <class Elements>
void launch_decode(const DecodePlan&, const FewRowsParams&, Stream);
template <class Elements>
void launch_mla(const MlaPlan&, const FewRowsParams&, Stream);
// mla_hopper.cu, for bfloat16 and float16, in a library for CUDA.
template <class E>
void launch_mla_hopper(const MlaPlan&, const FewRowsParams&, Stream);

}  // namespace xlstm::gpu::attention
