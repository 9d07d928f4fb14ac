// SPDX-License-Identifier: Apache-2.0
// The 64 tokens that a consumer warpgroup owns in attention on Hopper: the position of a thread's scores and sums,
// masks, the wgmma products, q (or k, v, dout) in registers, and the epilogue that stores results.
#pragma once

#include "attention/gpu/hopper_smem.h"

namespace xlstm::gpu::attention {

// Registers per thread after setmaxnreg: the producer warpgroup keeps 24 of the 168 that every thread starts with, each
// of the two consumer warpgroups raises its share to 240.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168);

template <class E, class Smem>
struct OwnedRows {
  static constexpr bool kOwnedInRegisters = Smem::kShape.owned_in_registers, kOfKeys = Smem::kOfKeys;
  static constexpr int kFeatures = Smem::kFeatures, kTile = Smem::kTile;
  static constexpr int kScores = kTile / 2, kSums = kFeatures / 2;  // registers per thread: 64 rows in 128 threads

  const Smem& smem;
  const int group;  // which of the block's 64 tokens
  const typename Band::FullyVisible fully_visible;

  XLSTM_DEVICE OwnedRows(const Smem& r, int warpgroup)
      : smem(r),
        group(Smem::kShape.shared_rows ? 0 : warpgroup),
        fully_visible(r.fully_visible_tiles(r.owned + group * kWarpgroupOwned, kWarpgroupOwned)) {}

  // Register i of scores or sums holds row first_row() + 8 half(i), column first_column() + column(i).
  XLSTM_DEVICE int warp_row() const { return group * kWarpgroupOwned + int(threadIdx.x) % kWarpgroup / 32 * 16; }
  XLSTM_DEVICE int first_row() const { return warp_row() + lane_id() / 4; }
  XLSTM_DEVICE static int first_column() { return lane_id() % 4 * 2; }
  static constexpr int half(int i) { return i / 2 % 2; }
  static constexpr int column(int i) { return i / 4 * 8 + i % 2; }

  // ldmatrix/stmatrix address of this lane: its row of four matrices, in 16 features of the warp's rows.
  XLSTM_DEVICE uint32_t matrices_at(bool second, int step) const {
    const int lane = lane_id();
    return smem.owned_at(second) + uint32_t(step / 4 * Smem::kOwnedPanel) +
           panel_vec16_offset(uint32_t(warp_row() + lane % 16), uint32_t(step % 4 * 2 + lane / 16));
  }

  // Of the first and the second matrix.
  struct OwnedFragments {
    uint32_t word[Smem::kShape.owned][kOwnedInRegisters ? kFeatures / 4 : 1];
  };
  XLSTM_DEVICE void load_fragments(OwnedFragments& owned, bool second) const {
    smem.barrier(second ? Smem::kOwnedSecond : Smem::kOwnedFirst).wait(0);
    if constexpr (kOwnedInRegisters)
#pragma unroll
      for (int k = 0; k < kFeatures / 16; ++k) ldmatrix(owned.word[second] + 4 * k, matrices_at(second, k));
  }
  XLSTM_DEVICE void load_owned_fragments(OwnedFragments& owned) const {
#pragma unroll
    for (int second = 0; second < Smem::kShape.owned; ++second) load_fragments(owned, second);
  }

  // scores = owned tile^T
  XLSTM_DEVICE void multiply_tile(float (&scores)[kScores], const OwnedFragments& fragments, int n, bool second) const {
    const uint32_t owned =
                       uint32_t(opaque(int(smem.owned_at(second)))) + uint32_t(panel_bytes(group * kWarpgroupOwned)),
                   tile = smem.tile_at(n, second);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kFeatures / 16; ++k) {
      const uint64_t along_tile = k_major_descriptor(tile + k / 4 * Smem::kTilePanel) + k % 4 * kNextKMajor;
      if constexpr (kOwnedInRegisters)
        wgmma_rs<false, E>(scores, fragments.word[second] + 4 * k, along_tile, k > 0);
      else
        wgmma_ss<false, false, E>(scores, k_major_descriptor(owned + k / 4 * Smem::kOwnedPanel) + k % 4 * kNextKMajor,
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
                        mn_major_descriptor(smem.tile_at(n, second), Smem::kTilePanel) + k * kNextMnMajor);
    wgmma_commit();
  }

  // Sets the scores of pairs that are not visible to -infinity, in a tile that begins with token `first`.
  XLSTM_DEVICE void mask(float (&s)[kScores], int first) const {
    if (fully_visible.contains(first)) return;
    const typename Smem::Limits limits = smem.limits();
    const int row = smem.owned + first_row(), token = first + first_column();
    const uint32_t distance = uint32_t(kOfKeys ? row - token : token - row) - limits.lowest;  // of register 0
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const int down = 8 * half(i), across = column(i);
      bool sees = distance + uint32_t(kOfKeys ? down - across : across - down) <= limits.span;
      if (!kOfKeys) sees = sees && token + across < limits.keys;
      s[i] = sees ? s[i] : -__builtin_inff();
    }
  }

  // Epilogue: scales the sums by one factor for each half of the rows and stores them. They pass through the shared
  // memory of the tokens that this warp owned, so that the stores are coalesced.
  XLSTM_DEVICE void store(const float (&sums)[kSums], const float (&factor)[2], bool second,
                          const TokenRows<E>& to) const {
#pragma unroll
    for (int q = 0; q < kFeatures / 16; ++q) {
      uint32_t word[4];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        word[w] = pack_exact(E{}, sums[8 * q + 2 * w] * factor[w % 2], sums[8 * q + 2 * w + 1] * factor[w % 2]);
      stmatrix(matrices_at(second, q), word[0], word[1], word[2], word[3]);
    }
    __syncwarp();
    constexpr int kRowVec16s = kFeatures / 8;
#pragma unroll
    for (int i = 0; i < 16 * kRowVec16s; i += 32) {
      const int row = warp_row() + (i + lane_id()) / kRowVec16s, vec = (i + lane_id()) % kRowVec16s;
      const char* from = smem.lds + (second ? Smem::kOwnedBytes : 0) + vec / 8 * Smem::kOwnedPanel;
      const Vec16 x = *reinterpret_cast<const Vec16*>(from + panel_vec16_offset(uint32_t(row), uint32_t(vec % 8)));
      const int token = smem.owned + row;
      if (token < smem.owned_tokens() && vec * 8 < to.columns)
        *reinterpret_cast<Vec16*>(const_cast<E*>(to.data) + token * to.stride + vec * 8) = x;
    }
  }
};

// Kernel body of a block. Heads vary fastest in the grid, so that the blocks of one head run together, and blocks with
// much work come first: under a causal mask early keys and late queries see the most tokens. The consumer warpgroups
// call f(smem, warpgroup); the producer warpgroup loads tiles.
template <class Smem, class Params, class Begin, class F>
XLSTM_DEVICE void run_hopper_attention(const HopperAttentionParams<Params>& params, char* lds, Begin&& prologue,
                                       F&& f) {
  const xlstm_attention& in = params.of.call.in;
  const uint32_t heads = uint32_t(Smem::kOfKeys ? in.heads_k : in.heads_q), all = heads * uint32_t(in.batch);
  const uint32_t which = blockIdx.x % all, blocks = (uint32_t(in.length_q) + Smem::kOwned - 1) / Smem::kOwned;
  const int block = int(Smem::kOfKeys ? blockIdx.x / all : blocks - 1 - blockIdx.x / all);
  const Smem smem(params, which / heads, int(which % heads), block, lds);
  prologue(smem);
  if (smem.owned >= smem.owned_tokens()) return;
  smem.init_barriers();
  const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32);
  if (warp < 4) {
    setmaxnreg_dec<kProducerRegisters>();
    if (warp == 0) smem.produce_tiles();
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    f(smem, warp / 4 - 1);
  }
}

}  // namespace xlstm::gpu::attention
