// SPDX-License-Identifier: Apache-2.0
// The scan over chunks of the flows whose per-chunk sums gate_gradients.h computes, and the correction by which they
// miss the known values. One block a head, 256 chunks at a time. Latency binds.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr float kNegligible = 0x1p-40f;  // a decay this small lets no flow through
constexpr int kFlowScanThreads = 256;

template <int n>
XLSTM_DEVICE void block_sums(double (&x)[n], double* const (&buffer)[n]) {  // sums over the block, in a fixed order
  for (int i = 0; i < n; ++i) buffer[i][threadIdx.x] = x[i];
  __syncthreads();
  for (int half = kFlowScanThreads / 2; half > 0; half /= 2) {
    if (int(threadIdx.x) < half)
      for (int i = 0; i < n; ++i) buffer[i][threadIdx.x] += buffer[i][threadIdx.x + half];
    __syncthreads();
  }
  for (int i = 0; i < n; ++i) x[i] = buffer[i][0];
}

// The flow across the border before a segment: <dC, C> + <dn, n> at that border. C are the states between segments of
// the walk for dq, stored in the order of the sequence; dC those of the walk for dk, stored from its end on.
// kBorderParts blocks for each tile of each border; the first block adds n's part.
XLSTM_DEVICE void sum_border_flow(const BorderParams& p, uint32_t block) {
  constexpr int kVecsInFlight = 4;  // vectors of C, and of dC, whose loads are in flight
  __shared__ double buffer[kFlowScanThreads];
  const int borders = p.segments - 1, parts = p.tiles * kBorderParts, part = int(block % unsigned(parts));
  const int tile = part / kBorderParts, vecs = p.tile_floats / 4;
  const int begin = vecs * (part % kBorderParts) / kBorderParts;
  const int end = vecs * (part % kBorderParts + 1) / kBorderParts;
  const unsigned which = block / unsigned(parts);
  const int border = int(which % unsigned(borders));
  const Head h = head_of(p.where, which / unsigned(borders));
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int sequence_borders = int((chunks + p.segment_chunks - 1) / p.segment_chunks) - 1;
  if (border >= sequence_borders) return;
  const int64_t state = int64_t(h.state) * borders;
  const auto tile_of = [&](const float* states, int at) {
    return reinterpret_cast<const Vec16*>(states + ((state + at) * p.tiles + tile) * p.tile_floats);
  };
  const Vec16 *c = tile_of(p.c, border), *dc = tile_of(p.dc, sequence_borders - 1 - border);
  double sum[1] = {};
  for (int first = begin + int(threadIdx.x); first < end; first += kVecsInFlight * kFlowScanThreads) {
    Vec16 x[kVecsInFlight], y[kVecsInFlight];
#pragma unroll
    for (int j = 0; j < kVecsInFlight; ++j) {
      const int at = first + j * kFlowScanThreads;
      x[j] = c[at < end ? at : first], y[j] = dc[at < end ? at : first];
    }
#pragma unroll
    for (int j = 0; j < kVecsInFlight; ++j)
      if (first + j * kFlowScanThreads < end)
#pragma unroll
        for (int w = 0; w < 4; ++w) sum[0] += double(as_float(x[j].word[w])) * as_float(y[j].word[w]);
  }
  if (part == 0) {
    // The first chunk after the border.
    const int64_t next = h.row * p.where.slots + h.slot + int64_t(border + 1) * p.segment_chunks;
    for (int64_t d = threadIdx.x; d < p.dqk; d += kFlowScanThreads)
      sum[0] += double(p.chunk_n[next * p.dqk + d]) * p.chunk_dn[(next - 1) * p.dqk + d];
  }
  block_sums(sum, {buffer});
  if (threadIdx.x == 0) p.flows[(state + border) * parts + part] = sum[0];
}

// The effect of a run of chunks on what comes from later chunks. The run adds to it, or, where a value is known or m's
// gradient is stopped, replaces it. crossing: the flow across the border before a chunk. noise: the noise since the
// last known value. dm_after: the gradient of m from later chunks.
struct ChunkFlows {
  double crossing, noise, dm_after;
  int known, stops;

  XLSTM_DEVICE ChunkFlows then(const ChunkFlows& x) const {
    return {x.known ? x.crossing : crossing + x.crossing, x.known ? x.noise : noise + x.noise,
            x.stops ? x.dm_after : dm_after + x.dm_after, known | x.known, stops | x.stops};
  }
  XLSTM_DEVICE ChunkFlows of_lane(int lane) const {
    return {shuffle_from(crossing, lane, kWave), shuffle_from(noise, lane, kWave), shuffle_from(dm_after, lane, kWave),
            shuffle_from(known, lane, kWave), shuffle_from(stops, lane, kWave)};
  }
};
// The correction of the last known value.
struct Correction {
  double value;
  int known;

  // Element by element: a choice between structs is one between addresses, which puts them into scratch.
  XLSTM_DEVICE Correction then(const Correction& x) const { return {x.known ? x.value : value, known | x.known}; }
  XLSTM_DEVICE Correction of_lane(int lane) const {
    return {shuffle_from(value, lane, kWave), shuffle_from(known, lane, kWave)};
  }
};
constexpr int kFlowScanWaves = kFlowScanThreads / kWave;
// An exclusive scan over the threads' items, starting from `all`; a thread without an item passes T{}. Afterwards `all`
// includes all items. buffer: kFlowScanWaves items.
template <class T>
XLSTM_DEVICE T exclusive_scan(T item, T* buffer, T& all) {
  const int lane = lane_id(), wave = wave_id();
  for (int by = 1; by < kWave; by *= 2) {
    const T below = item.of_lane(lane - by >= 0 ? lane - by : lane);
    if (lane >= by) item = below.then(item);
  }
  const T below = item.of_lane(lane > 0 ? lane - 1 : lane);
  if (lane == kWave - 1) buffer[wave] = item;
  __syncthreads();
  T before = all;
  for (int w = 0; w < kFlowScanWaves; ++w) {
    if (w == wave) before = all;
    all = all.then(buffer[w]);
  }
  if (lane > 0) before = before.then(below);
  __syncthreads();
  return before;
}

// The scan of a head's chunks by one block: first from the last chunk to the first, for the flow across each border;
// then from the first to the last, for the corrections.
struct FlowScan {
  // <dC, C> + <dn, n> after the last chunk, and before the first; and the sums of the squares of their parts.
  struct Ends {
    double crossing, noise, before, noise_of_before;
  };
  struct Shared {
    double sums[4][kFlowScanThreads];
    ChunkFlows flows[kFlowScanWaves];
    Correction corrections[kFlowScanWaves];
  };

  int state, chunks;
  int64_t first;  // first chunk
  Shared& shared;

  XLSTM_DEVICE FlowScan(const FlowParams* p, Shared& block_memory) : shared(block_memory) {
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
    const int thread = threadIdx.x;
    if (p->state_dots) {
      const auto add = [&](double x) {
        e.crossing += x;
        e.noise += x * x;
      };
      const int64_t states = p->where.sequences * p->where.heads;
      for (int j = thread; j < p->state_tiles; j += kFlowScanThreads) add(global(p->state_dots)[j * states + state]);
      if (p->normalizer_grad)
        for (int64_t d = thread; d < p->dqk; d += kFlowScanThreads)
          add(double(global(p->dn_last)[state * p->dqk + d]) * global(p->chunk_n)[last() * p->dqk + d]);
    }
    if (p->dm_initial) {
      e.before = dot(p->dc_initial, p->c_initial, p->dqk * p->dhv) + dot(p->dn_initial, p->n_initial, p->dqk);
      e.noise_of_before = e.before * e.before;
    }
    double sums[] = {e.crossing, e.noise, e.before, e.noise_of_before};
    block_sums(sums, {shared.sums[0], shared.sums[1], shared.sums[2], shared.sums[3]});
    const double through = p->state_dots ? global(p->decay)[last()] : 0.0;
    return {sums[0] * through, sums[1] * through * through, sums[2], sums[3]};
  }

  // This thread's part of <dx, x> of a state.
  XLSTM_DEVICE double dot(const float* dx, const float* x, int64_t each) const {
    double sum = 0;
    for (int64_t j = threadIdx.x; j < each; j += kFlowScanThreads)
      sum += double(global(dx)[state * each + j]) * global(x)[state * each + j];
    return sum;
  }

  // From the last chunk to the first: crossing, and in noise_since_known the noise since the last known value. Where
  // the next value is known, `correction` becomes the difference from it for each unit of noise, elsewhere NaN. Returns
  // the gradient of m from before the first chunk.
  XLSTM_DEVICE double scan_back(const FlowParams* p, const Ends& e, double dm_after) const {
    ChunkFlows flows_so_far{e.crossing, e.noise, dm_after, 1, 1};
    for (int done = 0; done < chunks; done += kFlowScanThreads) {
      p = reload_params(p);
      const int chunk = chunks - 1 - done - int(threadIdx.x);
      const bool at_first = chunk == 0;
      const int64_t slot = first + chunk;
      ChunkFlows item{};
      // The flow into the chunk, and the value at the border before it where one is known.
      double into = 0, into_noise = 0;
      double known = at_first ? e.before : 0.0, known_noise = at_first ? e.noise_of_before : 0.0;
      bool has_known = false;
      if (chunk >= 0) {
        const bool nothing = !at_first && global(p->decay)[slot - 1] < kNegligible;
        const bool at_border = !nothing && begins_segment(p, chunk);
        const double leaves = at_first ? 0.0 : global(p->sums.entering)[slot - 1];
        const double leaves_noise = at_first ? 0.0 : global(p->sums.entering_noise)[slot - 1];
        into = global(p->sums.reaching)[slot], into_noise = global(p->sums.reaching_noise)[slot];
        if (at_border) {
          const int64_t border = int64_t(state) * (p->segments - 1) + chunk / p->segment_chunks - 1;
          const double* flows = global(p->border_flows) + border * (p->q_tiles * kBorderParts);
          for (int tile = 0; tile < p->q_tiles; ++tile, flows += kBorderParts) {
            double x[kBorderParts];  // whose loads are in flight together
#pragma unroll
            for (int part = 0; part < kBorderParts; ++part) x[part] = flows[part];
#pragma unroll
            for (int part = 0; part < kBorderParts; ++part) known += x[part], known_noise += x[part] * x[part];
          }
        } else {
          into -= leaves, into_noise += leaves_noise;
        }
        has_known = nothing || at_border || (at_first && (p->dm_initial || !p->has_initial));
        item.known = nothing || at_border;
        item.crossing = nothing ? 0.0 : at_border ? known - leaves : into;
        item.noise = nothing ? 0.0 : at_border ? known_noise + leaves_noise : into_noise;
        item.dm_after = global(p->sums.dm_before)[slot];
        item.stops = global(p->sums.stops)[slot];
      }
      const ChunkFlows scanned = exclusive_scan(item, shared.flows, flows_so_far);
      p = reload_params(p);
      if (chunk >= 0) {
        const double both = scanned.noise + into_noise + known_noise;
        global(p->sums.crossing)[slot] = scanned.crossing;
        global(p->sums.noise_since_known)[slot] = scanned.noise;
        global(p->sums.dm_after)[slot] = scanned.dm_after;
        global(p->sums.correction)[slot] =
            has_known ? (both > 0 ? (scanned.crossing + into - known) / both : 0.0) : NAN;
      }
    }
    __syncthreads();
    return flows_so_far.dm_after;
  }

  // From the first chunk to the last: each chunk gets the correction of the known value before it, for itself and for
  // its tokens (gate_gradients).
  XLSTM_DEVICE void correct(const FlowParams* p) const {
    Correction correction_so_far{0, 1};
    for (int done = 0; done < chunks; done += kFlowScanThreads) {
      p = reload_params(p);
      const int chunk = done + int(threadIdx.x);
      const int64_t slot = first + chunk;
      Correction item{};
      if (chunk < chunks) item.value = global(p->sums.correction)[slot], item.known = item.value == item.value;
      const Correction before = exclusive_scan(item, shared.corrections, correction_so_far),
                       scanned = before.then(item);
      p = reload_params(p);
      if (chunk >= chunks) continue;
      global(p->sums.crossing)[slot] -= scanned.value * global(p->sums.noise_since_known)[slot];
      global(p->sums.correction)[slot] = scanned.value;
      // The flows that enter in the chunk before lead to a known value; at a border between segments that is the
      // border's own.
      if (chunk > 0) {
        const bool at_border = begins_segment(p, chunk) && global(p->decay)[slot - 1] >= kNegligible;
        global(p->sums.correction_after)[slot - 1] = at_border ? before.value : scanned.value;
      }
      // The flow across the end of the last chunk does not consist of what enters there.
      if (chunk == chunks - 1) global(p->sums.correction_after)[slot] = 0;
    }
  }
};

template <int>
__global__ __launch_bounds__(kFlowScanThreads) void scan_gate_flows(XLSTM_PARAM FlowParams params) {
  __shared__ FlowScan::Shared shared;
  const FlowParams* p = reload_params(kernel_params(params));
  const FlowScan scan(p, shared);
  if (scan.chunks <= 0) return;
  const FlowScan::Ends ends = scan.ends(p);
  p = reload_params(p);
  const bool through_m = !p->sigmoid && p->normalizer_grad;
  double dm_after = 0;
  if (p->dm_last && through_m)
    dm_after = double(global(p->dm_last)[scan.state]) - (ends.crossing + global(p->sums.entering)[scan.last()]);
  dm_after = scan.scan_back(p, ends, dm_after);
  scan.correct(p);
  p = reload_params(p);
  if (p->dm_initial && threadIdx.x == 0)
    global(p->dm_initial)[scan.state] = p->normalizer_grad ? float(ends.before + (through_m ? dm_after : 0.0)) : 0.0f;
}

}  // namespace xlstm::gpu::mlstm
