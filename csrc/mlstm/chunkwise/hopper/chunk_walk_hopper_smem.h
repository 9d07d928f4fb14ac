// SPDX-License-Identifier: Apache-2.0
// The shared memory of a Hopper walk (chunk_walk_hopper.h): its layout, its mbarriers, and the TMA loads into it.
#pragma once

#include "arch/hopper/hopper.h"
#include "mlstm/chunkwise/chunk_walk_hopper_shape.h"
#include "mlstm/chunkwise/walk_outputs.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

namespace output {
// C and n at the borders between segments, for a walk that computes its scores.
struct c_and_n : c {};
}  // namespace output

// Tensor maps of one tensor for tiles of a chunk's tokens, and, of packed sequences, of these numbers of rows: where
// one ends within a tile, TMA must not load the next one's tokens, whose products with zeros may be NaN.
constexpr int rows_of_box(int box) { return box == 0 ? 8 : 1; }
struct TokenMaps {
  CUtensorMap chunk, rows[2];
};

struct HopperWalkParams {
  WalkParams walk;
  CUtensorMap a, scores, out;
  TokenMaps x, y;
  ScoringParams scoring;  // where n is kept with the state
};

// The layout of a walk's state in registers.
template <int kRows, int kYPanels, bool kPair>
struct HopperStateLayout {
  static constexpr HopperShape kShape{kRows, kYPanels, kPair};
  static constexpr int kThreads = kHopperStateThreads, kRegisters = kShape.registers(), kPanelRegisters = kRows / 2,
                       kSliceRows = kRows;

  // Position of the ith accumulator of a panel of 64 columns of y, in a thread of a consumer warpgroup. The row is one
  // of x, or a token; the column is one of y.
  XLSTM_DEVICE static StripPosition in_panel(int i) { return in_panel(i, threadIdx.x % kWarpgroup); }
  XLSTM_DEVICE static StripPosition in_panel(int i, int thread) {
    const int lane = thread % 32;
    return {8 * (i / 4) + 2 * (lane % 4) + i % 2, thread / 32 * 16 + lane / 4 + 8 * (i / 2 % 2)};
  }
  XLSTM_DEVICE static int first_row(int tile) { return kPair ? tile % 2 * kRows : 0; }
  XLSTM_DEVICE static int first_column(int tile) { return (kPair ? tile & ~1 : tile) * kShape.y_tile(); }
  XLSTM_DEVICE static StripPosition position(int r, int tile, int group) {
    return position(in_panel(r % kPanelRegisters), r, tile, group);
  }
  XLSTM_DEVICE static StripPosition position(int r, int tile) { return position(r, tile, threadIdx.x / kWarpgroup); }
  XLSTM_DEVICE static StripPosition position_of(int thread, int r, int tile) {
    return position(in_panel(r % kPanelRegisters, thread % kWarpgroup), r, tile, thread / kWarpgroup);
  }

 private:
  XLSTM_DEVICE static StripPosition position(const StripPosition& at, int r, int tile, int group) {
    const int panel = group * kShape.panels_per_warpgroup() + r / kPanelRegisters;
    return {first_row(tile) + at.row, first_column(tile) + panel * 64 + at.column};
  }
};

// Warps of the first warpgroup: three for the epilogue, besides the producer; or four that compute scores.
constexpr int kEpilogueWarps = 3, kScoreWarps = 4;

// kPacked: whether a row's tokens may be of several sequences.
template <int kRows, int kYPanels, bool kPair, class Output, bool kPacked>
struct HopperWalkSmem {
  using Layout = HopperStateLayout<kRows, kYPanels, kPair>;
  static constexpr HopperShape kShape = Layout::kShape;
  static constexpr WalkTerms kTerms = Output::kTerms;
  static constexpr bool kIsPacked = kPacked;
  static constexpr bool kOutputs = !kTerms.states_only, kHasGradientTerms = kTerms.gradient_terms,
                        kMakesScores = kTerms.divides_by_n && kShape.makes_scores(),
                        kHasN = kMakesScores || __is_same(Output, output::c_and_n);
  static constexpr bool kHasEpilogueWarps = kOutputs && (kPair || kHasGradientTerms),
                        kStoresByTma = kOutputs && !kHasEpilogueWarps;
  static_assert(!kPair || (!kStoresByTma && !kHasN));  // the sums of the two blocks of a pair must be added first
  static constexpr int kChunk = kHopperChunk, kStages = 2;
  static constexpr int kXPanels = kRows / kPanelColumns, kPanelBytes = panel_bytes(kChunk);

  // Shared memory. A stage: a, x, y, scores. Below each panel of x, a tile of 8 rows for the upper and the lower part
  // of n.
  static constexpr int kXPanelBytes = kPanelBytes + (kHasN ? panel_bytes(8) : 0);
  static constexpr int kAOffset = 0, kXOffset = kAOffset + kXPanels * kPanelBytes,
                       kYOffset = kXOffset + kXPanels * kXPanelBytes, kScoresOffset = kYOffset + kYPanels * kPanelBytes;
  static constexpr int kStageBytes = kScoresOffset + kPanelBytes;
  // Output panels of 64 columns of y: sums for the epilogue warps, or what TMA stores; then the sums of the peer block.
  static constexpr int kPanelFloats = kChunk * 64, kOutPanelBytes = kHasEpilogueWarps ? kPanelFloats * 4 : kPanelBytes;
  static constexpr int kSumsOffset = kStages * kStageBytes,
                       kIncomingOffset = kSumsOffset + (kOutputs ? kYPanels * kOutPanelBytes : 0);
  // For each stage: the weights of n's sum in a tile of 8 rows; the factors inter and into; gate terms, and the 1 / N
  // that follow from them. (A 1 / N that an earlier kernel computed is read by the epilogue warps from global memory.)
  static constexpr int kWeightsOffset = kIncomingOffset + (kPair && kOutputs ? kOutPanelBytes : 0),
                       kWeightTileBytes = kHasN ? panel_bytes(8) : 0;
  static constexpr int kFactorsOffset = kWeightsOffset + kStages * kWeightTileBytes, kFactorBytes = 2 * kChunk * 4;
  static constexpr int kGateTermsOffset = kFactorsOffset + kStages * kFactorBytes,
                       kGateTermStageBytes = kHasN ? kGateTermBytes + kChunk * 4 : 0;
  static constexpr int kBarriersOffset = kGateTermsOffset + kStages * kGateTermStageBytes;
  enum BarrierIndex {
    kAFull,
    kYFull = kAFull + kStages,  // also scores and factors
    kXFull = kYFull + kStages,
    kAFree = kXFull + kStages,
    kYFree = kAFree + kStages,
    kXFree = kYFree + kStages,
    kSumsFull = kXFree + kStages,
    kSumsFree = kSumsFull + kYPanels,
    kIncomingFull = kSumsFree + kYPanels,
    kPeerSumsFree,  // the peer's memory for sums from this block
    kScoresFull,
    kInverseNFull = kScoresFull + kStages,
    kBarrierCount = kInverseNFull + kStages
  };
  static constexpr int kBytes = kShape.lds_bytes({kOutputs, kHasEpilogueWarps, kHasN});
  static_assert(kBarrierCount <= kHopperBarriers && kBytes == kBarriersOffset + 8 * kHopperBarriers &&
                kBytes <= 227 << 10);

  const HopperWalkParams& params;
  const WalkParams& p;
  const Segment segment;
  const int tile, chunks;
  char* lds;
  uint32_t base;

  XLSTM_DEVICE HopperWalkSmem(const HopperWalkParams& walk_params, const Segment& where, int y_tile_index, char* memory)
      : params(walk_params),
        p(walk_params.walk),
        segment(where),
        tile(y_tile_index),
        chunks(where.last_chunk - where.first_chunk),
        lds(memory),
        base(lds_address(memory)) {}

  // The segment's nth chunk in the walk's direction.
  XLSTM_DEVICE int chunk_at(int n) const {
    return kTerms.reverse ? segment.last_chunk - 1 - n : segment.first_chunk + n;
  }
  XLSTM_DEVICE int64_t slot_of(int n) const {
    return int64_t(segment.row) * p.where.slots + (kPacked ? segment.slot : 0) + chunk_at(n);
  }
  // Its first token.
  XLSTM_DEVICE int token_at(int n) const { return (kPacked ? int(segment.begin) : 0) + chunk_at(n) * kChunk; }
  XLSTM_DEVICE int valid(int n) const {
    const int left = int(segment.end) - token_at(n);
    return left < kChunk ? left : kChunk;
  }
  // Whether the sequence ends in the chunk, with another sequence's tokens behind it.
  XLSTM_DEVICE bool is_cut(int n) const { return kPacked && segment.end < p.where.length && valid(n) < kChunk; }

  XLSTM_DEVICE uint32_t stage_address(int n) const { return base + uint32_t(n % kStages * kStageBytes); }
  XLSTM_DEVICE const char* stage(int n) const { return lds + n % kStages * kStageBytes; }
  XLSTM_DEVICE float* sums(int panel) const {
    return reinterpret_cast<float*>(lds + kSumsOffset) + panel * kPanelFloats;
  }
  XLSTM_DEVICE const float* incoming() const { return reinterpret_cast<const float*>(lds + kIncomingOffset); }
  XLSTM_DEVICE const float* factors(int n, Factor which) const {
    return reinterpret_cast<const float*>(lds + kFactorsOffset + n % kStages * kFactorBytes) + which * kChunk;
  }
  XLSTM_DEVICE uint32_t weights_address(int n) const {
    return base + uint32_t(kWeightsOffset + n % kStages * kWeightTileBytes);
  }
  XLSTM_DEVICE float* gate_term(int n, HopperGateTerm which) const {
    return reinterpret_cast<float*>(lds + kGateTermsOffset + n % kStages * kGateTermStageBytes) + which * kChunk;
  }
  XLSTM_DEVICE float* inverse_n(int n) const { return gate_term(n, kGateTerms); }

  // The panel that this block of a pair finishes.
  XLSTM_DEVICE int owned_panel() const { return kPair ? tile % 2 : 0; }

  // A full barrier is waited for by readers, a free barrier by writers: for a stage of the nth chunk, for a panel of
  // sums, or for all.
  XLSTM_DEVICE Mbarrier barrier(int index) const { return {base + uint32_t(kBarriersOffset + 8 * index)}; }
  XLSTM_DEVICE Mbarrier a_full(int n) const { return barrier(kAFull + n % kStages); }
  XLSTM_DEVICE Mbarrier a_free(int n) const { return barrier(kAFree + n % kStages); }
  XLSTM_DEVICE Mbarrier y_full(int n) const { return barrier(kYFull + n % kStages); }
  XLSTM_DEVICE Mbarrier y_free(int n) const { return barrier(kYFree + n % kStages); }
  XLSTM_DEVICE Mbarrier x_full(int n) const { return barrier(kXFull + n % kStages); }
  XLSTM_DEVICE Mbarrier x_free(int n) const { return barrier(kXFree + n % kStages); }
  XLSTM_DEVICE Mbarrier scores_full(int n) const { return barrier(kScoresFull + n % kStages); }
  XLSTM_DEVICE Mbarrier inverse_n_full(int n) const { return barrier(kInverseNFull + n % kStages); }
  XLSTM_DEVICE Mbarrier sums_full(int panel) const { return barrier(kSumsFull + panel); }
  XLSTM_DEVICE Mbarrier sums_free(int panel) const { return barrier(kSumsFree + panel); }
  XLSTM_DEVICE Mbarrier incoming_full() const { return barrier(kIncomingFull); }
  XLSTM_DEVICE Mbarrier peer_sums_free() const { return barrier(kPeerSumsFree); }
  // Parity of the phase that the nth chunk ends: for the barriers of a stage, and for the barriers that every chunk
  // uses.
  XLSTM_DEVICE static uint32_t parity(int n) { return uint32_t(n / kStages % 2); }
  XLSTM_DEVICE static uint32_t every_parity(int n) { return uint32_t(n % 2); }

  // Called by all threads of the block before anything else.
  XLSTM_DEVICE void init() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        a_full(s).init(1), y_full(s).init(1), x_full(s).init(1);
        scores_full(s).init(kScoreWarps), inverse_n_full(s).init(kScoreWarps);
        a_free(s).init(2 + (kMakesScores ? kScoreWarps : 0)), x_free(s).init(2 + (kHasN ? kScoreWarps : 0));
        y_free(s).init(kHopperStateThreads / 32 + (kHasEpilogueWarps ? kEpilogueWarps : 0));
      }
      for (int panel = 0; panel < kYPanels; ++panel) {
        sums_full(panel).init(kWarpgroup), sums_free(panel).init(kEpilogueWarps);
      }
      incoming_full().init(1), peer_sums_free().init(kEpilogueWarps);
      fence_mbarrier_init();
    }
    const auto clear = [&](int from, int bytes) {
      for (int i = threadIdx.x * 4; i < bytes; i += kHopperBlockThreads * 4)
        *reinterpret_cast<uint32_t*>(lds + from + i) = 0;
    };
    // Rows of a cut chunk that no copy writes: a stage's first chunk finds zeros there, later ones tokens of their own.
    const int cut = kTerms.reverse ? 0 : chunks - 1;
    if (cut < kStages && is_cut(cut)) {
      for (int i = 0; i < kXPanels; ++i) clear(cut * kStageBytes + kXOffset + i * kXPanelBytes, kPanelBytes);
      clear(cut * kStageBytes + kYOffset, kYPanels * kPanelBytes);
      fence_async_proxy();
    }
    if constexpr (kHasN) {  // zero what no copy writes: rows below n and its weights, scores above the diagonal
      clear(kWeightsOffset, kStages * kWeightTileBytes);
      for (int s = 0; kMakesScores && s < kStages; ++s) {
        for (int i = 0; i < kXPanels; ++i)
          clear(s * kStageBytes + kXOffset + i * kXPanelBytes + kPanelBytes, kXPanelBytes - kPanelBytes);
        clear(s * kStageBytes + kScoresOffset, kPanelBytes);
      }
      fence_async_proxy();
    }
    if constexpr (kPair)
      cluster_sync();
    else
      __syncthreads();
  }

  // Loads of the nth chunk, each issued by one thread once the stage is free.
  XLSTM_DEVICE void load_a(int n) const {
    if constexpr (kOutputs) {
      const Mbarrier full = a_full(n);
      full.arrive_expect_tx(kXPanels * kPanelBytes);
      load_panels<kXPanels>(stage_address(n) + kAOffset, kPanelBytes, params.a, Layout::first_row(tile), n, full);
    }
  }
  // Bytes of a panel that load_tokens() loads.
  XLSTM_DEVICE uint32_t loaded_bytes(int n) const { return is_cut(n) ? panel_bytes(valid(n)) : kPanelBytes; }
  // Panels of x or y: without the tokens of another sequence.
  template <int kCount>
  XLSTM_DEVICE void load_tokens(uint32_t to, int stride, const TokenMaps& from, int column, int n,
                                Mbarrier full) const {
    if (!is_cut(n)) return load_panels<kCount>(to, stride, from.chunk, column, n, full);
    const int count = valid(n);
    for (int t = 0; t < count;) {
      const int box = count - t < rows_of_box(0);
      for (int i = 0; i < kCount; ++i)
        tma_load(to + i * stride + panel_bytes(t), &from.rows[box], column + i * kPanelColumns, token_at(n) + t,
                 segment.head, segment.batch, full);
      t += rows_of_box(box);
    }
  }
  XLSTM_DEVICE void load_y(int n) const {
    const Mbarrier full = y_full(n);
    const int64_t slot = slot_of(n);
    full.arrive_expect_tx(kYPanels * loaded_bytes(n) + kFactorBytes + (kOutputs && !kMakesScores ? kPanelBytes : 0));
    bulk_load(base + kFactorsOffset + n % kStages * kFactorBytes, p.factors + slot * kFactors * kChunk, kFactorBytes,
              full);
    load_tokens<kYPanels>(stage_address(n) + kYOffset, kPanelBytes, params.y, Layout::first_column(tile), n, full);
    if constexpr (kOutputs && !kMakesScores)
      tma_load(stage_address(n) + kScoresOffset, &params.scores, 0, int(slot * kChunk), 0, 0, full);
  }
  XLSTM_DEVICE void load_x(int n) const {
    const Mbarrier full = x_full(n);
    full.arrive_expect_tx(kXPanels * loaded_bytes(n) + (kHasN ? kWeightBytes : 0) +
                          (kMakesScores ? kGateTermBytes : 0));
    if constexpr (kHasN) {
      const float* from = params.scoring.gate_terms + slot_of(n) * kGateTermFloats;
      const uint32_t to = base + uint32_t(kGateTermsOffset + n % kStages * kGateTermStageBytes);
      if constexpr (kMakesScores) bulk_load(to, from, kGateTermBytes, full);
      bulk_load(weights_address(n), from + kGateTermBytes / 4, kWeightBytes, full);
    }
    load_tokens<kXPanels>(stage_address(n) + kXOffset, kXPanelBytes, params.x, Layout::first_row(tile), n, full);
  }
  template <int kCount>
  XLSTM_DEVICE void load_panels(uint32_t to, int stride, const CUtensorMap& from, int column, int n,
                                Mbarrier full) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      tma_load(to + i * stride, &from, column + i * kPanelColumns, token_at(n), segment.head, segment.batch, full);
  }
  // The producer: a single thread that issues all loads.
  XLSTM_DEVICE void producer_loop() const {
    prefetch(&params.a), prefetch(&params.x.chunk), prefetch(&params.y.chunk), prefetch(&params.scores);
    if constexpr (kStoresByTma) prefetch(&params.out);
    for (int n = 0; n < chunks; ++n) {
      const uint32_t before = parity(n) ^ 1;
      if (kOutputs) a_free(n).wait(before);
      load_a(n);
      y_free(n).wait(before);
      load_y(n);
      x_free(n).wait(before);
      load_x(n);
    }
  }
};

}  // namespace xlstm::gpu::mlstm
