// SPDX-License-Identifier: Apache-2.0
// What Hopper (sm_90a) has beyond the common schedule: products of a warpgroup (four warps) that read operands where
// they lie in shared memory, copies that a barrier in shared memory waits for, and registers that one warpgroup leaves
// to another. Compiled for CUDA only; a kernel's body stands behind `if constexpr (kHopper)`, so that other chips get
// none.
//
// Tiles are panels of 64 columns: rows of 128 bytes whose eight pieces of 16 bytes are permuted, piece p of row r at
// p ^ (r % 8), as copies and products both expect; a panel begins at a multiple of 1024 bytes. An operand whose k runs
// along the columns is `along`; one whose k runs along the rows is `across`.
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

// Bytes from a panel's start to a piece of 16 bytes.
constexpr uint32_t panel_vec16_offset(uint32_t row, uint32_t piece) {
  return row * kPanelRowBytes + ((piece ^ (row % 8)) << 4);
}

// ---- barriers in shared memory: a phase ends when `count` have arrived and all bytes that were announced are there

struct Mbarrier {
  uint32_t at;  // 8 bytes of shared memory

  XLSTM_DEVICE operator uint32_t() const { return at; }  // for copies
  XLSTM_DEVICE void init(int count) const { mbarrier_init(at, count); }
  XLSTM_DEVICE void arrive() const { mbarrier_arrive(at); }
  // One lane arrives for its warp: what all lanes did before is done for who waits.
  XLSTM_DEVICE void arrive_once_per_warp() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive();
  }
  // Arrives, and announces bytes that copies will bring.
  XLSTM_DEVICE void arrive_expect_tx(uint32_t bytes) const { mbarrier_expect_tx(at, bytes); }
  // The same barrier of another block of the cluster. A plain arrive: one that releases the cluster's memory is slow,
  // and what it would order here is copies, which their own barriers order.
  XLSTM_DEVICE void arrive_remote(uint32_t block) const { mbarrier_arrive_remote(at, block); }
  // Until the phase of this parity has ended; phases count from 0.
  XLSTM_DEVICE void wait(uint32_t parity) const {
    while (!mbarrier_test_wait(at, parity)) {
    }
  }
};

// ---- products of a warpgroup: sum[64][n] += A[64][16] B[16][n]
//
// An accumulator row 16 warp + lane / 4 (registers 4 j, 4 j + 1) or that + 8 (4 j + 2, 4 j + 3), columns 8 j + 2 (lane
// % 4) and the next one. Registers 8 q to 8 q + 7, packed in pairs, are the A operand of k 16 q to 16 q + 15.

// Operands in shared memory: the address, and the bytes from one group of 8 rows to the next (always 1024 here) and, of
// an operand across that is wider than a panel, from panel to panel.
XLSTM_DEVICE uint64_t k_major_descriptor(uint32_t at) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}
XLSTM_DEVICE uint64_t mn_major_descriptor(uint32_t at, uint32_t next_panel) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(next_panel >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t(1) << 62;
}
// The next 16 of k: columns within a panel, or rows.
constexpr uint64_t kNextKMajor = 32 >> 4, kNextMnMajor = 16 * kPanelRowBytes >> 4;

// ---- host

// The map of bfloat16 tokens that lie by these strides (in elements), for panels of `tokens` rows. Throws
// std::runtime_error with the driver's error.
CUtensorMap tensor_map(const void* data, int columns, int64_t tokens, int64_t heads, int64_t batch,
                       const int64_t (&stride)[3], int panel_tokens);

}  // namespace xlstm::gpu
