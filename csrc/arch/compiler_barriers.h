// SPDX-License-Identifier: Apache-2.0
// What a compiler is told of where values are made and when they are read. Left alone it makes addresses ahead of a
// loop, reads all params at once and asks for data long before its use, in registers that the loop needs.
#pragma once

#include "arch/compiler.h"
#if defined(__CUDACC__)
#include "arch/nvidia/ptx.h"
#endif

namespace xlstm::gpu {

// The same pointer to device memory, which the compiler takes for a new one: it then makes addresses where they are
// used, rather than a register for each of hundreds ahead of a loop.
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

// A number of each lane, with what is made of it made here: not kept for a whole loop, nor read ahead.
XLSTM_DEVICE uint32_t opaque(uint32_t x) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(x));
#else
  asm volatile("" : "+v"(x));
#endif
  return x;
}

// The same for a number that all lanes share.
XLSTM_DEVICE int opaque_uniform(int x) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(x));
#else
  asm volatile("" : "+s"(x));
#endif
  return x;
}

// A kernel's params, read anew from here on: else the compiler reads all of them ahead of a loop, into more scalar
// registers than there are.
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

// A pointer to device memory: what reload_params() hides from AMD's compiler is that params hold no others.
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

// The only param of this kernel, for reload_params().
template <class Params>
XLSTM_DEVICE const Params* kernel_params(const Params& p) {
#if defined(__CUDACC__)
  return &p;
#else
  (void)p;  // its address would make a copy in scratch
  return (const Params*)__builtin_amdgcn_kernarg_segment_ptr();
#endif
}

// threadIdx.x, and what is made of it made here, for the same reason.
XLSTM_DEVICE int opaque_thread() {
  int t = threadIdx.x;
#if !defined(__CUDACC__)
  asm volatile("" : "+v"(t));
  __builtin_assume(t >= 0 && t < 1024);
#endif
  return t;
}

// Nothing is moved over this: what comes after waits with its registers until what comes before is done with its own.
XLSTM_DEVICE void sched_barrier() {
#if !defined(__CUDACC__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// sched_barrier() for loads on every family: what is asked for after it does not take registers before it.
XLSTM_DEVICE void load_barrier() {
  sched_barrier();
#if defined(__CUDACC__)
  asm volatile("" ::: "memory");
#endif
}

// What was read from LDS is there: before a barrier, where nothing else waits for it.
XLSTM_DEVICE void wait_lds_reads() {
#if !defined(__CUDACC__)
  asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
#endif
}

}  // namespace xlstm::gpu
