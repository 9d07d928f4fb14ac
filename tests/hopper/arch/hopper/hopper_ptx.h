// SPDX-License-Identifier: Apache-2.0
// csrc/arch/hopper/hopper_ptx.h for a CPU: the same functions, by the emulator. The include path puts it first.
#pragma once

#include "copies.h"
#include "products.h"
#include "sync.h"

namespace xlstm::gpu {

inline void mbarrier_init(uint32_t at, int count) { emulator::mbarrier_init(at, count); }
inline void mbarrier_arrive(uint32_t at) { emulator::mbarrier_arrive(at, -1); }
inline void mbarrier_expect_tx(uint32_t at, uint32_t bytes) { emulator::mbarrier_expect_tx(at, bytes); }
inline void mbarrier_arrive_remote(uint32_t at, uint32_t block) { emulator::mbarrier_arrive(at, int(block)); }
inline bool mbarrier_test_wait(uint32_t at, uint32_t parity) { return emulator::barrier_wait(at, parity), true; }
inline void fence_mbarrier_init() {}
inline void fence_async_proxy() { emulator::fence_proxy(); }
inline void cluster_sync() { emulator::sync_cluster(); }
inline void cluster_arrive() { emulator::arrive_at_cluster(); }
inline void cluster_wait() { emulator::wait_for_cluster(); }
inline void store_relaxed_gpu(float* to, uint32_t word) { emulator::write_shared_word(to, word); }
inline uint32_t load_relaxed_gpu(const float* from) { return __builtin_bit_cast(uint32_t, *from); }
inline Vec16 load_relaxed_gpu_vec16(const float* from) { return *reinterpret_cast<const Vec16*>(from); }
inline bool spin_again() { return emulator::wait_for_shared_words(); }

template <int kCount>
void setmaxnreg_inc() {
  emulator::change_registers(kCount, true);
}
template <int kCount>
void setmaxnreg_dec() {
  emulator::change_registers(kCount, false);
}

inline const emulator::TensorMap& map_at(const void* map) { return *static_cast<const emulator::TensorMap*>(map); }
inline void tma_load(uint32_t to, const void* from, int column, int token, int head, int batch, uint32_t barrier) {
  emulator::tma_load(to, map_at(from), {column, token, head, batch}, barrier);
}
inline void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  emulator::bulk_load(to, from, bytes, barrier);
}
inline void bulk_prefetch_l2(const void* from, int bytes) { emulator::prefetch_bytes(from, bytes); }
inline void bulk_copy_to_cta(uint32_t block, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  emulator::bulk_copy_to_cta(block, to, from, bytes, barrier);
}
inline void st_async_to_cta(uint32_t block, uint32_t to, float x, uint32_t barrier) {
  emulator::st_async_to_cta(block, to, {x}, barrier);
}
inline void st_async_to_cta(uint32_t block, uint32_t to, float x, float y, uint32_t barrier) {
  emulator::st_async_to_cta(block, to, {x, y}, barrier);
}
inline void tma_store(const void* to, int column, int token, int head, int batch, uint32_t from) {
  emulator::tma_store(map_at(to), {column, token, head, batch}, from);
}
inline void tma_store_wait_read() { emulator::wait_for_stores(); }
inline void tma_store_wait() { emulator::wait_for_stores(); }
inline void prefetch(const void*) {}

inline void wgmma_fence() { emulator::wgmma_fence(); }
inline void wgmma_commit() { emulator::wgmma_commit(); }
template <int kCount>
void hold(float (&)[kCount]) {}
template <int kGroups, class... Sums>
void wgmma_wait(Sums&...) {
  emulator::wgmma_wait(kGroups);
}
template <bool kAMnMajor, bool kBMnMajor, class E = BFloat16, int kCount>
void wgmma_ss(float (&sum)[kCount], uint64_t a, uint64_t b, bool add = true) {
  emulator::wgmma_ss(sum, 2 * kCount, a, kAMnMajor, b, kBMnMajor, add, __is_same(E, Float16));
}
template <bool kBMnMajor, class E = BFloat16, int kCount>
void wgmma_rs(float (&sum)[kCount], const uint32_t* a, uint64_t b, bool add = true) {
  emulator::wgmma_rs(sum, 2 * kCount, a, b, kBMnMajor, add, __is_same(E, Float16));
}

inline void stmatrix(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  emulator::stmatrix({r0, r1, r2, r3}, at, false);
}
inline void stmatrix_trans(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  emulator::stmatrix({r0, r1, r2, r3}, at, true);
}

inline int opaque(int x) { return x; }

inline void store_if(bool happens, void* to, const Vec16& x) {
  if (happens) *static_cast<Vec16*>(to) = x;
}
inline void store_if(bool happens, float* to, float x) {
  if (happens) *to = x;
}

}  // namespace xlstm::gpu
