// SPDX-License-Identifier: Apache-2.0
// When vector instructions may use what a matrix product gives.
//
//   matrix_result_cycles   cycles of a body - v_mfma_f32_16x16x16_bf16 - issue_cycles
//
// As in transcendental.hip each kernel has a number of wait states, and the first whose sums are right counts. The
// operand is 1 and 0 in turn: a sum that takes the product before instead of its own is another. AMD's assembly.
#include "microbenchmark.h"

// v[40:43] the product, v[44:45] its first operand, v[46:47] its second.
template <int kWaits, int kBodies>
__device__ void result(Arguments a) {
  constexpr uint32_t kOnes = 0x3f803f80;  // two of bfloat16
  float sum = 0;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(
        "v_mov_b32 v44, %[ones]\n"
        "v_mov_b32 v45, %[ones]\n"
        "v_mov_b32 v46, %[ones]\n"
        "v_mov_b32 v47, %[ones]\n"
        "s_nop 7\n" REPEATED("v_mfma_f32_16x16x16_bf16 v[40:43], v[44:45], v[46:47], 0\n"
                             "v_xor_b32 v44, %[ones], v44\n"
                             "v_xor_b32 v45, %[ones], v45\n"
                             ".rept %[waits]\n"
                             "s_nop 0\n"
                             ".endr\n"
                             "v_fma_f32 %[sum], %[sum], 0.5, v40\n")
        : [sum] "+v"(sum)
        : [ones] "v"(kOnes), [waits] "n"(kWaits), [n] "n"(kBodies)
        : "v40", "v41", "v42", "v43", "v44", "v45", "v46", "v47");
  a.memory[threadIdx.x] = __float_as_uint(sum);
}

#define RESULT(waits)                                 \
  template <int kBodies>                              \
  __device__ void result_after_##waits(Arguments a) { \
    result<waits, kBodies>(a);                        \
  }                                                   \
  KERNELS(result_after_##waits)
RESULT(0)
RESULT(1)
RESULT(2)
RESULT(3)
RESULT(4)
RESULT(5)
RESULT(6)
RESULT(7)
RESULT(8)
RESULT(24)
