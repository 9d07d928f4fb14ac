// SPDX-License-Identifier: Apache-2.0
// The dtypes of the layers' results and of their intermediate roundings, which follow torch's type promotion. Always
// inline, because CPU kernels are compiled for several instruction sets.
#pragma once

#include "base/host_device.h"
#include "xlstm_hip.h"

namespace xlstm {

[[gnu::always_inline]] inline xlstm_dtype promoted(xlstm_dtype a, xlstm_dtype b) {
  if (a == b) return a;
  return a == XLSTM_FLOAT64 || b == XLSTM_FLOAT64 ? XLSTM_FLOAT64 : XLSTM_FLOAT32;  // bfloat16 with float16 too
}

struct NormDtypes {
  xlstm_dtype sum, n, weighted, z, gate, y;  // z: with the bias, before the gate
};
[[gnu::always_inline]] inline NormDtypes dtypes_of(const xlstm_norm& in) {
  NormDtypes d;
  d.sum = d.n = in.residual.data ? promoted(in.x.dtype, in.residual.dtype) : in.x.dtype;
  d.weighted = in.weight.data ? promoted(d.n, in.weight.dtype) : d.n;
  d.z = in.bias.data ? promoted(d.weighted, in.bias.dtype) : d.weighted;
  d.gate = in.gate.dtype;
  d.y = in.gate.data ? promoted(d.z, in.gate.dtype) : d.z;
  return d;
}

// Whether sums are double: they are if some tensor is.
[[gnu::always_inline]] inline bool is_double(const xlstm_norm& in) { return dtypes_of(in).y == XLSTM_FLOAT64; }

[[gnu::always_inline]] XLSTM_HOST_DEVICE inline int64_t class_of(const xlstm_cross_entropy& p, int64_t row) {
  return p.targets_bytes == 8 ? static_cast<const int64_t*>(p.targets)[row]
                              : static_cast<const uint8_t*>(p.targets)[row];
}

}  // namespace xlstm
