// SPDX-License-Identifier: Apache-2.0
// What is small beside the walks: the vectors n and dn before each chunk, the normaliser of every token, and the states
// between segments.
#pragma once

#include "mlstm/sequences_gpu.h"
#include "mlstm/walk_shape.h"

namespace xlstm::gpu {

constexpr int kVectorThreads = 128;

// In place: what each chunk adds becomes the vector before the chunk, in the walk's direction. Latency binds, so many
// chunks are read at a time.
template <int>
__global__ __launch_bounds__(kVectorThreads) void scan_vectors(const VectorParams p) {
  const int pieces = (p.columns + kVectorThreads - 1) / kVectorThreads;
  const Head h = head_of(p.where, blockIdx.x / pieces);
  const int column = blockIdx.x % pieces * kVectorThreads + threadIdx.x;
  if (column >= p.columns || h.begin >= h.end) return;
  const int64_t chunks = (h.end - h.begin + p.where.chunk - 1) / p.where.chunk;
  const int64_t first = h.row * p.where.slots + h.slot;
  const int64_t state = h.state * p.columns + column;
  float now = p.initial ? p.initial[state] : 0.0f;
  constexpr int kAhead = 32;
  for (int64_t n0 = 0; n0 < chunks; n0 += kAhead) {
    float added[kAhead], decay[kAhead];
    int64_t slot[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      slot[j] = first + (p.reverse ? chunks - 1 - (n0 + j) : n0 + j);
      if (n0 + j < chunks) {
        added[j] = p.vectors[slot[j] * p.columns + column];
        decay[j] = p.decay[slot[j]];
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j)
      if (n0 + j < chunks) {
        p.vectors[slot[j] * p.columns + column] = now;
        now = decay[j] * now + added[j];
      }
  }
  if (p.last) p.last[state] = now;
}

constexpr int kNormaliserThreads = 256;

// l = s q n + row sums of the scores, and 1 / N. Half of a wave has a token.
template <class E>
__global__ __launch_bounds__(kNormaliserThreads) void normalisers(const NormaliserParams p) {
  constexpr int n = kPieceElements<E>, kLanes = 16;
  Head h;
  int64_t chunk;
  if (!head_at(p.where, blockIdx.x / p.where.slots, blockIdx.x % p.where.slots, h, chunk)) return;
  const int64_t t0 = h.begin + chunk * p.where.chunk, slots = h.in_slots(p.where, chunk);
  const TokenRows<E> q = rows<E>(p.q, h);
  const float* vector = p.n + slots / p.where.chunk * p.q.columns;
  for (int t = threadIdx.x / kLanes; t < p.where.chunk; t += kNormaliserThreads / kLanes) {
    const bool inside = t0 + t < h.end;
    float dot = 0;
    for (int c = threadIdx.x % kLanes * n; c < p.q.columns; c += kLanes * n) {
      const Piece x = q.piece(t0 + t, c, inside);
#pragma unroll
      for (int j = 0; j < n; ++j)
        if (c + j < p.q.columns) dot += element<E>(x, j) * vector[c + j];
    }
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
    if (threadIdx.x % kLanes != 0) continue;
    if (!inside) {
      p.gain[slots + t] = 0;
      continue;
    }
    const float l = p.inter[slots + t] * dot + p.row_sums[slots + t];
    p.gain[slots + t] = float(1 / normaliser(p.normalize, l, p.m[slots + t], p.eps));
    if (p.l) p.l[h.row * p.where.length + t0 + t] = l;
  }
}

// `between` holds what each segment alone adds to the state; afterwards the state after each segment.
template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kRows, kChunk).threads) void scan_segments(const ScanParams p) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk)) {
    constexpr WalkShape kShape = walk_shape(kFamily, sizeof(E), kRows, kChunk);
    constexpr int kYStrips = kColumnsPerWave / kStripColumns, kStripRegisters = Strip<E>::kRegisters;
    constexpr int kRegisters = kShape.x_per_wave / kStep<E> * kYStrips * kStripRegisters;
    // One accumulator register of every thread of one tile.
    const int r = blockIdx.x % kRegisters, tile = blockIdx.x / kRegisters % p.tiles;
    const int64_t state = blockIdx.x / kRegisters / p.tiles;
    const int wave = wave_id(), wave_x = wave % kShape.waves_x, wave_y = wave / kShape.waves_x;
    const int strip = r / kStripRegisters;
    const StripPosition at = Strip<E>::position(r % kStripRegisters);
    const int x = wave_x * kShape.x_per_wave + strip / kYStrips * kStep<E> + at.row;
    const int y = tile * kShape.y_tile + wave_y * kColumnsPerWave + strip % kYStrips * kStripColumns + at.column;
    float now = 0;
    if (p.state_in && x < p.x_columns && y < p.y_columns)
      now = p.state_in[state * int64_t(p.x_columns) * p.y_columns + x * p.state_x + y * p.state_y];
    for (int order = 0; order + 1 < p.segments; ++order) {
      const Segment g = segment_of(p.where, state, order, p.segment_chunks, p.reverse);
      if (g.empty || g.last) return;
      float decay = 1;
      for (int64_t chunk = g.first_chunk; chunk < g.last_chunk; ++chunk)
        decay *= p.decay[g.in_slots(p.where, chunk) / p.where.chunk];
      float* after = p.between + ((state * (p.segments - 1) + order) * p.tiles + tile) * int64_t(kRegisters * kShape.threads) +
                     r * kShape.threads + threadIdx.x;
      *after = now = decay * now + *after;
    }
  }
}

}  // namespace xlstm::gpu
