// SPDX-License-Identifier: Apache-2.0
// The shared functions of the layers' ops: tensors as rows of features, and results as rows.
#pragma once

#include "layer/dtypes.h"
#include "torch/check.h"

namespace xlstm::torch_ops {

inline ScalarType scalar_type_of(xlstm_dtype dtype) {
  switch (dtype) {
    case XLSTM_FLOAT32:
      return ScalarType::Float;
    case XLSTM_BFLOAT16:
      return ScalarType::BFloat16;
    case XLSTM_FLOAT16:
      return ScalarType::Half;
    default:
      return ScalarType::Double;
  }
}

// A tensor whose last `axes` axes are the features of a row; a contiguous copy where the rows have no single stride.
struct __attribute__((visibility("hidden"))) Rows {  // as Tensor is
  Tensor tensor;
  xlstm_rows rows;
  int64_t features;

  bool is_dense() const { return rows.stride == features; }
};

inline bool one_stride(const Tensor& x, int64_t axes, int64_t features, int64_t& stride) {
  int64_t extent = 1;
  for (int64_t axis = x.dim() - 1; axis >= x.dim() - axes; --axis) {
    if (x.size(axis) != 1 && x.stride(axis) != extent) return false;
    extent *= x.size(axis);
  }
  stride = features;
  bool first = true;
  for (int64_t axis = x.dim() - axes - 1; axis >= 0; --axis) {
    if (x.size(axis) == 1) continue;
    if (first) stride = extent = x.stride(axis);
    if (!first && x.stride(axis) != extent) return false;
    first = false;
    extent *= x.size(axis);
  }
  return true;
}

inline Rows rows_of(const char* name, const Tensor& x, const Tensor& like, int64_t axes = 1) {
  STD_TORCH_CHECK(x.dim() >= axes, name, ": expected ", axes, " dimensions or more, got ", x.dim());
  check_device(name, x, like);
  int64_t features = 1, stride = 0;
  for (int64_t axis = x.dim() - axes; axis < x.dim(); ++axis) features *= x.size(axis);
  const bool has_one_stride = one_stride(x, axes, features, stride);
  Tensor storage = has_one_stride ? x : torch::stable::contiguous(x);
  if (!has_one_stride) stride = features;
  return {storage, {storage.data_ptr(), dtype_of(name, x), stride}, features};
}

// Checks that two tensors have the same shape.
inline void same_shape(const char* name, const Tensor& x, const char* other_name, const Tensor& other) {
  bool same = x.dim() == other.dim();
  for (int64_t axis = 0; same && axis < x.dim(); ++axis) same = x.size(axis) == other.size(axis);
  STD_TORCH_CHECK(same, name, ": expected ", other_name, "'s shape");
}

inline xlstm_rows vector_of(const char* name, const OptionalTensor& x, const Tensor& like, int64_t size,
                            Tensor& storage) {
  if (!x) return {};
  check_shape(name, *x, {size});
  const Rows rows = rows_of(name, *x, like);
  storage = rows.tensor;
  return rows.rows;
}

inline Tensor new_rows(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef shape, xlstm_dtype dtype,
                       xlstm_rows& rows, int64_t features) {
  Tensor x = new_tensor(like, shape, scalar_type_of(dtype));
  rows = {x.data_ptr(), dtype, features};
  return x;
}

}  // namespace xlstm::torch_ops
