// SPDX-License-Identifier: Apache-2.0
// The 64 tokens that a warpgroup owns in attention on Hopper: where a thread's scores and sums stand, what masks do to
// scores, q (or k, v, dout) in registers, and results on their way to memory.
#pragma once

#include "attention/gpu/hopper_smem.h"

namespace xlstm::gpu::attention {

// What a thread of the first warpgroup keeps of the 168 registers that all begin with, and one of the other two has.
constexpr int kCopyRegisters = 24, kOwnerRegisters = 240;
static_assert(kCopyRegisters + 2 * kOwnerRegisters == 3 * 168);

template <class E, class Room>
struct OwnedRows {
  static constexpr bool kHeld = Room::kShape.held, kOfKeys = Room::kOfKeys;
  static constexpr int kFeatures = Room::kFeatures, kTile = Room::kTile;
  static constexpr int kScores = kTile / 2, kSums = kFeatures / 2;  // registers: 64 rows in 128 threads

  const Room& room;
  const int group;  // which warpgroup, and so which rows
  const typename Band::Whole whole;

  XLSTM_DEVICE OwnedRows(const Room& r, int warpgroup)
      : room(r), group(warpgroup), whole(r.seen_whole(r.owned + warpgroup * 64, 64)) {}

  // Of the ith register of scores or sums: row first_row() + 8 half(i), column first_column() + column(i).
  XLSTM_DEVICE int warp_row() const { return group * 64 + int(threadIdx.x) % kWarpgroup / 32 * 16; }
  XLSTM_DEVICE int first_row() const { return warp_row() + lane_id() / 4; }
  XLSTM_DEVICE static int first_column() { return lane_id() % 4 * 2; }
  static constexpr int half(int i) { return i / 2 % 2; }
  static constexpr int column(int i) { return i / 4 * 8 + i % 2; }

  // Of a warp's rows, 16 features: for this lane's row of four matrices.
  XLSTM_DEVICE uint32_t matrices_at(bool second, int sixteen) const {
    const int lane = lane_id();
    return room.owned_at(second) + uint32_t(sixteen / 4 * Room::kOwnedPanel) +
           panel_vec16_offset(uint32_t(warp_row() + lane % 16), uint32_t(sixteen % 4 * 2 + lane / 16));
  }

  struct Owned {
    uint32_t word[Room::kShape.owned][kHeld ? kFeatures / 4 : 1];  // of the first and the second matrix
  };
  XLSTM_DEVICE void hold_owned(Owned& owned) const {
#pragma unroll
    for (int second = 0; second < Room::kShape.owned; ++second) {
      room.barrier(second ? Room::kOwnedSecond : Room::kOwnedFirst).wait(0);
      if constexpr (kHeld)
#pragma unroll
        for (int k = 0; k < kFeatures / 16; ++k) ldmatrix(owned.word[second] + 4 * k, matrices_at(second, k));
    }
  }

  // scores = owned tile^T
  XLSTM_DEVICE void multiply_tile(float (&scores)[kScores], const Owned& held, int n, bool second) const {
    const uint32_t owned = room.owned_at(second) + uint32_t(panel_bytes(group * 64)), tile = room.tile_at(n, second);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kFeatures / 16; ++k) {
      const uint64_t along_tile = k_major_descriptor(tile + k / 4 * Room::kTilePanel) + k % 4 * kNextKMajor;
      if constexpr (kHeld)
        wgmma_rs<false, E>(scores, held.word[second] + 4 * k, along_tile, k > 0);
      else
        wgmma_ss<false, false, E>(scores, k_major_descriptor(owned + k / 4 * Room::kOwnedPanel) + k % 4 * kNextKMajor,
                                  along_tile, k > 0);
    }
    wgmma_commit();
  }
  // sums += weights tile
  XLSTM_DEVICE void add_tile(float (&sums)[kSums], const uint32_t (&weights)[kScores / 2], int n, bool second) const {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k)
      wgmma_rs<true, E>(sums, weights + 4 * k,
                        mn_major_descriptor(room.tile_at(n, second), Room::kTilePanel) + k * kNextMnMajor);
    wgmma_commit();
  }

  // -infinity for pairs that are not seen, of a tile that begins with token `first`.
  XLSTM_DEVICE void mask(float (&s)[kScores], int first) const {
    if (whole.has(first)) return;
    const typename Room::Limits limits = room.limits();
    const int row = room.owned + first_row(), token = first + first_column();
    const uint32_t distance = uint32_t(kOfKeys ? row - token : token - row) - limits.apart_and_least;  // of register 0
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int down = 8 * half(i), across = column(i);
      bool sees = distance + uint32_t(kOfKeys ? down - across : across - down) <= limits.span;
      if (!kOfKeys) sees = sees && token + across < limits.keys;
      s[i] = sees ? s[i] : -__builtin_inff();
    }
  }

  // Sums times a number for either half of the rows to memory, by way of the place of what this warp owned, so that
  // whole lines leave.
  XLSTM_DEVICE void store(const float (&sums)[kSums], const float (&by)[2], bool second, const TokenRows<E>& to) const {
#pragma unroll
    for (int q = 0; q < kFeatures / 16; ++q) {
      uint32_t word[4];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        word[w] = pack_exact(E{}, sums[8 * q + 2 * w] * by[w % 2], sums[8 * q + 2 * w + 1] * by[w % 2]);
      stmatrix(matrices_at(second, q), word[0], word[1], word[2], word[3]);
    }
    __syncwarp();
    constexpr int kRowPieces = kFeatures / 8, kAtOnce = 32 / kRowPieces;  // rows of a warp
    const int piece = lane_id() % kRowPieces;
    const char* from = room.lds + (second ? Room::kOwnedBytes : 0) + piece / 8 * Room::kOwnedPanel;
#pragma unroll
    for (int r = 0; r < 16; r += kAtOnce) {
      const int row = warp_row() + r + lane_id() / kRowPieces, token = room.owned + row;
      const Vec16 x = *reinterpret_cast<const Vec16*>(from + panel_vec16_offset(uint32_t(row), uint32_t(piece % 8)));
      if (token < room.owned_tokens() && piece * 8 < to.columns)
        *reinterpret_cast<Vec16*>(const_cast<E*>(to.data) + token * to.stride + piece * 8) = x;
    }
  }
};

// Of each block of a grid: heads vary first, so that those of a head come together, and blocks with much work come
// early: early keys and late queries see most under a causal mask. f(warpgroup) by those who own tokens.
template <class Room, class Params, class Begin, class F>
XLSTM_DEVICE void run_hopper_attention(const HopperAttentionParams<Params>& params, char* lds, Begin&& begin, F&& f) {
  const xlstm_attention& in = params.of.call.in;
  const uint32_t heads = uint32_t(Room::kOfKeys ? in.heads_k : in.heads_q), all = heads * uint32_t(in.batch);
  const uint32_t which = blockIdx.x % all, blocks = (uint32_t(in.length_q) + kHopperOwned - 1) / kHopperOwned;
  const int block = int(Room::kOfKeys ? blockIdx.x / all : blocks - 1 - blockIdx.x / all);
  const Room room(params, which / heads, int(which % heads), block, lds);
  begin(room);
  if (room.owned >= room.owned_tokens()) return;
  room.open();
  const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32);
  if (warp < 4) {
    setmaxnreg_dec<kCopyRegisters>();
    if (warp == 0) room.copy_tiles();
  } else {
    setmaxnreg_inc<kOwnerRegisters>();
    f(room, warp / 4 - 1);
  }
}

}  // namespace xlstm::gpu::attention
