// SPDX-License-Identifier: Apache-2.0
// A quantised weight's tensors as the C API's struct: q (rows, bytes), scales and offsets (rows, groups).
#pragma once

#include "torch/check.h"

namespace xlstm::torch_ops {

// Nibbles are stored as uint8.
inline void set_code(const char* name, ScalarType dtype, xlstm_linear& w) {
  w.bits = dtype == ScalarType::Byte ? 4 : 8;
  w.code = dtype == ScalarType::Float8_e4m3fn     ? XLSTM_CODE_E4M3FN
           : dtype == ScalarType::Float8_e4m3fnuz ? XLSTM_CODE_E4M3FNUZ
                                                  : XLSTM_CODE_INTEGER;
  STD_TORCH_CHECK(w.bits == 4 || w.code != XLSTM_CODE_INTEGER || dtype == ScalarType::Char, name,
                  ": expected int8, uint8, float8_e4m3fn or float8_e4m3fnuz");
}

inline xlstm_linear quantised_weight(const char* name, const Tensor& q, const Tensor& scales, const Tensor* offsets,
                                     int64_t columns) {
  STD_TORCH_CHECK(q.dim() == 2, name, ": expected a matrix");
  xlstm_linear w{};
  w.rows = q.size(0), w.columns = columns;
  w.data = q.data_ptr();
  set_code(name, q.scalar_type(), w);
  check_shape(name, scales, {w.rows, scales.dim() == 2 ? scales.size(1) : 0});
  const int64_t groups = scales.size(1), padded_columns = q.size(1) * 8 / w.bits;
  w.group_size = groups ? padded_columns / groups : 0;
  STD_TORCH_CHECK(groups && w.group_size * groups == padded_columns && columns <= padded_columns &&
                      columns > padded_columns - w.group_size,
                  name, ": expected the groups of ", columns, " columns, got ", groups, " of ", w.group_size);
  w.dtype = dtype_of(name, scales);
  w.scales = scales.data_ptr();
  if (offsets) {
    check_shape(name, *offsets, {w.rows, groups});
    STD_TORCH_CHECK(offsets->scalar_type() == scales.scalar_type(), name, ": expected offsets of scales' dtype");
    w.offsets = offsets->data_ptr();
  }
  return w;
}

}  // namespace xlstm::torch_ops
