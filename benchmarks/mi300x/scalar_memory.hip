// SPDX-License-Identifier: Apache-2.0
// How long a wave waits for the scalar cache. Each load gives the offset of the next (memory is a ring, as in
// memory_latency.hip): a ring of 2 KB stays in the cache, one of 64 KB does not.
//
//   scalar_hit_cycles, scalar_miss_cycles   cycles of a body - issue_cycles
//
// AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void scalar_chase(Arguments a) {
  uint32_t at = 0;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("s_load_dword %[at], %[memory], %[at]\n"
                          "s_waitcnt lgkmcnt(0)\n")
                 : [at] "+s"(at)
                 : [memory] "s"(a.memory), [n] "n"(kBodies));
}
KERNELS(scalar_chase)
