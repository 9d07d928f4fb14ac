// SPDX-License-Identifier: Apache-2.0
// How long one wave waits for LDS, and how many reads it may have under way. In the chase each read gives the address
// of the next, which is its own; the others are independent.
//
//   lds_latency    cycles of a body of lds_chase - issue_cycles - ds_read_b32
//   counter_lgkm   16 (cycles of a body of lds_chase - issue_cycles) / cycles of a body of lds_reads, which are 16
//
// The second is a lower bound where a read takes no more than a slot. AMD's assembly.
#include "microbenchmark.h"

__device__ inline uint32_t address_of_lane(uint32_t* words) {
  words[threadIdx.x] = 4 * threadIdx.x;
  __syncthreads();
  return 4 * threadIdx.x;  // the only LDS of the kernel begins at 0
}

template <int kBodies>
__device__ void lds_chase(Arguments a) {
  __shared__ uint32_t words[64];
  uint32_t at = address_of_lane(words);
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("ds_read_b32 %[at], %[at]\n"
                          "s_waitcnt lgkmcnt(0)\n")
                 : [at] "+v"(at)
                 : [n] "n"(kBodies)
                 : "memory");
}
KERNELS(lds_chase)

template <int kBodies>
__device__ void lds_reads(Arguments a) {
  __shared__ uint32_t words[64];
  uint32_t at = address_of_lane(words), x;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("ds_read_b32 %[x], %[at]\n") "s_waitcnt lgkmcnt(0)\n"
                 : [x] "=&v"(x)
                 : [at] "v"(at), [n] "n"(16 * kBodies)
                 : "memory");
}
KERNELS(lds_reads)
