// SPDX-License-Identifier: Apache-2.0
// The room of a Hopper walk (walk_hopper.h): what lies where in its shared memory, the barriers that say when it may be
// read and written, and the copies that bring it.
#pragma once

#include "arch/hopper.h"
#include "mlstm/sequences_gpu.h"
#include "mlstm/walk_hopper_shape.h"

namespace xlstm::gpu {

struct HopperWalkParams {
  WalkParams walk;
  CUtensorMap a, x, y, scores, out;
  NormaliserParams normaliser;  // HopperOutput::normalised
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

// The first warpgroup's last warp copies; the warps before it finish outputs or make normalisers.
constexpr int kOutputWarps = 3, kCopyWarp = kOutputWarps;

template <int kRows, int kHalves, bool kPair, HopperOutput kOutput>
struct HopperRoom {
  using Place = HopperState<kRows, kHalves, kPair>;
  static constexpr HopperShape kShape = Place::kShape;
  static constexpr bool kOutputs = kOutput != HopperOutput::none, kFlowing = kOutput == HopperOutput::flowing;
  static constexpr bool kFinish = kFlowing || kOutput == HopperOutput::summed;
  static constexpr bool kNormalise = kOutput == HopperOutput::normalised,
                        kStored = kNormalise || kOutput == HopperOutput::plain;
  static_assert(!kPair || !kStored);  // two blocks' sums are to be added
  static constexpr int kChunk = kHopperChunk, kStages = 2;
  static constexpr int kPanels = kRows / kPanelColumns, kPanel = panel_bytes(kChunk);

  // Shared memory. A stage: a, x, y, scores.
  static constexpr int kA = 0, kX = kA + kPanels * kPanel, kY = kX + kPanels * kPanel, kScores = kY + kHalves * kPanel;
  static constexpr int kStage = kScores + kPanel;
  // Outputs of 64 columns of y each: sums to be finished, or what is stored; and the other block's sums.
  static constexpr int kHalfFloats = kChunk * 64, kHalfBytes = kFinish ? kHalfFloats * 4 : kPanel;
  static constexpr int kSums = kStages * kStage, kIncoming = kSums + (kOutputs ? kHalves * kHalfBytes : 0);
  // Of each stage, the factors inter, into, gain.
  static constexpr int kNumbers = kIncoming + (kPair && kOutputs ? kHalfBytes : 0), kFactorBytes = 3 * kChunk * 4;
  // And for its normalisers: n, row sums of the scores, m, and what comes of them.
  static constexpr int kNormal = kNumbers + kStages * kFactorBytes,
                       kNormalBytes = kNormalise ? kRows * 4 + kChunk * 16 : 0;
  static constexpr int kRowSums = kRows * 4, kM = kRowSums + kChunk * 4, kGains = kM + kChunk * 8;
  static constexpr int kBarriers = kNormal + kStages * kNormalBytes;
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
    kGainFull,
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
  XLSTM_DEVICE const char* normal(int n) const { return lds + kNormal + n % kStages * kNormalBytes; }
  XLSTM_DEVICE float* gains(int n) const {
    return reinterpret_cast<float*>(lds + kNormal + n % kStages * kNormalBytes + kGains);
  }

  // Of the two blocks of a pair: this one, and the half whose outputs are its.
  XLSTM_DEVICE int owned_half() const { return kPair ? tile % 2 : 0; }

  // Full is for who reads, free for who writes: of a stage of the nth chunk, of half of the columns, or of all.
  XLSTM_DEVICE Barrier barrier(int index) const { return {base + uint32_t(kBarriers + 8 * index)}; }
  XLSTM_DEVICE Barrier a_full(int n) const { return barrier(kAFull + n % kStages); }
  XLSTM_DEVICE Barrier a_free(int n) const { return barrier(kAFree + n % kStages); }
  XLSTM_DEVICE Barrier y_full(int n) const { return barrier(kYFull + n % kStages); }
  XLSTM_DEVICE Barrier y_free(int n) const { return barrier(kYFree + n % kStages); }
  XLSTM_DEVICE Barrier x_full(int n) const { return barrier(kXFull + n % kStages); }
  XLSTM_DEVICE Barrier x_free(int n) const { return barrier(kXFree + n % kStages); }
  XLSTM_DEVICE Barrier gain_full(int n) const { return barrier(kGainFull + n % kStages); }
  XLSTM_DEVICE Barrier sums_full(int half) const { return barrier(kSumsFull + half); }
  XLSTM_DEVICE Barrier sums_free(int half) const { return barrier(kSumsFree + half); }
  XLSTM_DEVICE Barrier incoming_full() const { return barrier(kIncomingFull); }
  XLSTM_DEVICE Barrier sent_free() const { return barrier(kSentFree); }
  // Phases: of a stage's barriers, which the nth chunk ends; and of those that every chunk ends.
  XLSTM_DEVICE static uint32_t parity(int n) { return uint32_t(n / kStages % 2); }
  XLSTM_DEVICE static uint32_t every_parity(int n) { return uint32_t(n % 2); }

  // By the whole block, before anything else.
  XLSTM_DEVICE void open() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        a_full(s).init(1), y_full(s).init(1), x_full(s).init(1), gain_full(s).init(kOutputWarps);
        a_free(s).init(2 + (kNormalise ? kOutputWarps : 0)), x_free(s).init(2);
        y_free(s).init(kHopperStateThreads / 32 + (kFinish || kNormalise ? kOutputWarps : 0));
      }
      for (int half = 0; half < kHalves; ++half) {
        sums_full(half).init(kWarpgroup), sums_free(half).init(kOutputWarps);
      }
      incoming_full().init(1), sent_free().init(kOutputWarps);
      barriers_ready();
    }
    if constexpr (kNormalise) {  // where q has no columns n has none: zeros
      for (int i = threadIdx.x; i < kStages * kNormalBytes / 4; i += kHopperBlockThreads)
        reinterpret_cast<float*>(lds + kNormal)[i] = 0;
      shared_written();
    }
    if constexpr (kPair)
      meet_cluster();
    else
      __syncthreads();
  }

  // All that a walk reads of the segment, by one thread.
  XLSTM_DEVICE void copy_chunks() const {
    prefetch(&params.a), prefetch(&params.x), prefetch(&params.y), prefetch(&params.scores);
    if constexpr (kStored) prefetch(&params.out);
    for (int n = 0; n < chunks; ++n) {
      const int s = n % kStages, token = chunk_at(n) * kChunk, head = segment.head, batch = segment.batch;
      const uint32_t at = stage_address(n), before = parity(n) ^ 1;
      const int64_t slot = slot_of(n);
      if constexpr (kOutputs) {
        const Barrier full = a_full(n);
        a_free(n).wait(before);
        const int n_bytes = p.a.columns * 4;
        full.expect(kPanels * kPanel + (kNormalise ? n_bytes + kChunk * 12 : 0));
        if constexpr (kNormalise) {
          const NormaliserParams& q = params.normaliser;
          const uint32_t to = base + uint32_t(kNormal + s * kNormalBytes);
          copy_bytes(to, q.n + slot * p.a.columns, n_bytes, full);
          copy_bytes(to + kRowSums, q.row_sums + slot * kChunk, kChunk * 4, full);
          copy_bytes(to + kM, q.m + slot * kChunk, kChunk * 8, full);
        }
#pragma unroll
        for (int i = 0; i < kPanels; ++i)
          copy_panel(at + kA + i * kPanel, &params.a, Place::first_row(tile) + i * kPanelColumns, token, head, batch,
                     full);
      }
      Barrier full = y_full(n);
      y_free(n).wait(before);
      full.expect(kHalves * kPanel + kFactorBytes + (kOutputs ? kPanel : 0));
      copy_bytes(base + kNumbers + s * kFactorBytes, p.factors + slot * kFactors * kChunk, kFactorBytes, full);
#pragma unroll
      for (int i = 0; i < kHalves; ++i)
        copy_panel(at + kY + i * kPanel, &params.y, Place::first_column(tile) + i * kPanelColumns, token, head, batch,
                   full);
      if constexpr (kOutputs) copy_panel(at + kScores, &params.scores, 0, int(slot * kChunk), 0, 0, full);
      full = x_full(n);
      x_free(n).wait(before);
      full.expect(kPanels * kPanel);
#pragma unroll
      for (int i = 0; i < kPanels; ++i)
        copy_panel(at + kX + i * kPanel, &params.x, Place::first_row(tile) + i * kPanelColumns, token, head, batch,
                   full);
    }
  }
};

}  // namespace xlstm::gpu
