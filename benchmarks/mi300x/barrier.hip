// SPDX-License-Identifier: Apache-2.0
// How long the four waves of a workgroup, one on each SIMD, take for a barrier that they reach together.
//
//   barrier_cycles   cycles of a body - issue_cycles
//
// AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void barriers(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r) asm volatile(REPEATED("s_barrier\n") : : [n] "n"(kBodies));
}
KERNELS(barriers)
