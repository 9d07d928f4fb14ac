// SPDX-License-Identifier: Apache-2.0
// The small kernels around the walks: scans of the vectors n and dn over chunks, the normaliser of every token, and the
// scan of the states over segments.
#pragma once

#include "arch/memory_range.h"
#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

constexpr int kVectorColumns = 32, kVectorThreads = 256;
constexpr int vector_lds_bytes(int threads) { return 2 * threads * 4; }

// In-place scan over chunks: what each chunk adds is replaced by the vector before the chunk, in the walk's direction.
// Latency binds: groups of threads have a span of chunks each, reduce their span, and process it a second time. A block
// has kVectorColumns columns of one head.
template <int kThreads>
XLSTM_DEVICE void scan_vector_over_chunks(const VectorParams& p, uint32_t block, char* lds) {
  constexpr int kSpans = kThreads / kVectorColumns;
  float *sums = reinterpret_cast<float*>(lds), *decays = sums + kThreads;
  const uint32_t column_blocks = uint32_t(p.columns + kVectorColumns - 1) / kVectorColumns;
  const Head h = head_of(p.where, block / column_blocks);
  const int lane = threadIdx.x % kVectorColumns, span = threadIdx.x / kVectorColumns;
  const int column = int(block % column_blocks) * kVectorColumns + lane;
  const bool inside = column < p.columns;
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int64_t each = (chunks + kSpans - 1) / kSpans, begin = span * each;
  const int64_t end = begin + each < chunks ? begin + each : chunks;
  const int64_t first = h.row * p.where.slots + h.slot;

  // Calls f(slot, what the chunk adds, its decay) in order; kAhead chunks are loaded at a time.
  const auto each_chunk = [&](auto&& f) {
    constexpr int kAhead = 8;
    for (int64_t n0 = begin; n0 < end; n0 += kAhead) {
      float added[kAhead], decay[kAhead];
      int64_t slot[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        slot[j] = first + (p.reverse ? chunks - 1 - (n0 + j) : n0 + j);
        const bool exists = n0 + j < end;
        added[j] = exists && inside ? p.vectors[slot[j] * p.columns + column] : 0.0f;
        decay[j] = exists ? p.decay[slot[j]] : 1.0f;
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (n0 + j < end) f(slot[j], added[j], decay[j]);
    }
  };
  float sum = 0, total_decay = 1;
  each_chunk([&](int64_t, float added, float decay) {
    sum = decayed(p.where, sum, decay) + added;
    total_decay = then_decay(p.where, total_decay, decay);
  });
  sums[threadIdx.x] = sum;
  decays[threadIdx.x] = total_decay;
  __syncthreads();
  const int64_t state = int64_t(h.state) * p.columns + column;
  float now = p.initial && inside ? p.initial[state] : 0.0f;
  for (int j = 0; j < span; ++j)
    now = decayed(p.where, now, decays[j * kVectorColumns + lane]) + sums[j * kVectorColumns + lane];
  each_chunk([&](int64_t slot, float added, float decay) {
    if (inside) p.vectors[slot * p.columns + column] = now;
    now = decayed(p.where, now, decay) + added;
  });
  if (p.last && inside && span == kSpans - 1) p.last[state] = now;
}

inline int64_t vector_blocks(const VectorParams& p) {
  return p.where.sequences * p.where.heads * ((p.columns + kVectorColumns - 1) / kVectorColumns);
}
struct VectorsParams {
  VectorParams vectors[2];
  uint32_t blocks_of_first;
};
template <int>
__global__ __launch_bounds__(kVectorThreads) void scan_normaliser_states(const VectorsParams p) {
  __shared__ __align__(16) char lds[vector_lds_bytes(kVectorThreads)];
  const bool second = blockIdx.x >= p.blocks_of_first;
  scan_vector_over_chunks<kVectorThreads>(p.vectors[second], blockIdx.x - (second ? p.blocks_of_first : 0), lds);
}

constexpr int kNormaliserThreads = 256;

// l = s q n + row sums of the scores, and 1 / N. A block has one chunk; sixteen lanes have every sixteenth token of it,
// so that a vector of n is read once for all of them.
template <class E, int kThreads>
XLSTM_DEVICE void make_normalisers(const NormaliserParams& p, uint32_t block) {
  constexpr int n = kVec16Elements<E>, kLanes = 16, kGroups = kThreads / kLanes;
  constexpr int kTokens = kMaxChunk / kGroups;  // tokens of a lane group, at most
  Head h;
  int64_t chunk;
  if (!head_at(p.where, block, h, chunk)) return;
  const Chunk c(p.where, h, chunk);
  const int lane = threadIdx.x % kLanes, first = threadIdx.x / kLanes, columns = p.q.columns;
  const TokenRows<E> q = rows<E>(p.q, h);
  const float* vector = p.n + c.slot * columns;
  float dot[kTokens] = {};
  for (int column = lane * n; column < columns; column += kLanes * n) {
    float n_values[n];
#pragma unroll
    for (int j = 0; j < n; ++j) n_values[j] = column + j < columns ? vector[column + j] : 0.0f;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      if (i * kGroups >= p.where.chunk) break;
      const int t = first + i * kGroups;
      const Vec16 x = q.vec16(c.t0 + t, column, t < c.valid);
#pragma unroll
      for (int j = 0; j < n; ++j) dot[i] += element<E>(x, j) * n_values[j];
    }
  }
  float lane_dot = 0;  // dot of the token that this lane writes
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (i * kGroups >= p.where.chunk) break;
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) dot[i] += shuffle_xor(dot[i], mask);
    if (lane == i) lane_dot = dot[i];
  }
  const int t = first + lane * kGroups;
  if (t >= p.where.chunk) return;
  float& inverse_n = p.factors[factor_at(c.slot, kInverseN, t, p.where.chunk)];
  if (t >= c.valid) {
    inverse_n = 0;
    return;
  }
  const int64_t at = c.slot * p.where.chunk + t;
  const float l = p.factors[factor_at(c.slot, kInter, t, p.where.chunk)] * lane_dot + p.row_sums[at];
  inverse_n = float(1 / normaliser(p.normalize, l, p.m[at], p.eps));
  if (p.l) p.l[h.row * p.where.length + c.t0 + t] = l;
}

template <class E>
__global__ __launch_bounds__(kNormaliserThreads) void normalisers(const NormaliserParams p) {
  make_normalisers<E, kNormaliserThreads>(p, blockIdx.x);
}

// The layout of a walk's state: which element is the rth accumulator of this thread, or of another one, in a block of
// the walk's shape.
template <class E, int kClass, int kChunk>
struct WalkStateLayout {
  static constexpr WalkShape kShape = walk_shape(kFamily, sizeof(E), kClass, kChunk);
  static constexpr int kSliceRows = class_rows(kClass), kThreads = kShape.threads;
  static constexpr int kRegisters = kSliceRows * kShape.y_tile / kThreads;

  XLSTM_DEVICE static StripPosition position(int r, int tile) { return position(r, tile, wave_id(), lane_id()); }
  XLSTM_DEVICE static StripPosition position_of(int thread, int r, int tile) {
    return position(r, tile, thread / kWave, thread % kWave);
  }

 private:
  XLSTM_DEVICE static StripPosition position(int r, int tile, int wave, int lane) {
    constexpr int kYStrips = kColumnsPerWave / kStripColumns;
    const int wave_x = wave % kShape.waves_x, wave_y = wave / kShape.waves_x;
    const int strip = r / Strip<E>::kRegisters;
    const StripPosition at = strip_position(kFamily, sizeof(E), lane, r % Strip<E>::kRegisters);
    return {wave_x * kShape.x_per_wave + strip / kYStrips * kStep<E> + at.row,
            tile * kShape.y_tile + wave_y * kColumnsPerWave + strip % kYStrips * kStripColumns + at.column};
  }
};

constexpr int kAhead = 8;        // segments that are loaded at a time
constexpr int kScannedEach = 4;  // accumulators that a thread scans, a vector of them

// The chunks of a sequence, and its segments without the last one, whose final state no segment reads.
struct ScannedSegments {
  Head head;
  int chunks, count;

  XLSTM_DEVICE ScannedSegments(const ScanParams& p, int64_t state)
      : head(head_of(p.where, state)),
        chunks(int((head.end - head.begin + p.where.chunk - 1) / p.where.chunk)),
        count((chunks + p.segment_chunks - 1) / p.segment_chunks - 1) {}
};

// Computes each segment's decay, the product of its chunks' decays. Latency binds: sixteen segments at a time, each by
// a group of lanes.
template <int kThreads>
XLSTM_DEVICE void compute_segment_decays(const ScanParams& p, const ScannedSegments& all, float* decays) {
  constexpr int kTogether = 16, kLanes = kThreads / kTogether;
  static_assert(kLanes <= kWave);
  const float* const of_chunks = p.decay + all.head.slot_of(p.where, 0);
  const int lane = int(threadIdx.x) % kLanes;
  for (int first = 0; first < all.count; first += kTogether) {
    const int order = first + int(threadIdx.x) / kLanes;
    const int begin = (p.reverse ? all.count - order : order) * p.segment_chunks;
    const int end = begin + p.segment_chunks < all.chunks ? begin + p.segment_chunks : all.chunks;
    float decay = 1;
    if (order < all.count)
      for (int chunk = begin + lane; chunk < end; chunk += kLanes) decay = then_decay(p.where, decay, of_chunks[chunk]);
    for (int mask = kLanes / 2; mask > 0; mask /= 2)
      decay = then_decay(p.where, decay, shuffle_from(decay, lane ^ mask, kLanes));
    if (lane == 0 && order < all.count) decays[order] = decay;
  }
  __syncthreads();
}

// segment_states holds what each segment adds to the state; afterwards it holds the state after each segment. A block
// has kScannedEach accumulators of every thread of one tile: a vector of them for each of its own threads. Loads
// check bounds, so that no branch waits for them. Small states have few waves: their first loads are under way while
// decays are made.
template <class State>
XLSTM_DEVICE void scan_tile_over_segments(const ScanParams& p, uint32_t block) {
  constexpr int kThreads = State::kThreads, kRegisters = State::kRegisters, kParts = kRegisters / kScannedEach;
  static_assert(kRegisters % kScannedEach == 0 && kScannedEach == sizeof(Vec16) / sizeof(float));
  constexpr bool kLoadsFirst = kRegisters <= 32;
  __shared__ float decays[kMaxSegments];
  const uint32_t first = block % kParts * kScannedEach, tile = block / kParts % uint32_t(p.tiles);
  const uint32_t state = block / kParts / uint32_t(p.tiles), thread = threadIdx.x;
  const ScannedSegments all(p, state);
  const auto after = [&](int order) {
    const int64_t at = (int64_t(state) * (p.segments - 1) + order) * p.tiles + tile;
    const float* const from = p.segment_states + at * (kRegisters * kThreads) + first * kThreads;
    return MemoryRange{reinterpret_cast<const char*>(from), order < all.count ? kThreads * uint32_t(sizeof(Vec16)) : 0};
  };
  Vec16 added[kAhead];
  const auto load = [&](int order) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) added[j] = load_vec16(after(order + j), thread * uint32_t(sizeof(Vec16)));
  };
  if (kLoadsFirst) load(0);
  load_barrier();
  compute_segment_decays<kThreads>(p, all, decays);
  float now[kScannedEach] = {};
  if (p.state_in) {
#pragma unroll
    for (int i = 0; i < kScannedEach; ++i) {
      const int at = int(thread) * kScannedEach + i, owner = at % kThreads;
      const auto [x, y] = State::position_of(owner, int(first) + at / kThreads, int(tile));
      if (x < p.x_columns && y < p.y_columns)
        now[i] = p.state_in[int64_t(state) * p.x_columns * p.y_columns + x * p.state_x + y * p.state_y];
    }
  }
  for (int order = 0; order < all.count; order += kAhead) {
    if (!kLoadsFirst || order > 0) load(order);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (order + j >= all.count) break;
      Vec16 sum;
#pragma unroll
      for (int i = 0; i < kScannedEach; ++i) {
        now[i] = decayed(p.where, now[i], decays[order + j]) + as_float(added[j].word[i]);
        sum.word[i] = __builtin_bit_cast(uint32_t, now[i]);
      }
      store_vec16(after(order + j), thread * uint32_t(sizeof(Vec16)), sum);
    }
  }
}

// The same scan for a vector of x's columns, stored as (N NH, segments - 1, stride). initial: as state_in, or null. A
// block has one head of one sequence.
template <int kThreads>
XLSTM_DEVICE void scan_vector_over_segments(const ScanParams& p, int64_t state, float* segment_vectors,
                                            const float* initial, int stride) {
  __shared__ float decays[kMaxSegments];
  const ScannedSegments all(p, state);
  compute_segment_decays<kThreads>(p, all, decays);
  for (int x = threadIdx.x; x < p.x_columns; x += kThreads) {
    float now = initial ? initial[state * p.x_columns + x] : 0.0f;
    float* const after = segment_vectors + state * (p.segments - 1) * stride + x;
    for (int order = 0; order < all.count; ++order)
      after[order * stride] = now = decayed(p.where, now, decays[order]) + after[order * stride];
  }
}

template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kRows, kChunk).threads) void scan_segment_states(
    const SegmentScanParams p) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk)) {
    using State = WalkStateLayout<E, kRows, kChunk>;
    uint32_t block = blockIdx.x;
    if (block >= p.scan_blocks[0] + p.scan_blocks[1])
      return make_normalisers<E, State::kThreads>(p.normaliser, block - p.scan_blocks[0] - p.scan_blocks[1]);
    const bool second = block >= p.scan_blocks[0];
    scan_tile_over_segments<State>(p.scans[second], block - (second ? p.scan_blocks[0] : 0));
  }
}

// <dc_last, state before the last chunk> of one slice of one tile.
template <class State>
XLSTM_DEVICE void dot_tile(const StateDotParams& p) {
  constexpr int kThreads = State::kThreads, kRegisters = State::kRegisters;
  __shared__ float sums[kThreads / kWave];
  const int parts = p.tiles * p.slices, part = blockIdx.x % parts;
  const int64_t state = blockIdx.x / parts;
  const float* from = p.state_before_last + (state * parts + part) * (kRegisters * kThreads) + threadIdx.x;
  const float* dc = p.dc_last + state * int64_t(p.x_columns) * p.y_columns;
  float sum = 0;
  for (int r = 0; r < kRegisters; ++r) {
    auto [x, y] = State::position(r, part / p.slices);
    x += part % p.slices * State::kSliceRows;
    if (x < p.x_columns && y < p.y_columns) sum += dc[x * p.state_x + y * p.state_y] * from[r * kThreads];
  }
  for (int mask = kWave / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
  if (lane_id() == 0) sums[wave_id()] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWave; ++w) sum += sums[w];
  p.dots[part * p.states + state] = sum;
}

template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kRows, kChunk).threads) void dot_last_states(
    const StateDotParams p) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk)) dot_tile<WalkStateLayout<E, kRows, kChunk>>(p);
}

}  // namespace xlstm::gpu::mlstm
