// SPDX-License-Identifier: Apache-2.0
// Products of a warpgroup (wgmma), and of a warp (mma.sync): the running thread's part in them.
#pragma once

#include <cstdint>

namespace emulator {

void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int but_the_last);

// sum[64][columns] (+)= A[64][16] B[16][columns]; of `sum` and of a held A this thread has its registers. Operands are
// float16 or bfloat16.
void wgmma_ss(float* sum, int columns, uint64_t a, bool a_across, uint64_t b, bool b_across, bool add, bool float16);
void wgmma_rs(float* sum, int columns, const uint32_t* a, uint64_t b, bool b_across, bool add, bool float16);

// sum[16][8] += A[16][16] B[16][8] of bfloat16, all in registers.
void multiply_warp(float* sum, const uint32_t* a, uint32_t b0, uint32_t b1);
// The same of [16][32] and [32][8] signed bytes.
void multiply_warp_of_bytes(int* sum, const uint32_t* a, uint32_t b0, uint32_t b1);

}  // namespace emulator
