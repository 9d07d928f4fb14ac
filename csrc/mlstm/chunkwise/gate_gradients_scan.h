// SPDX-License-Identifier: Apache-2.0
// What flows over chunks, from the sums that gate_gradients.h makes of each, and by what it misses the values that are
// known: a block a head, 256 chunks at a time. Latency binds it.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr float kNothing = 0x1p-40f;  // a share this small of what was there is no flow
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
// had between segments: the first ones lie in the order of the sequence, the others from its end on. A few blocks for
// each tile of each; the first one has n's part.
template <int>
__global__ __launch_bounds__(kFlowScanThreads) void border_flows(const BorderParams p) {
  constexpr int kAtOnce = 4;  // pieces of either on their way
  __shared__ double room[kFlowScanThreads];
  const int borders = p.segments - 1, parts = p.tiles * kBorderParts, part = int(blockIdx.x % unsigned(parts));
  const int tile = part / kBorderParts, pieces = p.tile_floats / 4;
  const int begin = pieces * (part % kBorderParts) / kBorderParts;
  const int end = pieces * (part % kBorderParts + 1) / kBorderParts;
  const unsigned which = blockIdx.x / unsigned(parts);
  const int border = int(which % unsigned(borders));
  const Head h = head_of(p.where, which / unsigned(borders));
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int own = int((chunks + p.segment_chunks - 1) / p.segment_chunks) - 1;  // borders of this sequence
  if (border >= own) return;
  const int64_t state = int64_t(h.state) * borders;
  const auto tile_of = [&](const float* states, int at) {
    return reinterpret_cast<const Vec16*>(states + ((state + at) * p.tiles + tile) * p.tile_floats);
  };
  const Vec16 *c = tile_of(p.c, border), *dc = tile_of(p.dc, own - 1 - border);
  double sum[1] = {};
  for (int first = begin + int(threadIdx.x); first < end; first += kAtOnce * kFlowScanThreads) {
    Vec16 x[kAtOnce], y[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int at = first + j * kFlowScanThreads;
      x[j] = c[at < end ? at : first], y[j] = dc[at < end ? at : first];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (first + j * kFlowScanThreads < end)
#pragma unroll
        for (int w = 0; w < 4; ++w) sum[0] += double(as_float(x[j].word[w])) * as_float(y[j].word[w]);
  }
  if (part == 0) {
    const int64_t next = h.row * p.where.slots + h.slot + int64_t(border + 1) * p.segment_chunks;  // behind the border
    for (int64_t d = threadIdx.x; d < p.dqk; d += kFlowScanThreads)
      sum[0] += double(p.keys[next * p.dqk + d]) * p.queries[(next - 1) * p.dqk + d];
  }
  block_sums(sum, {room});
  if (threadIdx.x == 0) p.flows[(state + border) * parts + part] = sum[0];
}

// What chunks make of what comes from behind them: they add to it, or where it is known, or stops, put theirs in its
// place. `over` the border before a chunk, its noise since the last known value, and what reaches m from behind.
struct FlowOfChunks {
  double over, noise, behind;
  int known, stops;

  XLSTM_DEVICE FlowOfChunks then(const FlowOfChunks& x) const {
    return {x.known ? x.over : over + x.over, x.known ? x.noise : noise + x.noise,
            x.stops ? x.behind : behind + x.behind, known | x.known, stops | x.stops};
  }
};
// The correction of the last known value.
struct Correction {
  double value;
  int known;

  XLSTM_DEVICE Correction then(const Correction& x) const { return x.known ? x : *this; }
};
// What `all` and the threads before this one make, whose own are T{} where they make nothing; then all of them do.
template <class T>
XLSTM_DEVICE T before_own(T own, T* room, T& all) {
  const int me = threadIdx.x;
  for (int by = 1; by < kFlowScanThreads; by *= 2) {
    room[me] = own;
    __syncthreads();
    if (me >= by) own = room[me - by].then(own);
    __syncthreads();
  }
  room[me] = own;
  __syncthreads();
  const T before = me ? all.then(room[me - 1]) : all;
  all = all.then(room[kFlowScanThreads - 1]);
  __syncthreads();
  return before;
}

// A head's chunks, for a block: from the last to the first what flows over each, then back what was missed by.
struct FlowScan {
  // <dC, C> + <dn, n> over the last chunk, and the same before the first; of both the squares of their parts.
  struct Ends {
    double over, noise, before, noise_of_before;
  };
  struct Shared {
    double sums[4][kFlowScanThreads];
    FlowOfChunks flows[kFlowScanThreads];
    Correction corrections[kFlowScanThreads];
  };

  int state, chunks;
  int64_t first;  // chunk
  Shared& shared;

  XLSTM_DEVICE FlowScan(const FlowParams* p, Shared& to_share) : shared(to_share) {
    const Head h = head_of(p->where, blockIdx.x);
    state = h.state;
    first = h.row * p->where.slots + h.slot;
    chunks = int((h.end - h.begin + p->where.chunk - 1) / p->where.chunk);
  }

  XLSTM_DEVICE int64_t last() const { return first + chunks - 1; }
  XLSTM_DEVICE bool begins_segment(const FlowParams* p, int chunk) const {
    return p->border_flows && chunk > 0 && chunk % p->segment_chunks == 0;
  }

  XLSTM_DEVICE Ends ends(const FlowParams* p) const {
    Ends e{};
    if (!p->state_dots && !p->dm_initial) return e;
    const int me = threadIdx.x;
    if (p->state_dots) {
      const auto add = [&](double x) {
        e.over += x;
        e.noise += x * x;
      };
      const int64_t states = p->where.sequences * p->where.heads;
      for (int j = me; j < p->state_tiles; j += kFlowScanThreads) add(global(p->state_dots)[j * states + state]);
      if (p->normalizer_grad)
        for (int64_t d = me; d < p->dqk; d += kFlowScanThreads)
          add(double(global(p->dn_last)[state * p->dqk + d]) * global(p->keys)[last() * p->dqk + d]);
    }
    if (p->dm_initial) {
      e.before = dot(p->dc_initial, p->c_initial, p->dqk * p->dhv) + dot(p->dn_initial, p->n_initial, p->dqk);
      e.noise_of_before = e.before * e.before;
    }
    double sums[] = {e.over, e.noise, e.before, e.noise_of_before};
    block_sums(sums, {shared.sums[0], shared.sums[1], shared.sums[2], shared.sums[3]});
    const double through = p->state_dots ? global(p->decay)[last()] : 0.0;
    return {sums[0] * through, sums[1] * through * through, sums[2], sums[3]};
  }

  // This thread's part of the sum over a state of dx x.
  XLSTM_DEVICE double dot(const float* dx, const float* x, int64_t each) const {
    double sum = 0;
    for (int64_t j = threadIdx.x; j < each; j += kFlowScanThreads)
      sum += double(global(dx)[state * each + j]) * global(x)[state * each + j];
    return sum;
  }

  // From the last chunk to the first: over, and in `spread` the noise since the last known value. Where the next
  // value is known, `correction` is what was missed by for each of its units; elsewhere NaN. Returns what reaches m
  // before the first.
  XLSTM_DEVICE double back(const FlowParams* p, const Ends& e, double behind) const {
    FlowOfChunks done_flows{e.over, e.noise, behind, 1, 1};
    for (int done = 0; done < chunks; done += kFlowScanThreads) {
      p = reload_params(p);
      const int chunk = chunks - 1 - done - int(threadIdx.x);
      const bool at_first = chunk == 0;
      const int64_t mine = first + chunk;
      FlowOfChunks own{};
      // Into the chunk, and beyond the border before it, where a value may be known.
      double into = 0, into_noise = 0;
      double known = at_first ? e.before : 0.0, known_noise = at_first ? e.noise_of_before : 0.0;
      bool meets = false;
      if (chunk >= 0) {
        const bool nothing = !at_first && global(p->decay)[mine - 1] < kNothing;
        const bool at_border = !nothing && begins_segment(p, chunk);
        const double leaves = at_first ? 0.0 : global(p->entering)[mine - 1];
        const double leaves_noise = at_first ? 0.0 : global(p->entering_noise)[mine - 1];
        into = global(p->reaching)[mine], into_noise = global(p->reaching_noise)[mine];
        if (at_border) {
          const int parts = p->q_tiles * kBorderParts;
          const int64_t border = int64_t(state) * (p->segments - 1) + chunk / p->segment_chunks - 1;
          for (int part = 0; part < parts; ++part) {
            const double x = global(p->border_flows)[border * parts + part];
            known += x, known_noise += x * x;
          }
        } else {
          into -= leaves, into_noise += leaves_noise;
        }
        meets = nothing || at_border || (at_first && (p->dm_initial || !p->has_initial));
        own.known = nothing || at_border;
        own.over = nothing ? 0.0 : at_border ? known - leaves : into;
        own.noise = nothing ? 0.0 : at_border ? known_noise + leaves_noise : into_noise;
        own.behind = global(p->moving)[mine];
        own.stops = global(p->stops)[mine];
      }
      const FlowOfChunks here = before_own(own, shared.flows, done_flows);
      p = reload_params(p);
      if (chunk >= 0) {
        const double both = here.noise + into_noise + known_noise;
        global(p->over)[mine] = here.over;
        global(p->spread)[mine] = here.noise;
        global(p->behind)[mine] = here.behind;
        global(p->correction)[mine] = meets ? (both > 0 ? (here.over + into - known) / both : 0.0) : NAN;
      }
    }
    __syncthreads();
    return done_flows.behind;
  }

  // From the first to the last: the corrections to the chunks behind them, and to the tokens of each (gate_gradients).
  XLSTM_DEVICE void correct(const FlowParams* p) const {
    Correction done_corrections{0, 1};
    for (int done = 0; done < chunks; done += kFlowScanThreads) {
      p = reload_params(p);
      const int chunk = done + int(threadIdx.x);
      const int64_t mine = first + chunk;
      Correction own{};
      if (chunk < chunks) own.value = global(p->correction)[mine], own.known = own.value == own.value;
      const Correction before = before_own(own, shared.corrections, done_corrections), here = before.then(own);
      p = reload_params(p);
      if (chunk >= chunks) continue;
      global(p->over)[mine] -= here.value * global(p->spread)[mine];
      global(p->correction)[mine] = here.value;
      // Of what enters in the chunk before: which value it leads to. A border's own is known.
      if (chunk > 0) {
        const bool at_border = begins_segment(p, chunk) && global(p->decay)[mine - 1] >= kNothing;
        global(p->correction_behind)[mine - 1] = at_border ? before.value : here.value;
      }
      // What is over the last chunk was not made of what enters there.
      if (chunk == chunks - 1) global(p->correction_behind)[mine] = 0;
    }
  }
};

template <int>
__global__ __launch_bounds__(kFlowScanThreads) void scan_flows(XLSTM_PARAM FlowParams params) {
  __shared__ FlowScan::Shared shared;
  const FlowParams* p = reload_params(kernel_params(params));
  const FlowScan scan(p, shared);
  if (scan.chunks <= 0) return;
  const FlowScan::Ends ends = scan.ends(p);
  p = reload_params(p);
  const bool through_m = !p->sigmoid && p->normalizer_grad;
  double behind = 0;
  if (p->dm_last && through_m)
    behind = double(global(p->dm_last)[scan.state]) - (ends.over + global(p->entering)[scan.last()]);
  behind = scan.back(p, ends, behind);
  scan.correct(p);
  p = reload_params(p);
  if (p->dm_initial && threadIdx.x == 0)
    global(p->dm_initial)[scan.state] = p->normalizer_grad ? float(ends.before + (through_m ? behind : 0.0)) : 0.0f;
}

}  // namespace xlstm::gpu::mlstm
