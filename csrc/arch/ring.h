// SPDX-License-Identifier: Apache-2.0
// What each thread of a block has asked memory for some steps before it is used. AMD's waves count loads as they come,
// so registers hold them. NVIDIA's compiler has six counters for a warp, and gives all loads of a loop one of them:
// whoever waits for the oldest waits for the newest too. There the loads go to LDS, each thread's to places of its own,
// and are waited for in their order.
#pragma once

#include "arch/gpu.h"

namespace xlstm::gpu {

template <class Load, int kLoads, int kDepth, int kThreads>
struct Ring;  // NVIDIA's

#if defined(__CUDACC__)
template <class Load, int kLoads, int kDepth, int kThreads>
struct Ring {
  static constexpr int kPlaceBytes = kThreads * int(sizeof(Load)), kBytes = kDepth * kLoads * kPlaceBytes;
  static_assert(sizeof(Load) == 16 || sizeof(Load) == 8);

  char* own;  // this thread's first place

  XLSTM_DEVICE explicit Ring(char* lds) : own(lds + threadIdx.x * sizeof(Load)) {}
  XLSTM_DEVICE char* at(int place, int n) const { return own + (place * kLoads + n) * kPlaceBytes; }

  // All bytes of a load, or none: then it is zeros.
  XLSTM_DEVICE void fetch(int place, int n, const char* from, int bytes) const {
    const uint32_t to = lds_address(at(place, n));
    if constexpr (sizeof(Load) == 16)
      copy_16_bytes(to, from, bytes);
    else
      copy_8_bytes(to, from, bytes);
  }
  // For all threads of the block: up to 16 bytes, zeros after them. With the step that is sent next.
  XLSTM_DEVICE static void fetch_for_all(char* to, const char* from, int bytes) {
    copy_16_bytes(lds_address(to), from, bytes);
  }
  // What has been fetched since the last call is a step, which may be nothing.
  XLSTM_DEVICE static void sent() { copies_sent(); }
  // All steps but the last kLate that were sent are there; for this thread, for others after a barrier.
  template <int kLate>
  XLSTM_DEVICE static void arrived() {
    copies_came<kLate>();
  }
  XLSTM_DEVICE Load get(int place, int n) const {
    if constexpr (sizeof(Load) == 16)
      return read_piece(at(place, n));
    else
      return __builtin_bit_cast(Load, *reinterpret_cast<const uint64_t*>(at(place, n)));
  }
};
#endif

}  // namespace xlstm::gpu
