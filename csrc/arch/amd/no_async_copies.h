// SPDX-License-Identifier: Apache-2.0
// AMD: data reaches LDS through registers, and all barriers are of the block. These declarations stand for NVIDIA's
// asynchronous copies and named barriers. They have no bodies: a kernel asks kAsyncCopies first, so that AMD's code
// never calls them.
#pragma once

namespace xlstm::gpu {

constexpr bool kAsyncCopies = false;

__device__ uint32_t lds_address(const void*);
__device__ void cp_async(uint32_t lds, const void* global, bool valid);
__device__ void cp_async_half(uint32_t lds, const void* global, bool valid);
__device__ void cp_async_float(float* lds, const float* global);
__device__ void cp_async_wait_all();
__device__ void barrier_sync(int barrier, int threads);
__device__ void barrier_arrive(int barrier, int threads);

}  // namespace xlstm::gpu
