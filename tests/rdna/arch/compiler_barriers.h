// SPDX-License-Identifier: Apache-2.0
// csrc/arch/compiler_barriers.h for the emulator: what these forbid the compiler does not change a result.
#pragma once

#include "arch/compiler.h"

namespace xlstm::gpu {

template <class T>
T* opaque(T* p) {
  return p;
}
inline uint32_t opaque(uint32_t x) { return x; }
inline int opaque_uniform(int x) { return x; }
template <class T>
T* opaque_uniform(T* p) {
  return p;
}
inline bool separate_basic_block() { return true; }
template <class Params>
const Params* reload_params(const Params* p) {
  return p;
}
template <class T>
T* global(T* p) {
  return p;
}
template <class Params>
const Params* kernel_params(const Params& p) {
  return &p;
}
inline int opaque_thread() { return int(threadIdx.x); }
inline void sched_barrier() {}
template <int kPriority>
void set_wave_priority() {}
inline void load_barrier() {}
inline void wait_lds_reads() {}

}  // namespace xlstm::gpu
