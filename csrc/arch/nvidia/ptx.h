// SPDX-License-Identifier: Apache-2.0
// NVIDIA's instructions, from sm_80 on, that C++ has no name for, one function each. tests/hopper has those that the
// mLSTM's kernels use, for a CPU.
#pragma once

namespace xlstm::gpu {

XLSTM_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
XLSTM_DEVICE float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
XLSTM_DEVICE float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The maximum of each half; NaN only where both are NaN.
XLSTM_DEVICE uint32_t max_bfloat16(uint32_t x, uint32_t y) {
  uint32_t r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
XLSTM_DEVICE uint32_t max_float16(uint32_t x, uint32_t y) {
  uint32_t r;
  asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
// The minimum of each half.
XLSTM_DEVICE uint32_t min_bfloat16(uint32_t x, uint32_t y) {
  uint32_t r;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
XLSTM_DEVICE uint32_t min_float16(uint32_t x, uint32_t y) {
  uint32_t r;
  asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
XLSTM_DEVICE uint32_t pack_bfloat16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
XLSTM_DEVICE uint32_t pack_float16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// (a & b) | c in one instruction: with two constants the compiler emits two.
XLSTM_DEVICE uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// Arithmetic on two bfloat16 each.
XLSTM_DEVICE uint32_t subtract_bfloat16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("{ .reg .b32 one; mov.b32 one, 0xbf80bf80; fma.rn.bf16x2 %0, %2, one, %1; }" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

XLSTM_DEVICE uint32_t add_bfloat16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("{ .reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 %0, %1, one, %2; }" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
XLSTM_DEVICE uint32_t multiply_bfloat16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("{ .reg .b32 none; mov.b32 none, 0x80008000; fma.rn.bf16x2 %0, %1, %2, none; }" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// a b + c, rounded once.
XLSTM_DEVICE uint32_t fma_bfloat16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
XLSTM_DEVICE uint32_t add_float16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
XLSTM_DEVICE uint32_t multiply_float16(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

// The same pointer to device memory, which the compiler takes for a new one.
template <class T>
XLSTM_DEVICE T* opaque_pointer(T* p) {
  asm volatile("" : "+l"(p));
  __builtin_assume(__isGlobal(p));
  return p;
}

// c[16][8] += a[16][16] b[16][8].
XLSTM_DEVICE void mma_bfloat16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
XLSTM_DEVICE void mma_float16(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// c[16][8] += a[16][32] b[32][8] of signed bytes, four in a word.
XLSTM_DEVICE void mma_int8(int* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of 2-byte elements: lane l has the address of row l % 8 of matrix l / 8.
XLSTM_DEVICE void ldmatrix(uint32_t* r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
XLSTM_DEVICE void ldmatrix_trans(uint32_t* r, uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// Asynchronous copy from global to shared memory without registers. Only `bytes` of the 16 are read; the rest are
// zeros.
XLSTM_DEVICE void cp_async_16(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
// The same; L2 fetches the line.
XLSTM_DEVICE void cp_async_line(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
XLSTM_DEVICE void cp_async_8(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
XLSTM_DEVICE void cp_async_4(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
// The copies since the last commit are a group; wait_group waits for all groups but the last kLate.
XLSTM_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLate>
XLSTM_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLate) : "memory");
}
XLSTM_DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Adds to a number of device memory and returns what it was, in order with what the thread, and threads that a barrier
// orders with it, read and write before and after, for all of the GPU.
XLSTM_DEVICE uint32_t add_acq_rel_gpu(uint32_t* to, uint32_t x) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(to), "r"(x) : "memory");
  return before;
}

// Named barriers 1 to 15 of a block: some of its warps wait for each other (sync), or signal without waiting (arrive).
XLSTM_DEVICE void barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
XLSTM_DEVICE void barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace xlstm::gpu
