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
    smem.wait_owned(second);
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

  // The same from registers alone, where the owned tokens' memory already takes the next item's: the lanes of a quad
  // exchange words, so that each has 8 neighbouring features of a row.
  XLSTM_DEVICE void store_directly(const float (&sums)[kSums], const float (&factor)[2], const TokenRows<E>& to) const {
    const int in_quad = lane_id() % 4;
#pragma unroll
    for (int i = 0; i < kSums; i += 16)  // 32 features of two rows
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t word[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const int at = i + 4 * w + 2 * h;
          word[w] = pack_exact(E{}, sums[at] * factor[h], sums[at + 1] * factor[h]);
        }
        transpose_in_quad(word, in_quad);
        const int token = smem.owned + first_row() + 8 * h, feature = 2 * i + 8 * in_quad;
        if (token < smem.owned_tokens() && feature < to.columns)
          *reinterpret_cast<Vec16*>(const_cast<E*>(to.data) + token * to.stride +
                                    feature) = {{word[0], word[1], word[2], word[3]}};
      }
  }
  // Word w of lane l of a quad becomes word l of lane w.
  XLSTM_DEVICE static void transpose_in_quad(uint32_t (&word)[4], int in_quad) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if (w & bit) continue;
        uint32_t &low = word[w], &high = word[w | bit];
        const uint32_t other = as_bits(shuffle_xor(as_float(in_quad & bit ? low : high), bit));
        (in_quad & bit ? low : high) = other;
      }
  }
};

// The items of a grid: a block's tokens of a head. Heads vary fastest, so that the items of one head are processed
// together, and items with much work come first: under a causal mask early keys and late queries see the most tokens.
template <class Smem>
struct HopperItems {
  uint32_t heads, all_heads, blocks;

  XLSTM_DEVICE explicit HopperItems(const xlstm_attention& in)
      : heads(uint32_t(Smem::kOfKeys ? in.heads_k : in.heads_q)),
        all_heads(heads * uint32_t(in.batch)),
        blocks((uint32_t(Smem::kOfKeys ? in.length_k : in.length_q) + Smem::kOwned - 1) / Smem::kOwned) {}

  XLSTM_DEVICE uint32_t count() const { return all_heads * blocks; }
  template <class Params>
  XLSTM_DEVICE Smem item(const HopperAttentionParams<Params>& params, uint32_t i, char* lds,
                         const typename Smem::Progress& done) const {
    const uint32_t head = i % all_heads, block = i / all_heads;
    return Smem(params, head / heads, int(head % heads), int(Smem::kOfKeys ? block : blocks - 1 - block), lds, done);
  }
  // Calls f(smem) for the items of a persistent block. They are dealt to blocks and back, in a snake, so that each
  // block has early and late ones.
  template <class Params, class F>
  XLSTM_DEVICE void each(const HopperAttentionParams<Params>& params, char* lds, F&& f) const {
    typename Smem::Progress done;
    for (uint32_t first = 0, round = 0; first < count(); first += gridDim.x, ++round) {
      const uint32_t i = first + (round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
      if (i >= count()) continue;
      const Smem smem = item(params, i, lds, done);
      if (smem.owned >= smem.owned_tokens()) continue;
      f(smem);
      done.tiles += smem.tiles, done.items += smem.tiles > 0;
    }
  }
};

// Kernel body of a block: the consumer warpgroups call f(smem, warpgroup), the producer warpgroup loads tiles.
template <class Smem, class Params, class Begin, class F>
XLSTM_DEVICE void run_hopper_attention(const HopperAttentionParams<Params>& params, char* lds, Begin&& prologue,
                                       F&& f) {
  const HopperItems<Smem> items(params.of.call.in);
  const Smem smem = items.item(params, blockIdx.x, lds, {});
  prologue(smem);
  const bool has_one_item = !Smem::kShape.persistent || gridDim.x >= items.count();
  if (has_one_item && smem.owned >= smem.owned_tokens()) return;
  smem.init_barriers();
  const auto each_item = [&](auto&& run) {
    if constexpr (Smem::kShape.persistent)
      items.each(params, lds, run);
    else
      run(smem);
  };
  const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32);
  if (warp < 4) {
    setmaxnreg_dec<kProducerRegisters>();
    int tails = 0;
    if (warp == 0) each_item([&](const Smem& item) { item.produce_tiles(tails); });
  } else {
    setmaxnreg_inc<kConsumerRegisters>();
    each_item([&](const Smem& item) { f(item, warp / 4 - 1); });
  }
}

}  // namespace xlstm::gpu::attention
