// SPDX-License-Identifier: Apache-2.0
// How often a SIMD starts a matrix product, of the shapes that this package's kernels use. Two sums take turns, so that
// no product waits for the one before.
//
//   v_mfma_f32_16x16x16_bf16, ..._f16, v_mfma_f32_16x16x4_f32   cycles of a body / 2
//
// AMD's assembly.
#include "microbenchmark.h"

using Float4 = float __attribute__((ext_vector_type(4)));

#define PRODUCTS(name, instruction, operand)                                                                 \
  template <int kBodies>                                                                                     \
  __device__ void name(Arguments a) {                                                                        \
    Float4 c{}, d{};                                                                                         \
    operand x = operand(a.other + threadIdx.x);                                                              \
    _Pragma("unroll 1") for (uint32_t r = 0; r < a.rounds; ++r) {                                            \
      asm volatile(REPEATED(instruction " %[c], %[x], %[x], %[c]\n" instruction " %[d], %[x], %[x], %[d]\n") \
                   : [c] "+v"(c), [d] "+v"(d)                                                                \
                   : [x] "v"(x), [n] "n"(kBodies));                                                          \
    }                                                                                                        \
  }                                                                                                          \
  KERNELS(name)
PRODUCTS(products_bf16, "v_mfma_f32_16x16x16_bf16", uint64_t)
PRODUCTS(products_fp16, "v_mfma_f32_16x16x16_f16", uint64_t)
PRODUCTS(products_fp32, "v_mfma_f32_16x16x4_f32", float)
