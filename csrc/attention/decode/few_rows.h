// SPDX-License-Identifier: Apache-2.0
// The kernels for few rows against many keys, decode and MLA: their parameters, the prologue that finds a block's part
// of the call, and their launches.
#pragma once

#include "attention/decode/short_last_part.h"
#include "attention/forward/forward_shape.h"
#include "attention/gpu/combine_parts.h"
#include "attention/gpu/score_rules.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {

struct FewRowsParams {
  xlstm_attention_forward call;
  int64_t blocks, splits;      // along the rows, along the keys
  bool out_aligned16;          // rows of out consist of 16-byte vectors, at multiples of 16 bytes
  ForwardParts parts;          // with splits
  bool last_is_short = false;  // of the parts along the keys (short_last_part.h)
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
  // kLastMayBeShort: whether the call's plan may say so.
  template <bool kLastMayBeShort = false>
  XLSTM_DEVICE TileRange tiles(const VisibleKeys& visible) const {
    const int origin = visible.begin / kKeys, count = (visible.end + kKeys - 1) / kKeys - origin;
    const auto first_of = [&](int64_t part) {
      if constexpr (kLastMayBeShort)
        return origin + first_tile_of_part(count, part, p.splits, p.last_is_short);
      else
        return origin + part_of(count, part, p.splits);
    };
    return {first_of(coord.split), first_of(coord.split + 1)};
  }
};

// decode_kernels.hip and mla_kernels.hip, for keys of 8 bits decode_float8_kernels.hip and mla_float8_kernels.hip, and
// for q of 8 bits, too, mla_float8_products_kernels.hip define these; CMake compiles them once per dtype.
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
