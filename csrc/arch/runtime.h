// SPDX-License-Identifier: Apache-2.0
// What the host asks of a GPU's runtime: under nvcc the few hip* names in use are the cuda* ones.
#pragma once

#include <type_traits>

#include "arch/compiler.h"

namespace xlstm::gpu {

#if defined(__CUDACC__)
#define XLSTM_GPU(name) cuda##name
#else
#define XLSTM_GPU(name) hip##name
#endif

using Stream = XLSTM_GPU(Stream_t);
using Status = XLSTM_GPU(Error_t);
constexpr Status kSuccess = XLSTM_GPU(Success);
inline const char* status_text(Status s) { return XLSTM_GPU(GetErrorString)(s); }
inline Status last_status() { return XLSTM_GPU(GetLastError)(); }
inline Status current_device(int& device) { return XLSTM_GPU(GetDevice)(&device); }

// Whether the library holds code of this kernel for the current device.
template <class Kernel>
bool has_code(Kernel* kernel) {
  XLSTM_GPU(FuncAttributes) attributes;
  const Status s = XLSTM_GPU(FuncGetAttributes)(&attributes, reinterpret_cast<const void*>(kernel));
  (void)last_status();  // the answer is no error of the caller's
  return s == kSuccess;
}

// More LDS than a block has without asking. A HIP kernel may have all of its CU's.
template <class Kernel>
Status allow_lds(Kernel* kernel, int bytes) {
#if defined(__CUDACC__)
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
#else
  (void)kernel, (void)bytes;
  return hipSuccess;
#endif
}

// Starts a kernel, without the syntax that only compilers for GPUs have. early: see arch/nvidia/dependent_launch.h.
// cluster: blocks that run side by side and see each other's LDS, which Hopper has; 0: none. all_at_once: or an error,
// of CUDA's.
template <class... Params>
Status start(void (*kernel)(Params...), uint32_t blocks, int threads, int lds_bytes, bool early, int cluster,
             bool all_at_once, Stream stream, const std::type_identity_t<Params>&... arguments) {
#if defined(__CUDACC__)
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(uint32_t(threads));
  config.dynamicSmemBytes = size_t(lds_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[3] = {};
  config.attrs = attributes;
  if (early) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 0) {
    cudaLaunchAttribute& together = attributes[config.numAttrs++];
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim = {uint32_t(cluster), 1, 1};
  }
  if (all_at_once) {
    cudaLaunchAttribute& cooperative = attributes[config.numAttrs++];
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
#else
  (void)early, (void)cluster, (void)all_at_once;
  const void* values[] = {&arguments...};
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(uint32_t(threads)),
                         const_cast<void**>(values), size_t(lds_bytes), stream);
#endif
}

}  // namespace xlstm::gpu
