// SPDX-License-Identifier: Apache-2.0
// A ring of loads that each wave of a block issues some steps before their use: lines of rows. AMD's waves count loads
// in order, so registers hold them. NVIDIA's compiler has six scoreboards for a warp and gives all loads of a loop one
// of them: waiting for the oldest load then waits for the newest too. There the loads go to LDS by cp.async, each
// wave's to slots of its own, and are waited for in order. A wave loads complete lines whatever its lanes read of them:
// half lines would take twice as many requests.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

// A step is a line of kLineBytes of each of kRows rows.
template <int kLineBytes, int kRows, int kDepth, int kThreads>
struct CpAsyncRing;  // on NVIDIA only

#if defined(__CUDACC__)
template <int kLineBytes, int kRows, int kDepth, int kThreads>
struct CpAsyncRing {
  static constexpr int kVec16s = kLineBytes / 16, kRowsPerLoad = kWave / kVec16s, kFetches = kRows / kRowsPerLoad;
  static constexpr int kStepBytes = kRows * kLineBytes, kRingSlotBytes = kThreads / kWave * kStepBytes;
  static constexpr int kBytes = kDepth * kRingSlotBytes;
  static_assert(kRows % kRowsPerLoad == 0 && kRowsPerLoad % 2 == 0);

  char* wave_slots;  // this wave's first slot

  XLSTM_DEVICE explicit CpAsyncRing(char* lds) : wave_slots(lds + threadIdx.x / kWave * kStepBytes) {}

  // The row and the vector that this lane loads, within the kRowsPerLoad rows that the wave loads at a time.
  XLSTM_DEVICE static int lane_row() { return lane_id() / kVec16s; }
  XLSTM_DEVICE static int lane_vec16() { return lane_id() % kVec16s; }
  // Lanes that read together have half a line of two rows; the swizzle puts the two into different halves.
  XLSTM_DEVICE static int slot_vec16(int row, int vec) { return vec ^ (kVec16s == 8 ? row % 2 * 4 : 0); }

  // Loads the nth kRowsPerLoad rows of a step: 16 bytes in this lane, zeros where bytes = 0.
  XLSTM_DEVICE void fetch(int slot, int n, const char* from, int bytes) const {
    const int lane = lane_row() * kLineBytes + slot_vec16(lane_row(), lane_vec16()) * 16;
    cp_async_16(lds_address(wave_slots + slot * kRingSlotBytes + n * kRowsPerLoad * kLineBytes + lane), from, bytes);
  }
  // Called by all threads of the block: loads up to 16 bytes, zeros after them. They belong to the next step that is
  // committed.
  XLSTM_DEVICE static void fetch_for_block(char* to, const char* from, int bytes) {
    cp_async_16(lds_address(to), from, bytes);
  }
  // Commits a step: everything fetched since the last call, possibly nothing.
  XLSTM_DEVICE static void sent() { cp_async_commit(); }
  // Waits until all but the last kLate committed steps have arrived. They are visible to this thread, and to others
  // after a barrier.
  template <int kLate>
  XLSTM_DEVICE static void arrived() {
    cp_async_wait_group<kLate>();
  }
  template <int kLate>
  XLSTM_DEVICE static void wait_for_wave() {
    cp_async_wait_group<kLate>();
    __syncwarp();
  }
  // Called before memory that the wave has read is fetched into again.
  XLSTM_DEVICE static void release_by_wave() { __syncwarp(); }

  // Bytes of row `first + row` of a step; first is even.
  template <class Load>
  XLSTM_DEVICE Load get(int slot, int first, int row, int byte) const {
    const char* const at = wave_slots + slot * kRingSlotBytes + first * kLineBytes + row * kLineBytes +
                           slot_vec16(row, byte / 16) * 16 + byte % 16;
    if constexpr (sizeof(Load) == 16)
      return read_vec16(at);
    else
      return __builtin_bit_cast(Load, *reinterpret_cast<const uint64_t*>(at));
  }
};
#endif

}  // namespace xlstm::gpu
