// SPDX-License-Identifier: Apache-2.0
// The epilogue of CDNA's products whose lanes have several outputs: residuals, soft caps and masks, stores. No output
// has a branch of its own, since behind a branch the compiler waits for each load, and for each store: what is not
// there is beyond the range of a load or a store.
#pragma once

#include "arch/memory_range.h"
#include "engine/gpu/prologue_epilogue.h"

namespace xlstm::gpu::engine {

// A linear's outputs, for `count` rows of the batch from `first` on.
struct OutputRange {
  MemoryRange range;
  uint32_t row_bytes;  // of a row of the batch

  XLSTM_DEVICE static OutputRange of(const GemmParams& p, int linear, int first, int count) {
    const int64_t row_bytes = int64_t(uniform(p.linear[linear].rows)) * 4;
    const char* const to = uniform(reinterpret_cast<const char*>(global(p.to[linear])));
    return {{to + first * row_bytes, uint32_t(count * row_bytes)}, uint32_t(row_bytes)};
  }
  // Bytes to an output; also beyond the range with some rows of the batch more, if it is not stored.
  XLSTM_DEVICE uint32_t offset(int row_of_batch, int row, bool stored) const {
    return stored ? uint32_t(row_of_batch) * row_bytes + uint32_t(row) * 4 : kFar;
  }
};

// Finishes and stores a lane's outputs y, which SwiGLU has combined. offset_of(n): bytes in the range; batch_row_of(n):
// the row of the batch.
template <int kCount, class OffsetOf, class BatchRowOf>
XLSTM_DEVICE void store_outputs(const GemmParams& p, int linear, const OutputRange& to, float (&y)[kCount],
                                OffsetOf&& offset_of, BatchRowOf&& batch_row_of) {
  const CapAndMask rule = CapAndMask::of(p, linear);
  if (p.output == Output::add) {
    float residual[kCount];
#pragma unroll
    for (int n = 0; n < kCount; ++n) residual[n] = as_float(load_word(to.range, offset_of(n)));
    sched_barrier();  // the compiler would move loads to their use
#pragma unroll
    for (int n = 0; n < kCount; ++n) y[n] += residual[n];
  } else if (p.output == Output::store && (rule.cap != 0 || rule.keep)) {
    bool kept[kCount];
#pragma unroll
    for (bool& keep : kept) keep = true;
    if (rule.keep) {
      uint8_t keep[kCount];
#pragma unroll
      for (int n = 0; n < kCount; ++n) keep[n] = rule.keep[batch_row_of(n) < p.batch ? batch_row_of(n) : 0];
      sched_barrier();
#pragma unroll
      for (int n = 0; n < kCount; ++n) kept[n] = keep[n] != 0;
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) y[n] = rule.apply_to(kept[n], y[n]);
  }
#pragma unroll
  for (int n = 0; n < kCount; ++n) store_word(to.range, offset_of(n), as_bits(y[n]));
}

}  // namespace xlstm::gpu::engine
