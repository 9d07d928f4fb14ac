// SPDX-License-Identifier: Apache-2.0
// The norms' ops: results allocated, the C API called.
#include <tuple>

#include "torch/layer_rows.h"

namespace xlstm::torch_ops {
namespace {

constexpr Call<xlstm_norm_forward> kNorm = {xlstm_norm_forward_pass, xlstm_gpu_norm_forward_pass};
constexpr Call<xlstm_norm_backward> kNormBackward = {xlstm_norm_backward_pass, xlstm_gpu_norm_backward_pass};

// The result for a gradient that is not requested.
Tensor empty_tensor(const Tensor& like) { return torch::stable::new_empty(like, {int64_t(0)}); }

// The dtype of a norm's result, where the caller does not leave it to torch's promotion.
using OptionalDtype = std::optional<ScalarType>;

struct NormInputs {
  const OptionalTensor &weight, &bias;
  double eps;
  Tensor weight_storage{}, bias_storage{};

  xlstm_norm params(const Rows& x, int64_t heads, bool centred) {
    xlstm_norm p{};
    p.rows = x.features > 0 ? x.tensor.numel() / x.features : 0;
    p.heads = heads;
    p.features = heads > 0 ? x.features / heads : 0;
    p.eps = eps;
    p.centred = centred;
    p.x = x.rows;
    p.weight = vector_of("weight", weight, x.tensor, x.features, weight_storage);
    p.bias = vector_of("bias", bias, x.tensor, x.features, bias_storage);
    return p;
  }
};

xlstm_dtype result_dtype(const NormDtypes& dtypes, const OptionalDtype& asked) {
  return asked ? dtype_of("out_dtype", *asked) : dtypes.y;
}

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, double eps,
                const OptionalDtype& out_dtype) {
  const Rows rows = rows_of("x", x, x);
  NormInputs inputs{weight, bias, eps};
  xlstm_norm_forward p{};
  p.in = inputs.params(rows, 1, false);
  Tensor y = new_rows(x, x.sizes(), result_dtype(dtypes_of(p.in), out_dtype), p.y, rows.features);
  if (x.numel() > 0) run(x, p, kNorm);
  return y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& y, const OptionalTensor& weight,
                                        const OptionalTensor& bias, double eps, const OptionalDtype& out_dtype) {
  same_shape("y", y, "x", x);
  const Rows rows = rows_of("x", x, x), residual = rows_of("y", y, x);
  NormInputs inputs{weight, bias, eps};
  xlstm_norm_forward p{};
  p.in = inputs.params(rows, 1, false);
  p.in.residual = residual.rows;
  const NormDtypes dtypes = dtypes_of(p.in);
  Tensor sum = new_rows(x, x.sizes(), dtypes.sum, p.sum, rows.features);
  Tensor normed = new_rows(x, x.sizes(), result_dtype(dtypes, out_dtype), p.y, rows.features);
  if (x.numel() > 0) run(x, p, kNorm);
  return {sum, normed};
}

Tensor head_norm_gate(const Tensor& h, const OptionalTensor& o, const OptionalTensor& weight,
                      const OptionalTensor& bias, double eps, bool centred, const OptionalDtype& out_dtype) {
  const Rows rows = rows_of("h", h, h, 2);
  NormInputs inputs{weight, bias, eps};
  xlstm_norm_forward p{};
  p.in = inputs.params(rows, h.size(h.dim() - 2), centred);
  std::vector<int64_t> shape(h.sizes().begin(), h.sizes().end() - 2);
  shape.push_back(rows.features);
  Rows gate;
  if (o) {
    gate = rows_of("o", *o, h);
    STD_TORCH_CHECK(gate.features == rows.features && o->numel() == h.numel(),
                    "o: expected shape (..., NH * DHHV) with h of shape (..., NH, DHHV)");
    p.in.gate = gate.rows;
  }
  Tensor y = new_rows(h, shape, result_dtype(dtypes_of(p.in), out_dtype), p.y, rows.features);
  if (h.numel() > 0) run(h, p, kNorm);
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> norm_backward(const Tensor& dy, const OptionalTensor& dsum, const Rows& x,
                                                         int64_t heads, const OptionalTensor& o, bool centred,
                                                         NormInputs inputs) {
  const Tensor& like = x.tensor;
  xlstm_norm_backward p{};
  p.in = inputs.params(x, heads, centred);
  STD_TORCH_CHECK(dy.numel() == like.numel(), "dy: expected as many elements as the norm has");
  const Rows dy_rows = rows_of("dy", dy, like);
  STD_TORCH_CHECK(dy_rows.features == x.features, "dy: expected the shape of the norm");
  p.dy = dy_rows.rows;
  Rows dsum_rows, gate;
  if (dsum) {
    same_shape("dtotal", *dsum, "x", like);
    dsum_rows = rows_of("dtotal", *dsum, like);
    p.dsum = dsum_rows.rows;
  }
  Tensor dgate = empty_tensor(like), dweight = empty_tensor(like), dbias = empty_tensor(like);
  if (o) {
    gate = rows_of("o", *o, like);
    STD_TORCH_CHECK(gate.features == x.features && o->numel() == like.numel(),
                    "o: expected shape (..., NH * DHHV) with h of shape (..., NH, DHHV)");
    p.in.gate = gate.rows;
    dgate = new_rows(like, o->sizes(), gate.rows.dtype, p.dgate, x.features);
  }
  Tensor dx = new_rows(like, like.sizes(), x.rows.dtype, p.dx, x.features);
  if (inputs.weight) dweight = new_rows(like, {x.features}, p.in.weight.dtype, p.dweight, x.features);
  if (inputs.bias) dbias = new_rows(like, {x.features}, p.in.bias.dtype, p.dbias, x.features);
  if (like.numel() > 0) {
    run(like, p, kNormBackward);
  } else {
    torch::stable::zero_(dweight);
    torch::stable::zero_(dbias);
  }
  return {dx, dgate, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_backward(const Tensor& dy, const OptionalTensor& dtotal, const Tensor& x,
                                                     const OptionalTensor& weight, const OptionalTensor& bias,
                                                     double eps) {
  const OptionalTensor none;
  const auto [dx, dgate, dweight, dbias] =
      norm_backward(dy, dtotal, rows_of("x", x, x), 1, none, false, {weight, bias, eps});
  return {dx, dweight, dbias};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> head_norm_gate_backward(const Tensor& dy, const Tensor& h,
                                                                   const OptionalTensor& o,
                                                                   const OptionalTensor& weight,
                                                                   const OptionalTensor& bias, double eps,
                                                                   bool centred) {
  const Rows rows = rows_of("h", h, h, 2);
  const OptionalTensor none;
  return norm_backward(dy, none, rows, h.size(h.dim() - 2), o, centred, {weight, bias, eps});
}

// One function serves both devices: the tensors' device decides which call of the C API runs.
void implement(Library& m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  m.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));
  m.impl("head_norm_gate", TORCH_BOX(&head_norm_gate));
  m.impl("head_norm_gate_backward", TORCH_BOX(&head_norm_gate_backward));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)
