// SPDX-License-Identifier: Apache-2.0
// From the tensors of a call to the kernel that is compiled for them.
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

template <class E, bool kWhole_>
struct Kind {
  using Element = E;
  static constexpr bool kWhole = kWhole_;
};

// f(Kind) of the kernel for these tensors, those without data left out. features: those that chunks must be whole of.
// kMixed: whether dtypes may differ.
template <bool kMixed, class F>
void with_kind(int64_t rows, int64_t features, std::initializer_list<const xlstm_rows*> tensors, F&& f) {
  const xlstm_rows& first = **tensors.begin();
  bool same = true, whole = features % kChunk == 0;
  for (const xlstm_rows* x : tensors) {
    if (!x->data) continue;
    whole = whole && is_aligned(*x, rows);
    same = same && x->dtype == first.dtype;
  }
  if constexpr (kMixed)
    if (whole && !same) return f(Kind<Any, true>{});
  if (!whole)
    f(Kind<Any, false>{});
  else if (first.dtype == XLSTM_FLOAT32)
    f(Kind<float, true>{});
  else if (first.dtype == XLSTM_BFLOAT16)
    f(Kind<BFloat16, true>{});
  else
    f(Kind<Float16, true>{});
}

}  // namespace xlstm::gpu::layer
