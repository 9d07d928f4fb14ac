// SPDX-License-Identifier: Apache-2.0
// The recurrent cells' ops: tensors into params, results allocated, the C API called.
#include <tuple>

#include "torch/check.h"

namespace xlstm::torch_ops {
namespace {

constexpr Call<xlstm_slstm_forward> kForward = {xlstm_slstm_forward_pass, xlstm_gpu_slstm_forward_pass};
constexpr Call<xlstm_slstm_backward> kBackward = {xlstm_slstm_backward_pass, xlstm_gpu_slstm_backward_pass};

struct InitialStates {
  const OptionalTensor &h, &c, &n, &m;
};

// The sizes of one call. x: a tensor of its dtype and device.
struct CellSizes {
  int64_t batch, length, heads, units, sequences;

  CellSizes(const Tensor& tokens, int64_t heads_axis, const OptionalTensor& cu_seqlens)
      : batch(tokens.size(0)),
        length(tokens.size(1)),
        heads(tokens.size(heads_axis)),
        units(tokens.size(heads_axis + 1)),
        sequences(tokens.size(0)) {
    if (!cu_seqlens) return;
    STD_TORCH_CHECK(cu_seqlens->dim() == 1 && cu_seqlens->size(0) >= 2 && cu_seqlens->is_contiguous() &&
                        cu_seqlens->scalar_type() == ScalarType::Long,
                    "cu_seqlens: expected a contiguous int64 vector of N + 1 offsets");
    sequences = cu_seqlens->size(0) - 1;
  }
  Tensor tokens(const Tensor& like, ScalarType dtype) const {
    return new_tensor(like, {batch, length, heads, units}, dtype);
  }
  Tensor kept(const Tensor& like, ScalarType dtype) const {
    return new_tensor(like, {batch, length, 3, heads, units}, dtype);
  }
  Tensor state(const Tensor& like, ScalarType dtype) const {
    return new_tensor(like, {sequences, heads, units}, dtype);
  }
};

void* in_dtype_of(const char* name, const Tensor& t, const Tensor& x, std::initializer_list<int64_t> shape) {
  void* data = contiguous(name, t, x, shape);
  STD_TORCH_CHECK(t.scalar_type() == x.scalar_type(), name, ": expected x's dtype");
  return data;
}

xlstm_slstm params_of(const Tensor& x, const CellSizes& s, const Tensor& recurrent,
                      std::initializer_list<int64_t> recurrent_shape, const InitialStates& initial,
                      const OptionalTensor& cu_seqlens, int64_t cell) {
  STD_TORCH_CHECK(cell >= XLSTM_CELL_SLSTM && cell <= XLSTM_CELL_LSTM, "cell: expected 0 to 2");
  xlstm_slstm p{};
  p.batch = s.batch;
  p.heads = s.heads;
  p.length = s.length;
  p.units = s.units;
  if (cu_seqlens) check_device("cu_seqlens", *cu_seqlens, x);
  if (cu_seqlens) p.cu_seqlens = static_cast<const int64_t*>(cu_seqlens->data_ptr());
  p.sequences = s.sequences;
  p.cell = xlstm_cell(cell);
  p.dtype = dtype_of("x", x);
  p.recurrent = in_dtype_of("recurrent", recurrent, x, recurrent_shape);
  if (initial.h) p.h_initial = in_dtype_of("h_initial", *initial.h, x, {s.sequences, s.heads, s.units});
  p.c_initial = wide("c_initial", initial.c, x, {s.sequences, s.heads, s.units});
  p.n_initial = wide("n_initial", initial.n, x, {s.sequences, s.heads, s.units});
  p.m_initial = wide("m_initial", initial.m, x, {s.sequences, s.heads, s.units});
  return p;
}

xlstm_slstm_forward forward_params(const Tensor& x, const CellSizes& s, const Tensor& recurrent,
                                   const OptionalTensor& bias, const InitialStates& initial,
                                   const OptionalTensor& cu_seqlens, int64_t cell) {
  STD_TORCH_CHECK(x.dim() == 5 && x.size(2) == 4, "x: expected 5 dimensions (B, S, 4, NH, U)");
  STD_TORCH_CHECK(x.stride(4) == 1 || s.units == 1, "x: expected the last dimension to be contiguous");
  const int64_t padded = xlstm_slstm_padded(s.units);
  xlstm_slstm_forward p{};
  p.in = params_of(x, s, recurrent, {s.heads, 4, padded, padded}, initial, cu_seqlens, cell);
  p.x = x.data_ptr();
  for (int axis = 0; axis < 4; ++axis) p.x_stride[axis] = x.stride(axis);
  p.bias = wide("bias", bias, x, {4, s.heads, s.units});
  return p;
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Forward slstm_forward(const Tensor& x, const Tensor& recurrent, const OptionalTensor& bias, const OptionalTensor& h0,
                      const OptionalTensor& c0, const OptionalTensor& n0, const OptionalTensor& m0,
                      const OptionalTensor& cu_seqlens, int64_t cell, bool keep, bool stabilisers) {
  STD_TORCH_CHECK(x.dim() == 5, "x: expected 5 dimensions (B, S, 4, NH, U)");
  const CellSizes s(x, 3, cu_seqlens);
  xlstm_slstm_forward p = forward_params(x, s, recurrent, bias, {h0, c0, n0, m0}, cu_seqlens, cell);
  const bool has_n = cell != XLSTM_CELL_LSTM;
  const ScalarType narrow = x.scalar_type(), wide_type = wide_dtype(x);
  const auto none = [&] { return new_tensor(x, {0}, wide_type); };
  Tensor h = s.tokens(x, narrow), h_last = s.state(x, narrow), c_last = s.state(x, wide_type);
  Tensor n_last = has_n ? s.state(x, wide_type) : none(), m_last = has_n ? s.state(x, wide_type) : none();
  Tensor gates = keep ? s.kept(x, narrow) : none(), memory = keep ? s.kept(x, wide_type) : none();
  Tensor m = stabilisers && has_n ? s.tokens(x, wide_type) : none();
  const auto data = [](const Tensor& t) { return t.numel() ? t.data_ptr() : nullptr; };
  p.h = h.data_ptr();
  p.h_last = h_last.data_ptr();
  p.c_last = c_last.data_ptr();
  p.n_last = data(n_last);
  p.m_last = data(m_last);
  p.gates = data(gates);
  p.memory = data(memory);
  p.m = data(m);
  run(x, p, kForward);
  return {h, h_last, c_last, n_last, m_last, gates, memory, m};
}

// One token, states in place.
Tensor slstm_step_(const Tensor& x, const Tensor& recurrent, const OptionalTensor& bias, const Tensor& h,
                   const Tensor& c, const OptionalTensor& n, const OptionalTensor& m, int64_t cell) {
  STD_TORCH_CHECK(x.dim() == 5 && x.size(1) == 1, "x: expected 5 dimensions (B, 1, 4, NH, U)");
  const CellSizes s(x, 3, std::nullopt);
  xlstm_slstm_forward p = forward_params(x, s, recurrent, bias, {h, c, n, m}, std::nullopt, cell);
  Tensor out = s.tokens(x, x.scalar_type());
  p.h = out.data_ptr();
  p.h_last = h.data_ptr();
  p.c_last = c.data_ptr();
  if (n) p.n_last = n->data_ptr();
  if (m) p.m_last = m->data_ptr();
  run(x, p, kForward);
  return out;
}

using Backward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Backward slstm_backward(const Tensor& dh, const Tensor& recurrent, const Tensor& gates, const Tensor& memory,
                        const OptionalTensor& c0, const OptionalTensor& n0, const OptionalTensor& cu_seqlens,
                        const OptionalTensor& dc, const OptionalTensor& dn, const OptionalTensor& dm,
                        const OptionalTensor& dc_last, const OptionalTensor& dn_last, const OptionalTensor& dm_last,
                        int64_t cell, bool bias, bool initial) {
  STD_TORCH_CHECK(dh.dim() == 4, "dh: expected 4 dimensions (B, S, NH, U)");
  const CellSizes s(dh, 2, cu_seqlens);
  const int64_t padded = xlstm_slstm_padded(s.units);
  const bool has_n = cell != XLSTM_CELL_LSTM;
  const OptionalTensor none;
  xlstm_slstm_backward p{};
  p.in = params_of(dh, s, recurrent, {s.heads, padded, 4, padded}, {none, none, none, none}, cu_seqlens, cell);
  const ScalarType wide_type = wide_dtype(dh);
  const auto of_sequences = [&](const char* name, const OptionalTensor& t) {
    return wide(name, t, dh, {s.sequences, s.heads, s.units});
  };
  const auto of_tokens = [&](const char* name, const OptionalTensor& t) {
    return wide(name, t, dh, {s.batch, s.length, s.heads, s.units});
  };
  p.in.c_initial = of_sequences("c_initial", c0);
  p.in.n_initial = of_sequences("n_initial", n0);
  p.gates = in_dtype_of("gates", gates, dh, {s.batch, s.length, 3, s.heads, s.units});
  p.memory = wide("memory", memory, dh, {s.batch, s.length, 3, s.heads, s.units});
  p.dh = in_dtype_of("dh", dh, dh, {s.batch, s.length, s.heads, s.units});
  p.dc = of_tokens("dc", dc);
  p.dn = of_tokens("dn", dn);
  p.dm = of_tokens("dm", dm);
  p.dc_last = of_sequences("dc_last", dc_last);
  p.dn_last = of_sequences("dn_last", dn_last);
  p.dm_last = of_sequences("dm_last", dm_last);
  Tensor dx = new_tensor(dh, {s.batch, s.length, 4, s.heads, s.units}, dh.scalar_type());
  p.dx = dx.data_ptr();
  Tensor dbias = bias ? new_tensor(dh, {s.sequences, 4, s.heads, s.units}, wide_type) : new_tensor(dh, {0}, wide_type);
  if (bias) p.dbias = dbias.data_ptr();
  const auto gradient = [&](bool is_wanted) {
    return is_wanted ? s.state(dh, wide_type) : new_tensor(dh, {0}, wide_type);
  };
  Tensor of_h = gradient(initial), of_c = gradient(initial);
  Tensor of_n = gradient(initial && has_n), of_m = gradient(initial && has_n);
  if (initial) p.dh_initial = of_h.data_ptr(), p.dc_initial = of_c.data_ptr();
  if (initial && has_n) p.dn_initial = of_n.data_ptr(), p.dm_initial = of_m.data_ptr();
  run(dh, p, kBackward);
  return {dx, dbias, of_h, of_c, of_n, of_m};
}

void implement(Library& m) {
  m.impl("slstm_forward", TORCH_BOX(&slstm_forward));
  m.impl("slstm_step_", TORCH_BOX(&slstm_step_));
  m.impl("slstm_backward", TORCH_BOX(&slstm_backward));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)
