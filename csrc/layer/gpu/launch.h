// SPDX-License-Identifier: Apache-2.0
// Selects the kernel that is compiled for the tensors of a call.
#pragma once

#include <initializer_list>

#include "arch/launch.h"
#include "layer/gpu/rows.h"

namespace xlstm::gpu::layer {

// Whether every chunk of eight features begins at a multiple of 16 bytes.
inline bool is_aligned(const xlstm_rows& x, int64_t rows) {
  const int64_t bytes = x.dtype == XLSTM_FLOAT32 ? 4 : 2;
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && (rows == 1 || x.stride * bytes % 16 == 0);
}

template <class E, bool kAligned_>
struct Kind {
  using Element = E;
  static constexpr bool kAligned = kAligned_;
};

// Calls f(Kind) with the kind of kernel for these tensors; tensors without data do not count. A row of `features` must
// be a multiple of a chunk for the aligned kernels. kMixed: whether dtypes may differ.
template <bool kMixed, class F>
void with_kind(int64_t rows, int64_t features, std::initializer_list<const xlstm_rows*> tensors, F&& f) {
  const xlstm_rows& first = **tensors.begin();
  bool same = true, aligned = features % kChunk == 0;
  for (const xlstm_rows* x : tensors) {
    if (!x->data) continue;
    aligned = aligned && is_aligned(*x, rows);
    same = same && x->dtype == first.dtype;
  }
  if constexpr (kMixed)
    if (aligned && !same) return f(Kind<Any, true>{});
  if (!aligned)
    f(Kind<Any, false>{});
  else if (first.dtype == XLSTM_FLOAT32)
    f(Kind<float, true>{});
  else if (first.dtype == XLSTM_BFLOAT16)
    f(Kind<BFloat16, true>{});
  else
    f(Kind<Float16, true>{});
}

}  // namespace xlstm::gpu::layer
