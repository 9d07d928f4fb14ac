// SPDX-License-Identifier: Apache-2.0
// How long s_sleep 1 lasts.
//
//   sleep_cycles   (cycles of a body - issue_cycles) / 4
//
// AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void sleeps(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r) asm volatile(REPEATED("s_sleep 4\n") : : [n] "n"(kBodies));
}
KERNELS(sleeps)
