// SPDX-License-Identifier: Apache-2.0
// One set of names for the GPU families: kernels use these and never ask which GPU they are compiled for.
//
// A kernel is written in strips. A strip is a tile of kStep rows ("stream") by 16 columns ("chain") in the accumulators
// of a wave, and every matrix product is of this form:
//     multiply(strip, stream operand, chain operand)      strip[s][c] += sum_k stream[s][k] chain[k][c]
// An accumulated strip becomes the chain operand of the next product (its rows are then k) without leaving the
// registers. This decides which side of the instruction each operand takes. On CDNA and RDNA4 the layout of an
// accumulator's rows is the layout of the B operand's k. On NVIDIA it is the layout of the A operand's k, so there all
// products are transposed. On RDNA3 the halves of a wave exchange registers. arch/layouts.h defines the layouts as
// constexpr maps (lane, register) -> (row, column), which tests/cpp check on the CPU.
#pragma once

#include "arch/compiler_barriers.h"
#include "arch/formats.h"
#include "arch/lanes.h"
#include "arch/runtime.h"
#include "base/numbers.h"

namespace xlstm::gpu {

XLSTM_DEVICE float exp2_fast(float x) {
#if defined(__CUDACC__)
  return ex2_approx(x);
#else
  return __builtin_amdgcn_exp2f(x);
#endif
}

// 1 / x for a normal number, exact up to the last bit or the one before. A division takes ten instructions more, which
// handle the other numbers.
XLSTM_DEVICE float reciprocal(float x) {
#if defined(__CUDACC__)
  return 1 / x;
#else
  const float r = __builtin_amdgcn_rcpf(x);
  return __builtin_fmaf(__builtin_fmaf(-x, r, 1.0f), r, r);
#endif
}

// Joins the low or the high 16-bit halves of two registers, a's half first.
XLSTM_DEVICE uint32_t join_halves(uint32_t a, uint32_t b, bool high) {
#if defined(__CUDACC__)
  return __byte_perm(a, b, high ? 0x7632 : 0x5410);
#else
  return __builtin_amdgcn_perm(b, a, high ? 0x07060302u : 0x05040100u);
#endif
}

// Interleaves the bytes of two registers' halves, a's byte first: bytes 0 and 1 of each, or 2 and 3.
XLSTM_DEVICE uint32_t join_bytes(uint32_t a, uint32_t b, bool high) {
#if defined(__CUDACC__)
  return __byte_perm(a, b, high ? 0x7362 : 0x5140);
#else
  return __builtin_amdgcn_perm(b, a, high ? 0x07030602u : 0x05010400u);
#endif
}

// 16 bytes, 16, 8 or 4 elements: the vector that a lane loads or stores in one access.
struct alignas(16) Vec16 {
  uint32_t word[4];
};
template <class E>
constexpr int kVec16Elements = 16 / int(sizeof(E));

#if !defined(__CUDACC__)
typedef uint64_t Halves __attribute__((ext_vector_type(2)));
#endif

// Reads a vector in one access.
XLSTM_DEVICE Vec16 read_vec16(const void* from) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const Vec16*>(from);
#else
  return __builtin_bit_cast(Vec16, *reinterpret_cast<const Halves*>(from));
#endif
}

// Loads a vector of device memory from a uniform base and an offset of each lane: on AMD both together are one
// instruction's address.
XLSTM_DEVICE Vec16 load_vec16(const char* base, uint32_t offset) {
#if defined(__CUDACC__)
  return read_vec16(base + offset);
#else
  return __builtin_bit_cast(Vec16, *(const __attribute__((address_space(1))) Halves*)(base + offset));
#endif
}
// An element at a uniform base and an offset of each lane.
template <class Bits>
XLSTM_DEVICE Bits load_bits(const char* base, uint32_t at) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const Bits*>(base + at);
#else
  return *(const __attribute__((address_space(1))) Bits*)(base + at);
#endif
}

#if !defined(__CUDACC__)
// The sum of n floats in neighbouring registers: CDNA adds a pair in one instruction. The compiler by itself pairs
// registers of different strips, and moves them beside each other.
typedef float FloatPair __attribute__((ext_vector_type(2)));
template <int n>
XLSTM_DEVICE float sum_by_pairs(const float (&x)[n]) {
  FloatPair sum = {x[0], x[1]};
#pragma unroll
  for (int j = 2; j < n; j += 2) sum += FloatPair{x[j], x[j + 1]};
  return sum[0] + sum[1];
}
#endif

// Makes a loaded vector opaque: nothing uses it, and so waits for its load, before this point.
XLSTM_DEVICE void arrive_at([[maybe_unused]] Vec16& vec) {
#if !defined(__CUDACC__)
  Halves halves = __builtin_bit_cast(Halves, vec);
  asm volatile("" : "+v"(halves));
  vec = __builtin_bit_cast(Vec16, halves);
#endif
}

// kStep rows by 16 columns of a matrix in a wave's accumulators; strip_position() maps lanes and registers to elements.
template <class E>
constexpr int kStep = strip_step(kFamily, sizeof(E));
template <class E>
struct Strip {
  static constexpr int kRegisters = strip_registers(kFamily, sizeof(E));
  float value[kRegisters];

  XLSTM_DEVICE void zero() {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) value[r] = 0;
  }
  // zero() on this branch alone: NVIDIA's compiler would otherwise hoist it into all branches.
  XLSTM_DEVICE void zero_on_this_path() {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r)
#if defined(__CUDACC__)
      asm volatile("mov.f32 %0, 0f00000000;" : "=f"(value[r]));
#else
      value[r] = 0;
#endif
  }
  // The same where the strip's registers stay its own: for zeros that join with other values AMD's compiler would take
  // registers of their own.
  XLSTM_DEVICE void zero_in_place() {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r)
#if defined(__CUDACC__)
      asm volatile("mov.f32 %0, 0f00000000;" : "+f"(value[r]));
#elif defined(__AMDGCN__)
      asm volatile("v_mov_b32 %0, 0" : "+v"(value[r]));
#else
      value[r] = 0;
#endif
  }
  XLSTM_DEVICE void scale(float by) {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) value[r] *= by;
  }
  // Forces the compiler to compute the strip at this point: AMD's compiler would otherwise move products into a later
  // branch and keep all their operands in registers until then.
  XLSTM_DEVICE void materialise() {
#if !defined(__CUDACC__)
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) asm volatile("" : "+v"(value[r]));
#endif
  }
  XLSTM_DEVICE static StripPosition position(int r) { return strip_position(kFamily, sizeof(E), lane_id(), r); }
};

}  // namespace xlstm::gpu

#if defined(__CUDACC__)
#include "arch/nvidia/mma.h"
#elif defined(__GFX11__) || defined(__GFX12__)
#include "arch/amd/rdna.h"
#else
#include "arch/amd/cdna.h"
#endif

#if defined(__CUDACC__) || defined(__GFX11__) || defined(__GFX12__)
namespace xlstm::gpu {
// CDNA's alone (arch/amd/cdna.h), declared where a kernel for CDNA is parsed for another family.
template <int kColumns, bool kStreamStays, bool kChainStays, class E, class Sum, class Chain, class After>
__device__ void multiply_each(const StreamOperand<E>&, Sum&&, Chain&&, After&&);
}  // namespace xlstm::gpu
#endif
