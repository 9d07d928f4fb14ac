// SPDX-License-Identifier: Apache-2.0
// What a line of instructions costs that is not in the instruction cache. A loop of 96 KB runs through more than the
// 64 KB that the cache holds; a short one stays in it.
//
//   instruction_miss_cycles   cycles of a round of far / 768 lines - cycles of a body of near / 2
//
// A body of near is two lines of 128 bytes. AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void near(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED(".rept 64\n"
                          "s_nop 0\n"
                          ".endr\n")
                 :
                 : [n] "n"(kBodies));
}
KERNELS(near)

extern "C" __global__ __launch_bounds__(1024) void far(Arguments a) {
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r) asm volatile(REPEATED("s_nop 0\n") : : [n] "n"(768 * 32));
}
