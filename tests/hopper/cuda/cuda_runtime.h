// SPDX-License-Identifier: Apache-2.0
// CUDA as the kernels and their launches see it: the few names that they use, for the emulator.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "device.h"
#include "sync.h"

#define __global__
#define __host__
#define __device__
#define __forceinline__ inline
#define __shared__ thread_local
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_assume(condition) ((void)0)  // clang's and nvcc's

// ---- in kernels

struct Index {
  struct {
    operator uint32_t() const { return emulator::thread_index(); }
  } x;
};
struct BlockIndex {
  struct {
    operator uint32_t() const { return emulator::block_index(); }
  } x;
};
inline constexpr Index threadIdx{};
inline constexpr BlockIndex blockIdx{};
struct GridSize {
  struct {
    operator uint32_t() const { return emulator::grid_blocks(); }
  } x;
};
struct BlockSize {
  struct {
    operator uint32_t() const { return emulator::block_threads(); }
  } x;
};
inline constexpr GridSize gridDim{};
inline constexpr BlockSize blockDim{};

struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(8) uint2 {
  uint32_t x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }

inline void __syncthreads() { emulator::sync_block(); }
inline void __syncwarp() { emulator::sync_warp(); }
template <class T>
T __shfl_sync(uint32_t, T x, int lane, int width) {
  uint64_t bits = 0;
  memcpy(&bits, &x, sizeof x);
  const int this_lane = int(threadIdx.x % 32);
  bits = emulator::exchange(bits)[this_lane / width * width + (lane & (width - 1))];
  memcpy(&x, &bits, sizeof x);
  return x;
}
inline float __shfl_xor_sync(uint32_t all, float x, int mask) {
  return __shfl_sync(all, x, int(threadIdx.x % 32) ^ mask, 32);
}
inline int __any_sync(uint32_t, int predicate) {
  const uint64_t* all = emulator::exchange(uint64_t(predicate != 0));
  int any = 0;
  for (int lane = 0; lane < 32; ++lane) any |= int(all[lane]);
  return any;
}
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t select) {
  const uint64_t both = uint64_t(high) << 32 | low;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= uint32_t(both >> (8 * (select >> (4 * i) & 7)) & 0xff) << (8 * i);
  return r;
}
inline size_t __cvta_generic_to_shared(const void* p) { return emulator::shared_address(p); }

// ---- on the host

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess, cudaErrorInvalidValue };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
struct cudaFuncAttributes {};
inline const char* cudaGetErrorString(cudaError_t s) { return s == cudaSuccess ? "no error" : "invalid argument"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return cudaSuccess; }
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return emulator::allow_dynamic(reinterpret_cast<const void*>(kernel), bytes) ? cudaSuccess : cudaErrorInvalidValue;
}

struct dim3 {
  uint32_t x, y, z;
  dim3(uint32_t n = 1) : x(n), y(1), z(1) {}
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension,
  cudaLaunchAttributeProgrammaticStreamSerialization,
  cudaLaunchAttributeCooperative
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      uint32_t x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;  // here one kernel follows the other
    int cooperative;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
template <class... Params, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               const Arguments&... arguments) {
  int cluster = 1;
  bool cooperative = false;
  for (unsigned n = 0; n < config->numAttrs; ++n)
    if (config->attrs[n].id == cudaLaunchAttributeClusterDimension)
      cluster = int(config->attrs[n].val.clusterDim.x);
    else if (config->attrs[n].id == cudaLaunchAttributeCooperative)
      cooperative = true;
  const int bytes = int(config->dynamicSmemBytes);
  if (!emulator::may_have(reinterpret_cast<const void*>(kernel), bytes)) return cudaErrorInvalidValue;
  emulator::launch(int(config->gridDim.x), int(config->blockDim.x), bytes, cluster, cooperative,
                   [&] { kernel(arguments...); });
  return cudaSuccess;
}

// As many as are asked for: the emulator has a multiprocessor for each block.
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, Kernel*, const cudaLaunchConfig_t* config) {
  return *clusters = int(config->gridDim.x / config->attrs[0].val.clusterDim.x), cudaSuccess;
}

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned version, int flags,
                                             cudaDriverEntryPointQueryResult* how);
