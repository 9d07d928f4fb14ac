// SPDX-License-Identifier: Apache-2.0
// What the microbenchmarks share. Where a file says "body", its kernels run a loop whose body stands kShort times in
// the one and kLong times in the other: the difference is the body's, without the loop around it.
#pragma once

#if !defined(__CUDACC__)
#include <hip/hip_runtime.h>
#endif
#include <stdint.h>

struct Arguments {
  uint32_t* memory;
  uint32_t rounds;  // of the loop
  uint32_t other;   // as the file says
};

constexpr int kShort = 16, kLong = 48;

// The device function name<kBodies>() as two kernels.
#define KERNELS(name)                                                                               \
  extern "C" __global__ __launch_bounds__(1024) void name##_short(Arguments a) { name<kShort>(a); } \
  extern "C" __global__ __launch_bounds__(1024) void name##_long(Arguments a) { name<kLong>(a); }

// Instructions that stand %[n] times, n a number that is known to the compiler. All of a round are in one asm
// statement: between two of them compilers may insert s_nop.
#define REPEATED(instructions) ".rept %[n]\n" instructions ".endr\n"

#if defined(__CUDACC__)
// Uses a result: ptxas deletes instructions whose results nothing uses, those of volatile asm, too.
__device__ inline void use(uint32_t result, Arguments a) {
  if (result == 0x7fc54321) a.memory[0] = result;  // never
}
#endif
