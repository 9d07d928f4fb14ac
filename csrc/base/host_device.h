// SPDX-License-Identifier: Apache-2.0
// Scalar code that runs on the host and inside GPU kernels is marked with one word.
#pragma once

#if defined(__HIPCC__) || defined(__CUDACC__)
#define XLSTM_HOST_DEVICE __host__ __device__
#else
#define XLSTM_HOST_DEVICE
#endif

// Of which no copy may be left to the linker: CPU kernels are compiled for several instruction sets.
#define XLSTM_RULE XLSTM_HOST_DEVICE static inline __attribute__((always_inline))
