// SPDX-License-Identifier: Apache-2.0
// The compiler of this pass, HIP's or NVIDIA's, the family of GPUs that it compiles for, and the attributes that each
// compiler needs on a function or a param. HIP is the language; nothing outside arch/ asks which of the two compiles
// it.
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
  __device__ __noinline__                    // for a rare path, which would take registers from a loop if inlined
#define XLSTM_PARAM const __grid_constant__  // before a kernel's only param, whose address is taken: avoids a copy
#else
#define XLSTM_NOINLINE_PATH XLSTM_DEVICE  // a call would take registers from the kernel
#define XLSTM_PARAM const
#endif

namespace xlstm::gpu {

// Whether the library has kernels for Hopper (arch/hopper/hopper.h): a CUDA library has them, for sm_90a.
#if defined(__CUDACC__)
constexpr bool kHasHopperKernels = true;
#else
constexpr bool kHasHopperKernels = false;
#endif

// The family that this pass compiles for. The host's pass compiles no kernel body, so any family does.
#if defined(__CUDA_ARCH__) || (defined(__CUDACC__) && !defined(__HIP_DEVICE_COMPILE__))
constexpr Family kFamily = Family::nvidia;
#elif defined(__GFX11__)
constexpr Family kFamily = Family::rdna;
#elif defined(__gfx1200__) || defined(__gfx1201__) || defined(__gfx12_generic__)
constexpr Family kFamily = Family::rdna4;
#elif defined(__HIP_DEVICE_COMPILE__) && !defined(__GFX9__)
#error "no kernels for this AMD chip: they are for gfx9, gfx11, gfx1200 and gfx1201; gfx10 has no matrix instructions"
#else
constexpr Family kFamily = Family::cdna;
#endif
constexpr int kWave = wave_size(kFamily);

// The dies that a grid's blocks are dealt to in turn, each with an L2 of its own (the XCDs of MI300X and MI355X).
#if defined(__gfx942__) || defined(__gfx950__)
constexpr int kDies = 8;
#else
constexpr int kDies = 1;
#endif

}  // namespace xlstm::gpu
