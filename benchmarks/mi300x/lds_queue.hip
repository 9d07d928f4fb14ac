// SPDX-License-Identifier: Apache-2.0
// How far LDS may be behind before a wave's next access waits to issue. A wave reads once or three times, each time all
// lanes of one bank, then adds for longer than LDS works, and waits. What three reads take more is the time until the
// third may issue: two reads less what may wait in front of LDS.
//
//   queue_cycles   2 (ds_read_b32 of one bank) - (cycles of a body of three_reads - those of one_read)
//
// AMD's assembly.
#include "microbenchmark.h"

template <int kReads, int kBodies>
__device__ void reads_then_additions(Arguments a) {
  __shared__ uint32_t words[64 * 32];
  for (uint32_t k = threadIdx.x; k < 64 * 32; k += blockDim.x) words[k] = k;
  __syncthreads();
  uint32_t at = threadIdx.x * 128, x;
  float sum = 0;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(REPEATED(".rept %[reads]\n"
                          "ds_read_b32 %[x], %[at]\n"
                          ".endr\n"
                          ".rept 96\n"
                          "v_add_f32 %[sum], %[sum], %[sum]\n"
                          ".endr\n"
                          "s_waitcnt lgkmcnt(0)\n")
                 : [x] "=&v"(x), [sum] "+v"(sum)
                 : [at] "v"(at), [reads] "n"(kReads), [n] "n"(kBodies)
                 : "memory");
}

template <int kBodies>
__device__ void one_read(Arguments a) {
  reads_then_additions<1, kBodies>(a);
}
KERNELS(one_read)

template <int kBodies>
__device__ void three_reads(Arguments a) {
  reads_then_additions<3, kBodies>(a);
}
KERNELS(three_reads)
