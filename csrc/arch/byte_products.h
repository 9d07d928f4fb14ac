// SPDX-License-Identifier: Apache-2.0
// CDNA: products of signed bytes with sums in int32, 16 stream rows by 32 k by 16 columns. A lane has 8 bytes of k of
// its row and of its column, and four rows of a column of the sums, as in arch/amd/cdna.h. CDNA alone has kernels that
// use them.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

struct ByteSums {
  int value[4];
};

#if defined(__CUDACC__) || (defined(__HIP_DEVICE_COMPILE__) && !defined(__GFX9__))
__device__ void multiply_bytes(ByteSums& sums, const uint32_t (&stream)[2], const uint32_t (&chain)[2]);
#else
typedef int Int4 __attribute__((ext_vector_type(4)));

XLSTM_DEVICE void multiply_bytes(ByteSums& sums, [[maybe_unused]] const uint32_t (&stream)[2],
                                 [[maybe_unused]] const uint32_t (&chain)[2]) {
  Int4 c = __builtin_bit_cast(Int4, sums);
#if defined(__gfx90a__)
  // Of 16 k, the lane's first and second four bytes: which k they are does not matter.
#pragma unroll
  for (int h = 0; h < 2; ++h) c = __builtin_amdgcn_mfma_i32_16x16x16i8(int(stream[h]), int(chain[h]), c, 0, 0, 0);
#elif defined(__HIP_DEVICE_COMPILE__)
  c = __builtin_amdgcn_mfma_i32_16x16x32_i8(__builtin_bit_cast(long, stream), __builtin_bit_cast(long, chain), c, 0, 0,
                                            0);
#endif
  sums = __builtin_bit_cast(ByteSums, c);
}
#endif

}  // namespace xlstm::gpu
