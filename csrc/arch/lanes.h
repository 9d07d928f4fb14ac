// SPDX-License-Identifier: Apache-2.0
// The lanes of a wave: which this is, what all agree on, what one has of another.
#pragma once

#include "arch/compiler.h"

namespace xlstm::gpu {

XLSTM_DEVICE int lane_id() { return threadIdx.x % kWave; }
XLSTM_DEVICE int wave_id() {  // the same in every lane; on AMD the compiler is told so
#if defined(__CUDACC__)
  return threadIdx.x / kWave;
#else
  return __builtin_amdgcn_readfirstlane(threadIdx.x / kWave);
#endif
}

// A number that is the same in every lane, for branches: AMD's compiler must be told.
XLSTM_DEVICE float uniform(float x) {
#if defined(__CUDACC__)
  return x;
#else
  return __builtin_bit_cast(float, __builtin_amdgcn_readfirstlane(__builtin_bit_cast(int, x)));
#endif
}

// The same for a number that is kept for long: of a bool AMD's compiler keeps a bit for every lane, two registers.
XLSTM_DEVICE int uniform(int x) {
#if defined(__CUDACC__)
  return x;
#else
  return __builtin_amdgcn_readfirstlane(x);
#endif
}

// Whether it is so in any lane.
XLSTM_DEVICE bool any_lane(bool x) {
#if defined(__CUDACC__)
  return __any_sync(~0u, x);
#elif defined(__GFX11__)
  return __builtin_amdgcn_ballot_w32(x) != 0;
#else
  return __builtin_amdgcn_ballot_w64(x) != 0;
#endif
}

XLSTM_DEVICE float shuffle_xor(float x, int mask) {
#if defined(__CUDACC__)
  return __shfl_xor_sync(~0u, x, mask);
#else
  return __shfl_xor(x, mask, kWave);
#endif
}

// From a lane of this lane's group of `width`.
template <class T>
XLSTM_DEVICE T shuffle_from(T x, int lane, int width) {
#if defined(__CUDACC__)
  return __shfl_sync(~0u, x, lane, width);
#else
  return __shfl(x, lane, width);
#endif
}

}  // namespace xlstm::gpu
