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
struct Ring;  // NVIDIA's

#if defined(__CUDACC__)
template <int kLineBytes, int kRows, int kDepth, int kThreads>
struct Ring {
  static constexpr int kPieces = kLineBytes / 16, kAtOnce = kWave / kPieces, kFetches = kRows / kAtOnce;
  static constexpr int kStepBytes = kRows * kLineBytes, kPlaceBytes = kThreads / kWave * kStepBytes;
  static constexpr int kBytes = kDepth * kPlaceBytes;
  static_assert(kRows % kAtOnce == 0 && kAtOnce % 2 == 0);

  char* own;  // this wave's first place

  XLSTM_DEVICE explicit Ring(char* lds) : own(lds + threadIdx.x / kWave * kStepBytes) {}

  // Row 0 and piece of the lines that this lane brings at once with others, kAtOnce rows of them.
  XLSTM_DEVICE static int own_row() { return lane_id() / kPieces; }
  XLSTM_DEVICE static int own_piece() { return lane_id() % kPieces; }
  // Lanes that read together have half a line of two rows: they lie in different halves.
  XLSTM_DEVICE static int place_of(int row, int piece) { return piece ^ (kPieces == 8 ? row % 2 * 4 : 0); }

  // The nth kAtOnce rows of a step: 16 bytes of this lane, or zeros where bytes are 0.
  XLSTM_DEVICE void fetch(int place, int n, const char* from, int bytes) const {
    const int lane = own_row() * kLineBytes + place_of(own_row(), own_piece()) * 16;
    copy_16_bytes(lds_address(own + place * kPlaceBytes + n * kAtOnce * kLineBytes + lane), from, bytes);
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
  template <int kLate>
  XLSTM_DEVICE static void arrived_for_wave() {
    copies_came<kLate>();
    __syncwarp();
  }
  // Before what the wave has got is fetched anew.
  XLSTM_DEVICE static void read_by_wave() { __syncwarp(); }

  // Bytes of row `first + row` of a step, where first is even.
  template <class Load>
  XLSTM_DEVICE Load get(int place, int first, int row, int byte) const {
    const char* const at =
        own + place * kPlaceBytes + first * kLineBytes + row * kLineBytes + place_of(row, byte / 16) * 16 + byte % 16;
    if constexpr (sizeof(Load) == 16)
      return read_piece(at);
    else
      return __builtin_bit_cast(Load, *reinterpret_cast<const uint64_t*>(at));
  }
};
#endif

}  // namespace xlstm::gpu
