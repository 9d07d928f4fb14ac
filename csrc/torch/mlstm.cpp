// SPDX-License-Identifier: Apache-2.0
// The mLSTM ops: tensors into params, results allocated, the C API called.
#include <tuple>

#include "torch/check.h"

namespace xlstm::torch_ops {
namespace {

constexpr Call<xlstm_mlstm_forward> kChunkwise = {xlstm_mlstm_chunkwise, xlstm_gpu_mlstm_chunkwise};
constexpr Call<xlstm_mlstm_forward> kRecurrent = {xlstm_mlstm_recurrent, xlstm_gpu_mlstm_recurrent};
constexpr Call<xlstm_mlstm_backward> kBackward = {xlstm_mlstm_backward_pass, xlstm_gpu_mlstm_backward_pass};

// The sizes of one call, and results of these sizes.
struct Shapes {
  int64_t batch, heads, length, dqk, dhv, sequences;
  bool bshd;

  Tensor tokens(const Tensor& like, int64_t features, ScalarType dtype) const {  // (B, NH, S, features)
    if (!bshd) return new_tensor(like, {batch, heads, length, features}, dtype);
    return torch::stable::transpose(new_tensor(like, {batch, length, heads, features}, dtype), 1, 2);
  }
  Tensor gates(const Tensor& like) const {  // (B, NH, S)
    if (!bshd) return new_tensor(like, {batch, heads, length}, like.scalar_type());
    return torch::stable::transpose(new_tensor(like, {batch, length, heads}, like.scalar_type()), 1, 2);
  }
  Tensor c(const Tensor& q) const { return new_tensor(q, {sequences, heads, dqk, dhv}, wide_dtype(q)); }
  Tensor n(const Tensor& q) const { return new_tensor(q, {sequences, heads, dqk}, wide_dtype(q)); }
  Tensor m(const Tensor& q) const { return new_tensor(q, {sequences, heads, 1}, wide_dtype(q)); }
};

Shapes shapes_of(const Tensor& q, const Tensor& v, const OptionalTensor& cu_seqlens, bool bshd) {
  STD_TORCH_CHECK(q.dim() == 4, "q: expected 4 dimensions (B, NH, S, DHQK)");
  STD_TORCH_CHECK(v.dim() == 4, "v: expected 4 dimensions (B, NH, S, DHHV)");
  int64_t sequences = q.size(0);
  if (cu_seqlens) {
    STD_TORCH_CHECK(cu_seqlens->dim() == 1 && cu_seqlens->size(0) >= 2 && cu_seqlens->is_contiguous() &&
                        cu_seqlens->scalar_type() == ScalarType::Long,
                    "cu_seqlens: expected a contiguous int64 vector of N + 1 offsets");
    sequences = cu_seqlens->size(0) - 1;
  }
  return {q.size(0), q.size(1), q.size(2), q.size(3), v.size(3), sequences, bshd};
}

struct Inputs {
  const Tensor &q, &k, &v, &i, &f;
  const OptionalTensor &c, &n, &m, &cu_seqlens;
};

// How a call is split into blocks and segments, the parameters that autotune tries; 0 lets the plan choose.
struct Tuning {
  int64_t chunk_size, segments = 0, walk_chunk = 0, step_columns = 0;
};

xlstm_mlstm params_of(const Inputs& x, const Shapes& s, bool sigmoid_gate, bool normalize, double eps,
                      const Tuning& tuning) {
  xlstm_mlstm p{};
  p.batch = s.batch;
  p.heads = s.heads;
  p.length = s.length;
  p.dqk = s.dqk;
  p.dhv = s.dhv;
  if (x.cu_seqlens) check_device("cu_seqlens", *x.cu_seqlens, x.q);
  if (x.cu_seqlens) p.cu_seqlens = static_cast<const int64_t*>(x.cu_seqlens->data_ptr());
  p.sequences = s.sequences;
  p.gate = sigmoid_gate ? XLSTM_GATE_SIGMOID : XLSTM_GATE_EXP;
  p.normalize = normalize;
  p.normalizer_grad = 1;
  p.eps = eps;
  p.chunk_size = tuning.chunk_size;
  p.segments = tuning.segments;
  p.walk_chunk = tuning.walk_chunk;
  p.step_columns = tuning.step_columns;
  p.q = view("q", x.q, x.q, {s.batch, s.heads, s.length, s.dqk}, true);
  p.k = view("k", x.k, x.q, {s.batch, s.heads, s.length, s.dqk}, true);
  p.v = view("v", x.v, x.q, {s.batch, s.heads, s.length, s.dhv}, true);
  p.i = view("i", x.i, x.q, {s.batch, s.heads, s.length}, false);
  p.f = view("f", x.f, x.q, {s.batch, s.heads, s.length}, false);
  p.c_initial = wide("c_initial", x.c, x.q, {s.sequences, s.heads, s.dqk, s.dhv});
  p.n_initial = wide("n_initial", x.n, x.q, {s.sequences, s.heads, s.dqk});
  p.m_initial = wide("m_initial", x.m, x.q, {s.sequences, s.heads, 1});
  return p;
}

using HL = std::tuple<Tensor, Tensor>;
using HLStates = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

HLStates forward(const Inputs& x, bool sigmoid_gate, bool normalize, double eps, const Tuning& tuning, bool bshd,
                 bool states, bool recurrent) {
  const Shapes s = shapes_of(x.q, x.v, x.cu_seqlens, bshd);
  xlstm_mlstm_forward p{};
  p.in = params_of(x, s, sigmoid_gate, normalize, eps, tuning);
  Tensor h = s.tokens(x.q, s.dhv, x.q.scalar_type());
  Tensor l = new_tensor(x.q, {s.batch, s.heads, s.length}, wide_dtype(x.q));
  p.h = view("h", h, x.q, {s.batch, s.heads, s.length, s.dhv}, true);
  p.l = l.data_ptr();
  Tensor c, n, m;
  if (states) {
    c = s.c(x.q), n = s.n(x.q), m = s.m(x.q);
    p.c_last = c.data_ptr();
    p.n_last = n.data_ptr();
    p.m_last = m.data_ptr();
  }
  run(x.q, p, recurrent ? kRecurrent : kChunkwise);
  return {h, l, c, n, m};
}

HL mlstm_chunkwise(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                   const OptionalTensor& c, const OptionalTensor& n, const OptionalTensor& m,
                   const OptionalTensor& cu_seqlens, bool sigmoid_gate, bool normalize, double eps, int64_t chunk_size,
                   bool bshd, int64_t segments, int64_t walk_chunk) {
  const HLStates r = forward({q, k, v, i, f, c, n, m, cu_seqlens}, sigmoid_gate, normalize, eps,
                             {chunk_size, segments, walk_chunk}, bshd, false, false);
  return {std::get<0>(r), std::get<1>(r)};
}

HLStates mlstm_chunkwise_states(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                                const OptionalTensor& c, const OptionalTensor& n, const OptionalTensor& m,
                                const OptionalTensor& cu_seqlens, bool sigmoid_gate, bool normalize, double eps,
                                int64_t chunk_size, bool bshd, int64_t segments, int64_t walk_chunk) {
  return forward({q, k, v, i, f, c, n, m, cu_seqlens}, sigmoid_gate, normalize, eps, {chunk_size, segments, walk_chunk},
                 bshd, true, false);
}

HLStates mlstm_sequence(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                        const OptionalTensor& c, const OptionalTensor& n, const OptionalTensor& m,
                        const OptionalTensor& cu_seqlens, bool sigmoid_gate, bool normalize, double eps, bool bshd,
                        int64_t step_columns) {
  // Token by token, a float state takes a rounding per token and is moved through memory for each. So on a CPU
  // sequences longer than a chunk run the chunkwise kernel.
  constexpr int64_t kChunk = 64;
  const bool recurrent = !q.is_cpu() || (q.dim() == 4 && q.size(2) <= kChunk);
  return forward({q, k, v, i, f, c, n, m, cu_seqlens}, sigmoid_gate, normalize, eps,
                 {recurrent ? 1 : kChunk, 0, 0, step_columns}, bshd, true, recurrent);
}

using Grads = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;
using GradsStates = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

struct Cotangents {
  const Tensor &h, &l, &dh;
  const OptionalTensor &dc, &dn, &dm;
};

GradsStates backward(const Inputs& x, const Cotangents& y, bool sigmoid_gate, bool normalize, bool normalizer_grad,
                     double eps, const Tuning& tuning, bool bshd, bool states) {
  const Shapes s = shapes_of(x.q, x.v, x.cu_seqlens, bshd);
  xlstm_mlstm_backward p{};
  p.in = params_of(x, s, sigmoid_gate, normalize, eps, tuning);
  p.in.normalizer_grad = normalizer_grad;
  p.h = view("h", y.h, x.q, {s.batch, s.heads, s.length, s.dhv}, true);
  p.dh = view("dh", y.dh, x.q, {s.batch, s.heads, s.length, s.dhv}, true);
  p.l = wide("l", y.l, x.q, {s.batch, s.heads, s.length});
  p.dc_last = wide("dc_last", y.dc, x.q, {s.sequences, s.heads, s.dqk, s.dhv});
  p.dn_last = wide("dn_last", y.dn, x.q, {s.sequences, s.heads, s.dqk});
  p.dm_last = wide("dm_last", y.dm, x.q, {s.sequences, s.heads, 1});
  const ScalarType dtype = x.q.scalar_type();
  Tensor dq = s.tokens(x.q, s.dqk, dtype), dk = s.tokens(x.q, s.dqk, dtype), dv = s.tokens(x.q, s.dhv, dtype);
  Tensor di = s.gates(x.i), df = s.gates(x.f);
  p.dq = view("dq", dq, x.q, {s.batch, s.heads, s.length, s.dqk}, true);
  p.dk = view("dk", dk, x.q, {s.batch, s.heads, s.length, s.dqk}, true);
  p.dv = view("dv", dv, x.q, {s.batch, s.heads, s.length, s.dhv}, true);
  p.di = view("di", di, x.q, {s.batch, s.heads, s.length}, false);
  p.df = view("df", df, x.q, {s.batch, s.heads, s.length}, false);
  Tensor dc, dn, dm;
  if (states) {
    dc = s.c(x.q), dn = s.n(x.q), dm = s.m(x.q);
    p.dc_initial = dc.data_ptr();
    p.dn_initial = dn.data_ptr();
    p.dm_initial = dm.data_ptr();
  }
  run(x.q, p, kBackward);
  return {dq, dk, dv, di, df, dc, dn, dm};
}

Grads mlstm_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                     const OptionalTensor& c, const OptionalTensor& n, const OptionalTensor& m,
                     const OptionalTensor& cu_seqlens, const Tensor& h, const Tensor& l, const Tensor& dh,
                     const OptionalTensor& dc, const OptionalTensor& dn, const OptionalTensor& dm, bool sigmoid_gate,
                     bool normalize, bool normalizer_grad, double eps, int64_t chunk_size, bool bshd, int64_t segments,
                     int64_t walk_chunk) {
  const GradsStates r = backward({q, k, v, i, f, c, n, m, cu_seqlens}, {h, l, dh, dc, dn, dm}, sigmoid_gate, normalize,
                                 normalizer_grad, eps, {chunk_size, segments, walk_chunk}, bshd, false);
  return {std::get<0>(r), std::get<1>(r), std::get<2>(r), std::get<3>(r), std::get<4>(r)};
}

GradsStates mlstm_backward_states(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f,
                                  const Tensor& c, const Tensor& n, const Tensor& m, const OptionalTensor& cu_seqlens,
                                  const Tensor& h, const Tensor& l, const Tensor& dh, const OptionalTensor& dc,
                                  const OptionalTensor& dn, const OptionalTensor& dm, bool sigmoid_gate, bool normalize,
                                  bool normalizer_grad, double eps, int64_t chunk_size, bool bshd, int64_t segments,
                                  int64_t walk_chunk) {
  const OptionalTensor c0 = c, n0 = n, m0 = m;
  return backward({q, k, v, i, f, c0, n0, m0, cu_seqlens}, {h, l, dh, dc, dn, dm}, sigmoid_gate, normalize,
                  normalizer_grad, eps, {chunk_size, segments, walk_chunk}, bshd, true);
}

// One token: (B, NH, D) is (B, NH, 1, D) with any token stride. c may be bfloat16, and c_next then is.
Tensor step_into(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f, const Tensor& c,
                 const Tensor& n, const Tensor& m, const Tensor& c_next, const Tensor& n_next, const Tensor& m_next,
                 bool sigmoid_gate, bool normalize, double eps, int64_t step_columns, double gate_soft_cap) {
  STD_TORCH_CHECK(q.dim() == 3, "q: expected 3 dimensions (B, NH, DHQK)");
  STD_TORCH_CHECK(v.dim() == 3, "v: expected 3 dimensions (B, NH, DHHV)");
  xlstm_mlstm_forward p{};
  const int64_t batch = q.size(0), heads = q.size(1), dqk = q.size(2), dhv = v.size(2);
  p.in.batch = batch;
  p.in.heads = heads;
  p.in.length = 1;
  p.in.dqk = dqk;
  p.in.dhv = dhv;
  p.in.gate = sigmoid_gate ? XLSTM_GATE_SIGMOID : XLSTM_GATE_EXP;
  p.in.normalize = normalize;
  p.in.normalizer_grad = 1;
  p.in.eps = eps;
  p.in.chunk_size = 1;
  p.in.step_columns = step_columns;
  p.in.gate_soft_cap = gate_soft_cap;
  p.in.q = view("q", q, q, {batch, heads, dqk}, true);
  p.in.k = view("k", k, q, {batch, heads, dqk}, true);
  p.in.v = view("v", v, q, {batch, heads, dhv}, true);
  p.in.i = view("i", i, q, {batch, heads, 1}, false);
  p.in.f = view("f", f, q, {batch, heads, 1}, false);
  p.in.bfloat16_c = c.scalar_type() == ScalarType::BFloat16 && wide_dtype(q) == ScalarType::Float;
  p.in.c_initial =
      p.in.bfloat16_c ? contiguous("c", c, q, {batch, heads, dqk, dhv}) : wide("c", c, q, {batch, heads, dqk, dhv});
  p.in.n_initial = wide("n", n, q, {batch, heads, dqk});
  p.in.m_initial = wide("m", m, q, {batch, heads, 1});
  p.c_last = c_next.data_ptr();
  p.n_last = n_next.data_ptr();
  p.m_last = m_next.data_ptr();
  Tensor h = new_tensor(q, {batch, heads, dhv}, q.scalar_type());
  p.h = view("h", h, q, {batch, heads, dhv}, true);
  run(q, p, kRecurrent);
  return h;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mlstm_step(const Tensor& q, const Tensor& k, const Tensor& v,
                                                      const Tensor& i, const Tensor& f, const Tensor& c,
                                                      const Tensor& n, const Tensor& m, bool sigmoid_gate,
                                                      bool normalize, double eps, int64_t step_columns,
                                                      double gate_soft_cap) {
  Tensor c_next = torch::stable::empty_like(c), n_next = torch::stable::empty_like(n),
         m_next = torch::stable::empty_like(m);
  Tensor h = step_into(q, k, v, i, f, c, n, m, c_next, n_next, m_next, sigmoid_gate, normalize, eps, step_columns,
                       gate_soft_cap);
  return {h, c_next, n_next, m_next};
}

Tensor mlstm_step_(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& i, const Tensor& f, const Tensor& c,
                   const Tensor& n, const Tensor& m, bool sigmoid_gate, bool normalize, double eps,
                   int64_t step_columns, double gate_soft_cap) {
  return step_into(q, k, v, i, f, c, n, m, c, n, m, sigmoid_gate, normalize, eps, step_columns, gate_soft_cap);
}

// One function serves both devices: the tensors' device decides which call of the C API runs.
void implement(Library& m) {
  m.impl("mlstm_chunkwise", TORCH_BOX(&mlstm_chunkwise));
  m.impl("mlstm_chunkwise_states", TORCH_BOX(&mlstm_chunkwise_states));
  m.impl("mlstm_sequence", TORCH_BOX(&mlstm_sequence));
  m.impl("mlstm_backward", TORCH_BOX(&mlstm_backward));
  m.impl("mlstm_backward_states", TORCH_BOX(&mlstm_backward_states));
  m.impl("mlstm_step", TORCH_BOX(&mlstm_step));
  m.impl("mlstm_step_", TORCH_BOX(&mlstm_step_));
}

}  // namespace
}  // namespace xlstm::torch_ops

XLSTM_OPS_IMPL_ON_DEVICES(xlstm::torch_ops::implement)
