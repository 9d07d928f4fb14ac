// SPDX-License-Identifier: Apache-2.0
// Every call of the C API runs check, plan, workspace and run, each once. A call is an Entry, a row of these four
// functions; call() and workspace_bytes() serve all entries.
#pragma once

#include "api/call.h"
#include "api/checks.h"
#include "arch/chip.h"
#include "base/executor.h"
#include "base/threads.h"

namespace xlstm {

// ---- on a CPU

inline int32_t threads_or_all(int32_t threads) { return threads > 0 ? threads : hardware_threads(); }

// The number of sequences of a call on a CPU, and the length of the longest.
template <class Inputs>
int64_t sequences_of(const Inputs& in) {
  return in.cu_seqlens ? in.sequences : in.batch;
}
template <class Inputs>
int64_t longest_sequence(const Inputs& in) {
  int64_t longest = in.cu_seqlens ? 0 : in.length;
  for (int64_t n = 0; in.cu_seqlens && n < in.sequences; ++n) {
    const int64_t length = in.cu_seqlens[n + 1] - in.cu_seqlens[n];
    longest = length > longest ? length : longest;
  }
  return longest;
}

// The plan of a call whose tasks need no planning.
struct Workers {
  int64_t workers;
};

template <class Params, class Plan = Workers>
struct CpuEntry {
  void (*check)(const Params&, bool on_host);
  Plan (*plan)(const Params&, int32_t threads);
  size_t (*workspace)(const Params&, const Plan&);
  void (*run)(const Params&, const Plan&, void* workspace, const Executor&);
};

template <class Params, class Plan>
size_t workspace_bytes(const CpuEntry<Params, Plan>& entry, const Params* p, int32_t threads) {
  return counted([&] {
    entry.check(not_null(p), true);
    return entry.workspace(*p, entry.plan(*p, threads_or_all(threads)));
  });
}

template <class Params, class Plan>
xlstm_status call(const CpuEntry<Params, Plan>& entry, const Params* p, const xlstm_runtime* r) {
  return guarded([&] {
    entry.check(not_null(p), true);
    const Plan plan = entry.plan(*p, threads_or_all(not_null(r).threads));
    entry.run(*p, plan, workspace_of(*r, entry.workspace(*p, plan)),
              {int32_t(plan.workers), r->parallel ? r->parallel : run_on_new_threads, r->self});
  });
}

// ---- on a GPU

inline void has_gpu_dtype(const char* name, xlstm_dtype dtype) {
  if (dtype == XLSTM_FLOAT64)
    throw std::invalid_argument(std::string(name) + ": expected float32, bfloat16 or float16 on a GPU, got float64");
}

template <class Params, class Plan>
struct GpuEntry {
  void (*check)(const Params&, bool on_host);
  Plan (*plan)(const Params&, const gpu::Chip&);
  size_t (*workspace)(const Params&, const Plan&);
  void (*run)(const Params&, const Plan&, void* workspace, void* stream);
  // Bytes that suffice for any layout of the tensors. Null where the plan does not depend on their layout.
  size_t (*workspace_any_layout)(const Params&, const gpu::Chip&) = nullptr;
};

// The plan of a call that is partitioned in the same way on every chip.
struct NoPlan {};
inline constexpr auto kNoPlan = [](const auto&, const gpu::Chip&) { return NoPlan{}; };
inline constexpr auto kNoWorkspace = [](const auto&, const auto&) { return size_t(0); };

template <class Params, class Plan>
size_t workspace_bytes(const GpuEntry<Params, Plan>& entry, const Params* p) {
  return counted([&] {
    entry.check(not_null(p), false);
    const gpu::Chip chip = gpu::current_chip();
    return entry.workspace_any_layout ? entry.workspace_any_layout(*p, chip)
                                      : entry.workspace(*p, entry.plan(*p, chip));
  });
}

template <class Params, class Plan>
xlstm_status call(const GpuEntry<Params, Plan>& entry, const Params* p, const xlstm_gpu* g) {
  return guarded([&] {
    entry.check(not_null(p), false);
    const Plan plan = entry.plan(*p, gpu::current_chip());
    entry.run(*p, plan, workspace_of(not_null(g), entry.workspace(*p, plan)), g->stream);
  });
}

// Defines functions of the C API by these entries. In a library without GPU kernels they report that; `entry` is
// unused.
#if defined(XLSTM_HIP_GPU_HIP) || defined(XLSTM_HIP_GPU_CUDA)
#define XLSTM_GPU_CALL(function, Params, entry) \
  xlstm_status function(const Params* p, const xlstm_gpu* g) { return xlstm::call(entry, p, g); }
#define XLSTM_GPU_WORKSPACE(function, Params, entry) \
  size_t function(const Params* p) { return xlstm::workspace_bytes(entry, p); }
#else
#define XLSTM_GPU_CALL(function, Params, entry) \
  xlstm_status function(const Params*, const xlstm_gpu*) { return xlstm::no_gpu(); }
#define XLSTM_GPU_WORKSPACE(function, Params, entry) \
  size_t function(const Params*) { return xlstm::no_gpu_bytes(); }
#endif

}  // namespace xlstm
