// SPDX-License-Identifier: Apache-2.0
// csrc/arch/hopper/hopper_ptx.h for a CPU: the same functions, by the emulator. The include path puts it first.
#pragma once

#include "copies.h"
#include "products.h"
#include "sync.h"

namespace xlstm::gpu {

inline void barrier_init(uint32_t at, int count) { emulator::barrier_init(at, count); }
inline void barrier_arrive(uint32_t at) { emulator::barrier_arrive(at, -1); }
inline void barrier_expect(uint32_t at, uint32_t bytes) { emulator::barrier_expect(at, bytes); }
inline void barrier_arrive_at(uint32_t at, uint32_t block) { emulator::barrier_arrive(at, int(block)); }
inline bool barrier_done(uint32_t at, uint32_t parity) { return emulator::barrier_wait(at, parity), true; }
inline void barriers_ready() {}
inline void shared_written() { emulator::fence_proxy(); }
inline void meet_cluster() { emulator::sync_cluster(); }
inline void write_shared_word(float* to, uint32_t word) { emulator::write_shared_word(to, word); }
inline uint32_t read_shared_word(const float* from) { return __builtin_bit_cast(uint32_t, *from); }
inline Piece read_shared_piece(const float* from) { return *reinterpret_cast<const Piece*>(from); }
inline bool look_again() { return emulator::wait_for_shared_words(); }

template <int kCount>
void take_registers() {
  emulator::change_registers(kCount, true);
}
template <int kCount>
void leave_registers() {
  emulator::change_registers(kCount, false);
}

inline const emulator::TensorMap& map_at(const void* map) { return *static_cast<const emulator::TensorMap*>(map); }
inline void copy_panel(uint32_t to, const void* from, int column, int token, int head, int batch, uint32_t barrier) {
  emulator::copy_panel(to, map_at(from), {column, token, head, batch}, barrier);
}
inline void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  emulator::copy_bytes(to, from, bytes, barrier);
}
inline void ask_bytes_into_l2(const void* from, int bytes) { emulator::prefetch_bytes(from, bytes); }
inline void copy_to_block(uint32_t block, uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  emulator::copy_to_block(block, to, from, bytes, barrier);
}
inline void send_to_block(uint32_t block, uint32_t to, float x, uint32_t barrier) {
  emulator::send_to_block(block, to, {x}, barrier);
}
inline void send_to_block(uint32_t block, uint32_t to, float x, float y, uint32_t barrier) {
  emulator::send_to_block(block, to, {x, y}, barrier);
}
inline void store_panel(const void* to, int column, int token, int head, int batch, uint32_t from) {
  emulator::store_panel(map_at(to), {column, token, head, batch}, from);
}
inline void stores_read() { emulator::wait_for_stores(); }
inline void stores_done() { emulator::wait_for_stores(); }
inline void prefetch(const void*) {}

inline void products_begin() { emulator::products_begin(); }
inline void products_end() { emulator::products_end(); }
template <int kCount>
void hold(float (&)[kCount]) {}
template <int kGroups, class... Sums>
void products_wait(Sums&...) {
  emulator::products_wait(kGroups);
}
template <bool kAAcross, bool kBAcross, class E = BFloat16, int kCount>
void multiply_shared(float (&sum)[kCount], uint64_t a, uint64_t b, bool add = true) {
  emulator::multiply_shared(sum, 2 * kCount, a, kAAcross, b, kBAcross, add, __is_same(E, Float16));
}
template <bool kBAcross, class E = BFloat16, int kCount>
void multiply_held(float (&sum)[kCount], const uint32_t* a, uint64_t b, bool add = true) {
  emulator::multiply_held(sum, 2 * kCount, a, b, kBAcross, add, __is_same(E, Float16));
}

inline void store_matrices(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  emulator::store_matrices({r0, r1, r2, r3}, at, false);
}
inline void store_turned_matrices(uint32_t at, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
  emulator::store_matrices({r0, r1, r2, r3}, at, true);
}

inline int made_here(int x) { return x; }

inline void store_if(bool happens, void* to, const Piece& x) {
  if (happens) *static_cast<Piece*>(to) = x;
}
inline void store_if(bool happens, float* to, float x) {
  if (happens) *to = x;
}

}  // namespace xlstm::gpu
