// SPDX-License-Identifier: Apache-2.0
// The scores of every chunk, all chunks in parallel, and the gate factors of their tokens:
//     forward    s (q k) D, its row sums, and what the chunk adds to n
//     backward   s (q k) D / N and dS = s / N (dh v + dl N) D, what the chunk adds to n and dn. The diagonal of dS is
//                stored apart: dq and dk both need it, and without the diagonal the products of dq with q and of dk
//                with k are the flows across a token (gate_gradients.h).
// with D_ts = e^(b_t - m_t + i_s - b_s), s <= t in one sequence. Each block of a walk (chunk_walk.h) reads the scores.
// Because this kernel computes them, each product and each exponential is computed once per head.
//
// Who owns what: a block of four waves has one chunk of one head. The products q k^T (and dh v^T) are summed over
// slices of 64 features, in strips of the lower triangle that are distributed over the waves; then the block processes
// the chunk's pairs of tokens row by row. Exponents are sums of two floats each, high and low, computed from double:
// where b is -3000, a float difference of two b has an error in the fourth digit.
//
// Floor: L (DHQK + DHHV) flops a token, and L bytes (backward: 2 L bytes) a token written, in addition to reading q, k
// and, in backward, v, h, dh. The reads bind.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/chunkwise/gate_factors.h"

namespace xlstm::gpu::mlstm {

template <class E, int kChunk, bool kBackward>
struct Scores {
  static constexpr int kThreads = scores_threads(kFamily), kWaves = 4, kStepRows = kStep<E>;
  static constexpr int kBuffers = kAsyncCopies ? 2 : 1, kRowStrips = kChunk / kStepRows;
  static constexpr int kColumnStrips = kChunk / kStripColumns, kStride = kChunk + 1;
  using StageSlice = Stage<E, kChunk, kSliceColumns, false, kThreads>;
  using SliceTile = typename StageSlice::Storage;

  // Whether a strip has a pair s <= t, the number of such strips, and the largest number of strips of a wave.
  static constexpr bool reached(int ts, int cs) { return cs * kStripColumns < (ts + 1) * kStepRows; }
  static constexpr int strips() {
    int n = 0;
    for (int ts = 0; ts < kRowStrips; ++ts)
      for (int cs = 0; cs < kColumnStrips; ++cs) n += reached(ts, cs);
    return n;
  }
  static constexpr int kWaveStrips = (strips() + kWaves - 1) / kWaves;

  const ScoreParams& p;
  Chunk c;
  char* lds;
  ChunkGates<kChunk>* gates;
  int strip_row[kWaveStrips], strip_column[kWaveStrips];  // -1: no strip

  static_assert(sizeof(ChunkGates<kChunk>) == kGateBytes * kChunk);

  XLSTM_DEVICE Scores(const ScoreParams& params, const Chunk& chunk, char* memory) : p(params), c(chunk), lds(memory) {
    gates = reinterpret_cast<ChunkGates<kChunk>*>(lds + scores_lds_bytes(kFamily, sizeof(E), kChunk, kBackward) -
                                                  int(sizeof(ChunkGates<kChunk>)));
    int n = 0;
    for (int j = 0; j < kWaveStrips; ++j) strip_row[j] = strip_column[j] = -1;
#pragma unroll
    for (int ts = 0; ts < kRowStrips; ++ts)
#pragma unroll
      for (int cs = 0; cs < kColumnStrips; ++cs)
        if (reached(ts, cs)) {
          if (n % kWaves == wave_id()) {
            strip_row[n / kWaves] = ts;
            strip_column[n / kWaves] = cs;
          }
          ++n;
        }
  }

  XLSTM_DEVICE int64_t in_slots(int t) const { return c.slot * kChunk + t; }

  // dh . h of each token, into dl_n.
  XLSTM_DEVICE void dot_outputs() {
    const TokenRows<E> h = rows<E>(p.h, c.head), dh = rows<E>(p.dh, c.head);
    constexpr int n = kVec16Elements<E>, kLanes = 16;
    for (int t = threadIdx.x / kLanes; t < kChunk; t += kThreads / kLanes) {
      float dot = 0;
      for (int column = threadIdx.x % kLanes * n; column < p.h.columns; column += kLanes * n) {
        const Vec16 x = h.vec16(c.t0 + t, column, t < c.valid), y = dh.vec16(c.t0 + t, column, t < c.valid);
#pragma unroll
        for (int j = 0; j < n; ++j) dot += element<E>(x, j) * element<E>(y, j);
      }
#pragma unroll
      for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
      if (threadIdx.x % kLanes == 0) gates->dl_n[t] = dot;
    }
  }

  XLSTM_DEVICE SliceTile slice(int buffer, int which) const {
    return {reinterpret_cast<E*>(lds + (buffer * 2 + which) * SliceTile::kBytes)};
  }

  // sum[t][s] = row t of `left` times row s of `right`, summed over features. on_slice(left slice, right slice, first
  // column) is called for each slice in LDS.
  template <class F>
  XLSTM_DEVICE void multiply_rows(Strip<E> (&sum)[kWaveStrips], const Tokens& left, const Tokens& right, F&& on_slice) {
    TokenRows<E> l = rows<E>(left, c.head), r = rows<E>(right, c.head);
    const int columns = left.columns, slices = (columns + kSliceColumns - 1) / kSliceColumns;
    StageSlice stage_l, stage_r;
    const auto fetch = [&](int n) {
      if (n >= slices) return;
      stage_l.fetch(slice(n % kBuffers, 0), l, c.t0, c.valid);
      stage_r.fetch(slice(n % kBuffers, 1), r, c.t0, c.valid);
      l.data += kSliceColumns, r.data += kSliceColumns;
      l.columns -= kSliceColumns, r.columns -= kSliceColumns;
    };
#pragma unroll
    for (int j = 0; j < kWaveStrips; ++j) sum[j].zero();
    fetch(0);
    for (int n = 0; n < slices; ++n) {
      const SliceTile lt = slice(n % kBuffers, 0), rt = slice(n % kBuffers, 1);
      arrive([&] {
        stage_l.store(lt);
        stage_r.store(rt);
      });
      fetch(n + 1);
#pragma unroll
      for (int j = 0; j < kWaveStrips; ++j)
        if (strip_row[j] >= 0)
#pragma unroll
          for (int k = 0; k < kSliceColumns; k += kStep<E>)
            multiply(sum[j], load_stream<true, E>(lt, strip_row[j] * kStepRows, k),
                     load_chain_along<E>(rt, strip_column[j] * kStripColumns, k));
      on_slice(lt, rt, n * kSliceColumns);
    }
    __syncthreads();  // the next products, or the pairs, reuse this memory
  }

  // vector[column] = sum over tokens of weight times the token's row. 64 threads have a column each.
  XLSTM_DEVICE void sum_weighted_rows(const SliceTile& tile, const float* weight, float* vector, int first,
                                      int columns) {
    const int column = threadIdx.x % kSliceColumns;
    float sum = 0;
    for (int t = 0; t < kChunk; ++t) sum += weight[t] * to_float(*tile.at(t, column));
    if (first + column < columns) vector[c.slot * columns + first + column] = sum;
  }

  XLSTM_DEVICE void store_products(const Strip<E> (&sum)[kWaveStrips], float* qk_products) {
#pragma unroll
    for (int j = 0; j < kWaveStrips; ++j)
      if (strip_row[j] >= 0)
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; ++r) {
          const StripPosition at = Strip<E>::position(r);
          qk_products[(strip_row[j] * kStepRows + at.row) * kStride + strip_column[j] * kStripColumns + at.column] =
              sum[j].value[r];
        }
  }

  // Scores (and dS) of the chunk's pairs, 16 bytes of a row at a time. In backward each product is overwritten by the
  // pair's flow: `dhv` gets the flow of dS in float, `qk` that of dS as the walks read it, rounded.
  XLSTM_DEVICE void score_pairs(float* qk, float* dhv) {
    const ChunkGates<kChunk>& g = *gates;
    constexpr int n = kVec16Elements<E>, kLanes = kChunk / n;
    for (int t = threadIdx.x / kLanes; t < kChunk; t += kThreads / kLanes) {
      const int first = threadIdx.x % kLanes * n;
      float score[n], d_score[n], sum = 0;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const int s = first + j;
        score[j] = d_score[j] = 0;
        float flow = 0, walk_flow = 0;
        if (g.is_pair(t, s, c.valid)) {
          constexpr auto decay = sizeof(E) == 4 ? pair_decay_exact : pair_decay;
          const float d = decay(g.row_high[t], g.row_low[t], g.column_high[s], g.column_low[s]);
          const float product = qk[t * kStride + s];
          if constexpr (kBackward) {
            score[j] = g.scale_over_n[t] * product * d;
            const float x = g.scale_over_n[t] * (dhv[t * kStride + s] + g.dl_n[t]) * d;
            if (s < t) {
              d_score[j] = x;
              flow = x * product;
              walk_flow = to_float(from_float<E>(x)) * product;
              sum += walk_flow;
            } else {
              p.factors[factor_at(c.slot, kDiagonal, t, kChunk)] = x;
              p.flows.diagonal_flow[in_slots(t)] = x * product;
            }
          } else {
            score[j] = float(p.scale) * product * d;
            sum += score[j];
          }
        }
        if constexpr (kBackward) {
          dhv[t * kStride + s] = flow;
          qk[t * kStride + s] = walk_flow;
        }
      }
      const TokenRows<E> to = {static_cast<const E*>(p.scores) + c.slot * kChunk * kChunk, kChunk, kChunk, true};
      store_vec16(to, t, first, score);
      if constexpr (kBackward) {
        const TokenRows<E> d_to = {static_cast<const E*>(p.d_scores) + c.slot * kChunk * kChunk, kChunk, kChunk, true};
        store_vec16(d_to, t, first, d_score);
      }
#pragma unroll
      for (int mask = kLanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      if (first == 0) (kBackward ? p.flows.walk_reaching : p.row_sums)[in_slots(t)] = sum;
    }
    if (kBackward && threadIdx.x < kChunk && int(threadIdx.x) >= c.valid)
      p.factors[factor_at(c.slot, kDiagonal, threadIdx.x, kChunk)] = p.flows.diagonal_flow[in_slots(threadIdx.x)] = 0;
  }

  // Sums of the pairs' flows. No differences are taken, so that where the gates let nothing through, the sums are zero.
  XLSTM_DEVICE void sum_flows(const float* walk_flow, float* flow) {
    const int j = threadIdx.x;
    float leaving = 0, walk_leaving = 0, across = 0;
    if (j < kChunk) {
      for (int t = 0; t < kChunk; ++t) {
        leaving += flow[t * kStride + j];
        walk_leaving += walk_flow[t * kStride + j];
      }
    }
    __syncthreads();
    if (j < kChunk) {  // row j becomes its exclusive prefix sums over s
      float before = 0;
      for (int s = 0; s < kChunk; ++s) {
        const float x = flow[j * kStride + s];
        flow[j * kStride + s] = before;
        before += x;
      }
    }
    __syncthreads();
    if (j >= kChunk) return;
    for (int t = j; t < kChunk; ++t) across += flow[t * kStride + j];
    p.flows.across[in_slots(j)] = across;
    p.flows.leaving[in_slots(j)] = leaving;
    p.flows.walk_leaving[in_slots(j)] = walk_leaving;
  }

  XLSTM_DEVICE void run() {
    Strip<E> dhv[kWaveStrips], qk[kWaveStrips];
    if constexpr (kBackward) dot_outputs();
    const int t = threadIdx.x;
    const TokenFactors factors = compute_gate_factors<kBackward>(p, c, *gates, t);
    if constexpr (kBackward) {
      __syncthreads();  // all dots are in LDS
      if (t < kChunk) compute_gradient_factors(p, c, *gates, t, factors, gates->dl_n[t]);
    }
    __syncthreads();
    if constexpr (kBackward) multiply_rows(dhv, p.dh, p.v, [](auto&&...) {});
    multiply_rows(qk, p.q, p.k, [&](const SliceTile& q, const SliceTile& k, int first) {
      if (threadIdx.x / kSliceColumns == 0) sum_weighted_rows(k, gates->into, p.chunk_n, first, p.q.columns);
      if constexpr (kBackward)
        if (threadIdx.x / kSliceColumns == 1) sum_weighted_rows(q, gates->dl_inter, p.chunk_dn, first, p.q.columns);
    });
    float *qk_products = reinterpret_cast<float*>(lds), *dhv_products = qk_products + kChunk * kStride;
    store_products(qk, qk_products);
    if constexpr (kBackward) store_products(dhv, dhv_products);
    __syncthreads();
    score_pairs(qk_products, dhv_products);
    if constexpr (kBackward) {
      __syncthreads();
      sum_flows(qk_products, dhv_products);
    }
  }
};

template <class E, int kChunk, bool kBackward>
__global__ __launch_bounds__(scores_threads(kFamily)) void chunk_scores(const ScoreParams p) {
  if constexpr (has_scores(kFamily, sizeof(E), kChunk)) {
    extern __shared__ __align__(128) char lds[];
    Head head;
    int64_t chunk;
    if (!head_at(p.where, blockIdx.x, head, chunk)) return;
    Scores<E, kChunk, kBackward>(p, Chunk(p.where, head, chunk), lds).run();
  }
}

}  // namespace xlstm::gpu::mlstm
