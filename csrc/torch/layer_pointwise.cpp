// SPDX-License-Identifier: Apache-2.0
// The ops of the soft cap and of SwiGLU: results allocated, the C API called.
#include <tuple>

#include "torch/layer_rows.h"

namespace xlstm::torch_ops {
namespace {

constexpr Call<xlstm_soft_cap> kSoftCap = {xlstm_soft_cap_forward_pass, xlstm_gpu_soft_cap_forward_pass};
constexpr Call<xlstm_soft_cap> kSoftCapBackward = {xlstm_soft_cap_backward_pass, xlstm_gpu_soft_cap_backward_pass};
constexpr Call<xlstm_swiglu> kSwiglu = {xlstm_swiglu_forward_pass, xlstm_gpu_swiglu_forward_pass};
constexpr Call<xlstm_swiglu> kSwigluBackward = {xlstm_swiglu_backward_pass, xlstm_gpu_swiglu_backward_pass};

// Sets rows and features; dense tensors become one long row.
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
  Tensor y = new_rows(x, x.sizes(), p.x.dtype, p.y, rows.features);
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
  Tensor dx = new_rows(x, x.sizes(), p.x.dtype, p.dx, rows.features);
  if (x.numel() > 0) run(x, p, kSoftCapBackward);
  return dx;
}

// gate and up, from two tensors or from the halves of one.
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
  Tensor y = new_rows(like, x.shape, promoted(p.gate.dtype, p.up.dtype), p.y, x.gate.features);
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
  Tensor dgate = new_rows(gate, gate.sizes(), p.gate.dtype, p.dgate, x.gate.features);
  Tensor dup = new_rows(gate, gate.sizes(), p.up.dtype, p.dup, x.gate.features);
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
  Tensor dx = new_rows(gate_and_up, gate_and_up.sizes(), p.gate.dtype, p.dgate, 2 * p.features);
  p.dup = p.dgate;
  p.dup.data = Halves::second_half(p.dgate, p.features);
  if (dy.numel() > 0) run(gate_and_up, p, kSwigluBackward);
  return dx;
}

// One function serves both devices: the tensors' device decides which call of the C API runs.
void implement(Library& m) {
  m.impl("soft_cap", TORCH_BOX(&soft_cap));
  m.impl("soft_cap_backward", TORCH_BOX(&soft_cap_backward));
  m.impl("swiglu", TORCH_BOX(&swiglu));
  m.impl("swiglu_fused", TORCH_BOX(&swiglu_fused));
  m.impl("swiglu_backward", TORCH_BOX(&swiglu_backward));
  m.impl("swiglu_fused_backward", TORCH_BOX(&swiglu_fused_backward));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)
