// SPDX-License-Identifier: Apache-2.0
// Branches that are not taken, and those that skip one instruction.
//
//   branch_cycles         cycles of a body of not_taken
//   taken_branch_cycles   cycles of a body of taken
//
// AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void not_taken(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile("s_cmp_eq_u32 0, 0\n" REPEATED("s_cbranch_scc0 0\n") : : [n] "n"(kBodies) : "scc");
}
KERNELS(not_taken)

template <int kBodies>
__device__ void taken(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("s_branch 1\n"
                          "s_nop 0\n")
                 :
                 : [n] "n"(kBodies));
}
KERNELS(taken)
