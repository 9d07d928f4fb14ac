// SPDX-License-Identifier: Apache-2.0
// The clock that power leaves while the matrix units of all compute units work: always, about half of the time, about a
// quarter. One workgroup on the chip takes the same cycles at peak_mhz.
//
//   mhz(kernel)    peak_mhz * microseconds of one workgroup / those of one on each unit, without launch_microseconds
//   busy(kernel)   cycles of its products / cycles of one workgroup
//   matrix_mhz, matrix_power   of the line through log mhz = log matrix_mhz - matrix_power log busy, where mhz is less
//                              than 0.97 peak_mhz
//
// Power depends on what is multiplied: lanes and operands differ here, and sums grow. AMD's assembly.
#include "microbenchmark.h"

using Float4 = float __attribute__((ext_vector_type(4)));

// Four numbers of bfloat16 between 1 and 2.
__device__ inline uint64_t some_numbers(uint32_t seed) {
  const uint64_t bits = (seed + 1) * 0x9e3779b97f4a7c15ull;
  return (bits & 0x007f007f007f007full) | 0x3f803f803f803f80ull;
}

#define PRODUCTS_AND(pause)                               \
  REPEATED(                                               \
      "v_mfma_f32_16x16x16_bf16 %[c], %[x], %[y], %[c]\n" \
      "v_mfma_f32_16x16x16_bf16 %[d], %[y], %[x], %[d]\n" \
      "v_mfma_f32_16x16x16_bf16 %[c], %[x], %[y], %[c]\n" \
      "v_mfma_f32_16x16x16_bf16 %[d], %[y], %[x], %[d]\n" pause)
#define LOADED(name, pause)                                                                                    \
  template <int kBodies>                                                                                       \
  __device__ void name(Arguments a) {                                                                          \
    Float4 c{}, d{};                                                                                           \
    const uint64_t x = some_numbers(threadIdx.x), y = some_numbers(~threadIdx.x);                              \
    _Pragma("unroll 1") for (uint32_t r = 0; r < a.rounds; ++r) {                                              \
      asm volatile(PRODUCTS_AND(pause) : [c] "+v"(c), [d] "+v"(d) : [x] "v"(x), [y] "v"(y), [n] "n"(kBodies)); \
    }                                                                                                          \
  }                                                                                                            \
  KERNELS(name)
LOADED(busy_always, "")
LOADED(busy_half, "s_nop 15\n")
LOADED(busy_quarter, "s_nop 15\ns_nop 15\ns_nop 15\n")
