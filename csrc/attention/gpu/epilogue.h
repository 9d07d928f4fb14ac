// SPDX-License-Identifier: Apache-2.0
// The epilogue of the kernels that compute attention's out (forward, decode, MLA): the lse of a row and the factor of
// its out, with the head's sink; where both are stored: in the call's tensors, or with split-KV in the workspace's
// parts.
#pragma once

#include "attention/combine.h"
#include "attention/gpu/combine_parts.h"
#include "attention/layout.h"
#include "tile/vectors.h"

namespace xlstm::gpu::attention {

// E: the elements of out. kSplits: the kernel may have split-KV.
template <class E, class Params, bool kSplits = true>
struct ForwardEpilogue {
  const Params& p;
  const AttentionLayout& at;
  int64_t split;

  XLSTM_DEVICE bool in_parts() const { return kSplits && p.splits > 1; }

  struct RowFactor {
    float factor, lse;
  };
  // row_max, row_sum: of a row's scores, to base 2. scale: of out, of dropout and of values in floats of 8 bits.
  XLSTM_DEVICE RowFactor finish(float row_max, float row_sum, int64_t head, float scale = 1) const {
    const float* sinks = static_cast<const float*>(p.call.in.sink);
    const float keys = row_sum == 0 ? -__builtin_inff() : (row_max + log2f(row_sum)) * kLn2;  // NaN propagates
    const WithSink<float> with =
        sinks && !in_parts() ? with_sink(keys, global(sinks)[head], p.call.lse_with_sink != 0) : without_sink(keys);
    return {row_sum == 0 ? 0.0f : scale * with.factor / row_sum, with.lse};
  }

  // Where the results of a query are: elements from the beginning of out and of lse, or of the parts' out and lse.
  struct RowOffset {
    int64_t out, lse;
  };
  XLSTM_DEVICE RowOffset offset(int64_t head, int64_t i) const {
    if (in_parts()) {
      const int64_t row = split * ForwardParts::rows(at.in) + ForwardParts::row(at.in, at.index, head, i);
      return {row * at.in.dv, row};
    }
    return {at.query(p.call.out, head, i), at.query(p.call.lse, head, i)};
  }
  XLSTM_DEVICE void store_lse(const RowOffset& row, float lse) const {
    if (in_parts())
      global(p.parts.lse)[row.lse] = lse;
    else
      global(static_cast<float*>(p.call.lse.data))[row.lse] = lse;
  }
  XLSTM_DEVICE float* part() const { return global(p.parts.out); }
  XLSTM_DEVICE E* out() const { return global(static_cast<E*>(p.call.out.data)); }
  // Features [column, column + n) of a row of `columns`. parts_aligned: rows of the parts consist of n-float vectors.
  template <int n>
  XLSTM_DEVICE void store(int64_t row, int column, int columns, const float (&value)[n], bool parts_aligned) const {
    if (in_parts())
      store_run(part() + row, column, columns, parts_aligned, value);
    else
      store_run(out() + row, column, columns, p.out_aligned16, value);
  }
};

}  // namespace xlstm::gpu::attention
