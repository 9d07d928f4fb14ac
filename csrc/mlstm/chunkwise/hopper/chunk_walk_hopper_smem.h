// SPDX-License-Identifier: Apache-2.0
// The room of a Hopper walk (chunk_walk_hopper.h): what lies where in its shared memory, the barriers that say when it
// may be read and written, and the copies that bring it.
#pragma once

#include "arch/hopper/hopper.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_shape.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

struct HopperWalkParams {
  WalkParams walk;
  CUtensorMap a, x, y, scores, out;
  ScoringParams scoring;  // keeps_n()
};

// Where a walk keeps its state.
template <int kRows, int kHalves, bool kPair>
struct HopperState {
  static constexpr HopperShape kShape{kRows, kHalves, kPair};
  static constexpr int kThreads = kHopperStateThreads, kRegisters = kShape.registers(), kHalfRegisters = kRows / 2,
                       kSliceRows = kRows;

  // The ith accumulator of 64 columns of y, of a thread of a warpgroup: its row is x, or a token, its column one of y.
  XLSTM_DEVICE static StripPosition in_half(int i) {
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
    return {8 * (i / 4) + 2 * (lane % 4) + i % 2, thread / 32 * 16 + lane / 4 + 8 * (i / 2 % 2)};
  }
  XLSTM_DEVICE static int first_row(int tile) { return kPair ? tile % 2 * kRows : 0; }
  XLSTM_DEVICE static int first_column(int tile) { return (kPair ? tile & ~1 : tile) * kShape.y_tile(); }
  XLSTM_DEVICE static StripPosition position(int r, int tile, int group) {
    const StripPosition at = in_half(r % kHalfRegisters);
    const int half = group * kShape.per_warpgroup() + r / kHalfRegisters;
    return {first_row(tile) + at.row, first_column(tile) + half * 64 + at.column};
  }
  XLSTM_DEVICE static StripPosition position(int r, int tile) { return position(r, tile, threadIdx.x / kWarpgroup); }
};

// Of the first warpgroup: warps that finish outputs, beside one that copies, or that make scores.
constexpr int kOutputWarps = 3, kScoreWarps = 4;

template <int kRows, int kHalves, bool kPair, HopperOutput kOutput>
struct HopperRoom {
  using Place = HopperState<kRows, kHalves, kPair>;
  static constexpr HopperShape kShape = Place::kShape;
  static constexpr bool kOutputs = kOutput > HopperOutput::none_with_n, kFlowing = kOutput == HopperOutput::flowing;
  static constexpr bool kFinish = kFlowing || kOutput == HopperOutput::summed;
  static constexpr bool kScored = kOutput == HopperOutput::scored, kKeepsN = keeps_n(kOutput),
                        kStored = kScored || kOutput == HopperOutput::plain;
  static_assert(!kPair || (!kStored && !kKeepsN));  // two blocks' sums are to be added
  static constexpr int kChunk = kHopperChunk, kStages = 2;
  static constexpr int kPanels = kRows / kPanelColumns, kPanel = panel_bytes(kChunk);

  // Shared memory. A stage: a, x, y, scores. Below each panel of x, of n the upper and the lower part.
  static constexpr int kXPanel = kPanel + (kKeepsN ? panel_bytes(8) : 0);
  static constexpr int kA = 0, kX = kA + kPanels * kPanel, kY = kX + kPanels * kXPanel, kScores = kY + kHalves * kPanel;
  static constexpr int kStage = kScores + kPanel;
  // Outputs of 64 columns of y each: sums to be finished, or what is stored; and the other block's sums.
  static constexpr int kHalfFloats = kChunk * 64, kHalfBytes = kFinish ? kHalfFloats * 4 : kPanel;
  static constexpr int kSums = kStages * kStage, kIncoming = kSums + (kOutputs ? kHalves * kHalfBytes : 0);
  // Of each stage, weights of n's sum in a tile of 8 rows; the factors inter and into; measures, and the gains that
  // come of them. (Those of the kernel before are read where they are used, by the warps that finish outputs.)
  static constexpr int kWeights = kIncoming + (kPair && kOutputs ? kHalfBytes : 0),
                       kWeightTile = kKeepsN ? panel_bytes(8) : 0;
  static constexpr int kNumbers = kWeights + kStages * kWeightTile, kFactorBytes = 2 * kChunk * 4;
  static constexpr int kMeasured = kNumbers + kStages * kFactorBytes,
                       kMeasuredRoom = kKeepsN ? kMeasureBytes + kChunk * 4 : 0;
  static constexpr int kBarriers = kMeasured + kStages * kMeasuredRoom;
  enum BarrierIndex {
    kAFull,
    kYFull = kAFull + kStages,  // and scores and factors
    kXFull = kYFull + kStages,
    kAFree = kXFull + kStages,
    kYFree = kAFree + kStages,
    kXFree = kYFree + kStages,
    kSumsFull = kXFree + kStages,
    kSumsFree = kSumsFull + kHalves,
    kIncomingFull = kSumsFree + kHalves,
    kSentFree,  // the other block's room for sums from here
    kScoresFull,
    kGainFull = kScoresFull + kStages,
    kBarrierCount = kGainFull + kStages
  };
  static constexpr int kBytes = kShape.lds_bytes(kOutput);
  static_assert(kBarrierCount <= kHopperBarriers && kBytes == kBarriers + 8 * kHopperBarriers && kBytes <= 227 << 10);

  const HopperWalkParams& params;
  const WalkParams& p;
  const Segment segment;
  const int tile, chunks;
  char* lds;
  uint32_t base;

  XLSTM_DEVICE HopperRoom(const HopperWalkParams& all, const Segment& where, int y_tile_index, char* memory)
      : params(all),
        p(all.walk),
        segment(where),
        tile(y_tile_index),
        chunks(where.last_chunk - where.first_chunk),
        lds(memory),
        base(lds_address(memory)) {}

  // Of the segment's nth chunk in the walk's direction.
  XLSTM_DEVICE int chunk_at(int n) const { return p.reverse ? segment.last_chunk - 1 - n : segment.first_chunk + n; }
  XLSTM_DEVICE int64_t slot_of(int n) const { return int64_t(segment.row) * p.where.slots + chunk_at(n); }

  XLSTM_DEVICE uint32_t stage_address(int n) const { return base + uint32_t(n % kStages * kStage); }
  XLSTM_DEVICE const char* stage(int n) const { return lds + n % kStages * kStage; }
  XLSTM_DEVICE float* sums(int half) const { return reinterpret_cast<float*>(lds + kSums) + half * kHalfFloats; }
  XLSTM_DEVICE const float* incoming() const { return reinterpret_cast<const float*>(lds + kIncoming); }
  XLSTM_DEVICE const float* factors(int n, Factor which) const {
    return reinterpret_cast<const float*>(lds + kNumbers + n % kStages * kFactorBytes) + which * kChunk;
  }
  XLSTM_DEVICE uint32_t weights_address(int n) const { return base + uint32_t(kWeights + n % kStages * kWeightTile); }
  XLSTM_DEVICE float* measured(int n, HopperMeasure which) const {
    return reinterpret_cast<float*>(lds + kMeasured + n % kStages * kMeasuredRoom) + which * kChunk;
  }
  XLSTM_DEVICE float* gains(int n) const { return measured(n, kMeasures); }

  // Of the two blocks of a pair: this one, and the half whose outputs are its.
  XLSTM_DEVICE int owned_half() const { return kPair ? tile % 2 : 0; }

  // Full is for who reads, free for who writes: of a stage of the nth chunk, of half of the columns, or of all.
  XLSTM_DEVICE Mbarrier barrier(int index) const { return {base + uint32_t(kBarriers + 8 * index)}; }
  XLSTM_DEVICE Mbarrier a_full(int n) const { return barrier(kAFull + n % kStages); }
  XLSTM_DEVICE Mbarrier a_free(int n) const { return barrier(kAFree + n % kStages); }
  XLSTM_DEVICE Mbarrier y_full(int n) const { return barrier(kYFull + n % kStages); }
  XLSTM_DEVICE Mbarrier y_free(int n) const { return barrier(kYFree + n % kStages); }
  XLSTM_DEVICE Mbarrier x_full(int n) const { return barrier(kXFull + n % kStages); }
  XLSTM_DEVICE Mbarrier x_free(int n) const { return barrier(kXFree + n % kStages); }
  XLSTM_DEVICE Mbarrier scores_full(int n) const { return barrier(kScoresFull + n % kStages); }
  XLSTM_DEVICE Mbarrier gain_full(int n) const { return barrier(kGainFull + n % kStages); }
  XLSTM_DEVICE Mbarrier sums_full(int half) const { return barrier(kSumsFull + half); }
  XLSTM_DEVICE Mbarrier sums_free(int half) const { return barrier(kSumsFree + half); }
  XLSTM_DEVICE Mbarrier incoming_full() const { return barrier(kIncomingFull); }
  XLSTM_DEVICE Mbarrier sent_free() const { return barrier(kSentFree); }
  // Phases: of a stage's barriers, which the nth chunk ends; and of those that every chunk ends.
  XLSTM_DEVICE static uint32_t parity(int n) { return uint32_t(n / kStages % 2); }
  XLSTM_DEVICE static uint32_t every_parity(int n) { return uint32_t(n % 2); }

  // By the whole block, before anything else.
  XLSTM_DEVICE void open() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        a_full(s).init(1), y_full(s).init(1), x_full(s).init(1);
        scores_full(s).init(kScoreWarps), gain_full(s).init(kScoreWarps);
        a_free(s).init(2 + (kScored ? kScoreWarps : 0)), x_free(s).init(2 + (kKeepsN ? kScoreWarps : 0));
        y_free(s).init(kHopperStateThreads / 32 + (kFinish ? kOutputWarps : 0));
      }
      for (int half = 0; half < kHalves; ++half) {
        sums_full(half).init(kWarpgroup), sums_free(half).init(kOutputWarps);
      }
      incoming_full().init(1), sent_free().init(kOutputWarps);
      fence_mbarrier_init();
    }
    if constexpr (kKeepsN) {  // what nobody writes: rows beside n and its weights, scores above the diagonal
      const auto clear = [&](int from, int bytes) {
        for (int i = threadIdx.x * 4; i < bytes; i += kHopperBlockThreads * 4)
          *reinterpret_cast<uint32_t*>(lds + from + i) = 0;
      };
      clear(kWeights, kStages * kWeightTile);
      for (int s = 0; kScored && s < kStages; ++s) {
        for (int i = 0; i < kPanels; ++i) clear(s * kStage + kX + i * kXPanel + kPanel, kXPanel - kPanel);
        clear(s * kStage + kScores, kPanel);
      }
      fence_async_proxy();
    }
    if constexpr (kPair)
      cluster_sync();
    else
      __syncthreads();
  }

  // What a walk reads of the nth chunk, by one thread each, when nobody needs what the stage held.
  XLSTM_DEVICE void copy_a(int n) const {
    if constexpr (kOutputs) {
      const Mbarrier full = a_full(n);
      full.arrive_expect_tx(kPanels * kPanel);
      copy_panels<kPanels>(stage_address(n) + kA, kPanel, params.a, Place::first_row(tile), n, full);
    }
  }
  XLSTM_DEVICE void copy_y(int n) const {
    const Mbarrier full = y_full(n);
    const int64_t slot = slot_of(n);
    full.arrive_expect_tx(kHalves * kPanel + kFactorBytes + (kOutputs && !kScored ? kPanel : 0));
    bulk_load(base + kNumbers + n % kStages * kFactorBytes, p.factors + slot * kFactors * kChunk, kFactorBytes, full);
    copy_panels<kHalves>(stage_address(n) + kY, kPanel, params.y, Place::first_column(tile), n, full);
    if constexpr (kOutputs && !kScored)
      tma_load(stage_address(n) + kScores, &params.scores, 0, int(slot * kChunk), 0, 0, full);
  }
  XLSTM_DEVICE void copy_x(int n) const {
    const Mbarrier full = x_full(n);
    full.arrive_expect_tx(kPanels * kPanel + (kKeepsN ? kWeightBytes : 0) + (kScored ? kMeasureBytes : 0));
    if constexpr (kKeepsN) {
      const float* from = params.scoring.measures + slot_of(n) * kMeasureFloats;
      const uint32_t to = base + uint32_t(kMeasured + n % kStages * kMeasuredRoom);
      if constexpr (kScored) bulk_load(to, from, kMeasureBytes, full);
      bulk_load(weights_address(n), from + kMeasureBytes / 4, kWeightBytes, full);
    }
    copy_panels<kPanels>(stage_address(n) + kX, kXPanel, params.x, Place::first_row(tile), n, full);
  }
  template <int kCount>
  XLSTM_DEVICE void copy_panels(uint32_t to, int apart, const CUtensorMap& from, int column, int n,
                                Mbarrier full) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      tma_load(to + i * apart, &from, column + i * kPanelColumns, chunk_at(n) * kChunk, segment.head, segment.batch,
               full);
  }
  // All of it, by one thread that does nothing else.
  XLSTM_DEVICE void copy_chunks() const {
    prefetch(&params.a), prefetch(&params.x), prefetch(&params.y), prefetch(&params.scores);
    if constexpr (kStored) prefetch(&params.out);
    for (int n = 0; n < chunks; ++n) {
      const uint32_t before = parity(n) ^ 1;
      if (kOutputs) a_free(n).wait(before);
      copy_a(n);
      y_free(n).wait(before);
      copy_y(n);
      x_free(n).wait(before);
      copy_x(n);
    }
  }
};

}  // namespace xlstm::gpu::mlstm
