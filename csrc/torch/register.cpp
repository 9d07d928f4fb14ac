// SPDX-License-Identifier: Apache-2.0
// Every op's schema. Implementations stand in one file per family beside this one, fakes and autograd in ops.py.
//
// q, k (B, NH, S, DHQK)  v, h (B, NH, S, DHHV)  i, f, l (B, NH, S)  c (N, NH, DHQK, DHHV)  n (N, NH, DHQK)  m (N, NH,
// 1) bshd: results with a token axis lie in memory as (B, S, NH, ...).
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(xlstm_hip, m) {
  m.def(
      "mlstm_chunkwise(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, bool sigmoid_gate, bool normalize, float eps, int chunk_size, bool bshd) "
      "-> (Tensor h, Tensor l)");
  m.def(
      "mlstm_chunkwise_states(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, bool sigmoid_gate, bool normalize, float eps, int chunk_size, bool bshd) "
      "-> (Tensor h, Tensor l, Tensor c, Tensor n, Tensor m)");
  m.def(
      "mlstm_sequence(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, bool sigmoid_gate, bool normalize, float eps, bool bshd) "
      "-> (Tensor h, Tensor l, Tensor c, Tensor n, Tensor m)");
  m.def(
      "mlstm_backward(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, Tensor h, Tensor l, Tensor dh, Tensor? dc_last, Tensor? dn_last, "
      "Tensor? dm_last, bool sigmoid_gate, bool normalize, bool normalizer_grad, float eps, int chunk_size, bool bshd) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor di, Tensor df)");
  m.def(
      "mlstm_backward_states(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor c_initial, Tensor n_initial, "
      "Tensor m_initial, Tensor? cu_seqlens, Tensor h, Tensor l, Tensor dh, Tensor? dc_last, Tensor? dn_last, "
      "Tensor? dm_last, bool sigmoid_gate, bool normalize, bool normalizer_grad, float eps, int chunk_size, bool bshd) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor di, Tensor df, Tensor dc, Tensor dn, Tensor dm)");
  m.def(
      "mlstm_step(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor c, Tensor n, Tensor m, bool sigmoid_gate, "
      "bool normalize, float eps) -> (Tensor h, Tensor c_next, Tensor n_next, Tensor m_next)");
  m.def(
      "mlstm_step_(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor(a!) c, Tensor(b!) n, Tensor(c!) m, "
      "bool sigmoid_gate, bool normalize, float eps) -> Tensor");
}
