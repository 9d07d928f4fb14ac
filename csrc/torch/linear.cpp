// SPDX-License-Identifier: Apache-2.0
// The op of quantised linear layers for few rows.
#include "torch/layer_rows.h"
#include "torch/quantised_weight.h"

namespace xlstm::torch_ops {
namespace {

// A call's params, and the tensors that hold its memory.
struct __attribute__((visibility("hidden"))) LinearCall {  // as Tensor is
  Rows x;
  xlstm_linear_forward params;

  LinearCall(const Tensor& input, const Tensor& weight, const Tensor& scales, const OptionalTensor& offsets,
             const OptionalTensor& bias)
      : x(rows_of("x", input, input)), params{} {
    const auto holds = [&](const char* name, const Tensor& part) {
      check_device(name, part, input);
      STD_TORCH_CHECK(part.is_contiguous(), name, ": expected a contiguous tensor");
    };
    holds("weight", weight);
    holds("scales", scales);
    if (offsets) holds("offsets", *offsets);
    params.weight = quantised_weight("weight", weight, scales, offsets ? &*offsets : nullptr, x.features);
    if (bias) {
      holds("bias", *bias);
      check_shape("bias", *bias, {params.weight.rows});
      params.weight.bias = {bias->data_ptr(), dtype_of("bias", *bias)};
    }
    params.rows = x.features ? input.numel() / x.features : 0;
    params.x = x.rows;
  }
};

Tensor quantized_linear(const Tensor& x, const Tensor& weight, const Tensor& scales, const OptionalTensor& offsets,
                        const OptionalTensor& bias) {
  LinearCall call(x, weight, scales, offsets, bias);
  std::vector<int64_t> shape;
  for (int64_t axis = 0; axis + 1 < x.dim(); ++axis) shape.push_back(x.size(axis));
  shape.push_back(call.params.weight.rows);
  Tensor y = new_rows(x, shape, call.x.rows.dtype, call.params.y, call.params.weight.rows);
  constexpr Call<xlstm_linear_forward> kLinear = {xlstm_linear_forward_pass, xlstm_gpu_linear_forward_pass};
  run(x, call.params, kLinear);
  return y;
}

// Whether a kernel of x's GPU takes the call; y is aligned as torch aligns a new tensor.
bool quantized_linear_takes(const Tensor& x, const Tensor& weight, const Tensor& scales, const OptionalTensor& offsets,
                            const OptionalTensor& bias) {
  if (x.is_cpu()) return true;
  LinearCall call(x, weight, scales, offsets, bias);
  call.params.y = {call.params.x.data, call.params.x.dtype, call.params.weight.rows};
  const torch::stable::accelerator::DeviceGuard guard(int32_t(x.get_device_index()));
  return xlstm_gpu_linear_forward_takes(&call.params) != 0;
}

void implement(Library& m) {
  m.impl("quantized_linear", TORCH_BOX(&quantized_linear));
  m.impl("quantized_linear_takes", TORCH_BOX(&quantized_linear_takes));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)
