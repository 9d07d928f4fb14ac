// SPDX-License-Identifier: Apache-2.0
// How much later a scalar instruction may use what a vector instruction writes to a scalar register. A value goes from
// a vector register to a scalar one and back.
//
//   vector_to_scalar_cycles   cycles of a body - 3 issue_cycles
//
// AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void to_scalar_and_back(Arguments a) {
  uint32_t in_vector = threadIdx.x, in_scalar;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("v_readfirstlane_b32 %[s], %[v]\n"
                          "s_add_u32 %[s], %[s], 1\n"
                          "v_mov_b32 %[v], %[s]\n")
                 : [v] "+v"(in_vector), [s] "=&s"(in_scalar)
                 : [n] "n"(kBodies)
                 : "scc");
}
KERNELS(to_scalar_and_back)
