// SPDX-License-Identifier: Apache-2.0
#include "api/check_values.h"
#include "api/checks.h"
#include "slstm/layout.h"

namespace xlstm {
namespace {

// All states of the cell or none.
void has_states(const std::string& names, const xlstm_slstm& in, const void* h, const void* c, const void* n,
                const void* m) {
  const bool is_lstm = in.cell == XLSTM_CELL_LSTM;
  if (is_lstm && (n || m)) invalid(names + ": expected no n and m, which an LSTM does not have");
  if ((h || c || n || m) && !(h && c && (is_lstm || (n && m))))
    invalid(names + ": expected all states of the cell or none");
}

void check(const xlstm_slstm& in, bool on_host) {
  at_least("batch", in.batch, 1);
  at_least("heads", in.heads, 1);
  at_least("length", in.length, 1);
  at_least("units", in.units, 1);
  if (!on_host) {
    in_range("length", in.length, 1, INT32_MAX);
    in_range("heads", in.heads, 1, INT32_MAX);
    in_range("units", in.units, 1, slstm::kMaxGpuUnits);
  }
  in_range("cell", in.cell, XLSTM_CELL_SLSTM, XLSTM_CELL_LSTM);
  is_dtype("dtype", in.dtype);
  has_data("recurrent", in.recurrent);
  is_cu_seqlens(in.cu_seqlens, in.sequences, in.batch, in.length, on_host);
}

}  // namespace

void check_slstm_forward(const xlstm_slstm_forward& p, bool on_host) {
  check(p.in, on_host);
  has_states("h_initial, c_initial, n_initial, m_initial", p.in, p.in.h_initial, p.in.c_initial, p.in.n_initial,
             p.in.m_initial);
  has_data("x", p.x);
  has_data("h", p.h);
  if (!p.gates != !p.memory) invalid("gates, memory: expected both or none");
  has_states("h_last, c_last, n_last, m_last", p.in, p.h_last, p.c_last, p.n_last, p.m_last);
  if (p.m && p.in.cell == XLSTM_CELL_LSTM) invalid("m: expected none, which an LSTM does not have");
}

void check_slstm_backward(const xlstm_slstm_backward& p, bool on_host) {
  check(p.in, on_host);
  if (p.in.cell != XLSTM_CELL_LSTM && !p.in.c_initial != !p.in.n_initial)
    invalid("c_initial, n_initial: expected both or none");
  has_data("gates", p.gates);
  has_data("memory", p.memory);
  has_data("dh", p.dh);
  has_data("dx", p.dx);
  if (p.in.cell == XLSTM_CELL_LSTM && (p.dn || p.dm || p.dn_last || p.dm_last))
    invalid("dn, dm, dn_last, dm_last: expected none, which an LSTM does not have");
  has_states("dh_initial, dc_initial, dn_initial, dm_initial", p.in, p.dh_initial, p.dc_initial, p.dn_initial,
             p.dm_initial);
}

}  // namespace xlstm
