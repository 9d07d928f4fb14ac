// SPDX-License-Identifier: Apache-2.0
// What blocks of one launch hand to each other: accesses of the device's scope, which pass the caches of compute units
// and, on an MI300X, of the eight dies by. They order nothing else. CDNA alone has kernels that use them.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

#if defined(__CUDACC__)
__device__ void store_device_scope(float* to, float x);
__device__ float load_device_scope(const float* from);
__device__ uint32_t add_device_scope(uint32_t* to, uint32_t x);
__device__ void store_device_scope(uint32_t* to, uint32_t x);
__device__ void wait_for_stores();
#else
XLSTM_DEVICE void store_device_scope(float* to, float x) {
  __hip_atomic_store(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
XLSTM_DEVICE void store_device_scope(uint32_t* to, uint32_t x) {
  __hip_atomic_store(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
XLSTM_DEVICE float load_device_scope(const float* from) {
  return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Returns what was there before.
XLSTM_DEVICE uint32_t add_device_scope(uint32_t* to, uint32_t x) {
  return __hip_atomic_fetch_add(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Until this wave's loads and stores are done, those of the device's scope for all.
XLSTM_DEVICE void wait_for_stores() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }
#endif

}  // namespace xlstm::gpu
