// SPDX-License-Identifier: Apache-2.0
// The scores of every chunk (scores.h) on CDNA, for tensors whose rows are vectors of 16 bytes: a wave has a chunk.
//
// The products are those of row_products_cdna.h. A lane has one column of the pairs of each strip and consecutive rows:
// sums over rows of pairs are sums over its row of sixteen lanes. A block is one wave, so that no barrier waits; LDS
// holds the gates of the chunk's tokens, and turns scores into vectors of their rows.
//
// Floor: the bytes of q and k, in backward of v, h and dh too. Memory binds backward, whose four waves of a SIMD have
// 128 registers each: with three, the last chunks of a call would be a second round.
#pragma once

#include "mlstm/chunkwise/row_products_cdna.h"
#include "mlstm/chunkwise/scores.h"

namespace xlstm::gpu::mlstm {

constexpr int kScoresCdnaThreads = 64;

template <class E, int kChunk, bool kBackward>
struct CdnaScores : CdnaRowProducts<E> {
  static_assert(kChunk == kStep<E>, "the pairs of a chunk are one row of strips");
  using Base = CdnaRowProducts<E>;
  using Base::lane, Base::row0, Base::feature, Base::left_row;
  using Base::n, Base::kStrips, Base::kRows, Base::kLeft;
  using typename Base::Vectors;
  using PairTile = Tile<E, kChunk, kChunk>;

  struct Lds {
    ChunkGates<kChunk> gates;
    E pairs[kChunk * kChunk];
  };

  const ScoreParams& p;
  const Chunk c;
  Lds& lds;

  XLSTM_DEVICE CdnaScores(const ScoreParams& params, const Chunk& chunk, Lds& memory)
      : p(params), c(chunk), lds(memory) {}

  XLSTM_DEVICE int64_t in_slots(int t) const { return c.slot * kChunk + t; }

  // Row t of `left` times row s of `right`, as in CdnaRowProducts.
  template <bool kWith, class Before, class F>
  XLSTM_DEVICE void multiply_chunk(Strip<E> (&sum)[kStrips], const Tokens& left, const Tokens& right,
                                   const Tokens& with, Before&& before, F&& on_step) const {
    this->template multiply_rows<kWith>(sum, this->left_rows(left, c), this->right_rows(right, c),
                                        this->left_rows(with, c), left.columns, before, on_step);
  }

  // vector[feature] = sum over tokens of weight times the token's row: each lane has a token of each of its vectors.
  template <int kVecs>
  XLSTM_DEVICE void sum_weighted_rows(const Vec16 (&rows)[kVecs], const float (&weight)[kVecs], float* vectors,
                                      int first) const {
    float sum[n];
#pragma unroll
    for (int e = 0; e < n; ++e) {
      sum[e] = 0;
#pragma unroll
      for (int j = 0; j < kVecs; ++j) sum[e] += weight[j] * element<E>(rows[j], e);
      sum[e] = sum_over_row(sum[e]);
    }
    if (lane % 16 != 0 || first >= p.q.columns) return;
    float* to = vectors + c.slot * p.q.columns + first;
#pragma unroll
    for (int e = 0; e < n; ++e) to[e] = sum[e];
  }

  // Stores the strips' floats, rounded, as rows of 16-byte vectors.
  XLSTM_DEVICE void store_pairs(const Strip<E> (&pairs)[kStrips], void* matrices) const {
    const PairTile tile{lds.pairs};
    const auto first = tile.cursor(row0, lane % 16);
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        *reinterpret_cast<E*>(tile.at(first, r, s * kStripColumns)) = from_float<E>(pairs[s].value[r]);
    __syncthreads();
    E* const to = static_cast<E*>(matrices) + c.slot * kChunk * kChunk;
#pragma unroll
    for (int row = lane % 16; row < kChunk; row += 16)
      *reinterpret_cast<Vec16*>(to + row * kChunk + feature) = read_vec16(tile.at(row, feature));
    __syncthreads();
  }

  // D of the pair of register r of strip s.
  XLSTM_DEVICE float decay_of(int r, int s) const {
    constexpr auto decay = sizeof(E) == 4 ? pair_decay_exact : pair_decay;
    const ChunkGates<kChunk>& g = lds.gates;
    const int t = row0 + r, column = s * kStripColumns + lane % 16;
    return decay(g.row_high[t], g.row_low[t], g.column_high[column], g.column_low[column]);
  }
  // Row r's sum over all columns goes to the chunk's array, by the row's first lane.
  XLSTM_DEVICE void store_row_sums(const float (&sums)[kRows], float* to) const {
    float sum[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = sum_over_row(sums[r]);
    if (lane % 16 != 0) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) to[row0 + r] = sum[r];
  }
  // The sum over a strip's rows goes to the array, by the lanes of its first rows.
  XLSTM_DEVICE void store_column_sum(float sum, int strip, float* to) const {
    sum += shuffle_xor(sum, 16);
    sum += shuffle_xor(sum, 32);
    if (lane < 16) to[in_slots(strip * kStripColumns + lane)] = sum;
  }

  // qk: products, then scores.
  XLSTM_DEVICE void score_forward(Strip<E> (&qk)[kStrips]) const {
    float sums[kRows] = {};
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int t = row0 + r, column = s * kStripColumns + lane % 16;
        float& x = qk[s].value[r];
        x = lds.gates.is_pair(t, column, c.valid) ? float(p.scale) * x * decay_of(r, s) : 0.0f;
        sums[r] += x;
      }
    store_row_sums(sums, p.row_sums ? p.row_sums + in_slots(0) : p.factors + factor_at(c.slot, kRowSum, 0, kChunk));
    store_pairs(qk, p.scores);
  }

  // Scores, dS, and each pair's flow: of dS in float in `dhv`, of dS as the walks read it, rounded, in `qk`.
  XLSTM_DEVICE void score_backward(Strip<E> (&qk)[kStrips], Strip<E> (&dhv)[kStrips]) const {
    const ChunkGates<kChunk>& g = lds.gates;
    Strip<E> pairs[kStrips], d_pairs[kStrips];
    float sums[kRows] = {};
#pragma unroll
    for (int s = 0; s < kStrips; ++s)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int t = row0 + r, column = s * kStripColumns + lane % 16;
        const bool inside = g.is_pair(t, column, c.valid), below = inside && column < t;
        const float product = qk[s].value[r], d = decay_of(r, s), gain = g.scale_over_n[t];
        const float x = inside ? gain * (dhv[s].value[r] + g.dl_n[t]) * d : 0.0f;
        pairs[s].value[r] = inside ? gain * product * d : 0.0f;
        d_pairs[s].value[r] = below ? x : 0.0f;
        if (column == t) {
          p.factors[factor_at(c.slot, kDiagonal, t, kChunk)] = x;
          p.flows.diagonal_flow[in_slots(t)] = inside ? x * product : 0.0f;
        }
        dhv[s].value[r] = below ? x * product : 0.0f;
        qk[s].value[r] = below ? to_float(from_float<E>(x)) * product : 0.0f;
        sums[r] += qk[s].value[r];
      }
    store_row_sums(sums, p.flows.walk_reaching + in_slots(0));
    store_pairs(pairs, p.scores);
    store_pairs(d_pairs, p.d_scores);
  }

  // As in scores.h.
  XLSTM_DEVICE void sum_flows(const Strip<E> (&walk_flow)[kStrips], const Strip<E> (&flow)[kStrips]) const {
    float before[kRows] = {};  // of each row, from earlier strips
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int column = s * kStripColumns + lane % 16;
      float leaving = 0, walk_leaving = 0, across = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float x = flow[s].value[r], up_to = before[r] + sum_before_in_row(x);
        leaving += x;
        walk_leaving += walk_flow[s].value[r];
        across += column <= row0 + r ? up_to : 0.0f;
        if (s + 1 < kStrips) before[r] += sum_over_row(x);
      }
      store_column_sum(across, s, p.flows.across);
      store_column_sum(leaving, s, p.flows.leaving);
      store_column_sum(walk_leaving, s, p.flows.walk_leaving);
    }
  }

  // The factors that need dh h, from each lane's part of it for its rows.
  XLSTM_DEVICE void make_gradient_factors(const float (&dots)[kLeft], const TokenFactors& factors) const {
#pragma unroll
    for (int j = 0; j < kLeft; ++j) {
      float dot = dots[j];
      dot += shuffle_xor(dot, 16);
      dot += shuffle_xor(dot, 32);
      if (lane < 16) lds.gates.dl_n[left_row(j)] = dot;
    }
    __syncthreads();
    if (lane < kChunk) compute_gradient_factors(p, c, lds.gates, lane, factors, lds.gates.dl_n[lane]);
    __syncthreads();
  }

  XLSTM_DEVICE void run() const {
    Strip<E> dhv[kStrips], qk[kStrips];
    TokenFactors factors;
    const auto make_factors = [&] {
      factors = compute_gate_factors<kBackward>(p, c, lds.gates, lane);
      __syncthreads();
    };
    if constexpr (kBackward) {
      float dots[kLeft] = {};
      multiply_chunk<true>(dhv, p.dh, p.v, p.h, make_factors, [&](const Vectors& v, int) {
#pragma unroll
        for (int j = 0; j < kLeft; ++j)
#pragma unroll
          for (int e = 0; e < n; ++e) dots[j] += element<E>(v.left[j], e) * element<E>(v.with[j], e);
      });
      make_gradient_factors(dots, factors);
    }
    float into[kStrips], dl_inter[kLeft] = {};
    const auto load_weights = [&] {
      if constexpr (!kBackward) make_factors();
#pragma unroll
      for (int s = 0; s < kStrips; ++s) into[s] = lds.gates.into[s * kStripColumns + lane % 16];
      if constexpr (kBackward)
#pragma unroll
        for (int j = 0; j < kLeft; ++j) dl_inter[j] = lds.gates.dl_inter[left_row(j)];
    };
    multiply_chunk<false>(qk, p.q, p.k, p.q, load_weights, [&](const Vectors& v, int first) {
      sum_weighted_rows(v.right, into, p.chunk_n, first);
      if constexpr (kBackward) sum_weighted_rows(v.left, dl_inter, p.chunk_dn, first);
    });
    if constexpr (kBackward) {
      score_backward(qk, dhv);
      sum_flows(qk, dhv);
    } else {
      score_forward(qk);
    }
  }
};

template <class E, int kChunk, bool kBackward>
__global__ __launch_bounds__(kScoresCdnaThreads, 4) void chunk_scores_cdna(const ScoreParams p) {
  if constexpr (kFamily == Family::cdna && has_scores(kFamily, sizeof(E), kChunk)) {
    using Kernel = CdnaScores<E, kChunk, kBackward>;
    __shared__ __align__(16) char memory[sizeof(typename Kernel::Lds)];
    Head head;
    int64_t chunk;
    if (!head_at(p.where, blockIdx.x, head, chunk)) return;
    Kernel(p, Chunk(p.where, head, chunk), *reinterpret_cast<typename Kernel::Lds*>(memory)).run();
  }
}

// Whether chunk_scores_cdna can load these tensors.
inline bool rows_are_vectors(const ScoreParams& p, bool backward) {
  const auto are_vectors = [](const Tokens& x) { return x.is_aligned16 && x.stride[2] >= x.columns; };
  return are_vectors(p.q) && are_vectors(p.k) &&
         (!backward || (are_vectors(p.v) && are_vectors(p.h) && are_vectors(p.dh)));
}

}  // namespace xlstm::gpu::mlstm
