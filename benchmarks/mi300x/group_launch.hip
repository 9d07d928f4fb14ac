// SPDX-License-Identifier: Apache-2.0
// What a compute unit takes to begin a workgroup after another has ended. All of LDS is asked for, so that a unit has
// one workgroup at a time. With few bodies and many, and one wave and four, what the bodies take is left out.
//
//   wave_launch_cycles    (z(4) - z(1)) / 3
//   group_launch_cycles   z(1) - wave_launch_cycles - 2 issue_cycles - branch_cycles + taken_branch_cycles
//
// z(waves): cycles of a workgroup of so many waves, extrapolated to no bodies: then the last branch,
// which is not taken, and two instructions around the loop are left. AMD's assembly.
#include "microbenchmark.h"

template <int kBodies>
__device__ void additions() {
#pragma unroll 1
  for (int k = 0; k < kBodies; ++k) asm volatile(REPEATED("v_add_f32 v0, v0, v0\n") : : [n] "n"(32) : "v0");
}
extern "C" __global__ __launch_bounds__(256) void group_short() { additions<kShort>(); }
extern "C" __global__ __launch_bounds__(256) void group_long() { additions<kLong>(); }
