// SPDX-License-Identifier: Apache-2.0
// The parallel schedule of short sequences on CDNA: the scores of all pairs of tokens, no states. Between two chunks of
// a few heads a state takes more time than the pairs of their tokens.
//     forward    scores, l, 1 / N - h = scores v / N
//     backward   scores, dS, flows - dq = dS k, dk = dS^T q, dv = scores^T dh - gates
// parallel_products.h and parallel_gates.h have the other launches. Sequences begin and end without states.
//
// A block has the pairs of one chunk's tokens, "later", with those of a group of chunks up to it, "earlier", one a
// wave. The exponents of D are sums of what the sequence has forgotten, in double, as two floats each (scores.h). Sums
// over the group's chunks are added up in LDS, in the order of the waves; sums over later chunks are stored tile by
// tile.
//
// Floor: S / 2 (DHQK + DHHV) flops a token in backward, S / 2 DHQK in forward; latency binds.
#pragma once

#include "arch/sync_wave.h"
#include "mlstm/chunkwise/gate_factors.h"
#include "mlstm/chunkwise/parallel_params.h"
#include "mlstm/chunkwise/row_products_cdna.h"

namespace xlstm::gpu::mlstm {

template <class E, bool kBackward>
struct ParallelScores : CdnaRowProducts<E> {
  using Base = CdnaRowProducts<E>;
  using Base::kChunk, Base::n, Base::kStrips, Base::kRows;
  using Base::lane, Base::row0, Base::feature;
  using typename Base::Vectors;
  using PairTile = Tile<E, kChunk, kChunk>;
  using Pairs = Strip<E>[kStrips];
  static_assert(kFamily != Family::cdna || sizeof(E) != 2 || kChunk == kParallelChunk);
  static constexpr int kWaves = kScoreWaves, kTilePairs = kChunk * kChunk;

  // The gates of the later chunk's tokens.
  struct LaterGates {
    float high[kChunk], low[kChunk], scale_over_n[kChunk], dl_n[kChunk], dots[kChunk];
  };
  struct WaveMemory {
    float high[kChunk], low[kChunk];  // exponents of the earlier chunk's tokens
    float sums[kChunk];               // of the later chunk's tokens
    E pairs[kBackward ? kTilePairs : n];
  };
  struct Lds {
    LaterGates later;
    WaveMemory waves[kWaves];
  };

  const ParallelScoreParams& params;
  const ScoreParams& p;
  const Chunk later;
  const int later_chunk, group, wave, earlier;
  Lds& lds;
  WaveMemory& of_wave;
  GateSums up_to_chunk;  // lane j: what chunks 0..j do to m

  XLSTM_DEVICE ParallelScores(const ParallelScoreParams& all, const Chunk& c, int chunk, int which_group, char* memory)
      : params(all),
        p(all.base),
        later(c),
        later_chunk(chunk),
        group(which_group),
        wave(wave_id()),
        earlier(group * kWaves + wave),
        lds(*reinterpret_cast<Lds*>(memory)),
        of_wave(lds.waves[wave]) {
    const int64_t slot = later.slot - later_chunk + lane % kTokenLanes;
    GateSums sums[1];
    if (lane % kTokenLanes <= later_chunk) sums[0] = {p.sums.chunk_lf[slot], p.sums.chunk_max[slot]};
    scan_gates(sums, lane % kTokenLanes);
    up_to_chunk = sums[0];
  }

  // ---- gates

  XLSTM_DEVICE GateSums before_chunk(int chunk) const {
    const GateSums sums{shuffle_from(up_to_chunk.sum, chunk - 1, kTokenLanes),
                        shuffle_from(up_to_chunk.max, chunk - 1, kTokenLanes)};
    return chunk > 0 ? sums : GateSums{};
  }
  XLSTM_DEVICE static void store_exponent(double exponent, float& high, float& low) {
    const double of_two = exponent * std::numbers::log2e;
    high = float(of_two);
    low = of_two > -INFINITY ? float(of_two - float(of_two)) : 0.0f;
  }
  XLSTM_DEVICE void make_earlier_gates() const {
    const int64_t slot = later.slot - later_chunk + earlier;
    const double forgotten = before_chunk(earlier).sum + p.sums.first_lf[slot];
    const double exponent = p.sums.column[slot * kChunk + lane % kChunk] - forgotten;
    if (lane < kChunk) store_exponent(exponent, of_wave.high[lane], of_wave.low[lane]);
    sync_wave();
  }
  // Exponents of the later chunk's tokens; returns m of the lane's token. By the last wave, which most often has no
  // pairs.
  XLSTM_DEVICE double make_later_gates() const {
    const GateSums before = before_chunk(later_chunk);
    const int64_t at = later.slot * kChunk + lane % kChunk;
    const double first_lf = p.sums.first_lf[later.slot];
    const GateSums to_token{p.sums.lf[at], p.sums.max[at]};
    const double m = to_token.after(p.sigmoid, first_lf + before.after(p.sigmoid, 0.0));
    if (lane < kChunk)
      store_exponent(before.sum + first_lf + to_token.sum - m, lds.later.high[lane], lds.later.low[lane]);
    if (lane < kChunk && group == 0) p.m[at] = m;
    return m;
  }

  // ---- pairs

  // The params, loaded again where they are used: not all of them fit into scalar registers.
  XLSTM_DEVICE const ParallelScoreParams* reloaded() const { return reload_params(kernel_params(params)); }
  XLSTM_DEVICE bool has_pairs() const { return earlier <= later_chunk; }
  XLSTM_DEVICE Chunk earlier_chunk() const { return Chunk(p.where, later.head, earlier); }
  XLSTM_DEVICE int64_t tile() const { return (later.head.row * p.where.slots + later_chunk) * p.where.slots + earlier; }
  XLSTM_DEVICE E* tile_of(void* matrix) const { return static_cast<E*>(global(matrix)) + tile() * kTilePairs; }
  // The sums of the later chunk's tokens over the group, from those of its waves.
  XLSTM_DEVICE void store_group_sums(float* to) const {
    __syncthreads();
    if (threadIdx.x >= kChunk) return;
    float sum = 0;
    for (int w = 0; w < kWaves; ++w) sum += lds.waves[w].sums[threadIdx.x];
    to[(later.slot * score_groups(p.where.slots) + group) * kChunk + threadIdx.x] = sum;
  }
  // A lane's run of a column of pairs, rounded, is a vector of a row of the transposed tile.
  XLSTM_DEVICE void store_run(E* tile, int column, const float (&values)[kRows]) const {
    if constexpr (kRows == n)
      *reinterpret_cast<Vec16*>(tile + column * kChunk + row0) = __builtin_bit_cast(Vec16, pack_elements<E>(values));
  }
  XLSTM_DEVICE static float sum_over_rows(float x) {
    x += shuffle_xor(x, 16);
    return x + shuffle_xor(x, 32);
  }
  static constexpr auto kNothing = [](auto&&...) {};

  // ---- forward: rows of pairs are earlier tokens, columns later ones

  XLSTM_DEVICE void multiply_forward(Pairs& kq) const {
    const auto k = this->left_rows(p.k, earlier_chunk());
    this->template multiply_rows<false>(
        kq, k, this->right_rows(p.q, later), k, p.q.columns, [&] { make_earlier_gates(); }, kNothing);
  }
  XLSTM_DEVICE void score_forward(const Pairs& kq) const {
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int t = s * kStripColumns + lane % 16;
      float run[kRows], sum = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float d = pair_decay(lds.later.high[t], lds.later.low[t], of_wave.high[row0 + r], of_wave.low[row0 + r]);
        const bool inside = (earlier < later_chunk || row0 + r <= t) && t < later.valid;
        run[r] = inside ? float(p.scale) * kq[s].value[r] * d : 0.0f;
        sum += run[r];
      }
      store_run(tile_of(reloaded()->base.scores), t, run);
      sum = sum_over_rows(sum);
      if (lane < 16) of_wave.sums[t] = sum;
    }
  }
  XLSTM_DEVICE void run_forward() const {
    Pairs kq;
    if (wave == kWaves - 1) make_later_gates();
    if (has_pairs())
      multiply_forward(kq);
    else if (lane < kChunk)
      of_wave.sums[lane] = 0;
    __syncthreads();
    if (has_pairs()) score_forward(kq);
    store_group_sums(global(reloaded()->row_sums));
  }

  // ---- backward: rows of pairs are later tokens, columns earlier ones

  // dh h of the later chunk's tokens, a row of sixteen lanes for each.
  XLSTM_DEVICE void make_dots() const {
    constexpr int kEach = 2, kStepFeatures = 16 * n, kOfLane = kChunk / kWaves / 4;  // rows
    const int first_row = wave * (4 * kOfLane) + lane / 16, columns = p.v.columns;
    const auto rows_of = [&](const Tokens& x) {
      return typename Base::template Rows<kOfLane>(rows<E>(x, later.head), later,
                                                   [&](int i) { return first_row + 4 * i; });
    };
    const auto dh = rows_of(p.dh), h = rows_of(p.h);
    float dot[kOfLane] = {};
    for (int at = 0; at < columns; at += kEach * kStepFeatures) {
      Vec16 a[kEach][kOfLane], b[kEach][kOfLane];
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int first = at + j * kStepFeatures + lane % 16 * n;
        const uint32_t features = first < columns ? uint32_t(first) * sizeof(E) : kBeyond;
        dh.load(a[j], features);
        h.load(b[j], features);
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j)
#pragma unroll
        for (int i = 0; i < kOfLane; ++i)
#pragma unroll
          for (int e = 0; e < n; ++e) dot[i] += element<E>(a[j][i], e) * element<E>(b[j][i], e);
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const float sum = sum_over_row(dot[i]);
      if (lane % 16 == 0) lds.later.dots[first_row + 4 * i] = sum;
    }
  }
  XLSTM_DEVICE void make_gradient_gates(double m, float l) const {
    if (lane >= kChunk) return;
    const bool inside = lane < later.valid;
    const int64_t at = later.slot * kChunk + lane;
    const NormaliserGrad grad =
        normaliser_grad(p.normalize && p.normalizer_grad, l, m, p.eps, inside ? double(lds.later.dots[lane]) : 0.0);
    lds.later.dl_n[lane] = float(grad.dl_times_n);
    lds.later.scale_over_n[lane] = float(p.scale / normaliser(p.normalize, l, m, p.eps));
    if (group == 0) p.flows.dm[at] = inside ? grad.dm : 0.0;
  }
  XLSTM_DEVICE void multiply_backward(Pairs& dhv, Pairs& qk) const {
    const Chunk from = earlier_chunk();
    const ScoreParams* in = &reloaded()->base;
    const auto dh = this->left_rows(in->dh, later);
    this->template multiply_rows<false>(
        dhv, dh, this->right_rows(in->v, from), dh, in->v.columns, [&] { make_earlier_gates(); }, kNothing);
    in = &reloaded()->base;
    const auto q = this->left_rows(in->q, later);
    this->template multiply_rows<false>(qk, q, this->right_rows(in->k, from), q, in->q.columns, kNothing, kNothing);
  }
  // Stores the scores and dS. Each pair's flow, of different tokens, comes back in `flow`.
  XLSTM_DEVICE void score_backward(const Pairs& dhv, Pairs& flow) const {
    const LaterGates& g = lds.later;
    const bool same = earlier == later_chunk;
    const ParallelScoreParams* const to = reloaded();
    const PairTile turned{of_wave.pairs};
    const auto first = turned.cursor(row0, lane % 16);
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int column = s * kStripColumns + lane % 16;
      float score[kRows], d_score[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int t = row0 + r;
        const float d = pair_decay(g.high[t], g.low[t], of_wave.high[column], of_wave.low[column]);
        const bool inside = (!same || column <= t) && t < later.valid;
        const float product = flow[s].value[r], gain = g.scale_over_n[t];
        score[r] = inside ? gain * product * d : 0.0f;
        d_score[r] = inside ? gain * (dhv[s].value[r] + g.dl_n[t]) * d : 0.0f;
        const float x = inside ? d_score[r] * product : 0.0f;
        if (same && column == t) global(to->base.flows.diagonal_flow)[later.slot * kChunk + t] = x;
        flow[s].value[r] = same && column == t ? 0.0f : x;
        *reinterpret_cast<E*>(turned.at(first, r, s * kStripColumns)) = from_float<E>(d_score[r]);
      }
      store_run(tile_of(to->base.scores), column, score);
      store_run(tile_of(to->transposed_scores), column, d_score);
    }
    sync_wave();
    E* const rows_of_tile = tile_of(to->base.d_scores);
#pragma unroll
    for (int row = lane % 16; row < kChunk; row += 16)
      *reinterpret_cast<Vec16*>(rows_of_tile + row * kChunk + feature) = read_vec16(turned.at(row, feature));
  }
  // The flows of a chunk's own pairs, as in scores.h.
  XLSTM_DEVICE void sum_flows_inside(const Pairs& flow) const {
    const TokenFlows* const to = &reloaded()->base.flows;
    float before[kRows] = {};  // of each row, from earlier strips
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      const int column = s * kStripColumns + lane % 16;
      float leaving = 0, across = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float x = flow[s].value[r], up_to = before[r] + sum_before_in_row(x);
        leaving += x;
        across += column <= row0 + r ? up_to : 0.0f;
        if (s + 1 < kStrips) before[r] += sum_over_row(x);
      }
      across = sum_over_rows(across), leaving = sum_over_rows(leaving);
      if (lane >= 16) continue;
      global(to->across)[later.slot * kChunk + column] = across;
      global(to->leaving)[later.slot * kChunk + column] = leaving;
    }
  }
  // The flows between the chunks.
  XLSTM_DEVICE void sum_flows_between(const Pairs& flow) const {
    const PairFlows* const to = &reloaded()->flows;
    float all = 0, reaching[kRows] = {};
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      float leaving = 0;
#pragma unroll
      for (int r = 0; r < kRows; ++r) leaving += flow[s].value[r], reaching[r] += flow[s].value[r];
      leaving = sum_over_rows(leaving);
      all += leaving;
      if (lane < 16) global(to->leaving)[tile() * kChunk + s * kStripColumns + lane] = leaving;
    }
    all = sum_over_row(all);
    if (lane == 0) global(to->between)[tile()] = all;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = sum_over_row(reaching[r]);
      if (lane % 16 == 0) of_wave.sums[row0 + r] = sum;
    }
  }
  XLSTM_DEVICE void run_backward() const {
    double m = 0;
    float l = 0;
    if (wave == kWaves - 1) {
      m = make_later_gates();
      if (lane < later.valid) l = p.l_saved[later.head.row * p.where.length + later.t0 + lane];
    }
    make_dots();
    __syncthreads();
    if (wave == kWaves - 1) make_gradient_gates(m, l);
    Pairs dhv, qk;
    if (has_pairs()) multiply_backward(dhv, qk);
    if (earlier >= later_chunk && lane < kChunk) of_wave.sums[lane] = 0;
    __syncthreads();
    if (has_pairs()) {
      score_backward(dhv, qk);
      if (earlier == later_chunk)
        sum_flows_inside(qk);
      else
        sum_flows_between(qk);
    }
    store_group_sums(global(reloaded()->flows.reaching));
  }
};

template <class E, bool kBackward>
__global__ __launch_bounds__(kScoreThreads, 2) void parallel_scores(const ParallelScoreParams p) {
  if constexpr (kFamily == Family::cdna) {
    static_assert(sizeof(typename ParallelScores<E, kBackward>::Lds) == parallel_score_lds_bytes(kBackward));
    extern __shared__ __align__(128) char lds[];
    Head head;
    int64_t chunk;
    const Sequences& where = p.base.where;
    const uint32_t groups = uint32_t(score_groups(where.slots));
    const uint32_t block = block_by_die(uint32_t(where.rows * where.slots) * groups), group = block % groups;
    if (!head_at(where, block / groups, head, chunk) || int64_t(group) * kScoreWaves > chunk) return;
    const ParallelScores<E, kBackward> kernel(p, Chunk(where, head, chunk), int(chunk), int(group), lds);
    if constexpr (kBackward)
      kernel.run_backward();
    else
      kernel.run_forward();
  }
}

}  // namespace xlstm::gpu::mlstm
