// SPDX-License-Identifier: Apache-2.0
// Barriers to the compiler's optimisations: they fix where it computes a value and when it issues a load. Without them
// the compiler hoists addresses out of loops, loads all params at once and issues loads long before their use, and so
// spends registers that the loop needs.
#pragma once

#include "arch/compiler.h"
#if defined(__CUDACC__)
#include "arch/nvidia/ptx.h"
#endif

namespace xlstm::gpu {

// Makes a pointer to device memory opaque: the compiler computes addresses from it where they are used, rather than
// keep hundreds of them in registers ahead of a loop.
template <class T>
XLSTM_DEVICE T* opaque(T* p) {
#if defined(__CUDACC__)
  return opaque_pointer(p);
#else
  auto device = (__attribute__((address_space(1))) T*)p;
  asm volatile("" : "+v"(device));
  return (T*)device;
#endif
}

// Makes a lane's number opaque: what derives from the number is computed after this point, neither hoisted out of a
// loop nor loaded ahead.
XLSTM_DEVICE uint32_t opaque(uint32_t x) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(x));
#else
  asm volatile("" : "+v"(x));
#endif
  return x;
}

// The same for a uniform number, which AMD keeps in a scalar register.
XLSTM_DEVICE int opaque_uniform(int x) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(x));
#else
  asm volatile("" : "+s"(x));
#endif
  return x;
}

// The same for a uniform pointer to device memory.
template <class T>
XLSTM_DEVICE T* opaque_uniform(T* p) {
#if defined(__CUDACC__)
  return opaque_pointer(p);
#else
  auto device = (__attribute__((address_space(1))) T*)p;
  asm volatile("" : "+s"(device));
  return (T*)device;
#endif
}

// True, unknown to the compiler: code behind a branch on it stays a basic block of its own. In one block with the code
// around it, the compiler reorders both, and needs more registers.
XLSTM_DEVICE bool separate_basic_block() { return opaque_uniform(1) != 0; }

// Reloads a kernel's params after this point: otherwise the compiler loads all of them ahead of a loop, into more
// scalar registers than there are.
template <class Params>
XLSTM_DEVICE const Params* reload_params(const Params* p) {
#if defined(__CUDACC__)
  return p;
#else
  auto constant = (const __attribute__((address_space(4))) Params*)p;
  asm volatile("" : "+s"(constant));
  return (const Params*)constant;
#endif
}

// Marks a pointer from reload_params() as one to device memory: AMD's compiler can no longer see that all pointers in
// params are.
template <class T>
XLSTM_DEVICE T* global(T* p) {
#if defined(__CUDACC__)
  return p;
#else
  auto device = (__attribute__((address_space(1))) T*)p;
  asm("" : "+s"(device));
  return (T*)device;
#endif
}

// The address of this kernel's only param, for reload_params().
template <class Params>
XLSTM_DEVICE const Params* kernel_params(const Params& p) {
#if defined(__CUDACC__)
  return &p;
#else
  (void)p;  // its address would make a copy in scratch
  return (const Params*)__builtin_amdgcn_kernarg_segment_ptr();
#endif
}

// threadIdx.x, opaque for the same reason: what derives from it is computed after this point.
XLSTM_DEVICE int opaque_thread() {
  int t = threadIdx.x;
#if !defined(__CUDACC__)
  asm volatile("" : "+v"(t));
  __builtin_assume(t >= 0 && t < 1024);
#endif
  return t;
}

// A scheduling barrier: the compiler moves no instruction across it, so the code after it takes no registers before the
// code ahead of it has freed its own.
XLSTM_DEVICE void sched_barrier() {
#if !defined(__CUDACC__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// From here on the wave issues ahead of waves of a lower priority on its SIMD, AMD's order of issue among waves that
// are ready (0 to 3, 0 at the start).
template <int kPriority>
XLSTM_DEVICE void set_wave_priority() {
#if !defined(__CUDACC__)
  __builtin_amdgcn_s_setprio(kPriority);
#endif
}

// sched_barrier() for loads on every family: loads issued after it take no registers before it.
XLSTM_DEVICE void load_barrier() {
  sched_barrier();
#if defined(__CUDACC__)
  asm volatile("" ::: "memory");
#endif
}

// Loads stay on their side of this point: the compiler would move one whose data a branch alone uses into the branch,
// behind loads that were issued after it.
XLSTM_DEVICE void keep_order_of_loads() { asm volatile("" ::: "memory"); }

// Waits until the data of all LDS reads has arrived; for use before a barrier, where nothing else waits for the reads.
XLSTM_DEVICE void wait_lds_reads() {
#if defined(__GFX12__)
  asm volatile("s_wait_dscnt 0x0" ::: "memory");
#elif !defined(__CUDACC__)
  asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
#endif
}

}  // namespace xlstm::gpu
