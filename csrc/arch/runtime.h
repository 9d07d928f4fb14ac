// SPDX-License-Identifier: Apache-2.0
// The host's calls of the GPU's runtime, which has the same names under HIP and CUDA but for the prefix.
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
  (void)last_status();  // clears the error, so that the caller's next check does not see it
  return s == kSuccess;
}

// Allows a kernel more LDS than CUDA's default of a block. A HIP kernel may use all LDS of its CU by default.
template <class Kernel>
Status allow_lds(Kernel* kernel, int bytes) {
#if defined(__CUDACC__)
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
#else
  (void)kernel, (void)bytes;
  return hipSuccess;
#endif
}

// Starts a kernel without the <<<>>> syntax, which only GPU compilers parse. early, cluster and is_cooperative are as
// in arch/launch.h's Grid.
template <class... Params>
Status start(void (*kernel)(Params...), uint32_t blocks, int threads, int lds_bytes, bool early_launch, int cluster,
             bool is_cooperative, Stream stream, const std::type_identity_t<Params>&... arguments) {
#if defined(__CUDACC__)
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(uint32_t(threads));
  config.dynamicSmemBytes = size_t(lds_bytes);
  config.stream = stream;
  cudaLaunchAttribute attributes[3] = {};
  config.attrs = attributes;
  if (early_launch) {
    cudaLaunchAttribute& early_attribute = attributes[config.numAttrs++];
    early_attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early_attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 0) {
    cudaLaunchAttribute& cluster_attribute = attributes[config.numAttrs++];
    cluster_attribute.id = cudaLaunchAttributeClusterDimension;
    cluster_attribute.val.clusterDim = {uint32_t(cluster), 1, 1};
  }
  if (is_cooperative) {
    cudaLaunchAttribute& cooperative_attribute = attributes[config.numAttrs++];
    cooperative_attribute.id = cudaLaunchAttributeCooperative;
    cooperative_attribute.val.cooperative = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
#else
  (void)early_launch, (void)cluster;
  const void* values[] = {&arguments...};
  if (is_cooperative)
    return hipLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(uint32_t(threads)),
                                      const_cast<void**>(values), unsigned(lds_bytes), stream);
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(uint32_t(threads)),
                         const_cast<void**>(values), size_t(lds_bytes), stream);
#endif
}

}  // namespace xlstm::gpu
