// SPDX-License-Identifier: Apache-2.0
// What LDS gives: 16 waves read 8 times, each lane 4, 8 or 16 bytes, one beside the other, or each another row of one
// bank. A barrier follows, since LDS serves older waves first: without it the last waves would read alone, too few for
// the full rate. LDS is busy meanwhile, with the reads that wait in its queue.
//
//   ds_read_b32, ds_read_b64, ds_read_b128, ds_read_b32 of one bank   cycles of a body / 128
//   lds_cycles_without_banks                                          the same of ds_swizzle_b32, which reads no bank
//
// AMD's assembly.
#include "microbenchmark.h"

// lgkmcnt(8) waits for the reads of the body before, which have come back by then.
#define ACCESSES(instruction) \
  REPEATED(".rept 8\n" instruction "\n.endr\ns_waitcnt lgkmcnt(8)\ns_barrier\n") "s_waitcnt lgkmcnt(0)\n"

#define READS(name, instruction, bytes_apart, type)                                                                  \
  template <int kBodies>                                                                                             \
  __device__ void name(Arguments a) {                                                                                \
    __shared__ uint32_t words[64 * bytes_apart / 4];                                                                 \
    for (uint32_t k = threadIdx.x; k < 64 * bytes_apart / 4; k += blockDim.x) words[k] = k;                          \
    __syncthreads();                                                                                                 \
    const uint32_t at = threadIdx.x % 64 * bytes_apart;                                                              \
    type x;                                                                                                          \
    _Pragma("unroll 1") for (uint32_t r = 0; r < a.rounds; ++r) {                                                    \
      asm volatile(ACCESSES(instruction " %[x], %[at]") : [x] "=&v"(x) : [at] "v"(at), [n] "n"(kBodies) : "memory"); \
    }                                                                                                                \
  }                                                                                                                  \
  KERNELS(name)
READS(reads_of_4, "ds_read_b32", 4, uint32_t)
READS(reads_of_8, "ds_read_b64", 8, uint64_t)
READS(reads_of_16, "ds_read_b128", 16, uint4)
READS(reads_of_one_bank, "ds_read_b32", 128, uint32_t)

template <int kBodies>
__device__ void swizzles(Arguments a) {
  uint32_t lane = threadIdx.x, x;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
    asm volatile(ACCESSES("ds_swizzle_b32 %[x], %[lane] offset:0x041f")
                 : [x] "=&v"(x)
                 : [lane] "v"(lane), [n] "n"(kBodies));
}
KERNELS(swizzles)
