// SPDX-License-Identifier: Apache-2.0
// AMD: data reaches LDS through registers, and barriers are the block's. What NVIDIA has beside that goes by these
// names; a kernel asks kAsyncCopies first, and what it then leaves out is never compiled: they have no bodies here.
#pragma once

namespace xlstm::gpu {

constexpr bool kAsyncCopies = false;

__device__ uint32_t lds_address(const void*);
__device__ void copy_async(uint32_t lds, const void* global, bool valid);
__device__ void copy_async_float(float* lds, const float* global);
__device__ void copies_wait();
__device__ void meet(int barrier, int threads);
__device__ void pass(int barrier, int threads);

}  // namespace xlstm::gpu
