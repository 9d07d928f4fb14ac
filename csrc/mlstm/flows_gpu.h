// SPDX-License-Identifier: Apache-2.0
// The gradients of the gates. With G_ts = dS_ts q_t k_s, what the pair (t, s) carries from token s to token t, the
// forget gate of token j sees what flows across it, and the input gate of s what leaves it:
//     dlf_j = sum of G_ts over s < j <= t      di_s = k_s dk_s = G_ss + sum of G_ts over t > s
// Summed as sum over t >= j of (q dq - k dk), rounding adds up along the sequence, and where a gate forgets everything
// that sum of noise is all there is. So flows are taken apart at the chunks' borders:
//     dlf_j = over + sum_{t >= j} reaching_t + sum_{s < j} entering_s + across_j          tokens of j's chunk
//     reaching_t   from before the chunk to t:  q_t dq_t less the chunk's own pairs
//     entering_s   from s to behind the chunk:  k_s dk_s less the chunk's own pairs
//     across_j     the chunk's own pairs        (scores_gpu.h)
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
// Three kernels: each chunk's sums by one wave; over and what reaches m, chunk after chunk, by one thread a head; the
// gates by one wave a chunk. Some 100 bytes a token; latency binds the one in the middle.
#pragma once

#include "mlstm/sequences_gpu.h"
#include "mlstm/walk_shape.h"

namespace xlstm::gpu {

constexpr int kFlowThreads = 128, kFlowsPerBlock = kFlowThreads / kTokenLanes;
constexpr float kNothing = 0x1p-40f;  // a share this small of what was there is no flow

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

constexpr int kFlowScanThreads = 256;

template <int n>
XLSTM_DEVICE void block_sums(double (&x)[n], double* const (&room)[n]) {  // in a fixed order
  for (int i = 0; i < n; ++i) room[i][threadIdx.x] = x[i];
  __syncthreads();
  for (int half = kFlowScanThreads / 2; half > 0; half /= 2) {
    if (int(threadIdx.x) < half)
      for (int i = 0; i < n; ++i) room[i][threadIdx.x] += room[i][threadIdx.x + half];
    __syncthreads();
  }
  for (int i = 0; i < n; ++i) x[i] = room[i][0];
}

// What flows across the border before a segment: <dC, C> + <dn, n> there, of the states that the walks for dq and dk
// had between segments: the first ones lie in the order of the sequence, the others from its end on. A block for each
// tile of each; the first tile's has n's part.
template <int>
__global__ __launch_bounds__(kFlowScanThreads) void border_flows(const BorderParams p) {
  constexpr int kAtOnce = 4;  // pieces of either on their way
  __shared__ double room[kFlowScanThreads];
  const int tile = int(blockIdx.x % unsigned(p.tiles)), borders = p.segments - 1;
  const unsigned which = blockIdx.x / unsigned(p.tiles);
  const int border = int(which % unsigned(borders));
  const Head h = head_of(p.where, which / unsigned(borders));
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int own = int((chunks + p.segment_chunks - 1) / p.segment_chunks) - 1;  // borders of this sequence
  if (border >= own) return;
  const int64_t state = int64_t(h.state) * borders;
  const auto tile_of = [&](const float* states, int at) {
    return reinterpret_cast<const Piece*>(states + ((state + at) * p.tiles + tile) * p.tile_floats);
  };
  const Piece *c = tile_of(p.c, border), *dc = tile_of(p.dc, own - 1 - border);
  double sum[1] = {};
  for (int first = threadIdx.x; first < p.tile_floats / 4; first += kAtOnce * kFlowScanThreads) {
    Piece x[kAtOnce], y[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = first + j * kFlowScanThreads;
      x[j] = c[at < p.tile_floats / 4 ? at : first], y[j] = dc[at < p.tile_floats / 4 ? at : first];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (first + j * kFlowScanThreads < p.tile_floats / 4)
#pragma unroll
        for (int w = 0; w < 4; ++w) sum[0] += double(as_float(x[j].word[w])) * as_float(y[j].word[w]);
  }
  if (tile == 0) {
    const int64_t next = h.row * p.where.slots + h.slot + int64_t(border + 1) * p.segment_chunks;  // behind the border
    for (int64_t d = threadIdx.x; d < p.dqk; d += kFlowScanThreads)
      sum[0] += double(p.keys[next * p.dqk + d]) * p.queries[(next - 1) * p.dqk + d];
  }
  block_sums(sum, {room});
  if (threadIdx.x == 0) p.flows[(state + border) * p.tiles + tile] = sum[0];
}

template <int>
__global__ __launch_bounds__(kFlowScanThreads) void scan_flows(const FlowParams p) {
  // Blocks of chunks are read together and gone through by one thread.
  __shared__ double reaching[kFlowScanThreads], entering[kFlowScanThreads], moving[kFlowScanThreads];
  __shared__ double missed[kFlowScanThreads], reaching_noise[kFlowScanThreads], entering_noise[kFlowScanThreads];
  __shared__ double flow[kFlowScanThreads], flow_noise[kFlowScanThreads];  // across the border before a chunk, or NaN
  __shared__ float decay[kFlowScanThreads];
  __shared__ int stops[kFlowScanThreads];
  const Head h = head_of(p.where, blockIdx.x);
  if (h.begin >= h.end) return;
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int64_t first = h.row * p.where.slots + h.slot, last = first + chunks - 1;
  const int me = threadIdx.x;
  const auto begins_segment = [&](int64_t chunk) {
    return p.border_flows && chunk > first && (chunk - first) % p.segment_chunks == 0;
  };

  // <dC_last, C> + <dn_last, n> over the last chunk, and the same before the first; of both the squares of their parts.
  double over = 0, before = 0, noise = 0, noise_of_before = 0;
  if (p.state_dots) {
    const auto add = [&](double x) {
      over += x;
      noise += x * x;
    };
    for (int j = me; j < p.state_tiles; j += kFlowScanThreads)
      add(p.state_dots[j * (p.where.sequences * p.where.heads) + h.state]);
    for (int64_t d = me; p.normalizer_grad && d < p.dqk; d += kFlowScanThreads)
      add(double(p.dn_last[h.state * p.dqk + d]) * p.keys[last * p.dqk + d]);
  }
  if (p.dm_initial) {
    const int64_t c = h.state * p.dqk * p.dhv, n = h.state * p.dqk;
    for (int64_t j = me; j < p.dqk * p.dhv; j += kFlowScanThreads)
      before += double(p.dc_initial[c + j]) * p.c_initial[c + j];
    for (int64_t j = me; j < p.dqk; j += kFlowScanThreads) before += double(p.dn_initial[n + j]) * p.n_initial[n + j];
    noise_of_before = before * before;
  }
  if (p.state_dots || p.dm_initial) {
    double sums[] = {over, before, noise, noise_of_before};
    block_sums(sums, {reaching, entering, moving, missed});
    const double through = p.state_dots ? p.decay[last] : 0.0;
    over = sums[0] * through, before = sums[1], noise = sums[2] * through * through, noise_of_before = sums[3];
  }
  const bool through_m = !p.sigmoid && p.normalizer_grad, before_known = p.dm_initial || !p.has_initial;
  double behind = p.dm_last && through_m ? double(p.dm_last[h.state]) - (over + p.entering[last]) : 0.0;

  // From the last chunk to the first: over, and in `spread` the noise since the last known value. Where the next
  // value is known, `correction` is what was missed by for each of its units; elsewhere NaN.
  for (int64_t done = 0; done < chunks; done += kFlowScanThreads) {
    const int64_t mine = last - done - me;
    __syncthreads();
    if (mine >= first) {
      reaching[me] = p.reaching[mine];
      reaching_noise[me] = p.reaching_noise[mine];
      moving[me] = p.moving[mine];
      stops[me] = p.stops[mine];
      decay[me] = mine > first ? p.decay[mine - 1] : 1.0f;
      entering[me] = mine > first ? p.entering[mine - 1] : 0.0;
      entering_noise[me] = mine > first ? p.entering_noise[mine - 1] : 0.0;
      flow[me] = begins_segment(mine) ? 0 : NAN;
      flow_noise[me] = 0;
      if (begins_segment(mine)) {
        const int64_t border = int64_t(h.state) * (p.segments - 1) + (mine - first) / p.segment_chunks - 1;
        for (int tile = 0; tile < p.q_tiles; ++tile) {
          const double x = p.border_flows[border * p.q_tiles + tile];
          flow[me] += x, flow_noise[me] += x * x;
        }
      }
    }
    __syncthreads();
    if (me == 0) {
      const int count = int(chunks - done < kFlowScanThreads ? chunks - done : kFlowScanThreads);
      for (int j = 0; j < count; ++j) {
        const bool at_first = done + j + 1 == chunks, nothing = decay[j] < kNothing;
        // Across the border; then, into the chunk before it, less what enters there.
        double next = over + reaching[j], all = noise + reaching_noise[j], known = 0, noise_of_known = 0;
        const bool at_border = !nothing && flow[j] == flow[j];
        if (at_border) {
          known = flow[j], noise_of_known = flow_noise[j];
        } else {
          next -= entering[j], all += entering_noise[j];
          if (at_first) known = before, noise_of_known = noise_of_before;
        }
        const double both = all + noise_of_known;
        missed[j] = nothing || at_border || (at_first && before_known) ? (both > 0 ? (next - known) / both : 0.0) : NAN;
        if (at_border) next = known - entering[j], all = noise_of_known + entering_noise[j];
        reaching[j] = over;
        entering[j] = noise;
        over = nothing ? 0.0 : next;
        noise = nothing ? 0.0 : all;
        const double m = moving[j];
        moving[j] = behind;
        behind = stops[j] ? m : behind + m;
      }
    }
    __syncthreads();
    if (mine >= first) {
      p.over[mine] = reaching[me];
      p.spread[mine] = entering[me];
      p.correction[mine] = missed[me];
      p.behind[mine] = moving[me];
    }
  }
  // From the first to the last: the corrections to the chunks behind them, and to the tokens of each (gate_gradients).
  double correction = 0;
  for (int64_t done = 0; done < chunks; done += kFlowScanThreads) {
    const int64_t mine = first + done + me;
    __syncthreads();
    if (mine <= last) {
      missed[me] = p.correction[mine];
      stops[me] = begins_segment(mine) && p.decay[mine - 1] >= kNothing;  // the border's own is known
    }
    __syncthreads();
    if (me == 0) {
      const int count = int(chunks - done < kFlowScanThreads ? chunks - done : kFlowScanThreads);
      for (int j = 0; j < count; ++j) {
        const double before_here = correction;
        missed[j] = correction = missed[j] == missed[j] ? missed[j] : correction;
        flow[j] = stops[j] ? before_here : correction;  // of what enters in the chunk before: which value it leads to
      }
    }
    __syncthreads();
    if (mine <= last) {
      p.over[mine] -= missed[me] * p.spread[mine];
      p.correction[mine] = missed[me];
      if (mine > first) p.correction_behind[mine - 1] = flow[me];
      if (mine == last) p.correction_behind[mine] = 0;  // what is over the last chunk was not made of what enters there
    }
  }
  if (p.dm_initial && me == 0)
    p.dm_initial[h.state] = p.normalizer_grad ? float(before + (through_m ? behind : 0.0)) : 0.0f;
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

}  // namespace xlstm::gpu
