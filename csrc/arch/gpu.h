// SPDX-License-Identifier: Apache-2.0
// The GPU that this pass of the compiler is for, behind one set of names. HIP is the language; under nvcc the few hip*
// names in use are the cuda* ones. Nothing outside arch/ asks which GPU it is.
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

#include <stdint.h>

#include <type_traits>

#include "arch/family.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#include <hip/hip_runtime.h>
#endif

#define XLSTM_DEVICE __device__ __forceinline__
#if defined(__CUDACC__)
#define XLSTM_SELDOM __device__ __noinline__  // called where it would only be in the way of what is run over and over
#include "arch/ptx.h"
#define XLSTM_READ_IN_PLACE __grid_constant__  // of a kernel's param: its address makes no copy
#else
#define XLSTM_SELDOM XLSTM_DEVICE  // a call would take registers from the kernel
#define XLSTM_READ_IN_PLACE
#endif

// Before a kernel's only param, whose address is taken: NVIDIA's compiler then makes no copy of it.
#if defined(__CUDACC__)
#define XLSTM_PARAM const __grid_constant__
#else
#define XLSTM_PARAM const
#endif

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
  (void)last_status();  // the answer is no error of the caller's
  return s == kSuccess;
}

// More LDS than a block has without asking. A HIP kernel may have all of its CU's.
template <class Kernel>
Status allow_lds(Kernel* kernel, int bytes) {
#if defined(__CUDACC__)
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
#else
  (void)kernel, (void)bytes;
  return hipSuccess;
#endif
}

// Starts a kernel, without the syntax that only compilers for GPUs have.
template <class... Params>
Status start(void (*kernel)(Params...), uint32_t blocks, int threads, int lds_bytes, Stream stream,
             const std::type_identity_t<Params>&... arguments) {
#if defined(__CUDACC__)
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(uint32_t(threads));
  config.dynamicSmemBytes = size_t(lds_bytes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
#else
  const void* values[] = {&arguments...};
  return hipLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(uint32_t(threads)),
                         const_cast<void**>(values), size_t(lds_bytes), stream);
#endif
}

// Elements as they lie in memory.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Whether the library has kernels for Hopper (arch/hopper.h): a CUDA library does, for sm_90a.
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

XLSTM_DEVICE int lane_id() { return threadIdx.x % kWave; }
XLSTM_DEVICE int wave_id() {  // the same in every lane; on AMD the compiler is told so
#if defined(__CUDACC__)
  return threadIdx.x / kWave;
#else
  return __builtin_amdgcn_readfirstlane(threadIdx.x / kWave);
#endif
}

// A number that is the same in every lane, for branches: AMD's compiler must be told.
XLSTM_DEVICE float same_in_all(float x) {
#if defined(__CUDACC__)
  return x;
#else
  return __builtin_bit_cast(float, __builtin_amdgcn_readfirstlane(__builtin_bit_cast(int, x)));
#endif
}

// The same for a number that is kept for long: of a bool AMD's compiler keeps a bit for every lane, two registers.
XLSTM_DEVICE int same_in_all(int x) {
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

XLSTM_DEVICE float exp2_fast(float x) {
#if defined(__CUDACC__)
  return exp2_approximate(x);
#else
  return __builtin_amdgcn_exp2f(x);
#endif
}

// Of a normal number, to the last bit or the one before: a division's care for others takes ten instructions more.
XLSTM_DEVICE float inverse(float x) {
#if defined(__CUDACC__)
  return 1 / x;
#else
  const float r = __builtin_amdgcn_rcpf(x);
  return __builtin_fmaf(__builtin_fmaf(-x, r, 1.0f), r, r);
#endif
}

// ---- elements and floats

XLSTM_DEVICE uint32_t as_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
XLSTM_DEVICE float as_float(uint32_t x) { return __builtin_bit_cast(float, x); }

XLSTM_DEVICE float to_float(float x) { return x; }
XLSTM_DEVICE float to_float(BFloat16 x) { return as_float(uint32_t(x.bits) << 16); }
XLSTM_DEVICE float to_float(Float16 x) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(x.bits));
#else
  return float(__builtin_bit_cast(_Float16, x.bits));
#endif
}

template <class E>
XLSTM_DEVICE E from_float(float x);
template <>
XLSTM_DEVICE float from_float<float>(float x) {
  return x;
}
template <>
XLSTM_DEVICE BFloat16 from_float<BFloat16>(float x) {
#if defined(__CUDACC__)
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
  const uint32_t u = as_bits(x);
  if (x != x) return {uint16_t((u >> 16) | 0x40)};
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
#endif
}
template <>
XLSTM_DEVICE Float16 from_float<Float16>(float x) {
#if defined(__CUDACC__)
  return {__half_as_ushort(__float2half_rn(x))};
#else
  return {__builtin_bit_cast(uint16_t, _Float16(x))};
#endif
}

// Two elements in a register, low half first. pack rounds to nearest, away from zero where it is a tie on CDNA: one
// instruction less there, and operands inside a product need no more.
XLSTM_DEVICE float low_float(BFloat16, uint32_t x) { return as_float(x << 16); }
XLSTM_DEVICE float high_float(BFloat16, uint32_t x) { return as_float(x & 0xffff0000u); }
XLSTM_DEVICE float low_float(Float16, uint32_t x) { return to_float(Float16{uint16_t(x)}); }
XLSTM_DEVICE float high_float(Float16, uint32_t x) { return to_float(Float16{uint16_t(x >> 16)}); }

XLSTM_DEVICE uint32_t pack(BFloat16, float low, float high) {
#if defined(__CUDACC__)
  return pack_bfloat16(low, high);
#else
  return __builtin_amdgcn_perm(as_bits(high) + 0x8000u, as_bits(low) + 0x8000u, 0x07060302u);
#endif
}
XLSTM_DEVICE uint32_t pack(Float16, float low, float high) {
#if defined(__CUDACC__)
  return pack_float16(low, high);
#else
  return uint32_t(from_float<Float16>(low).bits) | uint32_t(from_float<Float16>(high).bits) << 16;
#endif
}
// The same, to nearest even everywhere: for what goes to memory.
template <class E>
XLSTM_DEVICE uint32_t pack_exact(E e, float low, float high) {
#if defined(__CUDACC__)
  return pack(e, low, high);
#else
  (void)e;
  return uint32_t(from_float<E>(low).bits) | uint32_t(from_float<E>(high).bits) << 16;
#endif
}
// The upper halves of two floats: what truncation to bfloat16 keeps.
XLSTM_DEVICE uint32_t pack_truncated(float low, float high) {
#if defined(__CUDACC__)
  return __byte_perm(as_bits(low), as_bits(high), 0x7632);
#else
  return __builtin_amdgcn_perm(as_bits(high), as_bits(low), 0x07060302u);
#endif
}

// And what it loses, exactly. An infinity is kept whole: inf - inf would be NaN.
XLSTM_DEVICE float rest_of_truncation(float x) {
  const float rest = x - as_float(as_bits(x) & 0xffff0000u);
  return __builtin_fabsf(x) == __builtin_inff() ? 0.0f : rest;
}

// Byte n of a word, unsigned, less a small integer.
template <int n, int kZero>
XLSTM_DEVICE float byte_less(uint32_t word) {
#if defined(__CUDACC__)
  return as_float(__byte_perm(word, 0x4b000000u, 0x7540 + n)) - float((1 << 23) + kZero);  // 2^23 and the byte
#else
  return float(word >> 8 * n & 0xff) - kZero;
#endif
}
// Bits 0 to 3 and 16 to 19, less a small integer, as two bfloat16.
template <int kZero>
XLSTM_DEVICE uint32_t nibbles_less(uint32_t word) {
#if defined(__CUDACC__)
  const uint32_t nibbles = and_or(word, 0x000f000fu, 0x43004300u);  // 128 and the nibble
  return subtract_bfloat16(nibbles, 0x43004300u + kZero * 0x10001u);
#else
  const uint32_t both = word & 0x000f000fu;
  return pack_truncated(float(both & 0xff) - kZero, float(both >> 16) - kZero);
#endif
}

XLSTM_DEVICE uint32_t element_bits(float x) { return as_bits(x); }
XLSTM_DEVICE uint32_t element_bits(BFloat16 x) { return x.bits; }
XLSTM_DEVICE uint32_t element_bits(Float16 x) { return x.bits; }

// The same pointer to device memory, which the compiler takes for a new one: it then makes addresses where they are
// used, rather than a register for each of hundreds ahead of a loop.
template <class T>
XLSTM_DEVICE T* made_here(T* p) {
#if defined(__CUDACC__)
  return unknown_pointer(p);
#else
  auto device = (__attribute__((address_space(1))) T*)p;
  asm volatile("" : "+v"(device));
  return (T*)device;
#endif
}

// A kernel's params, read anew from here on: else the compiler reads all of them ahead of a loop, into more scalar
// registers than there are.
template <class Params>
XLSTM_DEVICE const Params* read_here(const Params* p) {
#if defined(__CUDACC__)
  return p;
#else
  auto constant = (const __attribute__((address_space(4))) Params*)p;
  asm volatile("" : "+s"(constant));
  return (const Params*)constant;
#endif
}

// A pointer to device memory: what read_here() hides from AMD's compiler is that params hold no others.
template <class T>
XLSTM_DEVICE T* global(T* p) {
#if defined(__CUDACC__)
  return p;
#else
  auto device = (__attribute__((address_space(1))) T*)p;
  asm("" : "+s"(device));
  return (T*)device;
#endif
}

// The only param of this kernel, for read_here().
template <class Params>
XLSTM_DEVICE const Params* only_param(const Params& p) {
#if defined(__CUDACC__)
  return &p;
#else
  (void)p;  // its address would make a copy in scratch
  return (const Params*)__builtin_amdgcn_kernarg_segment_ptr();
#endif
}

// threadIdx.x, and what is made of it made here, for the same reason.
XLSTM_DEVICE int thread_here() {
  int t = threadIdx.x;
#if !defined(__CUDACC__)
  asm volatile("" : "+v"(t));
  __builtin_assume(t >= 0 && t < 1024);
#endif
  return t;
}

// Nothing is moved over this: what comes after waits with its registers until what comes before is done with its own.
XLSTM_DEVICE void in_order() {
#if !defined(__CUDACC__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// What was read from LDS is there: before a barrier, where nothing else waits for it.
XLSTM_DEVICE void reads_done() {
#if !defined(__CUDACC__)
  asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
#endif
}

// 8 or 4 elements: 16 bytes, what one lane moves at a time.
struct alignas(16) Piece {
  uint32_t word[4];
};
template <class E>
constexpr int kPieceElements = 16 / int(sizeof(E));

#if !defined(__CUDACC__)
typedef uint64_t Halves __attribute__((ext_vector_type(2)));
#endif

// A piece in one access.
XLSTM_DEVICE Piece read_piece(const void* from) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const Piece*>(from);
#else
  return __builtin_bit_cast(Piece, *reinterpret_cast<const Halves*>(from));
#endif
}

// A piece of device memory, at a place that all lanes share and a distance that each has: on AMD that is an address.
XLSTM_DEVICE Piece load_piece(const char* shared, uint32_t mine) {
#if defined(__CUDACC__)
  return read_piece(shared + mine);
#else
  return __builtin_bit_cast(Piece, *(const __attribute__((address_space(1))) Halves*)(shared + mine));
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
  XLSTM_DEVICE void scale(float by) {
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) value[r] *= by;
  }
  // It is made here: AMD's compiler puts no product off to a later branch, with all its operands in registers until
  // then.
  XLSTM_DEVICE void made() {
#if !defined(__CUDACC__)
#pragma unroll
    for (int r = 0; r < kRegisters; ++r) asm volatile("" : "+v"(value[r]));
#endif
  }
  XLSTM_DEVICE static StripPosition position(int r) { return strip_position(kFamily, sizeof(E), lane_id(), r); }
};

}  // namespace xlstm::gpu

#if defined(__CUDACC__)
#include "arch/nvidia.h"
#elif defined(__GFX11__)
#include "arch/rdna.h"
#else
#include "arch/cdna.h"
#endif
