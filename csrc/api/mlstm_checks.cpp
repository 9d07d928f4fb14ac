// SPDX-License-Identifier: Apache-2.0
#include "api/check_values.h"
#include "api/checks.h"

namespace xlstm {
namespace {

void has_gate_dtype(const char* name, const xlstm_tensor& x, const xlstm_tensor& q) {
  has_dtype(name, x);
  const xlstm_dtype wide = q.dtype == XLSTM_FLOAT64 ? XLSTM_FLOAT64 : XLSTM_FLOAT32;
  if (x.dtype != q.dtype && x.dtype != wide) expected(name, "q's dtype or the wide one", std::to_string(int(x.dtype)));
}

void all_or_none(const char* names, const void* c, const void* n, const void* m) {
  if ((c || n || m) && !(c && n && m)) invalid(std::string(names) + ": expected all three or none");
}

void check(const xlstm_mlstm& in, bool on_host) {
  at_least("batch", in.batch, 1);
  at_least("heads", in.heads, 1);
  at_least("length", in.length, 1);
  at_least("dqk", in.dqk, 1);
  at_least("dhv", in.dhv, 1);
  at_least("chunk_size", in.chunk_size, 1);
  at_least("segments", in.segments, 0);
  at_least("walk_chunk", in.walk_chunk, 0);
  at_least("step_columns", in.step_columns, 0);
  if (on_host && in.walk_chunk) invalid("walk_chunk: expected 0 on a CPU, where chunk_size sets the chunks");
  if (on_host && in.step_columns) invalid("step_columns: expected 0 on a CPU");
  not_negative("eps", in.eps);
  is_gate(in.gate, in.normalize);
  has_dtype("q", in.q);
  has_dtype("k", in.k, in.q.dtype);
  has_dtype("v", in.v, in.q.dtype);
  has_gate_dtype("i", in.i, in.q);
  has_gate_dtype("f", in.f, in.q);
  all_or_none("c_initial, n_initial, m_initial", in.c_initial, in.n_initial, in.m_initial);
  is_cu_seqlens(in.cu_seqlens, in.sequences, in.batch, in.length, on_host);
}

void check(const xlstm_mlstm_forward& p, bool on_host) {
  check(p.in, on_host);
  has_dtype("h", p.h, p.in.q.dtype);
  all_or_none("c_last, n_last, m_last", p.c_last, p.n_last, p.m_last);
}

void no_gate_soft_cap(const xlstm_mlstm& in) {
  if (in.gate_soft_cap != 0) invalid("gate_soft_cap: expected 0: only the recurrent call caps gates");
}

void no_bfloat16_c(const xlstm_mlstm& in) {
  if (in.bfloat16_c) invalid("bfloat16_c: expected 0: only the recurrent call of one token takes C in bfloat16");
}

}  // namespace

void check_chunkwise(const xlstm_mlstm_forward& p, bool on_host) {
  check(p, on_host);
  no_gate_soft_cap(p.in);
  no_bfloat16_c(p.in);
  if (p.c_last && (p.c_last == p.in.c_initial || p.n_last == p.in.n_initial || p.m_last == p.in.m_initial))
    invalid("c_last, n_last, m_last: expected other memory than the initial states'");
}

void check_recurrent(const xlstm_mlstm_forward& p, bool on_host) {
  check(p, on_host);
  not_negative("gate_soft_cap", p.in.gate_soft_cap);
  if (!p.c_last) invalid("c_last, n_last, m_last: the recurrent call needs them");
  if (p.in.length != 1 || p.in.cu_seqlens) no_bfloat16_c(p.in);
  if (p.in.bfloat16_c && p.in.q.dtype == XLSTM_FLOAT64) invalid("bfloat16_c: expected 0 with q of float64");
}

void check_backward(const xlstm_mlstm_backward& p, bool on_host) {
  check(p.in, on_host);
  no_gate_soft_cap(p.in);
  no_bfloat16_c(p.in);
  has_dtype("h", p.h, p.in.q.dtype);
  has_dtype("dh", p.dh, p.in.q.dtype);
  has_data("l", p.l);
  has_dtype("dq", p.dq, p.in.q.dtype);
  has_dtype("dk", p.dk, p.in.q.dtype);
  has_dtype("dv", p.dv, p.in.q.dtype);
  has_gate_dtype("di", p.di, p.in.q);
  has_gate_dtype("df", p.df, p.in.q);
  all_or_none("dc_last, dn_last, dm_last", p.dc_last, p.dn_last, p.dm_last);
  all_or_none("dc_initial, dn_initial, dm_initial", p.dc_initial, p.dn_initial, p.dm_initial);
  if (p.dc_initial && !p.in.c_initial) invalid("dc_initial: needs c_initial");
}

}  // namespace xlstm
