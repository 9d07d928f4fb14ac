// SPDX-License-Identifier: Apache-2.0
// The clock of a compute unit that has little to do: a wave adds in a chain, an instruction each issue_cycles.
//
//   peak_mhz    issue_cycles / microseconds of a body of the chain
//   v_add_f32   cycles of a body of two waves of a SIMD, which share its vector unit, / 2
//
// By this chain all other files' microseconds become cycles. Also for CUDA: there an addition takes 4 cycles as well.
#include "microbenchmark.h"

template <int kBodies>
__device__ void add(float& x) {
#if defined(__CUDACC__)
#pragma unroll
  for (int k = 0; k < kBodies; ++k) asm volatile("add.f32 %0, %0, %0;" : "+f"(x));
#else
  asm volatile(REPEATED("v_add_f32 %[x], %[x], %[x]\n") : [x] "+v"(x) : [n] "n"(kBodies));
#endif
}

template <int kBodies>
__device__ void vector_chain(Arguments a) {
  float x = float(a.other);
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r) add<kBodies>(x);
#if defined(__CUDACC__)
  use(__float_as_uint(x), a);
#endif
}
KERNELS(vector_chain)
