// SPDX-License-Identifier: Apache-2.0
// The compiler of this pass: HIP's or NVIDIA's, for which family of GPUs, and the words that each wants on a function
// or a param. HIP is the language; nothing outside arch/ asks which of the two it is.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include <hip/hip_runtime.h>
#endif

#define XLSTM_DEVICE __device__ __forceinline__

#if defined(__CUDACC__)
#define XLSTM_NOINLINE_PATH \
  __device__ __noinline__                    // called where it would only be in the way of what is run over and over
#define XLSTM_PARAM const __grid_constant__  // before a kernel's only param, whose address is taken: it makes no copy
#else
#define XLSTM_NOINLINE_PATH XLSTM_DEVICE  // a call would take registers from the kernel
#define XLSTM_PARAM const
#endif

namespace xlstm::gpu {

// Whether the library has kernels for Hopper (arch/hopper/hopper.h): a CUDA library does, for sm_90a.
#if defined(__CUDACC__)
constexpr bool kHasHopperKernels = true;
#else
constexpr bool kHasHopperKernels = false;
#endif

// Which family this pass compiles for. The host's pass compiles no kernel body and takes any.
#if defined(__CUDA_ARCH__) || (defined(__CUDACC__) && !defined(__HIP_DEVICE_COMPILE__))
constexpr Family kFamily = Family::nvidia;
#elif defined(__GFX11__)
constexpr Family kFamily = Family::rdna;
#else
constexpr Family kFamily = Family::cdna;
#endif
constexpr int kWave = wave_size(kFamily);

}  // namespace xlstm::gpu
