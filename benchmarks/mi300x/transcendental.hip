// SPDX-License-Identifier: Apache-2.0
// Transcendentals: how often one starts, and when others may use what it gives.
//
//   v_exp_f32                      cycles of a body of exp_rate / 2
//   transcendental_result_cycles   cycles of a body of exp_result - v_exp_f32 - 2 issue_cycles
//
// The compiler keeps the wait states that the hardware wants between the two. Here each kernel has some number of them,
// and the first whose sums are right counts. AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void exp_rate(Arguments a) {
  float x = float(a.other), y, z;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("v_exp_f32 %[y], %[x]\n"
                          "v_exp_f32 %[z], %[x]\n")
                 : [y] "=&v"(y), [z] "=&v"(z)
                 : [x] "v"(x), [n] "n"(kBodies));
}
KERNELS(exp_rate)

// 2^1 and 2^0 in turn: a sum that takes the one before instead of its own is another.
template <int kWaits, int kBodies>
__device__ void exp_result(Arguments a) {
  constexpr uint32_t kOne = 0x3f800000;
  float sum = 0, power = 0;
  uint32_t x = kOne;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED("v_exp_f32 %[power], %[x]\n"
                          ".rept %[waits]\n"
                          "s_nop 0\n"
                          ".endr\n"
                          "v_fma_f32 %[sum], %[sum], 0.5, %[power]\n"
                          "v_xor_b32 %[x], %[one], %[x]\n")
                 : [power] "+v"(power), [sum] "+v"(sum), [x] "+v"(x)
                 : [one] "v"(kOne), [waits] "n"(kWaits), [n] "n"(kBodies));
  a.memory[threadIdx.x] = __float_as_uint(sum);
}

#define EXP_RESULT(waits)                                 \
  template <int kBodies>                                  \
  __device__ void exp_result_after_##waits(Arguments a) { \
    exp_result<waits, kBodies>(a);                        \
  }                                                       \
  KERNELS(exp_result_after_##waits)
EXP_RESULT(0)
EXP_RESULT(1)
EXP_RESULT(2)
EXP_RESULT(8)
