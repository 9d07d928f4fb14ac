// SPDX-License-Identifier: Apache-2.0
// The gradients of the gates. G_ts = dS_ts q_t k_s is the flow of the pair (t, s), from token s to token t. The forget
// gate of token j gets the flows across it, the input gate of s the flows that leave it:
//     dlf_j = sum of G_ts over s < j <= t      di_s = k_s dk_s = G_ss + sum of G_ts over t > s
// In the form sum over t >= j of (q dq - k dk) rounding accumulates along the sequence, and where a gate forgets
// everything, that sum consists of rounding noise alone. So the flows are split at the chunks' borders:
//     dlf_j = crossing + sum_{t >= j} reaching_t + sum_{s < j} entering_s + across_j      tokens of j's chunk
//     reaching_t   from before the chunk to t:  q_t dq_t less the chunk's own pairs
//     entering_s   from s to after the chunk:   k_s dk_s less the chunk's own pairs
//     across_j     the chunk's own pairs        (scores.h)
//     crossing     from before the chunk to after it; it follows from the next chunk's:
//                  crossing + sum entering = crossing' + sum reaching'
// A chunk that lets nothing through has crossing = 0, and there the sum along the sequence restarts. Between two such
// chunks, or the ends of the sequence, where <dC, C> is known, the sum has a known value to reach. The difference is
// distributed as a correction: each token's step is corrected in proportion to the squares of what it added, because
// that is where the rounding came from. (The squares are of tokens, not of chunks: a few tokens that see a large state
// may add little and yet have nearly all of the rounding.) <dC, C> of the last and of the initial state are rounded too
// and take their part of the correction. Where the walks were split into segments, the two states at each border
// between segments give such a known value there.
//
// The gradient of a stabiliser m flows back to the argument that the max picked: to the input gate, where it stops, or
// through the forget gate to the token before, if it is of the same sequence.
//
// Three kernels: the sums of each chunk, by one wave, and the flows across borders between segments; crossing and the
// gradient of m, scanned over the chunks (gate_gradients_scan.h); the gates' gradients, by one wave a chunk. Floor:
// some 100 bytes a token.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/chunkwise/gate_gradients_scan.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr int kFlowThreads = kFlowScanThreads, kFlowsPerBlock = kFlowThreads / kTokenLanes;

XLSTM_DEVICE double from_lane_above(double x, int lane, int by) {
  const double other = shuffle_from(x, lane + by, kTokenLanes);
  return lane + by < kTokenLanes ? other : 0.0;
}
XLSTM_DEVICE double from_lane_below(double x, int lane, int by) {
  const double other = shuffle_from(x, lane - by, kTokenLanes);
  return lane - by >= 0 ? other : 0.0;
}

// Suffix sums (suffix_sums) and prefix sums (prefix_sums), inclusive, over kEach tokens in each lane.
template <int kEach>
XLSTM_DEVICE void suffix_sums(double (&x)[kEach], int lane) {
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
XLSTM_DEVICE void prefix_sums(double (&x)[kEach], int lane) {
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

// The gradient of m at a token from the chunk's tokens from this one on. A token whose m came from its input gate stops
// the gradient of later tokens, and so does one that begins a sequence. blocked: whether the gradient from after the
// chunk is stopped on the way.
struct DmSum {
  double sum;
  int blocked;

  XLSTM_DEVICE void add_after(const DmSum& next) {
    if (blocked) return;
    sum += next.sum;
    blocked = next.blocked;
  }
};
// Suffix scan from each token's own gradient of m, and whether each token stops the gradient for earlier ones.
template <int kEach>
XLSTM_DEVICE void sum_dm_from(DmSum (&x)[kEach], const bool (&stop)[kEach], int lane) {
  const int next_stops = shuffle_from(int(stop[0]), lane + 1, kTokenLanes);
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    x[j].blocked = j + 1 < kEach ? int(stop[j + 1]) : lane == kTokenLanes - 1 ? 0 : next_stops;
#pragma unroll
  for (int j = kEach - 2; j >= 0; --j) x[j].add_after(x[j + 1]);
  DmSum all = x[0];
  const auto above = [&](int by) {
    return DmSum{from_lane_above(all.sum, lane, by), shuffle_from(all.blocked, lane + by, kTokenLanes)};
  };
#pragma unroll
  for (int by = 1; by < kTokenLanes; by *= 2) {
    const DmSum after = above(by);
    if (lane + by < kTokenLanes) all.add_after(after);
  }
  if constexpr (kEach > 1) {
    const DmSum after = above(1);
#pragma unroll
    for (int j = 1; j < kEach; ++j)
      if (lane + 1 < kTokenLanes) x[j].add_after(after);
  }
  x[0] = all;
}

XLSTM_DEVICE double sum_tiles(const FlowParams& p, const float* dots, int tiles, int64_t at) {
  double sum = 0;
  for (int j = 0; j < tiles; ++j) sum += dots[j * (p.where.rows * p.where.slots * p.where.chunk) + at];
  return sum;
}

// Whether the stabiliser after a token, m, is its log input gate. With the sigmoid gate nothing flows through m.
XLSTM_DEVICE bool stops_gradient(double m, double ig) { return !(m > ig); }

// Whether a sequence of a joined row begins with token j of the lane.
template <int kEach>
XLSTM_DEVICE bool begins_sequence(const Sequences& s, const ChunkTokens<kEach>& t, int j) {
  return sequence_begin(s, t.first + j) == t.first_in_chunk + j;
}

// The chunks' flows, and beside them those across the borders between segments.
struct ChunkFlowParams {
  FlowParams flows;
  BorderParams borders;
  uint32_t chunk_blocks;  // the others have borders
};
template <int kEach>
__global__ __launch_bounds__(kFlowThreads) void chunk_gate_flows(const ChunkFlowParams params) {
  if constexpr (has_scores(kFamily, 2, kEach * kTokenLanes)) {
    if (blockIdx.x >= params.chunk_blocks) return sum_border_flow(params.borders, blockIdx.x - params.chunk_blocks);
    const FlowParams& p = params.flows;
    const ChunkTokens<kEach> t(p.where, kFlowsPerBlock);
    double reaching[kEach], entering[kEach], reaching_noise[kEach], entering_noise[kEach];
    DmSum dm[kEach];
    bool stop[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = t.at + j;
      reaching[j] = entering[j] = reaching_noise[j] = entering_noise[j] = dm[j].sum = 0;
      stop[j] = false;
      if (!t.inside(j)) continue;
      // All loads are issued ahead of what waits for one.
      const uint32_t i_bits = load_gate_bits(p.i, t.head, t.first + j);
      const double m = p.m[at];
      const float state_share = p.flows.state_share[at];
      const float into = p.factors[factor_at(t.slot, kInto, t.first_in_chunk + j, p.where.chunk)];
      const double walk_reaching = p.flows.walk_reaching[at], walk_leaving = p.flows.walk_leaving[at];
      dm[j].sum = p.flows.dm[at];
      const double reached = sum_tiles(p, p.q_dots, p.q_tiles, at) - walk_reaching;
      const double entered = sum_tiles(p, p.k_dots, p.k_tiles, at) - walk_leaving;
      if (state_share >= kNegligible) reaching[j] = reached;
      if (into >= kNegligible) entering[j] = entered;
      reaching_noise[j] = reaching[j] * reaching[j];
      entering_noise[j] = entering[j] * entering[j];
      stop[j] = begins_sequence(p.where, t, j) || stops_gradient(m, gate_of(p.i, i_bits));
    }
    suffix_sums(reaching, t.lane);
    suffix_sums(reaching_noise, t.lane);
    prefix_sums(entering, t.lane);
    prefix_sums(entering_noise, t.lane);
    sum_dm_from(dm, stop, t.lane);
    const double entering_below = from_lane_below(entering[kEach - 1], t.lane, 1);
    const double noise_below = from_lane_below(entering_noise[kEach - 1], t.lane, 1);
#pragma unroll
    for (int j = 0; j < kEach; ++j)
      if (t.inside(j)) {
        p.sums.local[t.at + j] = reaching[j] + (j > 0 ? entering[j - 1] : entering_below) + p.flows.across[t.at + j];
        p.sums.noise_from[t.at + j] = reaching_noise[j];
        p.sums.noise_before[t.at + j] = j > 0 ? entering_noise[j - 1] : noise_below;
      }
    if (!t.chunk_inside) return;
    if (t.lane == 0) {
      p.sums.reaching[t.slot] = reaching[0];
      p.sums.reaching_noise[t.slot] = reaching_noise[0];
      p.sums.dm_before[t.slot] = stop[0] ? 0.0 : dm[0].sum;
      p.sums.stops[t.slot] = stop[0] || dm[0].blocked;
    } else if (t.lane == kTokenLanes - 1) {
      p.sums.entering[t.slot] = entering[kEach - 1];
      p.sums.entering_noise[t.slot] = entering_noise[kEach - 1];
    }
  }
}

template <int kEach>
__global__ __launch_bounds__(kFlowThreads) void gate_gradients(const FlowParams p) {
  if constexpr (has_scores(kFamily, 2, kEach * kTokenLanes)) {
    const ChunkTokens<kEach> t(p.where, kFlowsPerBlock);
    const bool through_m = !p.sigmoid && p.normalizer_grad;
    // All loads are issued ahead of what waits for one.
    DmSum dm[kEach];
    uint32_t i_bits[kEach], f_bits[kEach];
    double m[kEach], di[kEach], dlf[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      i_bits[j] = f_bits[j] = 0;
      m[j] = di[j] = dlf[j] = dm[j].sum = 0;
      if (!t.inside(j)) continue;
      const int64_t at = t.at + j;
      i_bits[j] = load_gate_bits(p.i, t.head, t.first + j);
      f_bits[j] = load_gate_bits(p.f, t.head, t.first + j);
      m[j] = p.m[at];
      dm[j].sum = p.flows.dm[at];
      const double local = p.sums.local[at], crossing = p.sums.crossing[t.slot];
      const double after = p.sums.correction_after[t.slot], here = p.sums.correction[t.slot];
      const double noise_before = p.sums.noise_before[at], noise_from = p.sums.noise_from[at];
      const double walk_leaving = p.flows.walk_leaving[at], leaving = p.flows.leaving[at];
      const double diagonal = p.flows.diagonal_flow[at];
      di[j] = sum_tiles(p, p.k_dots, p.k_tiles, at) - walk_leaving + leaving + diagonal;
      // Flows that enter lead to the next known value, and where nothing gets through the chunk, that value is another
      // one. The correction is no difference of the two: where the gates let nothing through, both terms are zero.
      dlf[j] = local + crossing + (after * noise_before - here * noise_from);
    }
    const double dm_after = t.chunk_inside ? p.sums.dm_after[t.slot] : 0.0;
    bool to_input[kEach], stop[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      to_input[j] = t.inside(j) && stops_gradient(m[j], gate_of(p.i, i_bits[j]));
      stop[j] = to_input[j] || (t.inside(j) && begins_sequence(p.where, t, j));
    }
    sum_dm_from(dm, stop, t.lane);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!t.inside(j)) break;
      const int64_t token = t.first + j;
      if (through_m) (to_input[j] ? di[j] : dlf[j]) += dm[j].sum + (dm[j].blocked ? 0.0 : dm_after);
      if (p.sigmoid) di[j] *= sigmoid(-gate_of(p.i, i_bits[j]));
      store_gate(p.df, t.head, token, float(dlf[j] * sigmoid(-gate_of(p.f, f_bits[j]))));
      store_gate(p.di, t.head, token, float(di[j]));
    }
  }
}

}  // namespace xlstm::gpu::mlstm
