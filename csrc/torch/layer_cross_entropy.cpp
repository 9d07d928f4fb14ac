// SPDX-License-Identifier: Apache-2.0
// The loss's ops: they allocate results, or write the gradient into the logits' memory, and call the C API.
#include <tuple>

#include "torch/layer_rows.h"

namespace xlstm::torch_ops {
namespace {

constexpr Call<xlstm_cross_entropy> kCrossEntropy = {xlstm_cross_entropy_forward_pass,
                                                     xlstm_gpu_cross_entropy_forward_pass};
constexpr Call<xlstm_cross_entropy> kCrossEntropyBackward = {xlstm_cross_entropy_backward_pass,
                                                             xlstm_gpu_cross_entropy_backward_pass};

struct Loss {
  Rows logits;
  Tensor targets;
  xlstm_cross_entropy p{};

  Loss(const Tensor& logits_, const Tensor& targets_, std::optional<double> cap, int64_t ignore_index)
      : logits(rows_of("logits", logits_, logits_)), targets(targets_) {
    STD_TORCH_CHECK(logits_.dim() == 2, "logits: expected 2 dimensions (N, V), got ", logits_.dim());
    check_shape("targets", targets, {logits_.size(0)});
    check_device("targets", targets, logits_);
    const ScalarType dtype = targets.scalar_type();
    STD_TORCH_CHECK(dtype == ScalarType::Long || dtype == ScalarType::Byte,
                    "targets: expected class indices, int64 or uint8");
    if (!targets.is_contiguous()) targets = torch::stable::contiguous(targets);
    p.rows = logits_.size(0);
    p.classes = logits_.size(1);
    p.cap = cap.value_or(0);
    p.ignore_index = ignore_index;
    p.logits = logits.rows;
    p.targets = targets.data_ptr();
    p.targets_bytes = dtype == ScalarType::Long ? 8 : 1;
  }
};

std::tuple<Tensor, Tensor> cross_entropy(const Tensor& logits, const Tensor& targets, std::optional<double> cap,
                                         int64_t ignore_index) {
  Loss x(logits, targets, cap, ignore_index);
  Tensor loss = new_tensor(logits, {x.p.rows}, wide_dtype(logits));
  Tensor exps = new_tensor(logits, {x.p.rows, 2}, wide_dtype(logits));
  x.p.loss = loss.data_ptr();
  x.p.exps = exps.data_ptr();
  if (x.p.rows > 0) run(logits, x.p, kCrossEntropy);
  return {loss, exps};
}

void cross_entropy_gradient(const Tensor& dloss, const Tensor& logits, Loss& x, const Tensor& exps) {
  check_shape("dloss", dloss, {x.p.rows});
  check_device("dloss", dloss, logits);
  STD_TORCH_CHECK(dloss.scalar_type() == wide_dtype(logits), "dloss: expected float32, or float64 with float64");
  x.p.dloss = dloss.data_ptr();
  x.p.dloss_stride = dloss.stride(0);
  x.p.exps = wide("exps", exps, logits, {x.p.rows, 2});
  if (x.p.rows > 0) run(logits, x.p, kCrossEntropyBackward);
}

Tensor cross_entropy_backward(const Tensor& dloss, const Tensor& logits, const Tensor& targets, const Tensor& exps,
                              std::optional<double> cap, int64_t ignore_index) {
  Loss x(logits, targets, cap, ignore_index);
  Tensor dlogits = new_rows(logits, logits.sizes(), x.p.logits.dtype, x.p.dlogits, x.p.classes);
  cross_entropy_gradient(dloss, logits, x, exps);
  return dlogits;
}

void cross_entropy_backward_(const Tensor& dloss, const Tensor& logits, const Tensor& targets, const Tensor& exps,
                             std::optional<double> cap, int64_t ignore_index) {
  Loss x(logits, targets, cap, ignore_index);
  STD_TORCH_CHECK(x.logits.rows.data == logits.data_ptr() && (x.p.rows < 2 || x.p.logits.stride >= x.p.classes),
                  "logits: expected rows of contiguous classes, to be overwritten");
  x.p.dlogits = x.p.logits;
  cross_entropy_gradient(dloss, logits, x, exps);
}

// One function serves both devices: the tensors' device decides which call of the C API runs.
void implement(Library& m) {
  m.impl("cross_entropy", TORCH_BOX(&cross_entropy));
  m.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward));
  m.impl("cross_entropy_backward_", TORCH_BOX(&cross_entropy_backward_));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)
