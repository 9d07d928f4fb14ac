// SPDX-License-Identifier: Apache-2.0
// The GPU that this pass of the compiler is for, behind one set of names: all that a kernel knows of it.
//
// A kernel is written in strips. A strip is a matrix of kStep rows ("stream") by 16 columns ("chain"), kept in the
// accumulators of a wave, and three products are all there is:
//     multiply(strip, stream operand, chain operand)      strip[s][c] += sum_k stream[s][k] chain[k][c]
// An accumulated strip becomes the chain operand of the next product (its rows are then k) without leaving the
// registers: that is what fixes which side of the instruction each operand takes. On CDNA an accumulator's rows lie as
// the B operand wants its k; on NVIDIA they lie as the A operand wants it, so there everything is transposed; RDNA3
// exchanges halves of a wave. Each arch's header says so in constexpr maps (lane, register) -> (row, column), which
// tests/cpp check on the CPU.
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

// Of a normal number, to the last bit or the one before: a division's care for others takes ten instructions more.
XLSTM_DEVICE float reciprocal(float x) {
#if defined(__CUDACC__)
  return 1 / x;
#else
  const float r = __builtin_amdgcn_rcpf(x);
  return __builtin_fmaf(__builtin_fmaf(-x, r, 1.0f), r, r);
#endif
}

// Half words of two registers: the low or the high ones, a's first.
XLSTM_DEVICE uint32_t join_halves(uint32_t a, uint32_t b, bool high) {
#if defined(__CUDACC__)
  return __byte_perm(a, b, high ? 0x7632 : 0x5410);
#else
  return __builtin_amdgcn_perm(b, a, high ? 0x07060302u : 0x05040100u);
#endif
}

// 8 or 4 elements: 16 bytes, what one lane moves at a time.
struct alignas(16) Vec16 {
  uint32_t word[4];
};
template <class E>
constexpr int kVec16Elements = 16 / int(sizeof(E));

#if !defined(__CUDACC__)
typedef uint64_t Halves __attribute__((ext_vector_type(2)));
#endif

// A piece in one access.
XLSTM_DEVICE Vec16 read_vec16(const void* from) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const Vec16*>(from);
#else
  return __builtin_bit_cast(Vec16, *reinterpret_cast<const Halves*>(from));
#endif
}

// A piece of device memory, at a place that all lanes share and a distance that each has: on AMD that is an address.
XLSTM_DEVICE Vec16 load_vec16(const char* shared, uint32_t mine) {
#if defined(__CUDACC__)
  return read_vec16(shared + mine);
#else
  return __builtin_bit_cast(Vec16, *(const __attribute__((address_space(1))) Halves*)(shared + mine));
#endif
}

// kStep rows by 16 columns of a matrix in a wave's accumulators; strip_position() says which lane has what.
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
  // The same on this branch alone: NVIDIA's compiler would do it on all.
  XLSTM_DEVICE void zero_on_this_path() {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r)
#if defined(__CUDACC__)
      asm volatile("mov.f32 %0, 0f00000000;" : "=f"(value[r]));
#else
      value[r] = 0;
#endif
  }
  XLSTM_DEVICE void scale(float by) {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) value[r] *= by;
  }
  // It is made here: AMD's compiler puts no product off to a later branch, with all its operands in registers until
  // then.
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
#elif defined(__GFX11__)
#include "arch/amd/rdna.h"
#else
#include "arch/amd/cdna.h"
#endif
