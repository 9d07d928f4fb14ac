// SPDX-License-Identifier: Apache-2.0
// What one compute unit's address unit and L1 give: 16 waves load, in which all lanes want one dword, or each 16 bytes
// beside the other.
//
//   address_cycles     one dword, 8 times: cycles of a body / 128
//   l1_bytes_a_cycle   1 KB that L1 has: 16 KB / cycles of a body
//
// AMD's assembly.
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
