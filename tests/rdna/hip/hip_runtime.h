// SPDX-License-Identifier: Apache-2.0
// HIP and the compiler's builtins of RDNA as the kernels see them, for the emulator of tests/hopper/src: its threads
// are lanes, its warps are waves of 32.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <stdexcept>

#include "device.h"
#include "sync.h"

#define __global__
#define __host__
#define __device__
#define __forceinline__ inline
#define __shared__ thread_local
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

struct ThreadIndex {
  struct {
    operator uint32_t() const { return emulator::thread_index(); }
  } x;
};
struct BlockIndex {
  struct {
    operator uint32_t() const { return emulator::block_index(); }
  } x;
};
struct GridSize {
  struct {
    operator uint32_t() const { return emulator::grid_blocks(); }
  } x;
};
inline constexpr ThreadIndex threadIdx{};
inline constexpr BlockIndex blockIdx{};
inline constexpr GridSize gridDim{};

inline void __syncthreads() { emulator::sync_block(); }

// ---- between the lanes of a wave

inline int this_lane() { return int(threadIdx.x % 32); }

// The x of each lane of the wave.
template <class T>
struct Lanes {
  T of[32];

  explicit Lanes(const T& mine) {
    constexpr size_t kWords = (sizeof(T) + 7) / 8;
    uint64_t words[kWords] = {};
    memcpy(words, &mine, sizeof(T));
    uint64_t all[32][kWords];
    for (size_t w = 0; w < kWords; ++w) {
      const uint64_t* given = emulator::exchange(words[w]);
      for (int lane = 0; lane < 32; ++lane) all[lane][w] = given[lane];
    }
    for (int lane = 0; lane < 32; ++lane) memcpy(&of[lane], all[lane], sizeof(T));
  }
};

template <class T>
T __shfl(T x, int lane, int width) {
  return Lanes<T>(x).of[this_lane() / width * width + (lane & (width - 1))];
}
template <class T>
T __shfl_xor(T x, int mask, int) {
  return Lanes<T>(x).of[this_lane() ^ mask];
}
inline int __builtin_amdgcn_ds_bpermute(int byte, int x) { return Lanes<int>(x).of[byte / 4]; }
inline int __builtin_amdgcn_readfirstlane(int x) { return x; }  // of what is the same in every lane
inline int __builtin_amdgcn_readlane(int x, int lane) { return Lanes<int>(x).of[lane]; }
inline uint32_t __builtin_amdgcn_ballot_w32(bool x) {
  const Lanes<int> all(x);
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= uint32_t(all.of[lane]) << lane;
  return bits;
}
// Lane by lane from the other half; the kernels ask for no other order.
inline uint32_t __builtin_amdgcn_permlanex16(uint32_t, uint32_t x, uint32_t low, uint32_t high, bool, bool) {
  if (low != 0x76543210u || high != 0xfedcba98u) throw std::invalid_argument("permlanex16 in another order");
  return Lanes<uint32_t>(x).of[this_lane() ^ 16];
}
// DPP within a row of sixteen lanes, the two forms that the kernels ask for: a rotation, and a shift up with zeros.
inline int __builtin_amdgcn_update_dpp(int, int x, int control, int rows, int banks, bool zeros) {
  constexpr int kShiftUp = 0x110, kRotate = 0x120;
  const int by = control & 15, lane = this_lane() % 16;
  if ((control != kShiftUp + by && control != kRotate + by) || rows != 15 || banks != 15 || !zeros)
    throw std::invalid_argument("DPP in another form");
  const Lanes<int> all(x);
  if (control < kRotate && lane < by) return 0;
  return all.of[this_lane() - lane + ((lane - by) & 15)];
}

// ---- in a lane

inline uint32_t __builtin_amdgcn_perm(uint32_t high, uint32_t low, uint32_t select) {
  const uint64_t both = uint64_t(high) << 32 | low;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) r |= uint32_t(both >> (8 * (select >> (8 * i) & 7)) & 0xff) << (8 * i);
  return r;
}
inline int __builtin_amdgcn_sbfe(int x, int first, int bits) { return x << (32 - first - bits) >> (32 - bits); }
inline float __builtin_amdgcn_exp2f(float x) { return exp2f(x); }
inline float __builtin_amdgcn_rcpf(float x) { return 1 / x; }

// ---- WMMA: AMD's published maps of operands (tests/cpp/matrix_layouts.h), in float64 and rounded once

typedef float WmmaSum __attribute__((ext_vector_type(8)));

inline double wmma_number(_Float16 x) { return double(x); }
inline double wmma_number(short bfloat16) {
  const uint32_t bits = uint32_t(uint16_t(bfloat16)) << 16;
  return double(__builtin_bit_cast(float, bits));
}
template <class Operand>
WmmaSum wmma_16x16x16(Operand a, Operand b, WmmaSum c) {
  constexpr int kLaneK = sizeof(Operand) / 2;  // 16: both halves of the wave have all k
  const Lanes<Operand> all_a(a), all_b(b);
  for (int lane = 0; kLaneK == 16 && lane < 16; ++lane)
    if (memcmp(&all_a.of[lane], &all_a.of[lane + 16], sizeof(Operand)) ||
        memcmp(&all_b.of[lane], &all_b.of[lane + 16], sizeof(Operand)))
      throw std::logic_error("WMMA of RDNA3: the halves of a wave have different operands");
  const int half = this_lane() / 16, j = this_lane() % 16;
  for (int r = 0; r < 8; ++r) {
    const int i = kLaneK == 16 ? 2 * r + half : 8 * half + r;
    double sum = double(c[r]);
    for (int k = 0; k < 16; ++k) {
      const int from = k / kLaneK * 16, element = k % kLaneK;
      sum += wmma_number(all_a.of[from + i][element]) * wmma_number(all_b.of[from + j][element]);
    }
    c[r] = float(sum);
  }
  return c;
}
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32 wmma_16x16x16
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32 wmma_16x16x16
#define __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12 wmma_16x16x16
#define __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12 wmma_16x16x16
