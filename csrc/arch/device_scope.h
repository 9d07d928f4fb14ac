// SPDX-License-Identifier: Apache-2.0
// What blocks of one launch hand to each other: accesses of the device's scope, which pass the caches of compute units
// and, on an MI300X, of the eight dies by. They order nothing else. CDNA alone has kernels that use them.
#pragma once

#include "arch/memory_range.h"

namespace xlstm::gpu {

#if defined(__CUDACC__)
__device__ void store_device_scope(float* to, float x);
__device__ float load_device_scope(const float* from);
__device__ uint64_t load_device_scope(const uint64_t* from);
__device__ Vec16 load_vec16_device_scope(const MemoryRange& range, uint32_t offset);
__device__ void store_vec16_device_scope(const MemoryRange& range, uint32_t offset, const Vec16& vec);
__device__ void spin_pause();
__device__ uint32_t add_device_scope(uint32_t* to, uint32_t x);
__device__ void store_device_scope(uint32_t* to, uint32_t x);
__device__ void add_device_scope(char* base, uint32_t offset, float x);
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
XLSTM_DEVICE uint64_t load_device_scope(const uint64_t* from) {
  return __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Between two looks at a word: the compute unit's other waves issue meanwhile.
XLSTM_DEVICE void spin_pause() { __builtin_amdgcn_s_sleep(1); }
// Returns what was there before.
XLSTM_DEVICE uint32_t add_device_scope(uint32_t* to, uint32_t x) {
  return __hip_atomic_fetch_add(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
#if defined(__HIP_DEVICE_COMPILE__) && !defined(__GFX9__)
XLSTM_DEVICE void add_device_scope(char* base, uint32_t offset, float x);
XLSTM_DEVICE Vec16 load_vec16_device_scope(const MemoryRange& range, uint32_t offset);
XLSTM_DEVICE void store_vec16_device_scope(const MemoryRange& range, uint32_t offset, const Vec16& vec);
#else
// Four words, each of them of the device's scope: together they are not one access. Unlike an atomic one a load may be
// moved ahead of a loop that has no keep_order_of_loads().
#if defined(__gfx90a__)
constexpr int kLoadDeviceScope = 1, kStoreDeviceScope = 0;  // glc; stores go to L2, which all compute units share
#else
constexpr int kLoadDeviceScope = 16, kStoreDeviceScope = 16;  // sc1
#endif
XLSTM_DEVICE Vec16 load_vec16_device_scope(const MemoryRange& range, uint32_t offset) {
  return __builtin_bit_cast(Vec16,
                            __builtin_amdgcn_raw_buffer_load_b128(buffer_of(range), offset, 0, kLoadDeviceScope));
}
XLSTM_DEVICE void store_vec16_device_scope(const MemoryRange& range, uint32_t offset, const Vec16& vec) {
  __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(Words4, vec), buffer_of(range), offset, 0,
                                         kStoreDeviceScope);
}
// Adds to the float at a uniform base and an offset of each lane.
XLSTM_DEVICE void add_device_scope(char* base, uint32_t offset, float x) {
  (void)__builtin_amdgcn_global_atomic_fadd_f32((__attribute__((address_space(1))) float*)(base + offset), x);
}
#endif
// Until this wave's loads and stores are done, those of the device's scope for all.
XLSTM_DEVICE void wait_for_stores() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }
#endif

}  // namespace xlstm::gpu
