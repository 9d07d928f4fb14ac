// SPDX-License-Identifier: Apache-2.0
// The mLSTM calls of the C API: check, plan, run.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#include "api/threads.h"
#include "api/xlstm_hip.h"
#include "arch/isa.h"
#include "mlstm/kernels_cpu.h"

namespace xlstm {

#define XLSTM_DECLARE_TABLE(isa)              \
  namespace isa {                             \
  extern const MlstmCpuKernels mlstm_kernels; \
  }
XLSTM_FOR_EACH_ISA(XLSTM_DECLARE_TABLE)
#undef XLSTM_DECLARE_TABLE

namespace {

thread_local std::string last_error;

const MlstmCpuKernels& kernels() {
  switch (cpu_isa()) {
#define XLSTM_TABLE_CASE(isa) \
  case Isa::isa:              \
    return isa::mlstm_kernels;
    XLSTM_FOR_EACH_ISA(XLSTM_TABLE_CASE)
#undef XLSTM_TABLE_CASE
  }
  throw std::logic_error("no CPU kernels");
}

struct WorkspaceTooSmall : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void invalid(const std::string& what) { throw std::invalid_argument(what); }

template <class Struct>
const Struct& given(const Struct* p) {
  if (!p) invalid("params, runtime: expected a struct, got NULL");
  return *p;
}

void at_least_one(const char* name, int64_t value) {
  if (value < 1) invalid(std::string(name) + ": expected >= 1, got " + std::to_string(value));
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

void check(const xlstm_mlstm& in) {
  at_least_one("batch", in.batch);
  at_least_one("heads", in.heads);
  at_least_one("length", in.length);
  at_least_one("dqk", in.dqk);
  at_least_one("dhv", in.dhv);
  at_least_one("chunk_size", in.chunk_size);
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
  if (in.cu_seqlens[0] != 0) invalid("cu_seqlens: expected to start at 0");
  for (int64_t n = 0; n < in.sequences; ++n)
    if (in.cu_seqlens[n + 1] <= in.cu_seqlens[n]) invalid("cu_seqlens: expected values that rise");
  if (in.cu_seqlens[in.sequences] != in.length)
    invalid("cu_seqlens: expected to end at S = " + std::to_string(in.length) + ", got " +
            std::to_string(in.cu_seqlens[in.sequences]));
}

void check(const xlstm_mlstm_forward& p) {
  check(p.in);
  has_dtype("h", p.h, p.in.q.dtype);
  all_or_none("c_last, n_last, m_last", p.c_last, p.n_last, p.m_last);
}

void check_chunkwise(const xlstm_mlstm_forward& p) {
  check(p);
  if (p.c_last && (p.c_last == p.in.c_initial || p.n_last == p.in.n_initial || p.m_last == p.in.m_initial))
    invalid("c_last, n_last, m_last: expected other memory than the initial states'");
}

void check_recurrent(const xlstm_mlstm_forward& p) {
  check(p);
  if (!p.c_last) invalid("c_last, n_last, m_last: the recurrent call needs them");
}

void check(const xlstm_mlstm_backward& p) {
  check(p.in);
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

int32_t threads_or_all(int32_t threads) { return threads > 0 ? threads : hardware_threads(); }

MlstmCpuPlan plan(const xlstm_mlstm& in, int32_t threads) {
  int64_t longest = in.cu_seqlens ? 0 : in.length;
  for (int64_t n = 0; in.cu_seqlens && n < in.sequences; ++n)
    longest = std::max(longest, in.cu_seqlens[n + 1] - in.cu_seqlens[n]);
  const int64_t sequences = in.cu_seqlens ? in.sequences : in.batch;
  return plan_mlstm_cpu(sequences, in.heads, longest, in.chunk_size, threads_or_all(threads));
}

Executor executor(const xlstm_runtime& r, int64_t workers) {
  return {int32_t(workers), r.parallel ? r.parallel : run_on_own_threads, r.self};
}

void check_workspace(const xlstm_runtime& r, size_t needed) {
  if (r.workspace_bytes < needed || (needed && !r.workspace))
    throw WorkspaceTooSmall("workspace: expected " + std::to_string(needed) + " bytes, got " +
                            std::to_string(r.workspace ? r.workspace_bytes : 0));
}

// No exception leaves the C API.
template <class F>
xlstm_status guarded(F&& f) {
  try {
    f();
    last_error.clear();
    return XLSTM_OK;
  } catch (const std::invalid_argument& e) {
    last_error = e.what();
    return XLSTM_INVALID_ARGUMENT;
  } catch (const WorkspaceTooSmall& e) {
    last_error = e.what();
    return XLSTM_WORKSPACE_TOO_SMALL;
  } catch (const std::exception& e) {
    last_error = e.what();
    return XLSTM_UNSUPPORTED;
  }
}

template <class F>
size_t counted(F&& f) {
  size_t bytes = 0;
  guarded([&] { bytes = f() + 64; });  // room to align the block
  return bytes;
}

void* aligned(void* p) { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + 63) / 64 * 64); }

}  // namespace
}  // namespace xlstm

using namespace xlstm;

size_t xlstm_mlstm_chunkwise_workspace(const xlstm_mlstm_forward* p, int32_t threads) {
  return counted([&] {
    check_chunkwise(given(p));
    return kernels().chunkwise_workspace(*p, plan(p->in, threads));
  });
}

size_t xlstm_mlstm_recurrent_workspace(const xlstm_mlstm_forward* p, int32_t threads) {
  return counted([&] {
    check_recurrent(given(p));
    return kernels().recurrent_workspace(*p, threads_or_all(threads));
  });
}

size_t xlstm_mlstm_backward_workspace(const xlstm_mlstm_backward* p, int32_t threads) {
  return counted([&] {
    check(given(p));
    return kernels().backward_workspace(*p, plan(p->in, threads));
  });
}

xlstm_status xlstm_mlstm_chunkwise(const xlstm_mlstm_forward* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_chunkwise(given(p));
    const MlstmCpuPlan cut = plan(p->in, given(r).threads);
    check_workspace(*r, kernels().chunkwise_workspace(*p, cut) + 64);
    kernels().chunkwise(*p, cut, aligned(r->workspace), executor(*r, cut.workers));
  });
}

xlstm_status xlstm_mlstm_recurrent(const xlstm_mlstm_forward* p, const xlstm_runtime* r) {
  return guarded([&] {
    check_recurrent(given(p));
    const int32_t threads = threads_or_all(given(r).threads);
    check_workspace(*r, kernels().recurrent_workspace(*p, threads) + 64);
    kernels().recurrent(*p, aligned(r->workspace), executor(*r, threads));
  });
}

xlstm_status xlstm_mlstm_backward_pass(const xlstm_mlstm_backward* p, const xlstm_runtime* r) {
  return guarded([&] {
    check(given(p));
    const MlstmCpuPlan cut = plan(p->in, given(r).threads);
    check_workspace(*r, kernels().backward_workspace(*p, cut) + 64);
    kernels().backward(*p, cut, aligned(r->workspace), executor(*r, cut.workers));
  });
}

const char* xlstm_last_error(void) { return last_error.c_str(); }

const char* xlstm_cpu_isa(void) {
  const char* name = "";
  guarded([&] { name = isa_name(cpu_isa()); });
  return name;
}
