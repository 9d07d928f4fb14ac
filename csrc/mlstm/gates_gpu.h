// SPDX-License-Identifier: Apache-2.0
// What goes along a head's tokens one after the other, each as a scan by one block a head: the stabilisers before the
// forward pass, the gates' gradients after the backward pass. A thread has a span of tokens; it says what its span does
// to what comes in, one thread puts the spans together, and each thread goes over its span again.
//
// Floor: a few bytes a token. Latency binds: a span is S / 1024 tokens.
#pragma once

#include "mlstm/sequences_gpu.h"

namespace xlstm::gpu {

constexpr int kScanThreads = 512;

struct TokenSpan {
  int64_t begin, end;
};
XLSTM_DEVICE TokenSpan span_of_thread(const Head& h) {
  const int64_t each = (h.end - h.begin + kScanThreads - 1) / kScanThreads;
  const int64_t begin = h.begin + threadIdx.x * each, end = begin + each;
  return {begin < h.end ? begin : h.end, end < h.end ? end : h.end};
}

// m after every token. Over a span, m becomes max(m + sum of lf, most).
template <int>
__global__ __launch_bounds__(kScanThreads) void stabilisers(const GateParams p) {
  __shared__ double sums[kScanThreads], mosts[kScanThreads];
  const Head h = head_of(p.where, blockIdx.x);
  if (h.begin >= h.end) return;
  const TokenSpan span = span_of_thread(h);
  double* m = p.m + h.row * p.where.length;
  double sum = 0, most = -INFINITY;
  for (int64_t t = span.begin; t < span.end; ++t) {
    const TokenGates x = token_gates(p.i, p.f, p.sigmoid, h, t);
    sum += x.lf;
    most = nan_max(most + x.lf, x.ig);
  }
  sums[threadIdx.x] = sum;
  mosts[threadIdx.x] = most;
  __syncthreads();
  if (threadIdx.x == 0) {
    double carry = p.m_initial ? double(p.m_initial[h.state]) : 0.0;
    for (int j = 0; j < kScanThreads; ++j) {
      const double next = nan_max(carry + sums[j], mosts[j]);
      sums[j] = carry;
      carry = next;
    }
  }
  __syncthreads();
  double now = sums[threadIdx.x];
  for (int64_t t = span.begin; t < span.end; ++t) {
    const TokenGates x = token_gates(p.i, p.f, p.sigmoid, h, t);
    m[t] = now = next_stabiliser(p.sigmoid, x.lf, now, x.ig);
  }
  if (p.m_last && span.begin < span.end && span.end == h.end) p.m_last[h.state] = float(now);
}

// The sum over a block, in a fixed order, to every thread.
XLSTM_DEVICE double block_sum(double x, double* room) {
  __syncthreads();
  room[threadIdx.x] = x;
  __syncthreads();
  for (int half = kScanThreads / 2; half > 0; half /= 2) {
    if (int(threadIdx.x) < half) room[threadIdx.x] += room[threadIdx.x + half];
    __syncthreads();
  }
  return room[0];
}

// di and df from q.dq, k.dk (without each token's own term) and what reaches the stabilisers:
//     dlf_t = <dC_last, C_last> + sum over u >= t of (q.dq - k.dk)    di_t = k.dk
// and the stabilisers' share flows back to whatever the max picked.
template <int>
__global__ __launch_bounds__(kScanThreads) void gate_gradients(const GateGradParams p) {
  __shared__ double flows[kScanThreads], moves[kScanThreads], room[kScanThreads];
  __shared__ bool stops[kScanThreads];
  const Head h = head_of(p.where, blockIdx.x);
  if (h.begin >= h.end) return;
  const int64_t chunk = p.where.chunk, per_tile = p.where.rows * p.where.slots * chunk;
  const auto at = [&](int64_t t) { return h.in_slots(p.where, (t - h.begin) / chunk) + (t - h.begin) % chunk; };
  const auto sum_tiles = [&](const float* dots, int tiles, int64_t t) {
    double sum = 0;
    for (int j = 0; j < tiles; ++j) sum += dots[j * per_tile + at(t)];
    return sum;
  };
  const auto m_before = [&](int64_t t) {
    return t > h.begin ? p.m[h.row * p.where.length + t - 1] : p.m_initial ? double(p.m_initial[h.state]) : 0.0;
  };

  // What the last states' gradients sent to what the last token decays.
  double carry = 0;
  if (p.state_dots) {
    for (int j = threadIdx.x; j < p.q_tiles; j += kScanThreads)
      carry += p.state_dots[j * (p.where.sequences * p.where.heads) + h.state];
    const float weight = p.into[at(h.end - 1)];
    for (int64_t d = threadIdx.x; p.normalizer_grad && d < p.dqk; d += kScanThreads) {
      const Tokens& k = p.k;
      const int64_t offset = gate_offset(k, h, h.end - 1) + d;
      const double key = k.element == 0   ? to_float(static_cast<const float*>(k.data)[offset])
                         : k.element == 1 ? to_float(static_cast<const BFloat16*>(k.data)[offset])
                                          : to_float(static_cast<const Float16*>(k.data)[offset]);
      carry += p.dn_last[h.state * p.dqk + d] * (p.n_last[h.state * p.dqk + d] - weight * key);
    }
    carry = block_sum(carry, room);
  }

  const TokenSpan span = span_of_thread(h);
  const bool through_m = !p.sigmoid && p.normalizer_grad;
  // Over a span, from its end: the flow grows by a sum, and what reaches m either stops on the way or grows too.
  double flow = 0, move = 0;
  bool stop = false;
  for (int64_t t = span.end - 1; t >= span.begin; --t) {
    flow += sum_tiles(p.q_dots, p.q_tiles, t) - (t == h.end - 1 ? 0 : sum_tiles(p.k_dots, p.k_tiles, t));
    if (!through_m) continue;
    move += p.dm[at(t)];
    const TokenGates x = token_gates(p.i, p.f, p.sigmoid, h, t);
    if (!keeps_stabiliser(x.lf, m_before(t), x.ig)) {
      move = 0;
      stop = true;
    }
  }
  flows[threadIdx.x] = flow;
  moves[threadIdx.x] = move;
  stops[threadIdx.x] = stop;
  __syncthreads();
  if (threadIdx.x == 0) {
    const double added = sum_tiles(p.k_dots, p.k_tiles, h.end - 1);
    double f = carry, m = p.dm_last && through_m ? double(p.dm_last[h.state]) - (carry + added) : 0;
    for (int j = kScanThreads - 1; j >= 0; --j) {
      const double f_next = f + flows[j], m_next = stops[j] ? moves[j] : m + moves[j];
      flows[j] = f;
      moves[j] = m;
      f = f_next;
      m = m_next;
    }
    room[0] = m;
  }
  __syncthreads();
  const double dm_begin = room[0];
  double dlf = flows[threadIdx.x], dm = moves[threadIdx.x];
  for (int64_t t = span.end - 1; t >= span.begin; --t) {
    const double k_dk = sum_tiles(p.k_dots, p.k_tiles, t);
    dlf += sum_tiles(p.q_dots, p.q_tiles, t) - (t == h.end - 1 ? 0 : k_dk);
    double di = k_dk + p.own[at(t)], dlf_t = dlf;
    if (through_m) {
      dm += p.dm[at(t)];
      const TokenGates x = token_gates(p.i, p.f, p.sigmoid, h, t);
      if (keeps_stabiliser(x.lf, m_before(t), x.ig)) {
        dlf_t += dm;
      } else {
        di += dm;
        dm = 0;
      }
    }
    if (p.sigmoid) di *= sigmoid(-load_gate(p.i, h, t));
    store_gate(p.df, h, t, float(dlf_t * sigmoid(-load_gate(p.f, h, t))));
    store_gate(p.di, h, t, float(di));
  }
  if (!p.dm_initial) return;
  double scale = 0;
  const int64_t c = h.state * p.dqk * p.dhv, n = h.state * p.dqk;
  for (int64_t j = threadIdx.x; j < p.dqk * p.dhv; j += kScanThreads) scale += double(p.dc_initial[c + j]) * p.c_initial[c + j];
  for (int64_t j = threadIdx.x; j < p.dqk; j += kScanThreads) scale += double(p.dn_initial[n + j]) * p.n_initial[n + j];
  scale = block_sum(scale, room);
  if (threadIdx.x == 0) p.dm_initial[h.state] = p.normalizer_grad ? float(scale + dm_begin) : 0.0f;
}

}  // namespace xlstm::gpu
