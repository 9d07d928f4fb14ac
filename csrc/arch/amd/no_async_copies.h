// SPDX-License-Identifier: Apache-2.0
// AMD: data reaches LDS through registers, and barriers are the block's. What NVIDIA has beside that goes by these
// names; a kernel asks kAsyncCopies first, and what it then leaves out is never compiled: they have no bodies here.
#pragma once

namespace xlstm::gpu {

constexpr bool kAsyncCopies = false;

__device__ uint32_t lds_address(const void*);
__device__ void cp_async(uint32_t lds, const void* global, bool valid);
__device__ void cp_async_float(float* lds, const float* global);
__device__ void cp_async_wait_all();
__device__ void barrier_sync(int barrier, int threads);
__device__ void barrier_arrive(int barrier, int threads);

}  // namespace xlstm::gpu
