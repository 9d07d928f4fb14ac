// SPDX-License-Identifier: Apache-2.0
// Hopper (sm_90a) beyond the schedule for all chips: wgmma, the products of a warpgroup (four warps) whose operands are
// read from shared memory; TMA loads, which an mbarrier in shared memory waits for; and setmaxnreg, which moves
// registers from one warpgroup to another. Compiled for CUDA only. A kernel's body stands behind `if constexpr
// (kHopper)`, so that other chips compile no body.
//
// Tiles are panels of 64 columns: rows of 128 bytes whose eight 16-byte vectors are permuted, vector p of row r at p ^
// (r % 8), the 128-byte swizzle of TMA and wgmma. A panel begins at a multiple of 1024 bytes. An operand whose k runs
// along the columns is K-major; an operand whose k runs along the rows is MN-major.
#pragma once

#include <cuda.h>

#include "arch/fragments.h"
#include "arch/hopper/hopper_ptx.h"

namespace xlstm::gpu {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHopper = true;
#else
constexpr bool kHopper = false;
#endif

constexpr int kWarpgroup = 128;    // threads
constexpr int kPanelColumns = 64;  // of 2-byte elements
constexpr int kPanelRowBytes = 128;
constexpr int kPanelAlignment = 1024;
constexpr int panel_bytes(int rows) { return rows * kPanelRowBytes; }

// Bytes from a panel's start to a 16-byte vector.
constexpr uint32_t panel_vec16_offset(uint32_t row, uint32_t vec) {
  return row * kPanelRowBytes + ((vec ^ (row % 8)) << 4);
}

// ---- mbarriers: a phase ends when `count` threads have arrived and all announced bytes have been written

struct Mbarrier {
  uint32_t at;  // 8 bytes of shared memory

  XLSTM_DEVICE operator uint32_t() const { return at; }  // for TMA loads
  XLSTM_DEVICE void init(int count) const { mbarrier_init(at, count); }
  XLSTM_DEVICE void arrive() const { mbarrier_arrive(at); }
  // One lane arrives for its warp: what all lanes did before is visible to the threads that wait.
  XLSTM_DEVICE void arrive_once_per_warp() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive();
  }
  // Arrives, and announces the bytes that TMA loads will bring (expect_tx).
  XLSTM_DEVICE void arrive_expect_tx(uint32_t bytes) const { mbarrier_expect_tx(at, bytes); }
  // Arrives at the same mbarrier of another block of the cluster. The arrive is a plain one: an arrive that releases
  // the cluster's memory is slow, and it would only order copies, which have mbarriers of their own.
  XLSTM_DEVICE void arrive_remote(uint32_t block) const { mbarrier_arrive_remote(at, block); }
  // Spins until the phase of this parity has ended; phases count from 0.
  XLSTM_DEVICE void wait(uint32_t parity) const {
    while (!mbarrier_test_wait(at, parity)) {
    }
  }
};

// ---- wgmma: sum[64][n] += A[64][16] B[16][n]
//
// A thread's accumulators 4 j and 4 j + 1 are in row 16 warp + lane / 4, 4 j + 2 and 4 j + 3 eight rows below, all in
// columns 8 j + 2 (lane % 4) and the next one. Registers 8 q to 8 q + 7, packed in pairs, are the A operand of k 16 q
// to 16 q + 15.

// Descriptors of operands in shared memory: the address; the bytes from one group of 8 rows to the next (always 1024
// here); and, for an MN-major operand wider than a panel, the bytes from panel to panel.
XLSTM_DEVICE uint64_t k_major_descriptor(uint32_t at) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
XLSTM_DEVICE uint64_t mn_major_descriptor(uint32_t at, uint32_t next_panel) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(next_panel >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}
// The descriptor's step to the next 16 of k: along the columns within a panel, or along the rows.
constexpr uint64_t kNextKMajor = 32 >> 4, kNextMnMajor = 16 * kPanelRowBytes >> 4;

// ---- host

// The tensor map of bfloat16 tokens with these strides (in elements), for panels of `panel_tokens` rows. Throws
// std::runtime_error with the driver's error.
CUtensorMap tensor_map(const void* data, int columns, int64_t tokens, int64_t heads, int64_t batch,
                       const int64_t (&stride)[3], int panel_tokens);

}  // namespace xlstm::gpu
