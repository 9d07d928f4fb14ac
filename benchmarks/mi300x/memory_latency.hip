// SPDX-License-Identifier: Apache-2.0
// How long a wave waits for memory. Memory is a ring: the first dword of each line holds the offset of another line, in
// an order that no prefetcher knows, so that each load waits for the one before. The ring's size says where it is
// found.
//
//   l1_latency         16 KB:  cycles of a body - issue_cycles - address_cycles
//   l2_latency         256 KB: cycles of a body - issue_cycles - 128 bytes / l1_bytes_a_cycle
//   mall_nanoseconds   64 MB:  the same, / peak_mhz
//   hbm_nanoseconds    64 MB, the caches emptied before: the same, / peak_mhz
//
// Also for CUDA.
#include "microbenchmark.h"

template <int kBodies>
__device__ void load_on(uint32_t& at, const uint32_t* memory) {
#if defined(__CUDACC__)
#pragma unroll
  for (int k = 0; k < kBodies; ++k)
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(at) : "l"(reinterpret_cast<const char*>(memory) + at) : "memory");
#else
  asm volatile(REPEATED("global_load_dword %[at], %[at], %[memory]\n"
                        "s_waitcnt vmcnt(0)\n")
               : [at] "+v"(at)
               : [memory] "s"(memory), [n] "n"(kBodies)
               : "memory");
#endif
}

template <int kBodies>
__device__ void chase(Arguments a) {
  uint32_t at = a.other;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r) load_on<kBodies>(at, a.memory);
  if (at == 1) a.memory[0] = at;  // never
}
KERNELS(chase)
