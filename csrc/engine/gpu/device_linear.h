// SPDX-License-Identifier: Apache-2.0
// A linear layer's weights as kernels see them.
#pragma once

#include "base/numbers.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

inline bool is_aligned16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

inline DeviceLinear linear_of(const xlstm_linear& w) {
  DeviceLinear d{};
  d.data = w.data, d.scales = w.scales, d.offsets = w.offsets;
  d.bias = {w.bias.data, w.bias.dtype};
  d.rows = int(w.rows), d.columns = int(w.columns), d.bits = w.bits, d.code = w.code, d.dtype = w.dtype;
  d.group_size = int(w.group_size);
  d.groups = w.bits ? int(ceil_div(w.columns, w.group_size)) : 0;
  d.row_bytes = w.bits ? int64_t(d.groups) * w.group_size * w.bits / 8 : w.columns * (w.dtype == XLSTM_FLOAT32 ? 4 : 2);
  d.is_aligned16 = d.row_bytes % 16 == 0 && is_aligned16(w.data);
  return d;
}

}  // namespace xlstm::gpu::engine
