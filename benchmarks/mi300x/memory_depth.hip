// SPDX-License-Identifier: Apache-2.0
// How much one compute unit may have under way: lines that L1 waits for, accesses that a wave does not wait for.
//
//   l1_miss_lines   4 waves load 8 lines each, from 256 KB that only L2 has: 32 l / cycles of a body
//   counter_vm      1 wave stores 32 times and does not wait: 32 s / cycles of a body
//
// l is the time of a load from L2, s that of a store (a body of waited_store), both less issue_cycles. These are lower
// bounds where something else is as slow: 32 lines at l1_bytes_a_cycle, address_cycles. AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void loads_past_l1(Arguments a) {
  uint32_t at = threadIdx.x * 16, x;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("global_load_dword %[x], %[at], %[memory]\n"
                          "v_add_u32 %[at], 0x1000, %[at]\n"
                          "v_and_b32 %[at], 0x3ffff, %[at]\n") "s_waitcnt vmcnt(0)\n"
                 : [x] "=&v"(x), [at] "+v"(at)
                 : [memory] "s"(a.memory), [n] "n"(kBodies)
                 : "memory");
}
KERNELS(loads_past_l1)

template <int kBodies>
__device__ void stores(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("global_store_dword %[at], %[at], %[memory]\n") "s_waitcnt vmcnt(0)\n"
                 :
                 : [at] "v"(0), [memory] "s"(a.memory), [n] "n"(32 * kBodies)
                 : "memory");
}
KERNELS(stores)

template <int kBodies>
__device__ void waited_store(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("global_store_dword %[at], %[at], %[memory]\n"
                          "s_waitcnt vmcnt(0)\n")
                 :
                 : [at] "v"(0), [memory] "s"(a.memory), [n] "n"(kBodies)
                 : "memory");
}
KERNELS(waited_store)
