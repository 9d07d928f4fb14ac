// SPDX-License-Identifier: Apache-2.0
// csrc/arch/nvidia/ptx.h for a CPU: the same functions, by the emulator. The include path puts it first.
#pragma once

#include "copies.h"
#include "products.h"
#include "sync.h"

namespace xlstm::gpu {

inline float ex2_approx(float x) { return exp2f(x); }
inline uint32_t pack_bfloat16(float low, float high) {
  return uint32_t(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16 |
         __bfloat16_as_ushort(__float2bfloat16_rn(low));
}
inline uint32_t pack_float16(float low, float high) {
  return uint32_t(__half_as_ushort(__float2half_rn(high))) << 16 | __half_as_ushort(__float2half_rn(low));
}

template <class T>
T* opaque_pointer(T* p) {
  return p;
}

inline void ldmatrix_trans(uint32_t* r, uint32_t address) {
  emulator::load_matrices(*reinterpret_cast<uint32_t(*)[4]>(r), address, true);
}
inline void ldmatrix(uint32_t* r, uint32_t address) {
  emulator::load_matrices(*reinterpret_cast<uint32_t(*)[4]>(r), address, false);
}

// c[16][8] += a[16][16] b[16][8] of a warp.
inline void mma_bfloat16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  emulator::multiply_warp(c, a, b0, b1);
}
inline void mma_int8(int* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  emulator::multiply_warp_of_bytes(c, a, b0, b1);
}
inline uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }
inline float low_number(uint32_t bits) { return __builtin_bit_cast(float, bits << 16); }
inline uint32_t subtract_bfloat16(uint32_t a, uint32_t b) {
  return pack_bfloat16(low_number(a) - low_number(b), low_number(a >> 16) - low_number(b >> 16));
}
inline uint32_t add_bfloat16(uint32_t a, uint32_t b) {
  return pack_bfloat16(low_number(a) + low_number(b), low_number(a >> 16) + low_number(b >> 16));
}
inline uint32_t fma_bfloat16(uint32_t a, uint32_t b, uint32_t c) {  // a product of two bfloat16 is exact in float
  return pack_bfloat16(low_number(a) * low_number(b) + low_number(c),
                       low_number(a >> 16) * low_number(b >> 16) + low_number(c >> 16));
}
inline uint32_t multiply_bfloat16(uint32_t a, uint32_t b) {
  return pack_bfloat16(low_number(a) * low_number(b), low_number(a >> 16) * low_number(b >> 16));
}

inline void cp_async_16(uint32_t to, const void* from, int bytes) { emulator::copy_of_thread(to, from, 16, bytes); }
inline void cp_async_line(uint32_t to, const void* from, int bytes) { emulator::copy_of_thread(to, from, 16, bytes); }
inline void cp_async_8(uint32_t to, const void* from, int bytes) { emulator::copy_of_thread(to, from, 8, bytes); }
inline void cp_async_4(uint32_t to, const void* from, int bytes) { emulator::copy_of_thread(to, from, 4, bytes); }
inline void cp_async_commit() { emulator::group_copies(); }
template <int kLate>
void cp_async_wait_group() {
  emulator::wait_for_copies(kLate);
}

inline uint32_t add_acq_rel_gpu(uint32_t* to, uint32_t x) { return emulator::add_to_shared_word(to, x); }

inline void barrier_sync(int barrier, int threads) { emulator::sync_named(barrier, threads); }
inline void barrier_arrive(int barrier, int threads) { emulator::arrive_named(barrier, threads); }

// Of the mLSTM's common schedule, which is compiled here and not run.
[[noreturn]] void no_common_schedule();
inline void mma_float16(float*, const uint32_t*, uint32_t, uint32_t) { no_common_schedule(); }
inline void cp_async_wait_all() { no_common_schedule(); }

}  // namespace xlstm::gpu
