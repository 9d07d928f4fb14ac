// SPDX-License-Identifier: Apache-2.0
// The scores of every chunk, all at once, and what the gates say about its tokens:
//     forward    s (q k) D, row sums of it, and what the chunk adds to n
//     backward   s (q k) D / N and dS = s / N (dh v + dl N) D, what the chunk adds to n and dn, and dS's diagonal
//                apart: both dq and dk have it, and without it their products with q and k are what flows across a
//                token
// with D_ts = e^(b_t - m_t + i_s - b_s), s <= t. The walks (chunk_walk.h) read them once per block; made here, each
// product and each exp is made once per head.
//
// Who owns what: a block of four waves has one chunk of one head. Its products q k^T (and dh v^T) are summed over
// slices of 64 features, in strips of the lower triangle that the waves share out; then the block goes over the chunk's
// pairs of tokens by rows. Exponents are sums of two floats each, high and low, from double: where b is -3000, a
// float's difference of two b would be wrong in the fourth digit.
//
// Floor: L (DHQK + DHHV) flops a token, L bytes or 2 L bytes a token written beside q, k, v, h, dh read. The reads
// bind.
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

  // Strips with a pair s <= t, and how many a wave has at most.
  static constexpr bool reached(int ts, int cs) { return cs * kStripColumns < (ts + 1) * kStepRows; }
  static constexpr int strips() {
    int n = 0;
    for (int ts = 0; ts < kRowStrips; ++ts)
      for (int cs = 0; cs < kColumnStrips; ++cs) n += reached(ts, cs);
    return n;
  }
  static constexpr int kMine = (strips() + kWaves - 1) / kWaves;

  const ScoreParams& p;
  Chunk c;
  char* lds;
  ChunkGates<kChunk>* gates;
  int strip_row[kMine], strip_column[kMine];  // -1: none

  static_assert(sizeof(ChunkGates<kChunk>) == 32 * kChunk + 40);

  XLSTM_DEVICE Scores(const ScoreParams& params, const Chunk& chunk, char* memory) : p(params), c(chunk), lds(memory) {
    gates = reinterpret_cast<ChunkGates<kChunk>*>(lds + scores_lds_bytes(kFamily, sizeof(E), kChunk, kBackward) -
                                                  int(sizeof(ChunkGates<kChunk>)));
    int n = 0;
    for (int j = 0; j < kMine; ++j) strip_row[j] = strip_column[j] = -1;
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
        const Vec16 x = h.piece(c.t0 + t, column, t < c.valid), y = dh.piece(c.t0 + t, column, t < c.valid);
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

  // sum over features of row t of `left` times row s of `right`; between(left slice, right slice, first column) sees
  // each slice.
  template <class F>
  XLSTM_DEVICE void multiply_rows(Strip<E> (&sum)[kMine], const Tokens& left, const Tokens& right, F&& between) {
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
    for (int j = 0; j < kMine; ++j) sum[j].zero();
    fetch(0);
    for (int n = 0; n < slices; ++n) {
      const SliceTile lt = slice(n % kBuffers, 0), rt = slice(n % kBuffers, 1);
      arrive([&] {
        stage_l.store(lt);
        stage_r.store(rt);
      });
      fetch(n + 1);
#pragma unroll
      for (int j = 0; j < kMine; ++j)
        if (strip_row[j] >= 0)
#pragma unroll
          for (int k = 0; k < kSliceColumns; k += kStep<E>)
            multiply(sum[j], load_stream<true, E>(lt, strip_row[j] * kStepRows, k),
                     load_chain_along<E>(rt, strip_column[j] * kStripColumns, k));
      between(lt, rt, n * kSliceColumns);
    }
    __syncthreads();  // the next products, or the pairs, take this memory
  }

  // vector[column] = sum over tokens of weight row: 64 threads have a column each.
  XLSTM_DEVICE void add_rows(const SliceTile& tile, const float* weight, float* vector, int first, int columns) {
    const int column = threadIdx.x % kSliceColumns;
    float sum = 0;
    for (int t = 0; t < kChunk; ++t) sum += weight[t] * to_float(*tile.at(t, column));
    if (first + column < columns) vector[c.slot * columns + first + column] = sum;
  }

  XLSTM_DEVICE void spread(const Strip<E> (&sum)[kMine], float* products) {
#pragma unroll
    for (int j = 0; j < kMine; ++j)
      if (strip_row[j] >= 0)
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; ++r) {
          const StripPosition at = Strip<E>::position(r);
          products[(strip_row[j] * kStepRows + at.row) * kStride + strip_column[j] * kStripColumns + at.column] =
              sum[j].value[r];
        }
  }

  // The chunk's pairs, a piece of a row at a time. In backward each product makes room for the pair's flow: that of dS
  // as it is in `dhv`, that of dS as it is rounded for the walks in `qk`.
  XLSTM_DEVICE void weigh_pairs(float* qk, float* dhv) {
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
        if (s <= t && t < c.valid) {
          constexpr auto decay = sizeof(E) == 4 ? pair_decay_exact : pair_decay;
          const float d = decay(g.row_high[t], g.row_low[t], g.column_high[s], g.column_low[s]);
          const float product = qk[t * kStride + s];
          if constexpr (kBackward) {
            score[j] = g.over_n[t] * product * d;
            const float x = g.over_n[t] * (dhv[t * kStride + s] + g.dl_n[t]) * d;
            if (s < t) {
              d_score[j] = x;
              flow = x * product;
              walk_flow = to_float(from_float<E>(x)) * product;
              sum += walk_flow;
            } else {
              p.factors[factor_at(c.slot, kSelf, t, kChunk)] = x;
              p.own[in_slots(t)] = x * product;
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
      store_piece(to, t, first, score);
      if constexpr (kBackward) {
        const TokenRows<E> d_to = {static_cast<const E*>(p.d_scores) + c.slot * kChunk * kChunk, kChunk, kChunk, true};
        store_piece(d_to, t, first, d_score);
      }
#pragma unroll
      for (int mask = kLanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      if (first == 0) (kBackward ? p.walk_reaching : p.l)[in_slots(t)] = sum;
    }
    if (kBackward && threadIdx.x < kChunk && int(threadIdx.x) >= c.valid)
      p.factors[factor_at(c.slot, kSelf, threadIdx.x, kChunk)] = p.own[in_slots(threadIdx.x)] = 0;
  }

  // Sums of the pairs' flows: no differences, so that where the gates let nothing through, nothing is left.
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
    if (j < kChunk) {  // row j: from all before a token
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
    p.across[in_slots(j)] = across;
    p.leaving[in_slots(j)] = leaving;
    p.walk_leaving[in_slots(j)] = walk_leaving;
  }

  XLSTM_DEVICE void run() {
    Strip<E> dhv[kMine], qk[kMine];
    if constexpr (kBackward) dot_outputs();  // there to read after the sync
    const int t = threadIdx.x;
    const TokenMeasure kept = measure_gates<kBackward>(p, c, *gates, t, [] { __syncthreads(); });
    if constexpr (kBackward)
      if (t < kChunk) measure_gradient(p, c, *gates, t, kept, gates->dl_n[t]);
    __syncthreads();
    if constexpr (kBackward) multiply_rows(dhv, p.dh, p.v, [](auto&&...) {});
    multiply_rows(qk, p.q, p.k, [&](const SliceTile& q, const SliceTile& k, int first) {
      if (threadIdx.x / kSliceColumns == 0) add_rows(k, gates->into, p.keys, first, p.q.columns);
      if constexpr (kBackward)
        if (threadIdx.x / kSliceColumns == 1) add_rows(q, gates->dl_inter, p.queries, first, p.q.columns);
    });
    float *products = reinterpret_cast<float*>(lds), *more = products + kChunk * kStride;
    spread(qk, products);
    if constexpr (kBackward) spread(dhv, more);
    __syncthreads();
    weigh_pairs(products, more);
    if constexpr (kBackward) {
      __syncthreads();
      sum_flows(products, more);
    }
  }
};

template <class E, int kChunk, bool kBackward>
__global__ __launch_bounds__(scores_threads(kFamily)) void scores(const ScoreParams p) {
  if constexpr (has_scores(kFamily, sizeof(E), kChunk)) {
    extern __shared__ __align__(128) char lds[];
    Head head;
    int64_t chunk;
    if (!head_at(p.where, blockIdx.x / p.where.slots, blockIdx.x % p.where.slots, head, chunk)) return;
    Scores<E, kChunk, kBackward>(p, Chunk(p.where, head, chunk), lds).run();
  }
}

}  // namespace xlstm::gpu::mlstm
