// SPDX-License-Identifier: Apache-2.0
// The marks of scalar code that runs on the host and inside GPU kernels.
#pragma once

#if defined(__HIPCC__) || defined(__CUDACC__)
#define XLSTM_HOST_DEVICE __host__ __device__
#else
#define XLSTM_HOST_DEVICE
#endif

// Such a function must not leave a copy to the linker, because CPU kernels are compiled for several instruction sets.
#define XLSTM_RULE XLSTM_HOST_DEVICE static inline __attribute__((always_inline))
