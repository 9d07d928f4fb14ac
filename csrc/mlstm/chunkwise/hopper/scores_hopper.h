// SPDX-License-Identifier: Apache-2.0
// The scores of every chunk of 64 tokens (scores.h says what they are) as Hopper likes them: backward's, and
// forward's where a walk does not make its own (chunk_walk_hopper_scores.h), for which the gates are measured here.
//
// Who owns what: a warpgroup has one chunk of one head; three of them share an SM. A thread of its last warp brings
// slices of 64 features by bulk copies, as many ahead as there is room for, while the first two measure the gates. Each
// slice is multiplied where it lies, and read once more for the sums over tokens. A thread then holds two rows of 16
// pairs each in its accumulators, and weighs and sums them there. What is packed goes to memory through the slices'
// room.
//
// Floor: the bytes of q and k, in backward of v, dh and h too. Three blocks have 192 KB or more under way or in use,
// and the rest of what one does (gates in double, pairs) takes less time than the other two need for their copies.
#pragma once

#include "arch/hopper/hopper.h"
#include "mlstm/chunkwise/gate_factors.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_shape.h"

namespace xlstm::gpu::mlstm {

struct HopperScoreParams {
  ScoreParams scores;
  CUtensorMap q, k, v, dh, h;  // the last three: backward
};

template <bool kBackward>
struct HopperScores {
  static constexpr int kChunk = kHopperChunk, kPanel = panel_bytes(kChunk), kThreads = kWarpgroup;
  static constexpr int kBringer = 96;  // of a warp that has no gates to measure
  using Gates = ChunkGates<kChunk>;

  // Shared memory: gates, barriers, and stages of a slice each: left and right operand, and h beside dh and v.
  static constexpr int kStages = kBackward ? 3 : 4, kStage = (kBackward ? 3 : 2) * kPanel;
  static constexpr int kBarriers = int(sizeof(Gates));
  static constexpr int kRing = (kBarriers + 8 * kStages + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
  static constexpr int slices_of(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
  static constexpr int lds_bytes(int slices) { return kRing + (slices < kStages ? slices : kStages) * kStage; }
  // The slices' room when they are done with: the squares, and each warp's sums of columns.
  enum Sums { kLeaving, kWalkLeaving, kAcross, kSums };
  static constexpr int kSubtile = kRing, kDSquare = kRing + kPanel, kSumsRoom = kRing + 2 * kPanel;

  const HopperScoreParams& params;
  const ScoreParams& p;
  const Chunk c;
  char* lds;
  Gates& gates;
  const int thread, warp, lane, value_slices, slices;

  XLSTM_DEVICE HopperScores(const HopperScoreParams& all, const Chunk& chunk, char* memory)
      : params(all),
        p(all.scores),
        c(chunk),
        lds(memory),
        gates(*reinterpret_cast<Gates*>(memory)),
        thread(threadIdx.x),
        warp(wave_id()),
        lane(lane_id()),
        value_slices(kBackward ? slices_of(p.v.columns) : 0),
        slices(value_slices + slices_of(p.q.columns)) {}

  XLSTM_DEVICE Mbarrier full(int stage) const { return {lds_address(lds + kBarriers) + 8 * uint32_t(stage)}; }
  XLSTM_DEVICE char* stage(int n) const { return lds + kRing + n % kStages * kStage; }

  // ---- slices

  // By one thread, when nobody needs what the stage held.
  XLSTM_DEVICE void bring(int n) const {
    if (n >= slices) return;
    const Mbarrier done = full(n % kStages);
    const uint32_t at = lds_address(stage(n));
    const auto copy = [&](int panel, const CUtensorMap& from, int slice) {
      tma_load(at + panel * kPanel, &from, slice * kPanelColumns, int(c.t0), c.head.head, c.head.batch, done);
    };
    if (n < value_slices) {
      done.arrive_expect_tx(3 * kPanel);
      copy(0, params.dh, n);
      copy(1, params.v, n);
      copy(2, params.h, n);
    } else {
      done.arrive_expect_tx(2 * kPanel);
      copy(0, params.q, n - value_slices);
      copy(1, params.k, n - value_slices);
    }
  }

  // sum += the left operand's rows times the right one's, or = where it begins; meanwhile also(its stage).
  template <class F>
  XLSTM_DEVICE void multiply_slice(float (&sum)[32], int n, bool begins, F&& also) const {
    const char* at = stage(n);
    const uint64_t left = k_major_descriptor(lds_address(at)), right = k_major_descriptor(lds_address(at + kPanel));
    full(n % kStages).wait(uint32_t(n / kStages % 2));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kPanelColumns / 16; ++k)
      wgmma_ss<false, false>(sum, left + k * kNextKMajor, right + k * kNextKMajor, k > 0 || !begins);
    wgmma_commit();
    also(at);
    wgmma_wait<0>(sum);
    __syncthreads();
    if (thread == kBringer) bring(n + kStages);
  }

  // This thread's half of a row of dh, times h's.
  XLSTM_DEVICE float dot_outputs(const char* dh) const {
    float dot = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t at = panel_vec16_offset(thread / 2, thread % 2 * 4 + i);
      const Vec16 x = read_vec16(dh + at), y = read_vec16(dh + 2 * kPanel + at);
#pragma unroll
      for (int j = 0; j < 8; ++j) dot += element<BFloat16>(x, j) * element<BFloat16>(y, j);
    }
    return dot;
  }

  // What the slice's features of k add to n, and q's to dn: weight times row, summed over tokens. Lanes that are served
  // together read pairs of columns in rows whose pieces lie in different banks.
  XLSTM_DEVICE void sum_rows(const char* q, int first_column) const {
    constexpr int kVectors = kBackward ? 2 : 1, kWarps = 4 / kVectors, kPairs = 32 / kWarps, kRows = 8 * kPairs / 32;
    const bool of_keys = warp < kWarps;
    const float* weight = (of_keys ? gates.into : gates.dl_inter) + lane / kPairs * kRows;
    const int pair = warp % kWarps * kPairs + lane % kPairs, row = lane / kPairs * kRows;
    const char* from = q + (of_keys ? kPanel : 0) + pair % 4 * 4;
    float low = 0, high = 0;
#pragma unroll
    for (int t = 0; t < kChunk; t += 8)
#pragma unroll
      for (int e = 0; e < kRows; ++e) {
        const uint32_t x =
            *reinterpret_cast<const uint32_t*>(from + t * kPanelRowBytes + panel_vec16_offset(row + e, pair / 4));
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
      *reinterpret_cast<float2*>((of_keys ? p.keys : p.queries) + c.slot * columns + column) = make_float2(low, high);
  }

  // ---- pairs of tokens: accumulator 4 j + 2 h + e of a thread is the pair (row + 8 h, column(j) + e)

  XLSTM_DEVICE int row() const { return 16 * warp + lane / 4; }
  XLSTM_DEVICE int column(int j) const { return 8 * j + lane % 4 * 2; }
  // Of columns 8 j on: whether this warp has any pair there.
  XLSTM_DEVICE bool reached(int j) const { return j / 2 <= warp; }
  XLSTM_DEVICE int64_t in_slots(int t) const { return c.slot * kChunk + t; }

  // Both squares, into shared memory, and the sums of their rows. In backward what `dhv` held becomes the flow of dS as
  // it is, and `qk` that of dS as it is rounded for the walks.
  XLSTM_DEVICE void weigh_pairs(float (&qk)[32], float (&dhv)[kBackward ? 32 : 1]) const {
    float high[2], low[2], gain[2], dl[2], sum[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int t = row() + 8 * h;
      high[h] = gates.row_high[t];
      low[h] = gates.row_low[t];
      gain[h] = kBackward ? gates.over_n[t] : float(p.scale);
      dl[h] = kBackward ? gates.dl_n[t] : 0.0f;
    }
#pragma unroll
    for (int two = 0; two < 4; ++two) {
      uint32_t square[4] = {}, d_square[4] = {};
      if (reached(2 * two)) {
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const int j = 2 * two + m / 2, h = m % 2, t = row() + 8 * h;
          const float2 above = *reinterpret_cast<const float2*>(gates.column_high + column(j));
          const float2 below = *reinterpret_cast<const float2*>(gates.column_low + column(j));
          float score[2], d_score[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int i = 4 * j + 2 * h + e, s = column(j) + e;
            const float d = pair_decay(high[h], low[h], e ? above.y : above.x, e ? below.y : below.x);
            const bool inside = s <= t && t < c.valid;
            score[e] = inside ? gain[h] * qk[i] * d : 0.0f;
            if constexpr (kBackward) {
              const float x = inside ? gain[h] * (dhv[i] + dl[h]) * d : 0.0f;
              if (s == t) {
                p.factors[factor_at(c.slot, kSelf, t, kChunk)] = x;
                p.own[in_slots(t)] = inside ? x * qk[i] : 0.0f;
              }
              d_score[e] = s < t ? x : 0.0f;
            } else {
              sum[h] += score[e];
            }
          }
          square[m] = pack_exact(BFloat16{}, score[0], score[1]);
          if constexpr (kBackward) {
            d_square[m] = pack_exact(BFloat16{}, d_score[0], d_score[1]);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int i = 4 * j + 2 * h + e;
              const bool flows = column(j) + e < t && t < c.valid;
              const float rounded = e ? high_float(BFloat16{}, d_square[m]) : low_float(BFloat16{}, d_square[m]);
              dhv[i] = flows ? d_score[e] * qk[i] : 0.0f;
              qk[i] = flows ? rounded * qk[i] : 0.0f;
              sum[h] += qk[i];
            }
          }
        }
      }
      const uint32_t at = lds_address(lds) + panel_vec16_offset(16 * warp + lane % 16, 2 * two + lane / 16);
      stmatrix(at + kSubtile, square[0], square[1], square[2], square[3]);
      if constexpr (kBackward) stmatrix(at + kDSquare, d_square[0], d_square[1], d_square[2], d_square[3]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += shuffle_xor(sum[h], 1);
      sum[h] += shuffle_xor(sum[h], 2);
      if (lane % 4 == 0) (kBackward ? p.walk_reaching : p.l)[in_slots(row() + 8 * h)] = sum[h];
    }
  }

  // This warp's rows of a square, to memory.
  XLSTM_DEVICE void store_square(int from, void* squares) const {
    Vec16* to = reinterpret_cast<Vec16*>(static_cast<BFloat16*>(squares) + c.slot * kChunk * kChunk);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 16 * warp + 4 * i + lane / 8, piece = lane % 8;
      to[t * 8 + piece] = read_vec16(lds + from + panel_vec16_offset(t, piece));
    }
  }

  // Over the lanes that have the same columns.
  XLSTM_DEVICE static float sum_over_rows(float x) {
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) x += shuffle_xor(x, mask);
    return x;
  }
  XLSTM_DEVICE float* sums(Sums which, int of_warp) const {
    return reinterpret_cast<float*>(lds + kSumsRoom) + (which * 4 + of_warp) * kChunk;
  }

  // Sums of the pairs' flows over rows, as in scores.h: no differences, so that where the gates let nothing
  // through, nothing is left.
  XLSTM_DEVICE void sum_flows(const float (&walk_flow)[32], const float (&flow)[32]) const {
    const int lane_of_row = lane % 4;
    float before[2] = {};  // of each row, from the columns before those at hand
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
          const float below = shuffle_from(up_to, lane - by, 4);
          if (lane_of_row >= by) up_to += below;
        }
        const float below = shuffle_from(up_to, lane - 1, 4);
        const float here = before[h] + (lane_of_row > 0 ? below : 0.0f);
        if (column(j) <= row() + 8 * h) across[0] += here;
        if (column(j) + 1 <= row() + 8 * h) across[1] += here + first;
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
    const auto over_warps = [&](Sums which) {
      float sum = 0;
      for (int w = s / 16; w < 4; ++w) sum += sums(which, w)[s];
      return sum;
    };
    p.leaving[in_slots(s)] = over_warps(kLeaving);
    p.walk_leaving[in_slots(s)] = over_warps(kWalkLeaving);
    p.across[in_slots(s)] = over_warps(kAcross);
  }

  XLSTM_DEVICE void run() const {
    if (thread == kBringer) {
      for (int s = 0; s < kStages; ++s) full(s).init(1);
      fence_mbarrier_init();
#pragma unroll 1
      for (int n = 0; n < kStages; ++n) bring(n);
    }
    const auto sync = [] { __syncthreads(); };
    const TokenMeasure kept = measure_gates<kBackward>(p, c, gates, thread, sync);  // syncs: the barriers are there
    float qk[32], dhv[kBackward ? 32 : 1];
    if constexpr (kBackward) {
      float dot = 0;
      for (int n = 0; n < value_slices; ++n)
        multiply_slice(dhv, n, n == 0, [&](const char* dh) { dot += dot_outputs(dh); });
      dot += shuffle_xor(dot, 1);
      if (thread % 2 == 0) gates.dl_n[thread / 2] = dot;
      __syncthreads();
      if (thread < kChunk) measure_gradient(p, c, gates, thread, kept, gates.dl_n[thread]);
    }
    __syncthreads();
    for (int n = value_slices; n < slices; ++n)
      multiply_slice(qk, n, n == value_slices, [&](const char* q) { sum_rows(q, (n - value_slices) * kPanelColumns); });
    weigh_pairs(qk, dhv);
    __syncwarp();
    store_square(kSubtile, p.scores);
    if constexpr (kBackward) {
      store_square(kDSquare, p.d_scores);
      sum_flows(qk, dhv);
    }
  }
};

template <bool kBackward>
__global__ __launch_bounds__(HopperScores<kBackward>::kThreads,
                             3) void scores_hopper(const __grid_constant__ HopperScoreParams params) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    const Sequences& where = params.scores.where;
    const uint32_t slots = uint32_t(where.slots);
    HopperScores<kBackward>(params, Chunk(where, head_of(where, blockIdx.x / slots), blockIdx.x % slots), lds).run();
  }
}

// For walks that make their scores: a block has a chunk, a thread a token.
template <int>
__global__ __launch_bounds__(kHopperChunk) void measures_hopper(const ScoreParams p, float* measures) {
  if constexpr (kHopper) {
    using Gates = ChunkGates<kHopperChunk>;
    __shared__ __align__(alignof(Gates)) char room[sizeof(Gates)];
    Gates& gates = *reinterpret_cast<Gates*>(room);
    const uint32_t slots = uint32_t(p.where.slots);
    const Chunk c(p.where, head_of(p.where, blockIdx.x / slots), blockIdx.x % slots);
    const int t = threadIdx.x;
    const TokenMeasure kept = measure_gates<false>(p, c, gates, t, [] { __syncthreads(); });
    float* const to = measures + c.slot * kMeasureFloats;
    to[kRowHigh * kHopperChunk + t] = gates.row_high[t];
    to[kRowLow * kHopperChunk + t] = gates.row_low[t];
    to[kColumnHigh * kHopperChunk + t] = gates.column_high[t];
    to[kColumnLow * kHopperChunk + t] = gates.column_low[t];
    to[kLeast * kHopperChunk + t] = float(exp(-kept.m));
    BFloat16* const weights = reinterpret_cast<BFloat16*>(to + kMeasures * kHopperChunk);
    const BFloat16 upper = from_float<BFloat16>(gates.into[t]);
    weights[t] = upper;  // row 0 of a tile, and row 1, whose pieces are permuted
    weights[kHopperChunk + (t ^ 8)] = from_float<BFloat16>(gates.into[t] - to_float(upper));
  }
}

}  // namespace xlstm::gpu::mlstm
