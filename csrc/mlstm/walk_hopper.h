// SPDX-License-Identifier: Apache-2.0
// The walk (walk_gpu.h has the table of what it is) as Hopper likes it: out = f (a C) + scores y, C = decay C + (w x)^T
// y.
//
// Everything is transposed, so that the state, in accumulators, is the left operand of the next product as it lies:
//     out^T [64 of y][tokens] = C^T a^T      += y^T scores^T      C^T += (w y)^T x
// Who owns what: two warpgroups hold 128 numbers of the state in each thread, 64 columns of y by 256 rows (or twice 64
// by 128) in each. They take turns: while one multiplies by the state, the other packs, weighs, writes. Of the third
// warpgroup one warp brings tiles of 64 tokens by bulk copies, two chunks ahead. Outputs that are sums times a gain (h,
// dv) leave by bulk copies as well; those with more to them (dq, dk: what n and dn add, dots, the diagonal) three more
// warps finish. Rows beyond 256 are a second block's, of the same cluster; each of the two sends the other half of its
// sums, and finishes its own half.
//
// Floor, forward at 256/512: flops, with each of q, k, v, h and scores moved once; the scores cost 8 % of the bytes.
// Operands in shared memory are read at 64 bytes a cycle, half of what it gives, while 20 to 36 bytes a cycle arrive.
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

// Where it keeps its state.
template <int kRows, int kHalves, bool kPair>
struct HopperState {
  static constexpr HopperShape kShape{kRows, kHalves, kPair};
  static constexpr int kThreads = kHopperStateThreads, kRegisters = kShape.registers(), kHalfRegisters = kRows / 2;

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

// The first warpgroup's last warp copies, its others finish outputs; two warpgroups hold the state. What each of their
// threads keeps of the 168 registers that all begin with:
constexpr int kOutputWarps = 3, kFinishRegisters = 88, kStateRegisters = 208;
static_assert(kFinishRegisters + 2 * kStateRegisters == 3 * 168);

template <int kRows, int kHalves, bool kPair, HopperOutput kOutput>
struct HopperWalk {
  static constexpr bool kOutputs = kOutput != HopperOutput::none, kFlowing = kOutput == HopperOutput::flowing;
  static constexpr bool kFinish = kFlowing || kOutput == HopperOutput::summed;
  static constexpr bool kNormalise = kOutput == HopperOutput::normalised,
                        kStored = kNormalise || kOutput == HopperOutput::plain;
  static_assert(!kPair || !kStored);  // two blocks' sums are to be added
  using Place = HopperState<kRows, kHalves, kPair>;
  static constexpr HopperShape kShape = Place::kShape;
  static constexpr int kChunk = kHopperChunk, kMine = kHalves / 2, kStages = 2;
  static constexpr int kStateRow = Place::kHalfRegisters;  // of 64 columns
  static constexpr int kPanels = kRows / kPanelColumns, kPanel = panel_bytes(kChunk);
  static constexpr int kHalfFloats = kChunk * 64;  // sums of 64 columns of y

  // Shared memory. A stage: a, x, y, scores; the factors inter, into, gain. Outputs: floats, or what is stored.
  static constexpr int kA = 0, kX = kA + kPanels * kPanel, kY = kX + kPanels * kPanel, kScores = kY + kHalves * kPanel;
  static constexpr int kFactorBytes = 3 * kChunk * 4, kStage = kScores + kPanel;
  static constexpr int kHalfBytes = kFinish ? kHalfFloats * 4 : kPanel;
  static constexpr int kSums = kStages * kStage, kIncoming = kSums + (kOutputs ? kHalves * kHalfBytes : 0);
  static constexpr int kNumbers = kIncoming + (kPair && kOutputs ? kHalfBytes : 0);
  // Of a stage, for the normalisers: n, row sums of the scores, m, and what comes of them.
  static constexpr int kNormal = kNumbers + kStages * kFactorBytes,
                       kNormalBytes = kNormalise ? kRows * 4 + kChunk * 16 : 0;
  static constexpr int kRowSums = kRows * 4, kM = kRowSums + kChunk * 4, kGains = kM + kChunk * 8;
  static constexpr int kBarriers = kNormal + kStages * kNormalBytes;
  enum BarrierIndex {
    kAFull,
    kYFull = kAFull + kStages,
    kXFull = kYFull + kStages,
    kAFree = kXFull + kStages,
    kYFree = kAFree + kStages,
    kXFree = kYFree + kStages,
    kSumsFull = kXFree + kStages,
    kSumsFree = kSumsFull + kHalves,
    kIncomingFull = kSumsFree + kHalves,
    kSentFree,
    kGainFull,
    kBarrierCount = kGainFull + kStages
  };
  static constexpr int kBytes = kShape.lds_bytes(kOutput);
  static_assert(kBarrierCount <= kHopperBarriers && kBytes == kBarriers + 8 * kHopperBarriers && kBytes <= 227 << 10);
  // Named barriers: 1 and 2, whose turn it is to multiply by the state; 3 and 4, a warpgroup for itself.
  static constexpr int kTurn = 1, kGroup = 3;

  const HopperWalkParams& params;
  const WalkParams& p;
  const Segment segment;
  const int tile, chunks;
  char* lds;
  uint32_t base;

  XLSTM_DEVICE HopperWalk(const HopperWalkParams& all, const Segment& where, int y_tile_index, char* memory)
      : params(all),
        p(all.walk),
        segment(where),
        tile(y_tile_index),
        chunks(where.last_chunk - where.first_chunk),
        lds(memory),
        base(lds_address(memory)) {}

  XLSTM_DEVICE Barrier barrier(int index) const { return {base + uint32_t(kBarriers + 8 * index)}; }
  XLSTM_DEVICE uint32_t stage(int n) const { return base + uint32_t(n % kStages * kStage); }
  XLSTM_DEVICE static uint32_t parity(int n) { return uint32_t(n / kStages % 2); }
  XLSTM_DEVICE int chunk_at(int n) const { return p.reverse ? segment.last_chunk - 1 - n : segment.first_chunk + n; }
  XLSTM_DEVICE int64_t slot_of(int n) const { return int64_t(segment.row) * p.where.slots + chunk_at(n); }
  // Of the two blocks of a pair: this one, and the half whose outputs are its.
  XLSTM_DEVICE int owned_half() const { return kPair ? tile % 2 : 0; }

  // ---- tiles, by one thread

  XLSTM_DEVICE void copy_chunks() const {
    prefetch(&params.a), prefetch(&params.x), prefetch(&params.y), prefetch(&params.scores);
    if constexpr (kStored) prefetch(&params.out);
    for (int n = 0; n < chunks; ++n) {
      const int s = n % kStages, token = chunk_at(n) * kChunk, head = segment.head, batch = segment.batch;
      const uint32_t at = stage(n), before = parity(n) ^ 1;
      const int64_t slot = slot_of(n);
      if constexpr (kOutputs) {
        const Barrier full = barrier(kAFull + s);
        barrier(kAFree + s).wait(before);
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
      Barrier full = barrier(kYFull + s);
      barrier(kYFree + s).wait(before);
      full.expect(kHalves * kPanel + kFactorBytes + (kOutputs ? kPanel : 0));
      copy_bytes(base + kNumbers + s * kFactorBytes, p.factors + slot * kFactors * kChunk, kFactorBytes, full);
#pragma unroll
      for (int i = 0; i < kHalves; ++i)
        copy_panel(at + kY + i * kPanel, &params.y, Place::first_column(tile) + i * kPanelColumns, token, head, batch,
                   full);
      if constexpr (kOutputs) copy_panel(at + kScores, &params.scores, 0, int(slot * kChunk), 0, 0, full);
      full = barrier(kXFull + s);
      barrier(kXFree + s).wait(before);
      full.expect(kPanels * kPanel);
#pragma unroll
      for (int i = 0; i < kPanels; ++i)
        copy_panel(at + kX + i * kPanel, &params.x, Place::first_row(tile) + i * kPanelColumns, token, head, batch,
                   full);
    }
  }

  // ---- the state and its products, by two warpgroups

  struct State {
    float c[kMine][kStateRow];  // C^T / held: the decay of chunks is kept apart until it is small
    float held = 1;
  };

  // f(value, x, y) for each of this thread's numbers of the state.
  template <class F>
  XLSTM_DEVICE void each(State& state, int group, F&& f) const {
#pragma unroll
    for (int m = 0; m < kMine; ++m)
#pragma unroll
      for (int i = 0; i < kStateRow; ++i) {
        const auto [x, y] = Place::position(m * kStateRow + i, tile, group);
        f(state.c[m][i], x, y);
      }
  }
  template <class F>
  XLSTM_DEVICE void each_register(State& state, float* memory, F&& f) const {
    memory += threadIdx.x - kWarpgroup;
#pragma unroll
    for (int m = 0; m < kMine; ++m)
#pragma unroll
      for (int i = 0; i < kStateRow; ++i) f(state.c[m][i], memory + (m * kStateRow + i) * kHopperStateThreads);
  }
  XLSTM_DEVICE bool inside(int x, int y) const { return x < p.x.columns && y < p.y.columns; }
  XLSTM_DEVICE int64_t offset(int x, int y) const {
    return segment.state * int64_t(p.x.columns) * p.y.columns + x * p.state_x + y * p.state_y;
  }
  static constexpr int kStateFloats = kShape.registers() * kHopperStateThreads;
  XLSTM_DEVICE float* between(int order) const {
    return p.between + ((int64_t(segment.state) * (p.segments - 1) + order) * p.tiles + tile) * kStateFloats;
  }

  XLSTM_DEVICE void load_state(State& state, int group) const {
    if (p.alone || (segment.order() == 0 && !p.state_in))
      each(state, group, [](float& v, int, int) { v = 0; });
    else if (segment.order() == 0)
      each(state, group, [&](float& v, int x, int y) { v = inside(x, y) ? p.state_in[offset(x, y)] : 0.0f; });
    else
      each_register(state, between(segment.order() - 1), [](float& v, const float* at) { v = *at; });
  }
  XLSTM_DEVICE void store_registers(State& state, float* to) const {
    each_register(state, to, [&](float& v, float* at) { *at = v * state.held; });
  }
  XLSTM_DEVICE void store_state(State& state, int group) const {
    if (p.alone)
      store_registers(state, between(segment.order()));
    else if (segment.last() && p.state_out)
      each(state, group, [&](float& v, int x, int y) {
        if (inside(x, y)) p.state_out[offset(x, y)] = v * state.held;
      });
  }

  // sum = C^T a^T, 64 columns of y by the chunk's tokens. A step's operand is packed while the one before is
  // multiplied.
  XLSTM_DEVICE static void read_state(float (&sum)[32], const float (&c)[kStateRow], uint32_t a) {
#pragma unroll
    for (int q = 0; q < kRows / 16; ++q) {
      uint32_t left[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) left[w] = pack(BFloat16{}, c[8 * q + 2 * w], c[8 * q + 2 * w + 1]);
      products_begin();
      multiply_held<false>(sum, left, along(a + q / 4 * kPanel) + q % 4 * kNextAlong, q > 0);
      products_end();
      if (q) products_wait<1>();
    }
  }

  // y^T times each token's weight: the left operand of C^T += (w y)^T x.
  XLSTM_DEVICE static void weigh(uint32_t (&left)[kChunk / 4], uint32_t y, const float* weight, float up) {
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, column = 2 * (lane % 4);
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      const int token = 16 * k + lane % 8 + lane / 16 * 8, piece = thread / 32 * 2 + lane / 8 % 2;
      uint32_t* r = left + 4 * k;
      ldmatrix_transposed(r, y + panel_piece(token, piece));
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 by = *reinterpret_cast<const float2*>(weight + 16 * k + w / 2 * 8 + column);
        r[w] = pack(BFloat16{}, low_float(BFloat16{}, r[w]) * (by.x * up), high_float(BFloat16{}, r[w]) * (by.y * up));
      }
    }
  }

  // sum += y^T scores^T, or scores of a walk back in time as they lie. The blocks of a pair have half of the tokens
  // each.
  template <bool kReverse>
  XLSTM_DEVICE void add_scored(float (&sum)[32], uint32_t y, uint32_t scores) const {
    constexpr int kSteps = kChunk / 16 / (kPair ? 2 : 1);
    constexpr uint64_t kNext = kReverse ? kNextAcross : kNextAlong;
    const uint64_t first = owned_half() * kSteps;
    const uint64_t left = across(y, kPanel) + first * kNextAcross;
    const uint64_t right = (kReverse ? across(scores, kPanel) : along(scores)) + first * kNext;
    products_begin();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) multiply_shared<true, kReverse>(sum, left + k * kNextAcross, right + k * kNext);
    products_end();
  }

  // Sums lie token by token, 64 columns each; what a warp writes together, and what eight lanes read, lies
  // in different banks.
  XLSTM_DEVICE static uint32_t sum_place(uint32_t token, uint32_t column) {
    return token * 64 + (column ^ token / 2 % 4 * 8 ^ column / 32 * 4);
  }
  // Sums, times 1 / N of each token, as they go to memory.
  XLSTM_DEVICE void store_outputs(const float (&sum)[32], int n, int half, int group) const {
    const int s = n % kStages;
    const float* gain = reinterpret_cast<const float*>(lds + kNormal + s * kNormalBytes + kGains);
    if constexpr (kNormalise) barrier(kGainFull + s).wait(parity(n));
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32;
    const uint32_t panel = base + uint32_t(kSums + half * kPanel);
    if (thread == 0) stores_read();  // of the chunk before
    meet(kGroup + group, kWarpgroup);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t r[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int i = 4 * (j + w / 2) + w % 2 * 2;
        float2 by{1, 1};
        if constexpr (kNormalise) by = *reinterpret_cast<const float2*>(gain + 8 * (j + w / 2) + 2 * (lane % 4));
        r[w] = pack(BFloat16{}, sum[i] * by.x, sum[i + 1] * by.y);
      }
      const int row = 8 * j + lane % 8 + lane / 16 * 8, piece = thread / 32 * 2 + lane / 8 % 2;
      store_turned_matrices(panel + panel_piece(row, piece), r[0], r[1], r[2], r[3]);
    }
    shared_written();
    meet(kGroup + group, kWarpgroup);
    if (thread == 0)
      store_panel(&params.out, Place::first_column(tile) + half * 64, chunk_at(n) * kChunk, segment.head, segment.batch,
                  panel);
  }

  XLSTM_DEVICE void write_sums(const float (&sum)[32], int half) const {
    float* to = reinterpret_cast<float*>(lds + kSums) + half * kHalfFloats;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const StripPosition at = Place::in_half(i);  // of a token
      to[sum_place(at.row, at.column)] = sum[i];
    }
  }

  XLSTM_DEVICE void keep_state(int group) const {
    constexpr float kLeast = 0x1p-40f;
    const int thread = threadIdx.x % kWarpgroup;
    State state;
    load_state(state, group);
    float decay = p.decay[slot_of(0)];
    if (kOutputs && group == 1) pass(kTurn, kHopperStateThreads);  // the first turn is the other's
    for (int n = 0; n < chunks; ++n) {
      const int s = n % kStages;
      const uint32_t at = stage(n), phase = parity(n);
      const float* inter = reinterpret_cast<const float*>(lds + kNumbers + s * kFactorBytes) + p.inter * kChunk;
      const float* weight = reinterpret_cast<const float*>(lds + kNumbers + s * kFactorBytes) + p.weight * kChunk;
      const float decay_now = decay, held_before = state.held;
      if (n + 1 < chunks) decay = p.decay[slot_of(n + 1)];
      if (n + 1 == chunks && p.before_last && !p.alone && segment.last())
        store_registers(state, p.before_last + (int64_t(segment.state) * p.tiles + tile) * kStateFloats);
      state.held *= decay_now;
      const bool settle = !(state.held >= kLeast);
      const float settled = state.held;
      if (settle) state.held = 1;
      const float up = 1 / state.held;

#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        const int half = group * kMine + m;
        float sum[32];
        uint32_t left[kChunk / 4];
        if constexpr (kOutputs) {
          if (m == 0) barrier(kAFull + s).wait(phase);
          meet(kTurn + group, kHopperStateThreads);
          read_state(sum, state.c[m], at + kA);
          if (!(group == 1 && n + 1 == chunks && m + 1 == kMine)) pass(kTurn + (group ^ 1), kHopperStateThreads);
        }
        if (m == 0) barrier(kYFull + s).wait(phase);
        weigh(left, at + kY + half * kPanel, weight, up);
        if constexpr (kOutputs) {
          products_wait<0>(sum);
          hold(state.c[m]);
          if (m + 1 == kMine && thread == 0) barrier(kAFree + s).arrive();
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float2 by = *reinterpret_cast<const float2*>(inter + 8 * j + 2 * (thread % 4));
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[4 * j + e] *= (e % 2 ? by.y : by.x) * held_before;
          }
          if (p.reverse)
            add_scored<true>(sum, at + kY + half * kPanel, at + kScores);
          else
            add_scored<false>(sum, at + kY + half * kPanel, at + kScores);
        }
        if (settle) {
#pragma unroll
          for (int i = 0; i < kStateRow; ++i) state.c[m][i] *= settled;
        }
        if (m == 0) barrier(kXFull + s).wait(phase);
        products_begin();
#pragma unroll
        for (int k = 0; k < kChunk / 16; ++k)
          multiply_held<true>(state.c[m], left + 4 * k, across(at + kX, kPanel) + k * kNextAcross);
        products_end();
        if constexpr (kOutputs) {
          products_wait<1>(sum);
          if constexpr (kFinish) {
            const bool sent = kPair && half != owned_half();
            barrier(sent ? kSentFree : kSumsFree + half).wait(uint32_t(n % 2) ^ 1);
            write_sums(sum, half);
            if (sent)
              send_sums(group);
            else
              barrier(kSumsFull + half).arrive();
          } else {
            store_outputs(sum, n, half, group);
          }
          if (m + 1 == kMine && thread % 32 == 0) barrier(kYFree + s).arrive();
        } else {
          if (m + 1 == kMine && thread % 32 == 0) barrier(kYFree + s).arrive();
        }
        products_wait<0>(state.c[m]);
      }
      if (thread == 0) barrier(kXFree + s).arrive();
    }
    store_state(state, group);
    if constexpr (kStored)
      if (thread == 0) stores_done();
  }

  // To the other block of a pair, when all of the warpgroup has written them.
  XLSTM_DEVICE void send_sums(int group) const {
    shared_written();
    meet(kGroup + group, kWarpgroup);
    const int other = owned_half() ^ 1;
    if (threadIdx.x % kWarpgroup == 0)
      copy_to_block(other, base + kIncoming, base + kSums + other * kHalfBytes, kHalfBytes, barrier(kIncomingFull));
  }

  // ---- outputs with more to them, by three warps: pieces of 8 columns of a token

  static constexpr int kOwned = kPair ? 1 : kHalves;  // halves that are finished here
  static constexpr int kRowPieces = 8 * kOwned, kTokensAtOnce = 32 / kRowPieces, kStep = kOutputWarps * kTokensAtOnce;
  static constexpr int kAhead = 6, kInGroup = 2;  // rounds of a warp on their way; in registers
  static constexpr int kBatches = (kChunk / kStep + kAhead) / kAhead;

  XLSTM_DEVICE TokenRows<BFloat16> tile_rows(const Tokens& x) const {
    TokenRows<BFloat16> t = rows<BFloat16>(x, segment);
    t.data += tile * kShape.y_tile();
    t.columns -= tile * kShape.y_tile();
    return t;
  }
  // Eight columns of a token: four, and the four beside them.
  XLSTM_DEVICE static void read_sums(float (&value)[8], const float* sums, uint32_t place) {
    const Piece low = read_piece(sums + place), high = read_piece(sums + (place ^ 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) value[j] = as_float(low.word[j]), value[4 + j] = as_float(high.word[j]);
  }

  // What memory has for one piece, brought before the sums are there. No condition stands in the way of a load, or the
  // next one would wait for it: where there is no piece, another one's is read.
  struct Beside {
    Piece with;
    float factor, self;  // of the vector, or the gain
  };

  XLSTM_DEVICE void finish_outputs(int warp) const {
    const int lane = threadIdx.x % 32, first_token = warp * kTokensAtOnce + lane / kRowPieces;
    const TokenRows<BFloat16> with = tile_rows(kFlowing ? p.with : p.out), out = tile_rows(p.out);
    const uint32_t out_stride = uint32_t(out.stride), with_stride = uint32_t(with.stride);  // 2^26 bytes at most
    const int column = lane % kRowPieces * 8, there = column < out.columns ? column : 0;
    const int half = kPair ? owned_half() : column / 64;
    const float* sums = reinterpret_cast<const float*>(lds + kSums) + half * kHalfFloats;
    const float* incoming = reinterpret_cast<const float*>(lds + kIncoming);
    const int which = kFlowing ? p.along : kGain;
    const float plain = kFlowing || p.gained ? 0.0f : 1.0f;  // in the place of a gain that there is not
    float* dots = p.dots + tile * (p.where.rows * p.where.slots * kChunk);
    for (int n = 0; n < chunks; ++n) {
      const int64_t slot = slot_of(n), t0 = int64_t(chunk_at(n)) * kChunk;
      const int valid = int(segment.end - t0 < kChunk ? segment.end - t0 : kChunk);
      const float* factors = p.factors + slot * kFactors * kChunk;
      const BFloat16* from = with.data + t0 * with.stride + there;
      BFloat16* to = const_cast<BFloat16*>(out.data) + t0 * out.stride + column;
      const char* y = lds + n % kStages * kStage + kY + half * kPanel;
      float vector[8];
      if constexpr (kFlowing) {
        const float* at = p.vector + slot * p.y.columns + tile * kShape.y_tile() + there;
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          const Piece four = read_piece(at + j);
#pragma unroll
          for (int e = 0; e < 4; ++e) vector[j + e] = as_float(four.word[e]);
        }
      }
#pragma unroll 1
      for (int batch = 0; batch < kBatches; ++batch) {
        const int first = first_token + batch * kAhead * kStep;
        Beside beside[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int t = first + i * kStep < valid ? first + i * kStep : 0;
          beside[i].factor = factors[which * kChunk + t];
          if constexpr (kFlowing) {
            beside[i].self = factors[kSelf * kChunk + t];
            beside[i].with = read_piece(from + uint32_t(t) * with_stride);
          }
        }
        if (batch == 0) {
          if constexpr (kPair) {
            if (warp == 0 && lane == 0) barrier(kIncomingFull).expect(kHalfBytes);
            barrier(kIncomingFull).wait(uint32_t(n % 2));
            barrier(kSumsFull + half).wait(uint32_t(n % 2));
          } else {
#pragma unroll
            for (int h = 0; h < kOwned; ++h) barrier(kSumsFull + h).wait(uint32_t(n % 2));
          }
        }
#pragma unroll
        for (int group = 0; group < kAhead; group += kInGroup) {
          float value[kInGroup][8];
#pragma unroll
          for (int i = 0; i < kInGroup; ++i) {
            const uint32_t place =
                sum_place(uint32_t(first + (group + i) * kStep) % kChunk, column % 64);  // beyond any
            read_sums(value[i], sums, place);
            if constexpr (kPair) {
              float more[8];
              read_sums(more, incoming, place);
#pragma unroll
              for (int j = 0; j < 8; ++j) value[i][j] += more[j];
            }
          }
          if (batch + 1 == kBatches && group + kInGroup == kAhead) {  // who waits to write need not wait for the rest
            __syncwarp();
            if (lane == 0) {
              if constexpr (kPair) {
                barrier(kSumsFree + half).arrive();
                barrier(kSentFree).arrive_at(owned_half() ^ 1);
              } else {
#pragma unroll
                for (int h = 0; h < kOwned; ++h) barrier(kSumsFree + h).arrive();
              }
            }
          }
#pragma unroll
          for (int i = 0; i < kInGroup; ++i) {
            const Beside& more = beside[group + i];
            const int t = first + (group + i) * kStep;
            const uint32_t in = uint32_t(t) % kChunk;
            const bool inside = column < out.columns && t < valid;
            float(&x)[8] = value[i];
            if constexpr (kFlowing) {
              const Piece own = read_piece(y + panel_piece(in, uint32_t(column) % 64 / 8));
              float even = 0, odd = 0;
#pragma unroll
              for (int j = 0; j < 8; ++j) {
                x[j] += more.factor * vector[j];
                (j % 2 ? odd : even) += x[j] * element<BFloat16>(more.with, j);
                x[j] += more.self * element<BFloat16>(own, j);
              }
              float dot = inside ? even + odd : 0.0f;
#pragma unroll
              for (int mask = kRowPieces / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
              store_if(column == 0 && t < kChunk, dots + slot * kChunk + t, dot);
            } else {
#pragma unroll
              for (int j = 0; j < 8; ++j) x[j] *= plain == 0 ? more.factor : plain;
            }
            Piece result;
#pragma unroll
            for (int w = 0; w < 4; ++w) result.word[w] = pack(BFloat16{}, x[2 * w], x[2 * w + 1]);
            store_if(inside, to + in * out_stride, result);
          }
        }
      }
      __syncwarp();
      if (lane == 0) barrier(kYFree + n % kStages).arrive();
    }
  }

  // ---- normalisers, by two warps: a thread has a token. l = inter q n + the row's sum of scores

  XLSTM_DEVICE void normalise(int warp) const {
    const NormaliserParams& q = params.normaliser;
    const int t = warp * 32 + threadIdx.x % 32;
    for (int n = 0; n < chunks; ++n) {
      const int s = n % kStages, t0 = chunk_at(n) * kChunk;
      const char* numbers = lds + kNormal + s * kNormalBytes;
      barrier(kAFull + s).wait(parity(n));
      float part[4] = {};
#pragma unroll 4
      for (int piece = 0; piece < kRows / 8; ++piece) {
        const Piece x = read_piece(lds + s * kStage + kA + piece / 8 * kPanel + panel_piece(t, piece % 8));
        const float4 low = *reinterpret_cast<const float4*>(numbers + piece * 32);
        const float4 high = *reinterpret_cast<const float4*>(numbers + piece * 32 + 16);
        const float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) part[j % 4] += element<BFloat16>(x, j) * v[j];
      }
      barrier(kYFull + s).wait(parity(n));
      const float inter = reinterpret_cast<const float*>(lds + kNumbers + s * kFactorBytes)[kInter * kChunk + t];
      const float row_sum = reinterpret_cast<const float*>(numbers + kRowSums)[t];
      const float l = inter * ((part[0] + part[1]) + (part[2] + part[3])) + row_sum;
      const double m = reinterpret_cast<const double*>(numbers + kM)[t];
      const bool inside = t0 + t < segment.end;
      reinterpret_cast<float*>(lds + kNormal + s * kNormalBytes + kGains)[t] =
          inside ? float(1 / xlstm::normaliser(q.normalize, l, m, q.eps)) : 0.0f;
      barrier(kGainFull + s).arrive();
      if (tile == 0 && q.l && inside) q.l[segment.row * p.where.length + t0 + t] = l;
      if (threadIdx.x % 32 == 0) barrier(kAFree + s).arrive(), barrier(kYFree + s).arrive();
    }
  }

  XLSTM_DEVICE void run() const {
    const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32), group = warp / 4;
    if (threadIdx.x == 0) {
      for (int s = 0; s < kStages; ++s) {
        barrier(kAFull + s).init(1), barrier(kYFull + s).init(1), barrier(kXFull + s).init(1);
        barrier(kAFree + s).init(2 + (kNormalise ? 2 : 0)), barrier(kXFree + s).init(2);
        barrier(kGainFull + s).init(kChunk);
        barrier(kYFree + s).init(kHopperStateThreads / 32 + (kFinish ? kOutputWarps : kNormalise ? 2 : 0));
      }
      for (int half = 0; half < kHalves; ++half) {
        barrier(kSumsFull + half).init(kWarpgroup);
        barrier(kSumsFree + half).init(kOutputWarps);
      }
      barrier(kIncomingFull).init(1);
      barrier(kSentFree).init(kOutputWarps);
      barriers_ready();
    }
    if constexpr (kNormalise)  // where q has no columns n has none: zeros
      for (int i = threadIdx.x; i < kStages * kNormalBytes / 4; i += kHopperBlockThreads)
        reinterpret_cast<float*>(lds + kNormal)[i] = 0;
    if constexpr (kNormalise) shared_written();
    if constexpr (kPair)
      meet_cluster();
    else
      __syncthreads();
    if (group == 0) {
      leave_registers<kFinishRegisters>();
      if (warp == kOutputWarps) {
        if (threadIdx.x % 32 == 0) copy_chunks();
      } else if constexpr (kFinish) {
        finish_outputs(warp);
      } else if constexpr (kNormalise) {
        if (warp < 2) normalise(warp);
      }
    } else {
      take_registers<kStateRegisters>();
      keep_state(group - 1);
    }
    if constexpr (kPair) meet_cluster();  // nobody leaves while the other still writes here
  }
};

template <int kRows, int kHalves, bool kPair, HopperOutput kOutput>
__global__ __launch_bounds__(kHopperBlockThreads, 1) void walk_hopper(const __grid_constant__ HopperWalkParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(kPanelAlignment) char panels[];
    const WalkParams& p = params.walk;
    const int tile = blockIdx.x % p.tiles, order = blockIdx.x / p.tiles % p.segments;
    const Segment segment = segment_of(p.where, blockIdx.x / p.tiles / p.segments, order, p.segment_chunks, p.reverse);
    if (segment.empty || (p.alone && segment.last())) return;
    HopperWalk<kRows, kHalves, kPair, kOutput>(params, segment, tile, panels).run();
  }
}

}  // namespace xlstm::gpu
