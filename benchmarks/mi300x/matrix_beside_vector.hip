// SPDX-License-Identifier: Apache-2.0
// What a product takes from the vector instructions of another wave of its SIMD. Four waves multiply, `rounds` rounds;
// four others, one on each SIMD too, add for `other` rounds of 512, which takes longer. Each product makes them later.
//
//   matrix_blocks_vector   cycles that a product adds to the launch / v_mfma_f32_16x16x16_bf16
//
// AMD's assembly.
#include "microbenchmark.h"

using Float4 = float __attribute__((ext_vector_type(4)));

template <int kBodies>
__device__ void multiply(uint32_t rounds) {
  Float4 c{}, d{};
  uint64_t x = threadIdx.x;
#pragma unroll 1
  for (uint32_t r = 0; r < rounds; ++r)
    asm volatile(REPEATED("v_mfma_f32_16x16x16_bf16 %[c], %[x], %[x], %[c]\n"
                          "v_mfma_f32_16x16x16_bf16 %[d], %[x], %[x], %[d]\n")
                 : [c] "+v"(c), [d] "+v"(d)
                 : [x] "v"(x), [n] "n"(kBodies));
}

template <int kBodies>
__device__ void add(uint32_t rounds) {
  float x = 1;
#pragma unroll 1
  for (uint32_t r = 0; r < rounds; ++r)
    asm volatile(REPEATED("v_add_f32 %[x], %[x], %[x]\n") : [x] "+v"(x) : [n] "n"(32 * kBodies));
}

template <int kBodies>
__device__ void products_beside_additions(Arguments a) {
  if (__builtin_amdgcn_readfirstlane(threadIdx.x) < 256)
    multiply<kBodies>(a.rounds);
  else
    add<kBodies>(a.other);
}
KERNELS(products_beside_additions)
