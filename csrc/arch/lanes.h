// SPDX-License-Identifier: Apache-2.0
// The lanes of a wave: their ids, uniform values, votes and shuffles.
#pragma once

#include "arch/compiler_barriers.h"

namespace xlstm::gpu {

XLSTM_DEVICE int lane_id() { return threadIdx.x % kWave; }
XLSTM_DEVICE int wave_id() {  // the same in every lane; on AMD the compiler is told so
#if defined(__CUDACC__)
  return threadIdx.x / kWave;
#else
  return __builtin_amdgcn_readfirstlane(threadIdx.x / kWave);
#endif
}

// The number of a block, one of `blocks` that the grid has side by side, in an order in which neighbours run on one
// die, so that what they share is in its L2.
XLSTM_DEVICE uint32_t block_by_die(uint32_t blocks, uint32_t block = blockIdx.x) {
  const uint32_t of_die = blocks / kDies;
  if (kDies == 1 || block >= of_die * kDies) return block;
  return block % kDies * of_die + block / kDies;
}

// Marks a number as uniform, the same in every lane, for branches: AMD's compiler cannot see it.
XLSTM_DEVICE float uniform(float x) {
#if defined(__CUDACC__)
  return x;
#else
  return __builtin_bit_cast(float, __builtin_amdgcn_readfirstlane(__builtin_bit_cast(int, x)));
#endif
}

// The same for a number with a long lifetime: AMD's compiler keeps a bool as a bit for every lane, in two registers.
XLSTM_DEVICE int uniform(int x) {
#if defined(__CUDACC__)
  return x;
#else
  return __builtin_amdgcn_readfirstlane(x);
#endif
}

// The same for an address of device memory.
template <class T>
XLSTM_DEVICE const T* uniform(const T* x) {
#if defined(__CUDACC__)
  return x;
#else
  const uint64_t bits = __builtin_bit_cast(uint64_t, x);
  const uint64_t low = uint32_t(uniform(int(bits))), high = uint32_t(uniform(int(bits >> 32)));
  return (const T*)(const __attribute__((address_space(1))) T*)(high << 32 | low);
#endif
}

// Whether x is true in any lane.
XLSTM_DEVICE bool any_lane(bool x) {
#if defined(__CUDACC__)
  return __any_sync(~0u, x);
#elif defined(__GFX11__) || defined(__GFX12__)
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
// The same with the caller's id of this lane, opaque: AMD's compiler computes its own ahead of a loop otherwise, and
// keeps it.
XLSTM_DEVICE float shuffle_xor(float x, int mask, [[maybe_unused]] int lane) {
#if defined(__CUDACC__)
  return shuffle_xor(x, mask);
#else
  const int from = int(opaque(uint32_t(lane))) ^ mask;
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(from * 4, __builtin_bit_cast(int, x)));
#endif
}

// The x of a lane in this lane's group of `width` lanes.
template <class T>
XLSTM_DEVICE T shuffle_from(T x, int lane, int width) {
#if defined(__CUDACC__)
  return __shfl_sync(~0u, x, lane, width);
#else
  return __shfl(x, lane, width);
#endif
}

// The x of one lane, in all of them.
XLSTM_DEVICE uint32_t of_lane(uint32_t x, int lane) {
#if defined(__CUDACC__)
  return shuffle_from(x, lane, kWave);
#else
  return uint32_t(__builtin_amdgcn_readlane(int(x), lane));
#endif
}

// Sums over a row of sixteen lanes, in each of them; and over the lanes of the row before this one. AMD moves floats
// within a row without LDS (DPP).
#if defined(__CUDACC__)
XLSTM_DEVICE float sum_over_row(float x) {
  for (int mask = 8; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
  return x;
}
XLSTM_DEVICE float sum_before_in_row(float x) {
  const int lane = lane_id() % 16;
  for (int by = 1; by < 16; by *= 2) {
    const float below = shuffle_from(x, lane - by, 16);
    if (lane >= by) x += below;
  }
  const float before = shuffle_from(x, lane - 1, 16);
  return lane > 0 ? before : 0.0f;
}
#else
// The word of another lane of the row, zero where there is no such lane. kControl: DPP's.
template <int kControl, class Word>
XLSTM_DEVICE Word from_row(Word x) {
  const int bits = __builtin_bit_cast(int, x);
  return __builtin_bit_cast(Word, __builtin_amdgcn_update_dpp(0, bits, kControl, 0xf, 0xf, true));
}
XLSTM_DEVICE float sum_over_row(float x) {
  constexpr int kRotate = 0x120;
  x += from_row<kRotate + 8>(x);
  x += from_row<kRotate + 4>(x);
  x += from_row<kRotate + 2>(x);
  return x + from_row<kRotate + 1>(x);
}
XLSTM_DEVICE float sum_before_in_row(float x) {
  constexpr int kShiftUp = 0x110;
  x = from_row<kShiftUp + 1>(x);
  x += from_row<kShiftUp + 1>(x);
  x += from_row<kShiftUp + 2>(x);
  x += from_row<kShiftUp + 4>(x);
  return x + from_row<kShiftUp + 8>(x);
}
#endif

}  // namespace xlstm::gpu
