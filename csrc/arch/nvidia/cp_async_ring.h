// SPDX-License-Identifier: Apache-2.0
// What each wave of a block has asked memory for some steps before it is used: lines of rows. AMD's waves count loads
// as they come, so registers hold them. NVIDIA's compiler has six counters for a warp, and gives all loads of a loop
// one of them: whoever waits for the oldest waits for the newest too. There the loads go to LDS, each wave's to places
// of its own, and are waited for in their order. A wave brings whole lines whatever its lanes read of them: halves of
// lines are as many requests again.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

// A step is a line of kLineBytes of each of kRows rows.
template <int kLineBytes, int kRows, int kDepth, int kThreads>
struct CpAsyncRing;  // NVIDIA's

#if defined(__CUDACC__)
template <int kLineBytes, int kRows, int kDepth, int kThreads>
struct CpAsyncRing {
  static constexpr int kVec16s = kLineBytes / 16, kRowsPerLoad = kWave / kVec16s, kFetches = kRows / kRowsPerLoad;
  static constexpr int kStepBytes = kRows * kLineBytes, kRingSlotBytes = kThreads / kWave * kStepBytes;
  static constexpr int kBytes = kDepth * kRingSlotBytes;
  static_assert(kRows % kRowsPerLoad == 0 && kRowsPerLoad % 2 == 0);

  char* own;  // this wave's first place

  XLSTM_DEVICE explicit CpAsyncRing(char* lds) : own(lds + threadIdx.x / kWave * kStepBytes) {}

  // Row 0 and piece of the lines that this lane brings at once with others, kAtOnce rows of them.
  XLSTM_DEVICE static int lane_row() { return lane_id() / kVec16s; }
  XLSTM_DEVICE static int lane_vec16() { return lane_id() % kVec16s; }
  // Lanes that read together have half a line of two rows: they lie in different halves.
  XLSTM_DEVICE static int slot_vec16(int row, int piece) { return piece ^ (kVec16s == 8 ? row % 2 * 4 : 0); }

  // The nth kAtOnce rows of a step: 16 bytes of this lane, or zeros where bytes are 0.
  XLSTM_DEVICE void fetch(int place, int n, const char* from, int bytes) const {
    const int lane = lane_row() * kLineBytes + slot_vec16(lane_row(), lane_vec16()) * 16;
    cp_async_16(lds_address(own + place * kRingSlotBytes + n * kRowsPerLoad * kLineBytes + lane), from, bytes);
  }
  // For all threads of the block: up to 16 bytes, zeros after them. With the step that is sent next.
  XLSTM_DEVICE static void fetch_for_block(char* to, const char* from, int bytes) {
    cp_async_16(lds_address(to), from, bytes);
  }
  // What has been fetched since the last call is a step, which may be nothing.
  XLSTM_DEVICE static void sent() { cp_async_commit(); }
  // All steps but the last kLate that were sent are there; for this thread, for others after a barrier.
  template <int kLate>
  XLSTM_DEVICE static void arrived() {
    cp_async_wait_group<kLate>();
  }
  template <int kLate>
  XLSTM_DEVICE static void wait_for_wave() {
    cp_async_wait_group<kLate>();
    __syncwarp();
  }
  // Before what the wave has got is fetched anew.
  XLSTM_DEVICE static void release_by_wave() { __syncwarp(); }

  // Bytes of row `first + row` of a step, where first is even.
  template <class Load>
  XLSTM_DEVICE Load get(int place, int first, int row, int byte) const {
    const char* const at = own + place * kRingSlotBytes + first * kLineBytes + row * kLineBytes +
                           slot_vec16(row, byte / 16) * 16 + byte % 16;
    if constexpr (sizeof(Load) == 16)
      return read_vec16(at);
    else
      return __builtin_bit_cast(Load, *reinterpret_cast<const uint64_t*>(at));
  }
};
#endif

}  // namespace xlstm::gpu
