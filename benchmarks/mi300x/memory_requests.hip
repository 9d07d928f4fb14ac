// SPDX-License-Identifier: Apache-2.0
// What the path from one compute unit to its L1 and on to L2 takes, and how much of it may be under way.
//
//   address_cycles     16 waves whose lanes load one dword, 8 times: cycles of a body / 128
//   l1_bytes_a_cycle   16 waves load 1 KB that L1 has: 16 KB / cycles of a body
//   l1_miss_lines      4 waves load 8 lines each, from 256 KB that only L2 has: 32 l / cycles of a body
//   counter_vm         1 wave stores 32 times and does not wait: 32 s / cycles of a body
//
// l is the time of a load from L2, s that of a store (a body of waited_store), both less issue_cycles. The last two are
// lower bounds where something else is as slow: 32 lines at l1_bytes_a_cycle, address_cycles. AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void loads_of_a_dword(Arguments a) {
  uint32_t x;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("global_load_dword %[x], %[at], %[memory]\n") "s_waitcnt vmcnt(0)\n"
                 : [x] "=&v"(x)
                 : [at] "v"(0), [memory] "s"(a.memory), [n] "n"(8 * kBodies)
                 : "memory");
}
KERNELS(loads_of_a_dword)

template <int kBodies>
__device__ void loads_of_16_bytes(Arguments a) {
  uint4 x;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("global_load_dwordx4 %[x], %[at], %[memory]\n") "s_waitcnt vmcnt(0)\n"
                 : [x] "=&v"(x)
                 : [at] "v"(threadIdx.x % 64 * 16), [memory] "s"(a.memory), [n] "n"(kBodies)
                 : "memory");
}
KERNELS(loads_of_16_bytes)

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
