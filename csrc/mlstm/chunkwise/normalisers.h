// SPDX-License-Identifier: Apache-2.0
// What is small beside the walks: the vectors n and dn before each chunk, the normaliser of every token, and the states
// between segments.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr int kVectorColumns = 32, kVectorSpans = 8, kVectorThreads = kVectorColumns * kVectorSpans;

// In place: what each chunk adds becomes the vector before the chunk, in the walk's direction. Latency binds: eight
// groups of threads have a span of chunks each, find out what their span does, and go over it again.
template <int>
__global__ __launch_bounds__(kVectorThreads) void scan_vectors(const VectorParams p) {
  __shared__ float sums[kVectorThreads], decays[kVectorThreads];
  const int pieces = (p.columns + kVectorColumns - 1) / kVectorColumns;
  const Head h = head_of(p.where, blockIdx.x / pieces);
  const int lane = threadIdx.x % kVectorColumns, span = threadIdx.x / kVectorColumns;
  const int column = blockIdx.x % pieces * kVectorColumns + lane;
  const bool inside = column < p.columns;
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int64_t each = (chunks + kVectorSpans - 1) / kVectorSpans, begin = span * each;
  const int64_t end = begin + each < chunks ? begin + each : chunks;
  const int64_t first = h.row * p.where.slots + h.slot;

  // f(slot, what it adds, its decay), in order; several chunks are read at a time.
  const auto go = [&](auto&& f) {
    constexpr int kAhead = 8;
    for (int64_t n0 = begin; n0 < end; n0 += kAhead) {
      float added[kAhead], decay[kAhead];
      int64_t slot[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        slot[j] = first + (p.reverse ? chunks - 1 - (n0 + j) : n0 + j);
        const bool there = n0 + j < end;
        added[j] = there && inside ? p.vectors[slot[j] * p.columns + column] : 0.0f;
        decay[j] = there ? p.decay[slot[j]] : 1.0f;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (n0 + j < end) f(slot[j], added[j], decay[j]);
    }
  };
  float sum = 0, whole = 1;
  go([&](int64_t, float added, float decay) {
    sum = decay * sum + added;
    whole *= decay;
  });
  sums[threadIdx.x] = sum;
  decays[threadIdx.x] = whole;
  __syncthreads();
  const int64_t state = int64_t(h.state) * p.columns + column;
  float now = p.initial && inside ? p.initial[state] : 0.0f;
  for (int j = 0; j < span; ++j) now = decays[j * kVectorColumns + lane] * now + sums[j * kVectorColumns + lane];
  go([&](int64_t slot, float added, float decay) {
    if (inside) p.vectors[slot * p.columns + column] = now;
    now = decay * now + added;
  });
  if (p.last && inside && span == kVectorSpans - 1) p.last[state] = now;
}

constexpr int kNormaliserThreads = 256;

// l = s q n + row sums of the scores, and 1 / N. A block has a chunk, sixteen lanes every sixteenth token of it: a
// piece of n is read once for all of them.
template <class E>
__global__ __launch_bounds__(kNormaliserThreads) void normalisers(const NormaliserParams p) {
  constexpr int n = kVec16Elements<E>, kLanes = 16, kGroups = kNormaliserThreads / kLanes;
  constexpr int kTokens = kMostChunk / kGroups;  // of a group, at most
  Head h;
  int64_t chunk;
  if (!head_at(p.where, blockIdx.x / p.where.slots, blockIdx.x % p.where.slots, h, chunk)) return;
  const Chunk c(p.where, h, chunk);
  const int lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes, columns = p.q.columns;
  const TokenRows<E> q = rows<E>(p.q, h);
  const float* vector = p.n + c.slot * columns;
  float dot[kTokens] = {};
  for (int column = lane * n; column < columns; column += kLanes * n) {
    float of_n[n];
#pragma unroll
    for (int j = 0; j < n; ++j) of_n[j] = column + j < columns ? vector[column + j] : 0.0f;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (i * kGroups >= p.where.chunk) break;
      const int t = first + i * kGroups;
      const Vec16 x = q.piece(c.t0 + t, column, t < c.valid);
#pragma unroll
      for (int j = 0; j < n; ++j) dot[i] += element<E>(x, j) * of_n[j];
    }
  }
  float mine = 0;  // of the token that this lane finishes
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (i * kGroups >= p.where.chunk) break;
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) dot[i] += shuffle_xor(dot[i], mask);
    if (lane == i) mine = dot[i];
  }
  const int t = first + lane * kGroups;
  if (t >= p.where.chunk) return;
  float& gain = p.factors[factor_at(c.slot, kGain, t, p.where.chunk)];
  if (t >= c.valid) {
    gain = 0;
    return;
  }
  const int64_t at = c.slot * p.where.chunk + t;
  const float l = p.factors[factor_at(c.slot, kInter, t, p.where.chunk)] * mine + p.row_sums[at];
  gain = float(1 / normaliser(p.normalize, l, p.m[at], p.eps));
  if (p.l) p.l[h.row * p.where.length + c.t0 + t] = l;
}

// Where a walk keeps its state: which element is the rth accumulator of this thread, in a block that has the walk's
// shape.
template <class E, int kRows, int kChunk>
struct WalkState {
  static constexpr WalkShape kShape = walk_shape(kFamily, sizeof(E), kRows, kChunk);
  static constexpr int kThreads = kShape.threads, kRegisters = kRows * kShape.y_tile / kThreads, kSliceRows = kRows;

  XLSTM_DEVICE static StripPosition position(int r, int tile) {
    constexpr int kYStrips = kColumnsPerWave / kStripColumns;
    const int wave_x = wave_id() % kShape.waves_x, wave_y = wave_id() / kShape.waves_x;
    const int strip = r / Strip<E>::kRegisters;
    const StripPosition at = Strip<E>::position(r % Strip<E>::kRegisters);
    return {wave_x * kShape.x_per_wave + strip / kYStrips * kStep<E> + at.row,
            tile * kShape.y_tile + wave_y * kColumnsPerWave + strip % kYStrips * kStripColumns + at.column};
  }
};

constexpr int kAhead = 4;        // segments that are read at a time
constexpr int kScannedEach = 4;  // accumulators of a thread, all on their way together

// Each segment's decay, the product of its chunks', by one wave; how many there are beside the last, whose state is
// nobody's.
template <int kThreads>
XLSTM_DEVICE int decays_of_segments(const ScanParams& p, int64_t state, float* decays) {
  const Segment whole = segment_of(p.where, state, 0, p.segment_chunks, p.reverse);
  const int64_t chunks = (whole.end - whole.begin + p.where.chunk - 1) / p.where.chunk;
  const int count = int((chunks + p.segment_chunks - 1) / p.segment_chunks) - 1;
  for (int order = wave_id(); order < count; order += kThreads / kWave) {
    const Segment g = segment_of(p.where, state, order, p.segment_chunks, p.reverse);
    const int64_t slot = g.in_slots(p.where, g.first_chunk) / p.where.chunk;
    float decay = 1;
    for (int64_t j = lane_id(); j < g.last_chunk - g.first_chunk; j += kWave) decay *= p.decay[slot + j];
    for (int mask = kWave / 2; mask > 0; mask /= 2) decay *= shuffle_xor(decay, mask);
    if (lane_id() == 0) decays[order] = decay;
  }
  __syncthreads();
  return count;
}

// `between` holds what each segment alone adds to the state; afterwards the state after each segment. A block has a few
// accumulators of every thread of one tile.
template <class State>
XLSTM_DEVICE void scan_between(const ScanParams& p) {
  constexpr int kThreads = State::kThreads, kRegisters = State::kRegisters, kParts = kRegisters / kScannedEach;
  static_assert(kRegisters % kScannedEach == 0);
  const int first = blockIdx.x % kParts * kScannedEach, tile = blockIdx.x / kParts % p.tiles;
  const int64_t state = blockIdx.x / kParts / p.tiles;
  __shared__ float decays[kMostSegments];
  const int count = decays_of_segments<kThreads>(p, state, decays);
  const int64_t stride = int64_t(p.tiles) * kRegisters * kThreads;
  float* const after = p.between + (state * (p.segments - 1) * p.tiles + tile) * int64_t(kRegisters * kThreads) +
                       first * kThreads + threadIdx.x;
  float now[kScannedEach];
#pragma unroll
  for (int i = 0; i < kScannedEach; ++i) {
    const auto [x, y] = State::position(first + i, tile);
    const bool inside = p.state_in && x < p.x_columns && y < p.y_columns;
    now[i] = inside ? p.state_in[state * int64_t(p.x_columns) * p.y_columns + x * p.state_x + y * p.state_y] : 0.0f;
  }
  for (int order = 0; order < count; order += kAhead) {
    float added[kAhead][kScannedEach];
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
#pragma unroll
      for (int i = 0; i < kScannedEach; ++i)
        added[j][i] = order + j < count ? after[(order + j) * stride + i * kThreads] : 0.0f;
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
#pragma unroll
      for (int i = 0; i < kScannedEach; ++i)
        if (order + j < count)
          after[(order + j) * stride + i * kThreads] = now[i] = decays[order + j] * now[i] + added[j][i];
  }
}

// The same of a vector of x's columns, (N NH, segments - 1, room); initial as state_in, or null. A block has one
// state's.
template <int kThreads>
XLSTM_DEVICE void scan_vector_between(const ScanParams& p, int64_t state, float* between, const float* initial,
                                      int room) {
  __shared__ float decays[kMostSegments];
  const int count = decays_of_segments<kThreads>(p, state, decays);
  for (int x = threadIdx.x; x < p.x_columns; x += kThreads) {
    float now = initial ? initial[state * p.x_columns + x] : 0.0f;
    float* const after = between + state * (p.segments - 1) * room + x;
    for (int order = 0; order < count; ++order) after[order * room] = now = decays[order] * now + after[order * room];
  }
}

template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kRows, kChunk).threads) void scan_segments(
    const ScanParams p) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk)) scan_between<WalkState<E, kRows, kChunk>>(p);
}

// <dc_last, state before the last chunk> of one slice of one tile.
template <class State>
XLSTM_DEVICE void dot_tile(const StateDotParams& p) {
  constexpr int kThreads = State::kThreads, kRegisters = State::kRegisters;
  __shared__ float sums[kThreads / kWave];
  const int parts = p.tiles * p.slices, part = blockIdx.x % parts;
  const int64_t state = blockIdx.x / parts;
  const float* from = p.before_last + (state * parts + part) * (kRegisters * kThreads) + threadIdx.x;
  const float* with = p.dc_last + state * int64_t(p.x_columns) * p.y_columns;
  float sum = 0;
  for (int r = 0; r < kRegisters; ++r) {
    auto [x, y] = State::position(r, part / p.slices);
    x += part % p.slices * State::kSliceRows;
    if (x < p.x_columns && y < p.y_columns) sum += with[x * p.state_x + y * p.state_y] * from[r * kThreads];
  }
  for (int mask = kWave / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane_id() == 0) sums[wave_id()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWave; ++w) sum += sums[w];
  p.dots[part * p.states + state] = sum;
}

template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kRows, kChunk).threads) void dot_states(
    const StateDotParams p) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk)) dot_tile<WalkState<E, kRows, kChunk>>(p);
}

}  // namespace xlstm::gpu::mlstm
