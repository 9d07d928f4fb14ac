// SPDX-License-Identifier: Apache-2.0
// The scores of every chunk of 64 tokens (scores.h defines them) for Hopper: backward's, and forward's where the walk
// does not compute its own (chunk_walk_hopper_scores.h). For a walk that does, this file computes the gate terms.
//
// Who owns what: a warpgroup has one chunk of one head, and three warpgroups share an SM (occupancy 3). A thread of the
// last warp is the producer: it loads slices of 64 features by TMA, as many ahead as there are stages, while the first
// two warps compute the gate factors. Each slice is multiplied by wgmma from shared memory, and read once more for the
// sums over tokens. Then a thread holds two rows of 16 pairs each in its accumulators, and multiplies and sums them
// there. Packed results go to memory through the memory of the stages.
//
// mbarriers: full[stage], count 1: the producer thread arrives (arrive_expect_tx) for 24 KB of a slice of dh, v and h,
// or 16 KB of q and k; all 128 threads wait, for the nth slice with parity n / kStages % 2. No barrier says that a
// stage is free: after a slice's wgmma a __syncthreads() does, and then the producer loads slice n + kStages into it.
//
// Timeline (time to the right; wgmma in capitals; the parts in parentheses in backward only):
//   producer      slices 0 to kStages - 1 ... slice n + kStages after each slice n
//   warps 0, 1    gate factors |  (gradient factors after the last slice of dh, v, h)
//   all warps                  ([DHV += DH V], dh h)  [QK += Q K], sums of k (and q) | pairs | store | (flow sums)
//
// Floor: the bytes of q and k, in backward of v, dh and h too. Three blocks have 192 KB or more in flight or in use,
// and the remaining work of one block (gates in double, pairs) takes less time than the other two need for their loads.
#pragma once

#include "arch/hopper/hopper.h"
#include "mlstm/chunkwise/chunk_walk_hopper_shape.h"
#include "mlstm/chunkwise/gate_factors.h"

namespace xlstm::gpu::mlstm {

struct HopperScoreParams {
  ScoreParams scores;
  CUtensorMap q, k, v, dh, h;  // v, dh, h: backward
};

template <bool kBackward>
struct HopperScores {
  static constexpr int kChunk = kHopperChunk, kPanelBytes = panel_bytes(kChunk), kThreads = kWarpgroup;
  static constexpr int kProducerThread = 96;  // in a warp that has no gates to compute
  using Gates = ChunkGates<kChunk>;

  // Shared memory: gates, mbarriers, and stages of one slice each: left and right operand, and in backward h besides dh
  // and v.
  static constexpr int kStages = kBackward ? 3 : 4, kStageBytes = (kBackward ? 3 : 2) * kPanelBytes;
  static constexpr int kBarriersOffset = int(sizeof(Gates));
  static constexpr int kStagesOffset =
      (kBarriersOffset + 8 * kStages + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
  static constexpr int slices_of(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
  static constexpr int lds_bytes(int slices) {
    return kStagesOffset + (slices < kStages ? slices : kStages) * kStageBytes;
  }
  // After the slices their memory is reused: for the scores and dS, and for each warp's sums over columns.
  enum Sums { kLeaving, kWalkLeaving, kAcross, kSums };
  static constexpr int kScoresOffset = kStagesOffset, kDScoresOffset = kStagesOffset + kPanelBytes,
                       kFlowSumsOffset = kStagesOffset + 2 * kPanelBytes;

  const HopperScoreParams& params;
  const ScoreParams& p;
  const Chunk c;
  char* lds;
  Gates& gates;
  const int thread, warp, lane, value_slices, slices;

  XLSTM_DEVICE HopperScores(const HopperScoreParams& walk_params, const Chunk& chunk, char* memory)
      : params(walk_params),
        p(walk_params.scores),
        c(chunk),
        lds(memory),
        gates(*reinterpret_cast<Gates*>(memory)),
        thread(threadIdx.x),
        warp(wave_id()),
        lane(lane_id()),
        value_slices(kBackward ? slices_of(p.v.columns) : 0),
        slices(value_slices + slices_of(p.q.columns)) {}

  XLSTM_DEVICE Mbarrier full(int stage) const { return {lds_address(lds + kBarriersOffset) + 8 * uint32_t(stage)}; }
  XLSTM_DEVICE char* stage(int n) const { return lds + kStagesOffset + n % kStages * kStageBytes; }

  // ---- slices

  // The producer thread, once the stage is free.
  XLSTM_DEVICE void load_slice(int n) const {
    if (n >= slices) return;
    const Mbarrier done = full(n % kStages);
    const uint32_t at = lds_address(stage(n));
    const auto copy = [&](int panel, const CUtensorMap& from, int slice) {
      tma_load(at + panel * kPanelBytes, &from, slice * kPanelColumns, int(c.t0), c.head.head, c.head.batch, done);
    };
    if (n < value_slices) {
      done.arrive_expect_tx(3 * kPanelBytes);
      copy(0, params.dh, n);
      copy(1, params.v, n);
      copy(2, params.h, n);
    } else {
      done.arrive_expect_tx(2 * kPanelBytes);
      copy(0, params.q, n - value_slices);
      copy(1, params.k, n - value_slices);
    }
  }

  // sum += the left operand's rows times the right one's; `begins` starts from zero. on_stage(its stage) runs while
  // wgmma multiplies.
  template <class F>
  XLSTM_DEVICE void multiply_slice(float (&sum)[32], int n, bool begins, F&& on_stage) const {
    const char* at = stage(n);
    const uint64_t left = k_major_descriptor(lds_address(at)),
                   right = k_major_descriptor(lds_address(at + kPanelBytes));
    full(n % kStages).wait(uint32_t(n / kStages % 2));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kPanelColumns / 16; ++k)
      wgmma_ss<false, false>(sum, left + k * kNextKMajor, right + k * kNextKMajor, k > 0 || !begins);
    wgmma_commit();
    on_stage(at);
    wgmma_wait<0>(sum);
    __syncthreads();
    if (thread == kProducerThread) load_slice(n + kStages);
  }

  // This thread's half of a row of dh, times the same of h.
  XLSTM_DEVICE float dot_outputs(const char* dh) const {
    float dot = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = panel_vec16_offset(thread / 2, thread % 2 * 4 + i);
      const Vec16 x = read_vec16(dh + at), y = read_vec16(dh + 2 * kPanelBytes + at);
#pragma unroll
      for (int j = 0; j < 8; ++j) dot += element<BFloat16>(x, j) * element<BFloat16>(y, j);
    }
    return dot;
  }

  // Sums of weight times row over tokens: of the slice's features of k for n, and of those of q for dn. Lanes that are
  // served together read pairs of columns in rows whose vectors lie in different banks.
  XLSTM_DEVICE void sum_rows(const char* q, int first_column) const {
    constexpr int kVectors = kBackward ? 2 : 1, kWarps = 4 / kVectors, kPairs = 32 / kWarps, kRows = 8 * kPairs / 32;
    const bool is_key_warp = warp < kWarps;
    const float* weight = (is_key_warp ? gates.into : gates.dl_inter) + lane / kPairs * kRows;
    const int pair = warp % kWarps * kPairs + lane % kPairs, row = lane / kPairs * kRows;
    const char* from = q + (is_key_warp ? kPanelBytes : 0) + pair % 4 * 4;
    float low = 0, high = 0;
#pragma unroll
    for (int t = 0; t < kChunk; t += 8)
#pragma unroll
      for (int e = 0; e < kRows; ++e) {
        uint32_t x =
            *reinterpret_cast<const uint32_t*>(from + t * kPanelRowBytes + panel_vec16_offset(row + e, pair / 4));
        if (t + row + e >= c.valid) x = 0;  // another sequence's: its product with a weight of 0 may be NaN
        low += weight[t + e] * low_float(BFloat16{}, x);
        high += weight[t + e] * high_float(BFloat16{}, x);
      }
#pragma unroll
    for (int mask = kPairs; mask < 32; mask *= 2) {
      low += shuffle_xor(low, mask);
      high += shuffle_xor(high, mask);
    }
    const int column = first_column + 2 * pair, columns = p.q.columns;
    if (lane < kPairs && column < columns)
      *reinterpret_cast<float2*>((is_key_warp ? p.chunk_n : p.chunk_dn) + c.slot * columns + column) =
          make_float2(low, high);
  }

  // ---- pairs of tokens: accumulator 4 j + 2 h + e of a thread is the pair (row + 8 h, column(j) + e)

  XLSTM_DEVICE int row() const { return 16 * warp + lane / 4; }
  XLSTM_DEVICE int column(int j) const { return 8 * j + lane % 4 * 2; }
  // Whether this warp has any pair in columns 8 j to 8 j + 7.
  XLSTM_DEVICE bool reached(int j) const { return j / 2 <= warp; }
  XLSTM_DEVICE int64_t in_slots(int t) const { return c.slot * kChunk + t; }

  struct RowGates {  // of rows row() and row() + 8
    float high[2], low[2], gain[2], dl[2];
    int first[2];
  };
  XLSTM_DEVICE RowGates row_gates() const {
    RowGates g;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      g.high[h] = gates.row_high[t];
      g.low[h] = gates.row_low[t];
      g.first[h] = gates.first[t];
      g.gain[h] = kBackward ? gates.scale_over_n[t] : float(p.scale);
      g.dl[h] = kBackward ? gates.dl_n[t] : 0.0f;
    }
    return g;
  }
  // Scores (and dS) of two adjacent pairs (row() + 8 h, column(j) + e), packed, and the row's sum. In backward `dhv` is
  // overwritten by the flow of dS in float, and `qk` by that of dS as the walks read it, rounded.
  XLSTM_DEVICE void score_two_pairs(int j, int h, const RowGates& g, float (&qk)[32], float (&dhv)[kBackward ? 32 : 1],
                                    float& sum, uint32_t& score_word, uint32_t& d_score_word) const {
    const int t = row() + 8 * h;
    const float2 column_high = *reinterpret_cast<const float2*>(gates.column_high + column(j));
    const float2 column_low = *reinterpret_cast<const float2*>(gates.column_low + column(j));
    float score[2], d_score[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = 4 * j + 2 * h + e, s = column(j) + e;
      const float d =
          pair_decay(g.high[h], g.low[h], e ? column_high.y : column_high.x, e ? column_low.y : column_low.x);
      const bool inside = g.first[h] <= s && s <= t && t < c.valid;
      score[e] = inside ? g.gain[h] * qk[i] * d : 0.0f;
      if constexpr (kBackward) {
        const float x = inside ? g.gain[h] * (dhv[i] + g.dl[h]) * d : 0.0f;
        if (s == t) {
          p.factors[factor_at(c.slot, kDiagonal, t, kChunk)] = x;
          p.flows.diagonal_flow[in_slots(t)] = inside ? x * qk[i] : 0.0f;
        }
        d_score[e] = s < t ? x : 0.0f;
      } else {
        sum += score[e];
      }
    }
    score_word = pack_exact(BFloat16{}, score[0], score[1]);
    if constexpr (kBackward) {
      d_score_word = pack_exact(BFloat16{}, d_score[0], d_score[1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 4 * j + 2 * h + e;
        const bool flows = g.first[h] <= column(j) + e && column(j) + e < t && t < c.valid;
        const float rounded = e ? high_float(BFloat16{}, d_score_word) : low_float(BFloat16{}, d_score_word);
        dhv[i] = flows ? d_score[e] * qk[i] : 0.0f;
        qk[i] = flows ? rounded * qk[i] : 0.0f;
        sum += qk[i];
      }
    }
  }

  // Writes scores and dS to shared memory, and the sums of their rows to global memory.
  XLSTM_DEVICE void score_pairs(float (&qk)[32], float (&dhv)[kBackward ? 32 : 1]) const {
    const RowGates g = row_gates();
    float sum[2] = {};
#pragma unroll
    for (int column16 = 0; column16 < 4; ++column16) {
      uint32_t score_words[4] = {}, d_score_words[4] = {};
      if (reached(2 * column16)) {
#pragma unroll
        for (int m = 0; m < 4; ++m)
          score_two_pairs(2 * column16 + m / 2, m % 2, g, qk, dhv, sum[m % 2], score_words[m], d_score_words[m]);
      }
      const uint32_t at = lds_address(lds) + panel_vec16_offset(16 * warp + lane % 16, 2 * column16 + lane / 16);
      stmatrix(at + kScoresOffset, score_words[0], score_words[1], score_words[2], score_words[3]);
      if constexpr (kBackward)
        stmatrix(at + kDScoresOffset, d_score_words[0], d_score_words[1], d_score_words[2], d_score_words[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += shuffle_xor(sum[h], 1);
      sum[h] += shuffle_xor(sum[h], 2);
      if (lane % 4 == 0) (kBackward ? p.flows.walk_reaching : p.row_sums)[in_slots(row() + 8 * h)] = sum[h];
    }
  }

  // This warp's rows of a matrix, from shared to global memory.
  XLSTM_DEVICE void store_matrix(int from, void* matrices) const {
    Vec16* to = reinterpret_cast<Vec16*>(static_cast<BFloat16*>(matrices) + c.slot * kChunk * kChunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 16 * warp + 4 * i + lane / 8, vec = lane % 8;
      to[t * 8 + vec] = read_vec16(lds + from + panel_vec16_offset(t, vec));
    }
  }

  // Sum over the lanes that have the same columns.
  XLSTM_DEVICE static float sum_over_rows(float x) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  XLSTM_DEVICE float* sums(Sums which, int of_warp) const {
    return reinterpret_cast<float*>(lds + kFlowSumsOffset) + (which * 4 + of_warp) * kChunk;
  }

  // Sums of the pairs' flows over rows, as in scores.h. No differences are taken, so that where the gates let nothing
  // through, the sums are zero.
  XLSTM_DEVICE void sum_flows(const float (&walk_flow)[32], const float (&flow)[32]) const {
    const int lane_of_row = lane % 4;
    float before[2] = {};  // of each row, from earlier columns
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (!reached(j)) continue;
      float across[2] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float first = flow[4 * j + 2 * h];
        float up_to = first + flow[4 * j + 2 * h + 1];
#pragma unroll
        for (int by = 1; by < 4; by *= 2) {
          const float lower_lanes = shuffle_from(up_to, lane - by, 4);
          if (lane_of_row >= by) up_to += lower_lanes;
        }
        const float lower_lanes = shuffle_from(up_to, lane - 1, 4);
        const float before_column = before[h] + (lane_of_row > 0 ? lower_lanes : 0.0f);
        if (column(j) <= row() + 8 * h) across[0] += before_column;
        if (column(j) + 1 <= row() + 8 * h) across[1] += before_column + first;
        before[h] += shuffle_from(up_to, 3, 4);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float leaving = sum_over_rows(flow[4 * j + e] + flow[4 * j + 2 + e]);
        const float walk_leaving = sum_over_rows(walk_flow[4 * j + e] + walk_flow[4 * j + 2 + e]);
        const float all_across = sum_over_rows(across[e]);
        if (lane >= 4) continue;
        sums(kLeaving, warp)[column(j) + e] = leaving;
        sums(kWalkLeaving, warp)[column(j) + e] = walk_leaving;
        sums(kAcross, warp)[column(j) + e] = all_across;
      }
    }
    __syncthreads();
    const int s = thread;
    if (s >= kChunk) return;
    const auto sum_over_warps = [&](Sums which) {
      float sum = 0;
      for (int w = s / 16; w < 4; ++w) sum += sums(which, w)[s];
      return sum;
    };
    p.flows.leaving[in_slots(s)] = sum_over_warps(kLeaving);
    p.flows.walk_leaving[in_slots(s)] = sum_over_warps(kWalkLeaving);
    p.flows.across[in_slots(s)] = sum_over_warps(kAcross);
  }

  XLSTM_DEVICE void run() const {
    if (thread == kProducerThread) {
      for (int s = 0; s < kStages; ++s) full(s).init(1);
      fence_mbarrier_init();
#pragma unroll 1
      for (int n = 0; n < kStages; ++n) load_slice(n);
    }
    const TokenFactors factors = compute_gate_factors<kBackward>(p, c, gates, thread);
    float qk[32], dhv[kBackward ? 32 : 1];
    if constexpr (kBackward) {
      __syncthreads();  // publishes the mbarriers
      float dot = 0;
      for (int n = 0; n < value_slices; ++n)
        multiply_slice(dhv, n, n == 0, [&](const char* dh) { dot += dot_outputs(dh); });
      dot += shuffle_xor(dot, 1);
      if (thread % 2 == 0) gates.dl_n[thread / 2] = dot;
      __syncthreads();
      if (thread < kChunk) compute_gradient_factors(p, c, gates, thread, factors, gates.dl_n[thread]);
    }
    __syncthreads();
    for (int n = value_slices; n < slices; ++n)
      multiply_slice(qk, n, n == value_slices, [&](const char* q) { sum_rows(q, (n - value_slices) * kPanelColumns); });
    score_pairs(qk, dhv);
    __syncwarp();
    store_matrix(kScoresOffset, p.scores);
    if constexpr (kBackward) {
      store_matrix(kDScoresOffset, p.d_scores);
      sum_flows(qk, dhv);
    }
  }
};

template <bool kBackward>
__global__ __launch_bounds__(HopperScores<kBackward>::kThreads,
                             3) void chunk_scores_hopper(const __grid_constant__ HopperScoreParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    const Sequences& where = params.scores.where;
    const uint32_t slots = uint32_t(where.slots);
    Head head;
    int64_t chunk;
    if (!head_at(where, blockIdx.x / slots, blockIdx.x % slots, head, chunk)) return;
    HopperScores<kBackward>(params, Chunk(where, head, chunk), lds).run();
  }
}

// The gate terms for walks that compute their scores: a block has a chunk, a thread has a token.
template <int>
__global__ __launch_bounds__(kHopperChunk) void chunk_gate_terms_hopper(const ScoreParams p, float* gate_terms) {
  if constexpr (kHopper) {
    using Gates = ChunkGates<kHopperChunk>;
    __shared__ __align__(alignof(Gates)) char memory[sizeof(Gates)];
    Gates& gates = *reinterpret_cast<Gates*>(memory);
    const uint32_t slots = uint32_t(p.where.slots);
    Head head;
    int64_t chunk;
    if (!head_at(p.where, blockIdx.x / slots, blockIdx.x % slots, head, chunk)) return;
    const Chunk c(p.where, head, chunk);
    const int t = threadIdx.x;
    const TokenFactors factors = compute_gate_factors<false>(p, c, gates, t);
    float* const to = gate_terms + c.slot * kGateTermFloats;
    to[kRowHigh * kHopperChunk + t] = gates.row_high[t];
    to[kRowLow * kHopperChunk + t] = gates.row_low[t];
    to[kColumnHigh * kHopperChunk + t] = gates.column_high[t];
    to[kColumnLow * kHopperChunk + t] = gates.column_low[t];
    to[kMinN * kHopperChunk + t] = float(exp(-factors.m));
    to[kFirstOfSequence * kHopperChunk + t] = float(gates.first[t]);
    BFloat16* const weights = reinterpret_cast<BFloat16*>(to + kGateTerms * kHopperChunk);
    const BFloat16 upper = from_float<BFloat16>(gates.into[t]);
    weights[t] = upper;  // row 0 of a tile, and row 1, whose 16-byte vectors are permuted
    weights[kHopperChunk + (t ^ 8)] = from_float<BFloat16>(gates.into[t] - to_float(upper));
  }
}

}  // namespace xlstm::gpu::mlstm
