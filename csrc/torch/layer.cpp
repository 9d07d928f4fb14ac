// SPDX-License-Identifier: Apache-2.0
// The ops of the layers: tensors into rows of features, results allocated, the C API called.
#include <tuple>

#include "layer/dtypes.h"
#include "torch/check.h"

namespace xlstm::torch_ops {
namespace {

constexpr Call<xlstm_norm_forward> kNorm = {nullptr, xlstm_norm_forward_pass, nullptr, xlstm_gpu_norm_forward_pass};
constexpr Call<xlstm_norm_backward> kNormBackward = {xlstm_norm_backward_workspace, xlstm_norm_backward_pass,
                                                     xlstm_gpu_norm_backward_workspace, xlstm_gpu_norm_backward_pass};
constexpr Call<xlstm_soft_cap> kSoftCap = {nullptr, xlstm_soft_cap_forward_pass, nullptr,
                                           xlstm_gpu_soft_cap_forward_pass};
constexpr Call<xlstm_soft_cap> kSoftCapBackward = {nullptr, xlstm_soft_cap_backward_pass, nullptr,
                                                   xlstm_gpu_soft_cap_backward_pass};
constexpr Call<xlstm_swiglu> kSwiglu = {nullptr, xlstm_swiglu_forward_pass, nullptr, xlstm_gpu_swiglu_forward_pass};
constexpr Call<xlstm_swiglu> kSwigluBackward = {nullptr, xlstm_swiglu_backward_pass, nullptr,
                                                xlstm_gpu_swiglu_backward_pass};
constexpr Call<xlstm_cross_entropy> kCrossEntropy = {nullptr, xlstm_cross_entropy_forward_pass, nullptr,
                                                     xlstm_gpu_cross_entropy_forward_pass};
constexpr Call<xlstm_cross_entropy> kCrossEntropyBackward = {nullptr, xlstm_cross_entropy_backward_pass, nullptr,
                                                             xlstm_gpu_cross_entropy_backward_pass};

ScalarType scalar_type_of(xlstm_dtype dtype) {
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

// A tensor whose last `axes` axes are the features of a row; a copy where no single stride leads from row to row.
struct Rows {
  Tensor tensor;
  xlstm_rows rows;
  int64_t features;

  bool is_dense() const { return rows.stride == features; }
};

bool one_stride(const Tensor& x, int64_t axes, int64_t features, int64_t& stride) {
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

Rows rows_of(const char* name, const Tensor& x, const Tensor& like, int64_t axes = 1) {
  STD_TORCH_CHECK(x.dim() >= axes, name, ": expected ", axes, " dimensions or more, got ", x.dim());
  check_device(name, x, like);
  int64_t features = 1, stride = 0;
  for (int64_t axis = x.dim() - axes; axis < x.dim(); ++axis) features *= x.size(axis);
  const bool as_it_is = one_stride(x, axes, features, stride);
  Tensor held = as_it_is ? x : torch::stable::contiguous(x);
  if (!as_it_is) stride = features;
  return {held, {held.data_ptr(), dtype_of(name, x), stride}, features};
}

// Rows as many as x has, all but the features alike.
void same_shape(const char* name, const Tensor& x, const char* other_name, const Tensor& other) {
  bool same = x.dim() == other.dim();
  for (int64_t axis = 0; same && axis < x.dim(); ++axis) same = x.size(axis) == other.size(axis);
  STD_TORCH_CHECK(same, name, ": expected ", other_name, "'s shape");
}

xlstm_rows vector_of(const char* name, const OptionalTensor& x, const Tensor& like, int64_t size, Tensor& held) {
  if (!x) return {};
  check_shape(name, *x, {size});
  const Rows rows = rows_of(name, *x, like);
  held = rows.tensor;
  return rows.rows;
}

Tensor made(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef shape, xlstm_dtype dtype, xlstm_rows& rows,
            int64_t features) {
  Tensor x = new_tensor(like, shape, scalar_type_of(dtype));
  rows = {x.data_ptr(), dtype, features};
  return x;
}

// What is not wanted: nothing.
Tensor nothing(const Tensor& like) { return torch::stable::new_empty(like, {int64_t(0)}); }

// ---- norms

struct NormInputs {
  const OptionalTensor &weight, &bias;
  double eps;
  Tensor weight_held{}, bias_held{};

  xlstm_norm params(const Rows& x, int64_t heads, bool centred) {
    xlstm_norm p{};
    p.rows = x.features > 0 ? x.tensor.numel() / x.features : 0;
    p.heads = heads;
    p.features = heads > 0 ? x.features / heads : 0;
    p.eps = eps;
    p.centred = centred;
    p.x = x.rows;
    p.weight = vector_of("weight", weight, x.tensor, x.features, weight_held);
    p.bias = vector_of("bias", bias, x.tensor, x.features, bias_held);
    return p;
  }
};

Tensor rms_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, double eps) {
  const Rows rows = rows_of("x", x, x);
  NormInputs inputs{weight, bias, eps};
  xlstm_norm_forward p{};
  p.in = inputs.params(rows, 1, false);
  Tensor y = made(x, x.sizes(), dtypes_of(p.in).y, p.y, rows.features);
  if (x.numel() > 0) run(x, p, kNorm);
  return y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& y, const OptionalTensor& weight,
                                        const OptionalTensor& bias, double eps) {
  same_shape("y", y, "x", x);
  const Rows rows = rows_of("x", x, x), residual = rows_of("y", y, x);
  NormInputs inputs{weight, bias, eps};
  xlstm_norm_forward p{};
  p.in = inputs.params(rows, 1, false);
  p.in.residual = residual.rows;
  const NormDtypes dtypes = dtypes_of(p.in);
  Tensor sum = made(x, x.sizes(), dtypes.sum, p.sum, rows.features);
  Tensor normed = made(x, x.sizes(), dtypes.y, p.y, rows.features);
  if (x.numel() > 0) run(x, p, kNorm);
  return {sum, normed};
}

Tensor head_norm_gate(const Tensor& h, const OptionalTensor& o, const OptionalTensor& weight,
                      const OptionalTensor& bias, double eps, bool centred) {
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
  Tensor y = made(h, shape, dtypes_of(p.in).y, p.y, rows.features);
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
  Tensor dgate = nothing(like), dweight = nothing(like), dbias = nothing(like);
  if (o) {
    gate = rows_of("o", *o, like);
    STD_TORCH_CHECK(gate.features == x.features && o->numel() == like.numel(),
                    "o: expected shape (..., NH * DHHV) with h of shape (..., NH, DHHV)");
    p.in.gate = gate.rows;
    dgate = made(like, o->sizes(), gate.rows.dtype, p.dgate, x.features);
  }
  Tensor dx = made(like, like.sizes(), x.rows.dtype, p.dx, x.features);
  if (inputs.weight) dweight = made(like, {x.features}, p.in.weight.dtype, p.dweight, x.features);
  if (inputs.bias) dbias = made(like, {x.features}, p.in.bias.dtype, p.dbias, x.features);
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

// ---- pointwise

// Dense tensors are one long row.
template <class Params>
void set_extent(Params& p, const Tensor& x, int64_t features, std::initializer_list<const Rows*> inputs) {
  p.features = features;
  p.rows = features > 0 ? x.numel() / features : 0;
  bool dense = true;
  for (const Rows* rows : inputs) dense = dense && rows->is_dense();
  if (dense) p.features *= p.rows, p.rows = 1;
}

Tensor soft_cap(const Tensor& x, double cap) {
  const Rows rows = rows_of("x", x, x);
  xlstm_soft_cap p{};
  set_extent(p, x, rows.features, {&rows});
  p.cap = cap;
  p.x = rows.rows;
  Tensor y = made(x, x.sizes(), p.x.dtype, p.y, rows.features);
  if (x.numel() > 0) run(x, p, kSoftCap);
  return y;
}

Tensor soft_cap_backward(const Tensor& dy, const Tensor& x, double cap) {
  same_shape("dy", dy, "x", x);
  const Rows rows = rows_of("x", x, x), dy_rows = rows_of("dy", dy, x);
  xlstm_soft_cap p{};
  set_extent(p, x, rows.features, {&rows, &dy_rows});
  p.cap = cap;
  p.x = rows.rows;
  p.dy = dy_rows.rows;
  Tensor dx = made(x, x.sizes(), p.x.dtype, p.dx, rows.features);
  if (x.numel() > 0) run(x, p, kSoftCapBackward);
  return dx;
}

// gate and up, of tensors of their own or of halves of one.
struct Halves {
  Rows gate, up;
  std::vector<int64_t> shape;

  Halves(const Tensor& g, const Tensor& u)
      : gate(rows_of("gate", g, g)), up(rows_of("up", u, g)), shape(g.sizes().begin(), g.sizes().end()) {
    same_shape("up", u, "gate", g);
  }
  explicit Halves(const Tensor& both)
      : gate(rows_of("gate_and_up", both, both)), shape(both.sizes().begin(), both.sizes().end()) {
    STD_TORCH_CHECK(gate.features % 2 == 0, "gate_and_up: expected an even last dimension, got ", gate.features);
    shape.back() /= 2;
    up = gate;
    up.rows.data = second_half(gate.rows, shape.back());
    gate.features = up.features = shape.back();
  }
  static void* second_half(const xlstm_rows& rows, int64_t features) {
    const int64_t bytes = rows.dtype == XLSTM_FLOAT64 ? 8 : rows.dtype == XLSTM_FLOAT32 ? 4 : 2;
    return static_cast<char*>(rows.data) + features * bytes;
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    return n;
  }
};

Tensor swiglu_of(const Halves& x) {
  const Tensor& like = x.gate.tensor;
  xlstm_swiglu p{};
  p.gate = x.gate.rows;
  p.up = x.up.rows;
  Tensor y = made(like, x.shape, promoted(p.gate.dtype, p.up.dtype), p.y, x.gate.features);
  set_extent(p, y, x.gate.features, {&x.gate, &x.up});
  if (y.numel() > 0) run(like, p, kSwiglu);
  return y;
}

Tensor swiglu(const Tensor& gate, const Tensor& up) { return swiglu_of(Halves(gate, up)); }
Tensor swiglu_fused(const Tensor& gate_and_up) { return swiglu_of(Halves(gate_and_up)); }

xlstm_swiglu swiglu_backward_params(const Rows& dy, const Halves& x) {
  xlstm_swiglu p{};
  p.gate = x.gate.rows;
  p.up = x.up.rows;
  p.dy = dy.rows;
  return p;
}

std::tuple<Tensor, Tensor> swiglu_backward(const Tensor& dy, const Tensor& gate, const Tensor& up) {
  same_shape("dy", dy, "gate", gate);
  const Rows dy_rows = rows_of("dy", dy, gate);
  const Halves x(gate, up);
  xlstm_swiglu p = swiglu_backward_params(dy_rows, x);
  Tensor dgate = made(gate, gate.sizes(), p.gate.dtype, p.dgate, x.gate.features);
  Tensor dup = made(gate, gate.sizes(), p.up.dtype, p.dup, x.gate.features);
  set_extent(p, dy, x.gate.features, {&dy_rows, &x.gate, &x.up});
  if (dy.numel() > 0) run(gate, p, kSwigluBackward);
  return {dgate, dup};
}

Tensor swiglu_fused_backward(const Tensor& dy, const Tensor& gate_and_up) {
  const Rows dy_rows = rows_of("dy", dy, gate_and_up);
  const Halves x(gate_and_up);
  STD_TORCH_CHECK(dy_rows.features == x.gate.features && dy.numel() == x.numel(),
                  "dy: expected half of gate_and_up's last dimension");
  xlstm_swiglu p = swiglu_backward_params(dy_rows, x);
  p.features = x.gate.features;
  p.rows = p.features > 0 ? dy.numel() / p.features : 0;
  Tensor dx = made(gate_and_up, gate_and_up.sizes(), p.gate.dtype, p.dgate, 2 * p.features);
  p.dup = p.dgate;
  p.dup.data = Halves::second_half(p.dgate, p.features);
  if (dy.numel() > 0) run(gate_and_up, p, kSwigluBackward);
  return dx;
}

// ---- cross entropy

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
  Tensor dlogits = made(logits, logits.sizes(), x.p.logits.dtype, x.p.dlogits, x.p.classes);
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

}  // namespace
}  // namespace xlstm::torch_ops

#define XLSTM_IMPLEMENT(m)                                                \
  m.impl("rms_norm", TORCH_BOX(&rms_norm));                               \
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));                       \
  m.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward));             \
  m.impl("head_norm_gate", TORCH_BOX(&head_norm_gate));                   \
  m.impl("head_norm_gate_backward", TORCH_BOX(&head_norm_gate_backward)); \
  m.impl("soft_cap", TORCH_BOX(&soft_cap));                               \
  m.impl("soft_cap_backward", TORCH_BOX(&soft_cap_backward));             \
  m.impl("swiglu", TORCH_BOX(&swiglu));                                   \
  m.impl("swiglu_fused", TORCH_BOX(&swiglu_fused));                       \
  m.impl("swiglu_backward", TORCH_BOX(&swiglu_backward));                 \
  m.impl("swiglu_fused_backward", TORCH_BOX(&swiglu_fused_backward));     \
  m.impl("cross_entropy", TORCH_BOX(&cross_entropy));                     \
  m.impl("cross_entropy_backward", TORCH_BOX(&cross_entropy_backward));   \
  m.impl("cross_entropy_backward_", TORCH_BOX(&cross_entropy_backward_))

XLSTM_OPS_IMPL(CPU, m) {
  using namespace xlstm::torch_ops;
  XLSTM_IMPLEMENT(m);
}

#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
XLSTM_OPS_IMPL(CUDA, m) {
  using namespace xlstm::torch_ops;
  XLSTM_IMPLEMENT(m);
}
#endif
