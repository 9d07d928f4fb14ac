// SPDX-License-Identifier: Apache-2.0
#include "api/call.h"

#include <cmath>
#include <cstdint>

namespace xlstm {
namespace {

[[noreturn]] void invalid(const std::string& what) { throw std::invalid_argument(what); }

void at_least_one(const char* name, int64_t value) {
  if (value < 1) invalid(std::string(name) + ": expected >= 1, got " + std::to_string(value));
}

void not_negative(const char* name, int64_t value) {
  if (value < 0) invalid(std::string(name) + ": expected >= 0, got " + std::to_string(value));
}

void has_data(const char* name, const xlstm_tensor& x) {
  if (!x.data) invalid(std::string(name) + ": expected data, got NULL");
  if (x.dtype < XLSTM_FLOAT32 || x.dtype > XLSTM_FLOAT64)
    invalid(std::string(name) + ": expected a dtype of xlstm_dtype, got " + std::to_string(int(x.dtype)));
}

void has_dtype(const char* name, const xlstm_tensor& x, xlstm_dtype dtype) {
  has_data(name, x);
  if (x.dtype != dtype)
    invalid(std::string(name) + ": expected q's dtype " + std::to_string(int(dtype)) + ", got " +
            std::to_string(int(x.dtype)));
}

void is_gate(const char* name, const xlstm_tensor& x, const xlstm_tensor& q) {
  has_data(name, x);
  const xlstm_dtype wide = q.dtype == XLSTM_FLOAT64 ? XLSTM_FLOAT64 : XLSTM_FLOAT32;
  if (x.dtype != q.dtype && x.dtype != wide)
    invalid(std::string(name) + ": expected q's dtype or the wide one, got " + std::to_string(int(x.dtype)));
}

void all_or_none(const char* names, const void* c, const void* n, const void* m) {
  if ((c || n || m) && !(c && n && m)) invalid(std::string(names) + ": expected all three or none");
}

void check(const xlstm_mlstm& in, bool on_host) {
  at_least_one("batch", in.batch);
  at_least_one("heads", in.heads);
  at_least_one("length", in.length);
  at_least_one("dqk", in.dqk);
  at_least_one("dhv", in.dhv);
  at_least_one("chunk_size", in.chunk_size);
  not_negative("segments", in.segments);
  not_negative("walk_chunk", in.walk_chunk);
  not_negative("step_columns", in.step_columns);
  if (on_host && in.walk_chunk) invalid("walk_chunk: expected 0 on a CPU, whose chunks are of chunk_size");
  if (on_host && in.step_columns) invalid("step_columns: expected 0 on a CPU");
  if (!(in.eps >= 0) || std::isinf(in.eps))
    invalid("eps: expected a finite number >= 0, got " + std::to_string(in.eps));
  if (in.gate != XLSTM_GATE_EXP && in.gate != XLSTM_GATE_SIGMOID)
    invalid("gate: expected exp (0) or sigmoid (1), got " + std::to_string(int(in.gate)));
  if (in.gate == XLSTM_GATE_EXP && !in.normalize) invalid("normalize: the exp gate is always normalised");
  has_data("q", in.q);
  has_dtype("k", in.k, in.q.dtype);
  has_dtype("v", in.v, in.q.dtype);
  is_gate("i", in.i, in.q);
  is_gate("f", in.f, in.q);
  all_or_none("c_initial, n_initial, m_initial", in.c_initial, in.n_initial, in.m_initial);
  if (!in.cu_seqlens) return;
  at_least_one("sequences", in.sequences);
  if (in.batch != 1) invalid("cu_seqlens: expected batch 1, got " + std::to_string(in.batch));
  if (!on_host) return;
  if (in.cu_seqlens[0] != 0) invalid("cu_seqlens: expected to start at 0");
  for (int64_t n = 0; n < in.sequences; ++n)
    if (in.cu_seqlens[n + 1] <= in.cu_seqlens[n]) invalid("cu_seqlens: expected values that rise");
  if (in.cu_seqlens[in.sequences] != in.length)
    invalid("cu_seqlens: expected to end at S = " + std::to_string(in.length) + ", got " +
            std::to_string(in.cu_seqlens[in.sequences]));
}

void check(const xlstm_mlstm_forward& p, bool on_host) {
  check(p.in, on_host);
  has_dtype("h", p.h, p.in.q.dtype);
  all_or_none("c_last, n_last, m_last", p.c_last, p.n_last, p.m_last);
}

void no_gate_soft_cap(const xlstm_mlstm& in) {
  if (in.gate_soft_cap != 0) invalid("gate_soft_cap: expected 0: only the recurrent call caps gates");
}

}  // namespace

void check_chunkwise(const xlstm_mlstm_forward& p, bool on_host) {
  check(p, on_host);
  no_gate_soft_cap(p.in);
  if (p.c_last && (p.c_last == p.in.c_initial || p.n_last == p.in.n_initial || p.m_last == p.in.m_initial))
    invalid("c_last, n_last, m_last: expected other memory than the initial states'");
}

void check_recurrent(const xlstm_mlstm_forward& p, bool on_host) {
  check(p, on_host);
  if (!(p.in.gate_soft_cap >= 0) || std::isinf(p.in.gate_soft_cap))
    invalid("gate_soft_cap: expected a finite number >= 0, got " + std::to_string(p.in.gate_soft_cap));
  if (!p.c_last) invalid("c_last, n_last, m_last: the recurrent call needs them");
}

void check_backward(const xlstm_mlstm_backward& p, bool on_host) {
  check(p.in, on_host);
  no_gate_soft_cap(p.in);
  has_dtype("h", p.h, p.in.q.dtype);
  has_dtype("dh", p.dh, p.in.q.dtype);
  if (!p.l) invalid("l: expected data, got NULL");
  has_dtype("dq", p.dq, p.in.q.dtype);
  has_dtype("dk", p.dk, p.in.q.dtype);
  has_dtype("dv", p.dv, p.in.q.dtype);
  is_gate("di", p.di, p.in.q);
  is_gate("df", p.df, p.in.q);
  all_or_none("dc_last, dn_last, dm_last", p.dc_last, p.dn_last, p.dm_last);
  all_or_none("dc_initial, dn_initial, dm_initial", p.dc_initial, p.dn_initial, p.dm_initial);
  if (p.dc_initial && !p.in.c_initial) invalid("dc_initial: needs c_initial");
}

void check_workspace(const void* workspace, size_t bytes, size_t needed) {
  if (bytes < needed || (needed && !workspace))
    throw WorkspaceTooSmall("workspace: expected " + std::to_string(needed) + " bytes, got " +
                            std::to_string(workspace ? bytes : 0));
}

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace xlstm

using namespace xlstm;

const char* xlstm_last_error(void) { return last_error().c_str(); }
