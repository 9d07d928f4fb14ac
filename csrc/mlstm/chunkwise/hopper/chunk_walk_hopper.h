// SPDX-License-Identifier: Apache-2.0
// The walk (chunk_walk.h has the table of h, dq, dk, dv) for Hopper: a warp-specialised, two-stage TMA and wgmma
// pipeline. out = f (a C) + scores y, C = decay C + (w x)^T y.
//
// Everything is transposed, so that the state, in accumulators, is the left operand of the next product as it lies:
//     out^T [64 of y][tokens] = C^T a^T      += y^T scores^T      C^T += (w y)^T x
//
// Who owns what: the block's second and third warpgroup, the consumers, hold 128 numbers of the state in each thread,
// each warpgroup 64 columns of y by 256 rows (or twice 64 by 128). They take turns: while one multiplies by the state,
// the other packs, weights and writes. The first warpgroup depends on the output:
//     dq, dk, and h or dv of a pair   one warp is the producer: it loads tiles of 64 tokens by TMA, two chunks ahead.
//                                     Three warps are the epilogue: they add what n and dn contribute, dots and the
//                                     diagonal (dq, dk), or multiply by 1 / N (h), and store.
//     dv                              one warp is the producer. The consumers store the sums by TMA.
//     h                               all four warps compute scores, n and normalisers from the tiles in shared memory
//                                     (chunk_walk_hopper_scores.h). Three threads of the second consumer warpgroup are
//                                     the producers. The consumers multiply by 1 / N and store by TMA.
// A state of more than 256 rows is split over a pair of blocks, a cluster. Each block sends its sums of one 64-column
// panel to its peer and finishes the other panel, in three epilogue warps. The scores of a pair come from an earlier
// kernel. chunk_walk_hopper_smem.h has the shared memory and the mbarriers, chunk_walk_hopper_outputs.h the epilogues.
//
// mbarriers, all in chunk_walk_hopper_smem.h. [2]: one for each stage, phase n / 2, the nth chunk's parity(n).
// [panel]: one for each panel of sums, phase n, every_parity(n). A writer waits for the free barrier's phase before,
// whose parity is the other one. producer: the producer thread, or for h and its states the three loading threads of
// the second consumer warpgroup. K: panels of 64 rows, Y: panels of 64 columns, of 8 KB each.
//
//   barrier            count: who arrives                            bytes (TMA)              who waits
//   a_full[2]          1: producer (arrive_expect_tx)                K panels                 consumers, score warps
//   y_full[2]          1: producer (arrive_expect_tx)                Y panels, 512 of         consumers, score warps
//                                                                    factors, 8 KB of scores  (for the factors)
//                                                                    (but for h, states)
//   x_full[2]          1: producer (arrive_expect_tx)                K panels, 256 of n's     consumers, score warps
//                                                                    weights (h, its states),
//                                                                    1536 of gate terms (h)
//   a_free[2]          2: thread 0 of each consumer warpgroup,       -                        producer
//                      h: + 4: each score warp
//   y_free[2]          8: each consumer warp,                        -                        producer; h: score warps
//                      dq, dk, pair: + 3: each epilogue warp                                  (for scores and 1 / N)
//   x_free[2]          2: thread 0 of each consumer warpgroup,       -                        producer
//                      h, its states: + 4: each score warp
//   scores_full[2]     4: each score warp (h)                        -                        consumers
//   inverse_n_full[2]  4: each score warp (h)                        -                        consumers
//   sums_full[panel]   128: the consumer warpgroup of the panel      -                        epilogue warps
//   sums_free[panel]   3: each epilogue warp                         -                        consumers of the panel
//   incoming_full      1: epilogue warp 0 (arrive_expect_tx; pair)   16 KB from the peer      epilogue warps
//   peer_sums_free     3: each epilogue warp of the peer (pair)      -                        consumers that send
//
// Named barriers: 1 and 2, the turn of a consumer warpgroup (256 threads: the warpgroup waits, the other arrives);
// 3 and 4, a consumer warpgroup (128); 5, the score warps (128).
//
// Timeline of a chunk n, dq and dk with one panel in each consumer warpgroup (time to the right; wgmma in capitals):
//   producer      a, y, x of n + 1, n + 2 as their stages become free ...
//   consumers 1   [SUM = C A] weigh y(n) | SUM += Y SCORES, C += (WY) X | sums to smem, release | [SUM = C A] of n + 1
//   consumers 2   .. waits for turn 2 ..  [SUM = C A] weigh y(n) | SUM += Y SCORES, C += (WY) X | sums to smem, release
//   epilogue      loads of n (dot_with, factors, vector) | waits for sums_full | add, dot, diagonal, store | n + 1
// Timeline of h: the score warps are a chunk ahead of the consumers.
//   score warps   n to smem | [PAIRS = Q K, Q N] [N += K W] | waits for y_free | scores to smem, l, 1 / N | n + 1
//   consumers     as above for n - 1, then waits for scores_full before Y SCORES, for inverse_n_full before the store
//   consumers 2   three threads also load a, y, x of n + 2, each after its release
//
// Floor, forward at 256/512: flops, with each of q, k, v and h moved once. Operands in shared memory are read at 64 to
// 100 bytes a cycle of the 128 that it gives, while 20 to 36 bytes a cycle arrive.
#pragma once

#include "mlstm/chunkwise/hopper/chunk_walk_hopper_outputs.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_scores.h"

namespace xlstm::gpu::mlstm {

// Registers of a thread after setmaxnreg: in the first warpgroup, and in the two consumer warpgroups. All threads begin
// with 168.
constexpr int kProducerRegisters = 88, kConsumerRegisters = 208;
static_assert(kProducerRegisters + 2 * kConsumerRegisters == 3 * 168);

template <class Smem>
struct HopperWalk {
  using Layout = typename Smem::Layout;
  static constexpr HopperShape kShape = Smem::kShape;
  static constexpr WalkTerms kTerms = Smem::kTerms;
  static constexpr bool kPair = kShape.pair, kOutputs = Smem::kOutputs;
  static constexpr int kChunk = Smem::kChunk, kPanelBytes = Smem::kPanelBytes;
  static constexpr int kGroupPanels = kShape.panels_per_warpgroup(), kPanelRegisters = Layout::kPanelRegisters;
  // Named barriers 1 and 2: the turn of each consumer warpgroup to multiply by the state.
  static constexpr int kTurnBarrier = 1;

  const Smem& smem;
  const HopperOutputs<Smem> outputs{smem};
  static constexpr int kXPanelBytes = Smem::kXPanelBytes;
  const WalkParams& p = smem.p;

  // ---- the state and its products, in the two consumer warpgroups

  struct State {
    // C^T / pending_decay: chunks' decays are accumulated in pending_decay until it is small.
    float c[kGroupPanels][kPanelRegisters];
    float pending_decay = 1;
  };

  // Calls f(value, x, y) for each element of the state in this thread.
  template <class F>
  XLSTM_DEVICE void each(State& state, int group, F&& f) const {
#pragma unroll
    for (int m = 0; m < kGroupPanels; ++m)
#pragma unroll
      for (int i = 0; i < kPanelRegisters; ++i) {
        const auto [x, y] = Layout::position(m * kPanelRegisters + i, smem.tile, group);
        f(state.c[m][i], x, y);
      }
  }
  template <class F>
  XLSTM_DEVICE void each_register(State& state, float* memory, F&& f) const {
    memory += threadIdx.x - kWarpgroup;
#pragma unroll
    for (int m = 0; m < kGroupPanels; ++m)
#pragma unroll
      for (int i = 0; i < kPanelRegisters; ++i)
        f(state.c[m][i], memory + (m * kPanelRegisters + i) * kHopperStateThreads);
  }
  XLSTM_DEVICE bool inside(int x, int y) const { return x < p.x.columns && y < p.y.columns; }
  XLSTM_DEVICE int64_t offset(int x, int y) const {
    return smem.segment.state * int64_t(p.x.columns) * p.y.columns + x * p.state_x + y * p.state_y;
  }
  static constexpr int kStateFloats = kShape.registers() * kHopperStateThreads;
  XLSTM_DEVICE float* segment_state(int order) const {
    return p.segment_states +
           ((int64_t(smem.segment.state) * (p.segments - 1) + order) * p.tiles + smem.tile) * kStateFloats;
  }

  XLSTM_DEVICE void load_state(State& state, int group) const {
    if (kTerms.states_only || (smem.segment.order() == 0 && !p.state_in))
      each(state, group, [](float& v, int, int) { v = 0; });
    else if (smem.segment.order() == 0)
      each(state, group, [&](float& v, int x, int y) { v = inside(x, y) ? p.state_in[offset(x, y)] : 0.0f; });
    else
      each_register(state, segment_state(smem.segment.order() - 1), [](float& v, const float* at) { v = *at; });
  }
  XLSTM_DEVICE void store_registers(State& state, float* to) const {
    each_register(state, to, [&](float& v, float* at) { *at = v * state.pending_decay; });
  }
  XLSTM_DEVICE void store_state(State& state, int group) const {
    if (kTerms.states_only)
      store_registers(state, segment_state(smem.segment.order()));
    else if (smem.segment.last() && p.state_out)
      each(state, group, [&](float& v, int x, int y) {
        if (inside(x, y)) p.state_out[offset(x, y)] = v * state.pending_decay;
      });
  }

  // sum = C^T a^T, 64 columns of y by the chunk's tokens. Each step's operand is packed while the previous step is
  // multiplied.
  XLSTM_DEVICE static void multiply_state(float (&sum)[32], const float (&c)[kPanelRegisters], uint32_t a) {
#pragma unroll
    for (int q = 0; q < kShape.rows / 16; ++q) {
      uint32_t left[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) left[w] = pack(BFloat16{}, c[8 * q + 2 * w], c[8 * q + 2 * w + 1]);
      wgmma_fence();
      wgmma_rs<false>(sum, left, k_major_descriptor(a + q / 4 * kPanelBytes) + q % 4 * kNextKMajor, q > 0);
      wgmma_commit();
      if (q) wgmma_wait<1>();
    }
  }

  // y^T times each token's weight: the left operand of C^T += (w y)^T x.
  XLSTM_DEVICE static void load_weighted_y(uint32_t (&left)[kChunk / 4], uint32_t y, const float* weight, float scale) {
    const int thread = threadIdx.x % kWarpgroup, lane = thread % 32, column = 2 * (lane % 4);
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
      const int token = 16 * k + lane % 8 + lane / 16 * 8, vec = thread / 32 * 2 + lane / 8 % 2;
      uint32_t* r = left + 4 * k;
      ldmatrix_trans(r, y + panel_vec16_offset(token, vec));
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float2 by = *reinterpret_cast<const float2*>(weight + 16 * k + w / 2 * 8 + column);
        r[w] = pack(BFloat16{}, low_float(BFloat16{}, r[w]) * (by.x * scale),
                    high_float(BFloat16{}, r[w]) * (by.y * scale));
      }
    }
  }

  // sum += y^T scores^T; a reverse walk multiplies by scores instead of scores^T. Each block of a pair takes half of
  // the tokens.
  template <bool kReverse>
  XLSTM_DEVICE void add_scores_product(float (&sum)[32], uint32_t y, uint32_t scores) const {
    constexpr int kSteps = kChunk / 16 / (kPair ? 2 : 1);
    constexpr uint64_t kNext = kReverse ? kNextMnMajor : kNextKMajor;
    const uint64_t first = smem.owned_panel() * kSteps;
    const uint64_t left = mn_major_descriptor(y, kPanelBytes) + first * kNextMnMajor;
    const uint64_t right =
        (kReverse ? mn_major_descriptor(scores, kPanelBytes) : k_major_descriptor(scores)) + first * kNext;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) wgmma_ss<true, kReverse>(sum, left + k * kNextMnMajor, right + k * kNext);
    wgmma_commit();
  }

  // Where all of the first warpgroup computes scores (h, and its states), three threads of the second consumer
  // warpgroup are the producers, of a, y and x. Each loads the chunk two ahead as soon as its own warpgroup has
  // released the stage: the first consumer warpgroup did half a chunk ago, and the scores are further ahead. All
  // threads of the warpgroup wait for the free barrier, because the compiler keeps no wgmma in flight across a wait
  // that only some threads execute.
  static constexpr int kLoadsA = 0, kLoadsY = 32, kLoadsX = 64, kStages = Smem::kStages;
  XLSTM_DEVICE static bool loads_too(int group) { return Smem::kHasN && group == 1; }

  XLSTM_DEVICE void release_y(int n, int group) const {
    const int thread = threadIdx.x % kWarpgroup;
    if (thread % 32 == 0) smem.y_free(n).arrive();
    if (!loads_too(group) || n + kStages >= smem.chunks) return;
    smem.y_free(n).wait(smem.parity(n));
    if (thread == kLoadsY) smem.load_y(n + kStages);
  }
  XLSTM_DEVICE void release_x(int n, int group) const {
    const int thread = threadIdx.x % kWarpgroup;
    if (thread == 0) smem.x_free(n).arrive();
    if (!loads_too(group) || n + kStages >= smem.chunks) return;
    smem.x_free(n).wait(smem.parity(n));
    if (thread == kLoadsX) smem.load_x(n + kStages);
  }

  XLSTM_DEVICE void add_scores_product(float (&sum)[32], uint32_t stage, int panel) const {
    add_scores_product<kTerms.reverse>(sum, stage + Smem::kYOffset + panel * kPanelBytes, stage + Smem::kScoresOffset);
  }

  // How a chunk's decay reaches the state: pending_decay before the chunk, and afterwards its inverse, by which the
  // weights of y are multiplied. Once pending_decay is too small, the state itself is multiplied by it.
  struct ChunkDecay {
    float before, inverse, to_apply;
    bool applies;
  };
  XLSTM_DEVICE static ChunkDecay decay_state(State& state, float decay) {
    constexpr float kMinPendingDecay = 0x1p-40f;
    ChunkDecay d{};
    d.before = state.pending_decay;
    state.pending_decay *= decay;
    d.applies = !(state.pending_decay >= kMinPendingDecay);
    d.to_apply = state.pending_decay;
    if (d.applies) state.pending_decay = 1;
    d.inverse = 1 / state.pending_decay;
    return d;
  }

  // A chunk in shared memory, as the consumers read it.
  struct ChunkStage {
    int n;
    uint32_t at, phase;  // its stage, and the parity of the stage's full barriers
    const float *inter, *weight;
  };
  XLSTM_DEVICE ChunkStage chunk_stage(int n) const {
    return {n, smem.stage_address(n), smem.parity(n), smem.factors(n, kTerms.inter), smem.factors(n, kTerms.weight)};
  }

  // sum = C^T a^T of panel m, in this warpgroup's turn; the wgmmas are in flight when this returns.
  XLSTM_DEVICE void start_state_product(float (&sum)[32], const State& state, int m, const ChunkStage& chunk,
                                        int group) const {
    if (m == 0) smem.a_full(chunk.n).wait(chunk.phase);
    barrier_sync(kTurnBarrier + group, kHopperStateThreads);
    multiply_state(sum, state.c[m], chunk.at + Smem::kAOffset);
    if (!(group == 1 && chunk.n + 1 == smem.chunks && m + 1 == kGroupPanels))
      barrier_arrive(kTurnBarrier + (group ^ 1), kHopperStateThreads);
  }
  XLSTM_DEVICE void release_a(int n, int group) const {
    const int thread = threadIdx.x % kWarpgroup;
    if (thread == 0) smem.a_free(n).arrive();
    if (!loads_too(group) || n + kStages >= smem.chunks) return;
    smem.a_free(n).wait(smem.parity(n));
    if (thread == kLoadsA) smem.load_a(n + kStages);
  }
  XLSTM_DEVICE static void scale_tokens(float (&sum)[32], const float* inter, float decay) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(inter + 8 * j + 2 * (threadIdx.x % kWarpgroup % 4));
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[4 * j + e] *= (e % 2 ? by.y : by.x) * decay;
    }
  }
  // C^T += (w y)^T x; the wgmmas are in flight when this returns.
  XLSTM_DEVICE static void start_state_update(float (&c)[kPanelRegisters], const uint32_t (&left)[kChunk / 4],
                                              uint32_t x) {
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k)
      wgmma_rs<true>(c, left + 4 * k, mn_major_descriptor(x, kXPanelBytes) + k * kNextMnMajor);
    wgmma_commit();
  }
  XLSTM_DEVICE void pass_on_sums(const float (&sum)[32], int n, int panel, int group) const {
    if constexpr (Smem::kHasEpilogueWarps) {
      const bool is_peers = kPair && panel != smem.owned_panel();
      (is_peers ? smem.peer_sums_free() : smem.sums_free(panel)).wait(smem.every_parity(n) ^ 1);
      outputs.write_sums(sum, panel);
      if (is_peers)
        outputs.send_to_peer(group);
      else
        smem.sums_full(panel).arrive();
    } else {
      outputs.store_outputs(sum, n, panel, group);
    }
  }

  // A chunk for panel m of this warpgroup: its outputs, and its addition to the state.
  XLSTM_DEVICE void consume(State& state, int m, const ChunkStage& chunk, int group, const ChunkDecay& decay) const {
    const auto [n, at, phase, inter, weight] = chunk;
    const int panel = group * kGroupPanels + m;
    const bool is_last = m + 1 == kGroupPanels;  // afterwards the stage is released
    float sum[32];
    uint32_t left[kChunk / 4];
    if constexpr (kOutputs) start_state_product(sum, state, m, chunk, group);
    if (m == 0) smem.y_full(n).wait(phase);
    load_weighted_y(left, at + Smem::kYOffset + panel * kPanelBytes, weight, decay.inverse);
    if constexpr (kOutputs) {
      wgmma_wait<0>(sum);
      hold(state.c[m]);
      if (is_last) release_a(n, group);
      scale_tokens(sum, inter, decay.before);
      if (Smem::kMakesScores && m == 0) smem.scores_full(n).wait(phase);
      add_scores_product(sum, at, panel);
    }
    if (decay.applies) {
#pragma unroll
      for (int i = 0; i < kPanelRegisters; ++i)
        state.c[m][i] =
            Smem::kIsPacked ? decayed(p.where, state.c[m][i], decay.to_apply) : state.c[m][i] * decay.to_apply;
    }
    if (m == 0) smem.x_full(n).wait(phase);
    start_state_update(state.c[m], left, at + Smem::kXOffset);
    if constexpr (kOutputs) {
      wgmma_wait<1>(sum);
      pass_on_sums(sum, n, panel, group);
    } else {
      __syncwarp();  // with outputs, the output's barriers bring the warp together
    }
    if (is_last) release_y(n, group);
    wgmma_wait<0>(state.c[m]);
    if (is_last) release_x(n, group);
  }

  XLSTM_DEVICE void consumer_loop(int group) const {
    const int thread = threadIdx.x % kWarpgroup;
    for (int n = 0; loads_too(group) && n < kStages && n < smem.chunks; ++n) {
      if (thread == kLoadsA) smem.load_a(n);
      if (thread == kLoadsX) smem.load_x(n);
      if (thread == kLoadsY) smem.load_y(n);
    }
    State state;
    load_state(state, group);
    float decay = p.decay[smem.slot_of(0)];
    if (kOutputs && group == 1) barrier_arrive(kTurnBarrier, kHopperStateThreads);  // the other's turn
    for (int n = 0; n < smem.chunks; ++n) {
      const ChunkStage now = chunk_stage(n);
      const float decay_now = decay;
      if (n + 1 < smem.chunks) decay = p.decay[smem.slot_of(n + 1)];
      if (n + 1 == smem.chunks && p.state_before_last && !kTerms.states_only && smem.segment.last())
        store_registers(state,
                        p.state_before_last + (int64_t(smem.segment.state) * p.tiles + smem.tile) * kStateFloats);
      const ChunkDecay chunk_decay = decay_state(state, decay_now);
#pragma unroll
      for (int m = 0; m < kGroupPanels; ++m) consume(state, m, now, group, chunk_decay);
    }
    store_state(state, group);
    if constexpr (Smem::kStoresByTma)
      if (thread == 0) tma_store_wait();
  }

  XLSTM_DEVICE void run() const {
    const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32), group = warp / 4;
    smem.init();
    if (group == 0) {
      setmaxnreg_dec<kProducerRegisters>();
      if constexpr (Smem::kHasN) {
        HopperScorer<Smem>{smem}.run();
      } else if (warp == kEpilogueWarps) {
        if (threadIdx.x % 32 == 0) smem.producer_loop();
      } else if constexpr (Smem::kHasEpilogueWarps) {
        outputs.epilogue(warp);
      }
    } else {
      setmaxnreg_inc<kConsumerRegisters>();
      consumer_loop(group - 1);
    }
    if constexpr (kPair) cluster_sync();  // no block exits while its peer still writes into its shared memory
  }
};

template <int kRows, int kYPanels, bool kPair, class Output, bool kPacked>
__global__ __launch_bounds__(kHopperBlockThreads,
                             1) void chunk_walk_hopper(const __grid_constant__ HopperWalkParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    constexpr WalkTerms kTerms = Output::kTerms;
    const WalkParams& p = params.walk;
    const int tile = blockIdx.x % p.tiles, order = blockIdx.x / p.tiles % p.segments;
    const Segment segment =
        segment_of(p.where, blockIdx.x / p.tiles / p.segments, order, p.segment_chunks, kTerms.reverse);
    if (segment.empty || (kTerms.states_only && segment.last())) return;
    using Smem = HopperWalkSmem<kRows, kYPanels, kPair, Output, kPacked>;
    const Smem smem(params, segment, tile, lds);
    HopperWalk<Smem>{smem}.run();
  }
}

}  // namespace xlstm::gpu::mlstm
