// SPDX-License-Identifier: Apache-2.0
// Every op's schema. Implementations are in one file per family in this folder, fakes and autograd in Python.
//
// q, k (B, NH, S, DHQK)  v, h (B, NH, S, DHHV)  i, f, l (B, NH, S)  c (N, NH, DHQK, DHHV)  n (N, NH, DHQK)  m (N, NH,
// 1). bshd: results with a token axis lie in memory as (B, S, NH, ...).
//
// segments, walk_chunk, step_columns, row_panels, parts, common_schedule: how a call is split, as
// csrc/include/xlstm_hip.h defines it; 0 lets the plan choose.
//
// Attention: q, out (B, S, HQ, D) or packed (T, HQ, D)  k, v (B, S, HK, D), packed, or pages (N, page, HK, D)  lse (B,
// HQ, S) or (HQ, T)  index tensors int32. A window side below 0 has no end; causal is window_right = 0.
//
// Layers: x, y, gate, up, o (..., D)  h (..., NH, DHHV) with o and y (..., NH * DHHV)  logits (N, V), loss (N), exps
// (N, 2). The gradient of an absent argument is an empty tensor.
//
// Decode: one token of each row, tokens (B), through a model. `weight_index` holds the index in `weights` of each of
// the model's tensors, or -1 where it is absent: 46 numbers for each block, then 7, in the order of
// csrc/torch/engine.cpp. `states` are c, n, m of each block. out (B, V), or (B, D) without a head. A cap of 0 means
// none. A part, of a model divided over devices, reads x (B, D) and takes the weights and states of one block: 1 adds
// its mLSTM layer to out (B, D), 2 its feed-forward; 3 is the head. out may be x.
//
// Quantised layers: x (..., D), y (..., rows of weight); weight (rows, bytes), scales and offsets (rows, groups), as
// models/quantize.py stores them. takes: whether there is a kernel for the call on x's device.
//
// Sampling: logits (B, V) float32, tokens, seeds and numbers (B) and ends int64, seen (B, V) and going (B) bool,
// weights (B, V) int64.
//
// Recurrent cells: x (B, S, 4, NH, U), gates i, f, z, o  h (B, S, NH, U)  states (N, NH, U). recurrent is padded, (NH,
// 4, P, P) for forward and (NH, P, 4, P) for backward. gates and memory (B, S, 3, NH, U) are what backward needs.
// Absent results are empty.
#include "torch/library.h"

XLSTM_OPS_DEF(m) {
  m.def(
      "mlstm_chunkwise(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, bool sigmoid_gate, bool normalize, float eps, int chunk_size, bool bshd, "
      "int segments=0, int walk_chunk=0) "
      "-> (Tensor h, Tensor l)");
  m.def(
      "mlstm_chunkwise_states(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, bool sigmoid_gate, bool normalize, float eps, int chunk_size, bool bshd, "
      "int segments=0, int walk_chunk=0) "
      "-> (Tensor h, Tensor l, Tensor c, Tensor n, Tensor m)");
  m.def(
      "mlstm_sequence(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, bool sigmoid_gate, bool normalize, float eps, bool bshd, int "
      "step_columns=0) "
      "-> (Tensor h, Tensor l, Tensor c, Tensor n, Tensor m)");
  m.def(
      "mlstm_backward(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? m_initial, Tensor? cu_seqlens, Tensor h, Tensor l, Tensor dh, Tensor? dc_last, Tensor? dn_last, "
      "Tensor? dm_last, bool sigmoid_gate, bool normalize, bool normalizer_grad, float eps, int chunk_size, bool bshd, "
      "int segments=0, int walk_chunk=0) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor di, Tensor df)");
  m.def(
      "mlstm_backward_states(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor c_initial, Tensor n_initial, "
      "Tensor m_initial, Tensor? cu_seqlens, Tensor h, Tensor l, Tensor dh, Tensor? dc_last, Tensor? dn_last, "
      "Tensor? dm_last, bool sigmoid_gate, bool normalize, bool normalizer_grad, float eps, int chunk_size, bool bshd, "
      "int segments=0, int walk_chunk=0) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor di, Tensor df, Tensor dc, Tensor dn, Tensor dm)");
  m.def(
      "mlstm_step(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor c, Tensor n, Tensor m, bool sigmoid_gate, "
      "bool normalize, float eps, int step_columns=0, float gate_soft_cap=0.0) -> (Tensor h, Tensor c_next, Tensor "
      "n_next, Tensor m_next)");
  m.def(
      "mlstm_step_(Tensor q, Tensor k, Tensor v, Tensor i, Tensor f, Tensor(a!) c, Tensor(b!) n, Tensor(c!) m, "
      "bool sigmoid_gate, bool normalize, float eps, int step_columns=0, float gate_soft_cap=0.0) -> Tensor");
  m.def(
      "attention_forward(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, "
      "Tensor? leftpad_k, Tensor? block_table, Tensor? cache_batch_idx, Tensor? alibi_slopes, Tensor? sink, "
      "Tensor? rng_state, int max_seqlen_q, int max_seqlen_k, float softmax_scale, int window_left, int window_right, "
      "float softcap, float dropout_p, int block_size, int splits, bool lse_with_sink, Tensor? k_descale=None, "
      "Tensor? v_descale=None) -> (Tensor out, Tensor lse)");
  m.def(
      "attention_forward_probs(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
      "Tensor? seqused_k, Tensor? leftpad_k, Tensor? alibi_slopes, Tensor? sink, Tensor? rng_state, int max_seqlen_q, "
      "int max_seqlen_k, float softmax_scale, int window_left, int window_right, float softcap, float dropout_p, "
      "int block_size, Tensor? k_descale=None, Tensor? v_descale=None) -> (Tensor out, Tensor lse, Tensor probs)");
  m.def(
      "attention_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor? dlse, "
      "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? seqused_k, Tensor? leftpad_k, Tensor? alibi_slopes, "
      "Tensor? sink, Tensor? rng_state, int max_seqlen_q, int max_seqlen_k, float softmax_scale, int window_left, "
      "int window_right, float softcap, float dropout_p, int block_size, int row_panels=0, int parts=0, "
      "int common_schedule=0, bool deterministic=True) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dsink)");
  m.def(
      "attention_rotary(Tensor x, Tensor cos, Tensor sin, Tensor? start, bool interleaved, bool same_position) -> "
      "Tensor");
  m.def(
      "attention_append_(Tensor(a!) cache, Tensor x, Tensor? cos, Tensor? sin, Tensor? start, Tensor? cache_batch_idx, "
      "Tensor? block_table, bool interleaved, Tensor? descale=None) -> ()");
  m.def("attention_combine(Tensor out_partial, Tensor lse_partial) -> (Tensor out, Tensor lse)");
  m.def("rms_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "add_rms_norm(Tensor x, Tensor y, Tensor? weight, Tensor? bias, float eps, ScalarType? out_dtype=None) "
      "-> (Tensor total, Tensor normed)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor? dtotal, Tensor x, Tensor? weight, Tensor? bias, float eps) "
      "-> (Tensor dx, Tensor dweight, Tensor dbias)");
  m.def(
      "head_norm_gate(Tensor h, Tensor? o, Tensor? weight, Tensor? bias, float eps, bool centred, "
      "ScalarType? out_dtype=None) -> Tensor");
  m.def(
      "head_norm_gate_backward(Tensor dy, Tensor h, Tensor? o, Tensor? weight, Tensor? bias, float eps, bool centred) "
      "-> (Tensor dh, Tensor do, Tensor dweight, Tensor dbias)");
  m.def("soft_cap(Tensor x, float cap) -> Tensor");
  m.def("soft_cap_backward(Tensor dy, Tensor x, float cap) -> Tensor");
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def("swiglu_fused(Tensor gate_and_up) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)");
  m.def("swiglu_fused_backward(Tensor dy, Tensor gate_and_up) -> Tensor");
  m.def("cross_entropy(Tensor logits, Tensor targets, float? cap, int ignore_index) -> (Tensor loss, Tensor exps)");
  m.def(
      "cross_entropy_backward(Tensor dloss, Tensor logits, Tensor targets, Tensor exps, float? cap, int ignore_index) "
      "-> Tensor");
  m.def(
      "cross_entropy_backward_(Tensor dloss, Tensor(a!) logits, Tensor targets, Tensor exps, float? cap, "
      "int ignore_index) -> ()");
  m.def(
      "decode_step_(Tensor(a!) out, Tensor tokens, Tensor? keep, Tensor[] weights, Tensor weight_index, "
      "Tensor(b!)[] states, int heads, float norm_eps, float eps, float gate_cap, float output_cap) -> ()");
  m.def(
      "decode_part_(Tensor(a!) out, Tensor x, Tensor? keep, Tensor[] weights, Tensor weight_index, "
      "Tensor(b!)[] states, int part, int heads, float norm_eps, float eps, float gate_cap, float output_cap) -> ()");
  m.def("quantized_linear(Tensor x, Tensor weight, Tensor scales, Tensor? offsets=None, Tensor? bias=None) -> Tensor");
  m.def(
      "quantized_linear_takes(Tensor x, Tensor weight, Tensor scales, Tensor? offsets=None, Tensor? bias=None) "
      "-> bool");
  m.def(
      "draw_tokens_(Tensor(a!) tokens, Tensor logits, Tensor? seeds, Tensor(b!)? numbers, Tensor(c!)? seen, "
      "Tensor(d!)? going, Tensor? ends, Tensor(e!)? weights, int pad, float temperature, int top_k, float top_p, "
      "float repetition_penalty) -> ()");
  m.def(
      "slstm_forward(Tensor x, Tensor recurrent, Tensor? bias, Tensor? h_initial, Tensor? c_initial, "
      "Tensor? n_initial, Tensor? m_initial, Tensor? cu_seqlens, int cell, bool keep, bool stabilisers) "
      "-> (Tensor h, Tensor h_last, Tensor c_last, Tensor n_last, Tensor m_last, Tensor gates, Tensor memory, "
      "Tensor m)");
  m.def(
      "slstm_step_(Tensor x, Tensor recurrent, Tensor? bias, Tensor(a!) h, Tensor(b!) c, Tensor(c!)? n, "
      "Tensor(d!)? m, int cell) -> Tensor");
  m.def(
      "slstm_backward(Tensor dh, Tensor recurrent, Tensor gates, Tensor memory, Tensor? c_initial, Tensor? n_initial, "
      "Tensor? cu_seqlens, Tensor? dc, Tensor? dn, Tensor? dm, Tensor? dc_last, Tensor? dn_last, Tensor? dm_last, "
      "int cell, bool bias, bool initial) -> (Tensor dx, Tensor dbias, Tensor dh_initial, Tensor dc_initial, "
      "Tensor dn_initial, Tensor dm_initial)");
}
