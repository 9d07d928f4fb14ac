// SPDX-License-Identifier: Apache-2.0
// What all compute units together read, past L1: chunks of 64 KB, `other` of them, `rounds` times. A unit has one
// workgroup of 16 waves.
//
//   l2_bytes_a_cycle   256 KB, which each XCD's L2 holds: bytes / cycles / xcds
//   mall_gb_a_second   152 MB, which only the Infinity Cache holds: bytes / time
//   hbm_gb_a_second    up to 1.2 GB, the caches emptied before: bytes / time
//   cache_share        one round each of 0.7 to 1.05 of mall_bytes, again and again: the largest share that is read
//                      nearer the speed of half of it than that of one and a half
//
// The first two are lower bounds where the units cannot ask for more: l1_miss_lines lines in the time of one. Also for
// CUDA.
#include "microbenchmark.h"

constexpr uint32_t kChunk = 64 << 10;  // 4 KB of each of 16 waves

// 4 KB of a wave.
__device__ inline void load(Arguments a, uint32_t at) {
#if defined(__CUDACC__)
  uint32_t x, y, z, w, all = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                 : "l"(reinterpret_cast<const char*>(a.memory) + at + 1024 * k));
    all |= x | y | z | w;
  }
  use(all, a);
#else
  uint4 x, y, z, w;
  asm volatile(
      "global_load_dwordx4 %0, %4, %5 sc1\n"
      "global_load_dwordx4 %1, %4, %5 offset:1024 sc1\n"
      "global_load_dwordx4 %2, %4, %5 offset:2048 sc1\n"
      "global_load_dwordx4 %3, %4, %5 offset:3072 sc1\n"
      "s_waitcnt vmcnt(0)"
      : "=&v"(x), "=&v"(y), "=&v"(z), "=&v"(w)
      : "v"(at), "s"(a.memory)
      : "memory");
#endif
}

extern "C" __global__ __launch_bounds__(1024) void read(Arguments a) {
  const uint32_t in_chunk = threadIdx.x / 64 * 4096 + threadIdx.x % 64 * 16;
  const uint32_t chunks = a.other > gridDim.x ? a.other : gridDim.x;
#pragma unroll 1
  for (uint32_t r = 0; r < a.rounds; ++r)
#pragma unroll 1
    for (uint32_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) load(a, chunk % a.other * kChunk + in_chunk);
}
