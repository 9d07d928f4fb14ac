// SPDX-License-Identifier: Apache-2.0
// The gradients of the gates. With G_ts = dS_ts q_t k_s, what the pair (t, s) carries from token s to token t, the
// forget gate of token j sees what flows across it, and the input gate of s what leaves it:
//     dlf_j = sum of G_ts over s < j <= t      di_s = k_s dk_s = G_ss + sum of G_ts over t > s
// Summed as sum over t >= j of (q dq - k dk), rounding adds up along the sequence, and where a gate forgets everything
// that sum of noise is all there is. So flows are taken apart at the chunks' borders:
//     dlf_j = over + sum_{t >= j} reaching_t + sum_{s < j} entering_s + across_j          tokens of j's chunk
//     reaching_t   from before the chunk to t:  q_t dq_t less the chunk's own pairs
//     entering_s   from s to behind the chunk:  k_s dk_s less the chunk's own pairs
//     across_j     the chunk's own pairs        (scores.h)
//     over         from before the chunk to behind it, from the next chunk's: over + sum entering = over' + sum
//     reaching'
// and a chunk that lets nothing through has over = 0: there the sum along the sequence starts again. So between two
// such chunks, or the sequence's ends, where <dC, C> is known, the sum has a value to meet; by what it misses it, each
// token's step is corrected in proportion to the squares of what it added, where rounding came from. (Of tokens, not of
// chunks: a few that see a large state may add to little and have nearly all of the rounding.) <dC, C> of the last
// and of the initial state are rounded too and have their part. Where the walks were cut into segments, what they left
// of both states at the borders gives such a value at each.
//
// What reaches the stabilisers flows back to whatever the max picked: to the input gate, where it stops, or over the
// forget gate to the token before.
//
// Three kernels: each chunk's sums by one wave; over and what reaches m, chunk after chunk (gate_gradients_scan.h); the
// gates by one wave a chunk. Some 100 bytes a token.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/chunkwise/gate_gradients_scan.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr int kFlowThreads = 128, kFlowsPerBlock = kFlowThreads / kTokenLanes;

XLSTM_DEVICE double from_lane_above(double x, int lane, int by) {
  const double other = shuffle_from(x, lane + by, kTokenLanes);
  return lane + by < kTokenLanes ? other : 0.0;
}
XLSTM_DEVICE double from_lane_below(double x, int lane, int by) {
  const double other = shuffle_from(x, lane - by, kTokenLanes);
  return lane - by >= 0 ? other : 0.0;
}

// Of kEach tokens in each lane, each with those after it, or with those before it.
template <int kEach>
XLSTM_DEVICE void sum_from(double (&x)[kEach], int lane) {
#pragma unroll
  for (int j = kEach - 2; j >= 0; --j) x[j] += x[j + 1];
  double all = x[0];
#pragma unroll
  for (int by = 1; by < kTokenLanes; by *= 2) all += from_lane_above(all, lane, by);
  if constexpr (kEach > 1) {
    const double after = from_lane_above(all, lane, 1);
#pragma unroll
    for (int j = 1; j < kEach; ++j) x[j] += after;
  }
  x[0] = all;
}
template <int kEach>
XLSTM_DEVICE void sum_up_to(double (&x)[kEach], int lane) {
#pragma unroll
  for (int j = 1; j < kEach; ++j) x[j] += x[j - 1];
  double all = x[kEach - 1];
#pragma unroll
  for (int by = 1; by < kTokenLanes; by *= 2) all += from_lane_below(all, lane, by);
  if constexpr (kEach > 1) {
    const double before = from_lane_below(all, lane, 1);
#pragma unroll
    for (int j = 0; j + 1 < kEach; ++j) x[j] += before;
  }
  x[kEach - 1] = all;
}

// What reaches m at each token from the chunk's tokens from it on. A token that stops it holds back what comes from
// above. held: whether what comes from behind the chunk is held back on the way.
struct Moving {
  double sum;
  int held;

  XLSTM_DEVICE void add_behind(const Moving& next) {
    if (held) return;
    sum += next.sum;
    held = next.held;
  }
};
// From what each token moves, and whether it stops what comes from above.
template <int kEach>
XLSTM_DEVICE void moving_from(Moving (&x)[kEach], const bool (&stop)[kEach], int lane) {
  const int next_stops = shuffle_from(int(stop[0]), lane + 1, kTokenLanes);
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    x[j].held = j + 1 < kEach ? int(stop[j + 1]) : lane == kTokenLanes - 1 ? 0 : next_stops;
#pragma unroll
  for (int j = kEach - 2; j >= 0; --j) x[j].add_behind(x[j + 1]);
  Moving all = x[0];
  const auto above = [&](int by) {
    return Moving{from_lane_above(all.sum, lane, by), shuffle_from(all.held, lane + by, kTokenLanes)};
  };
#pragma unroll
  for (int by = 1; by < kTokenLanes; by *= 2) {
    const Moving behind = above(by);
    if (lane + by < kTokenLanes) all.add_behind(behind);
  }
  if constexpr (kEach > 1) {
    const Moving behind = above(1);
#pragma unroll
    for (int j = 1; j < kEach; ++j)
      if (lane + 1 < kTokenLanes) x[j].add_behind(behind);
  }
  x[0] = all;
}

XLSTM_DEVICE double sum_tiles(const FlowParams& p, const float* dots, int tiles, int64_t at) {
  double sum = 0;
  for (int j = 0; j < tiles; ++j) sum += dots[j * (p.where.rows * p.where.slots * p.where.chunk) + at];
  return sum;
}

// Whether the stabiliser after a token came from its input gate.
template <int kEach>
XLSTM_DEVICE bool stops_at(const FlowParams& p, const ChunkTokens<kEach>& t, int j) {
  if (!t.inside(j)) return false;
  const double m_before = t.here + j > 0 ? p.m[t.at + j - 1] : p.m_before[t.slot];
  const TokenGates x = token_gates(p.i, p.f, p.sigmoid, t.head, t.first + j);
  return !keeps_stabiliser(x.lf, m_before, x.ig);
}

template <int kEach>
__global__ __launch_bounds__(kFlowThreads) void sum_chunk_flows(const FlowParams p) {
  if constexpr (has_scores(kFamily, 2, kEach * kTokenLanes)) {
    const ChunkTokens<kEach> t(p.where, kFlowsPerBlock);
    double reaching[kEach], entering[kEach], reaching_noise[kEach], entering_noise[kEach];
    Moving moving[kEach];
    bool stop[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = t.at + j;
      reaching[j] = entering[j] = reaching_noise[j] = entering_noise[j] = moving[j].sum = 0;
      stop[j] = stops_at(p, t, j);
      if (!t.inside(j)) continue;
      if (p.reach[at] >= kNothing) reaching[j] = sum_tiles(p, p.q_dots, p.q_tiles, at) - p.walk_reaching[at];
      if (p.factors[factor_at(t.slot, kInto, t.here + j, p.where.chunk)] >= kNothing)
        entering[j] = sum_tiles(p, p.k_dots, p.k_tiles, at) - p.walk_leaving[at];
      reaching_noise[j] = reaching[j] * reaching[j];
      entering_noise[j] = entering[j] * entering[j];
      moving[j].sum = p.dm[at];
    }
    sum_from(reaching, t.lane);
    sum_from(reaching_noise, t.lane);
    sum_up_to(entering, t.lane);
    sum_up_to(entering_noise, t.lane);
    moving_from(moving, stop, t.lane);
    const double entering_below = from_lane_below(entering[kEach - 1], t.lane, 1);
    const double noise_below = from_lane_below(entering_noise[kEach - 1], t.lane, 1);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (t.inside(j)) {
        p.local[t.at + j] = reaching[j] + (j > 0 ? entering[j - 1] : entering_below) + p.across[t.at + j];
        p.noise_from[t.at + j] = reaching_noise[j];
        p.noise_before[t.at + j] = j > 0 ? entering_noise[j - 1] : noise_below;
      }
    if (!t.chunk_inside) return;
    if (t.lane == 0) {
      p.reaching[t.slot] = reaching[0];
      p.reaching_noise[t.slot] = reaching_noise[0];
      p.moving[t.slot] = stop[0] ? 0.0 : moving[0].sum;
      p.stops[t.slot] = stop[0] || moving[0].held;
    } else if (t.lane == kTokenLanes - 1) {
      p.entering[t.slot] = entering[kEach - 1];
      p.entering_noise[t.slot] = entering_noise[kEach - 1];
    }
  }
}

template <int kEach>
__global__ __launch_bounds__(kFlowThreads) void gate_gradients(const FlowParams p) {
  if constexpr (has_scores(kFamily, 2, kEach * kTokenLanes)) {
    const ChunkTokens<kEach> t(p.where, kFlowsPerBlock);
    const bool through_m = !p.sigmoid && p.normalizer_grad;
    Moving moving[kEach];
    bool stop[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      stop[j] = stops_at(p, t, j);
      moving[j].sum = t.inside(j) ? p.dm[t.at + j] : 0.0;
    }
    moving_from(moving, stop, t.lane);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!t.inside(j)) break;
      const int64_t at = t.at + j, token = t.first + j;
      double di = sum_tiles(p, p.k_dots, p.k_tiles, at) - p.walk_leaving[at] + p.leaving[at] + p.own[at];
      double dlf = p.local[at] + p.over[t.slot];
      // What enters leads to the next known value, and where nothing gets through the chunk, that is another one. No
      // difference of the two: where the gates let nothing through, both are zero.
      dlf += p.correction_behind[t.slot] * p.noise_before[at] - p.correction[t.slot] * p.noise_from[at];
      if (through_m) (stop[j] ? di : dlf) += moving[j].sum + (moving[j].held ? 0.0 : p.behind[t.slot]);
      if (p.sigmoid) di *= sigmoid(-load_gate(p.i, t.head, token));
      store_gate(p.df, t.head, token, float(dlf * sigmoid(-load_gate(p.f, t.head, token))));
      store_gate(p.di, t.head, token, float(di));
    }
  }
}

}  // namespace xlstm::gpu::mlstm
