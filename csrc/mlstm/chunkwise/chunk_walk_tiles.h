// SPDX-License-Identifier: Apache-2.0
// What a walk (chunk_walk.h) reads, chunk by chunk: where it lies in LDS, and how it comes there.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/gpu/sequences.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::mlstm {

// kWide: the state has more rows than fit, and the walk takes them a slice at a time (chunk_walk_wide.h).
template <class E, int kRows, int kChunk, bool kWide>
struct WalkChunks {
  static constexpr WalkShape kShape = walk_shape(kFamily, sizeof(E), kRows, kChunk);
  static constexpr int kY = kShape.y_tile, kThreads = kShape.threads;

  using StageA = Stage<E, kChunk, kRows, false, kThreads>;
  using StageX = Stage<E, kChunk, kRows, true, kThreads>;
  using StageY = Stage<E, kChunk, kY, true, kThreads>;
  using StageRows = Stage<E, kChunk, kY, false, kThreads>;  // of outputs
  using StageScores = Stage<E, kChunk, kChunk, false, kThreads>;
  using ScoresTurned = TransposedSubtile<E, kChunk, kThreads>;
  using StageFactors = Stage<float, 1, kFactors * kChunk, false, kThreads>;
  using StageVector = FloatStage<kY, kThreads>;
  static_assert(kFactors == kTokenFactors);

  // Where a chunk lies in LDS.
  struct Room {
    typename StageA::Storage a;
    typename StageX::Storage x;
    typename StageY::Storage y;
    typename StageScores::Storage scores;
    typename StageRows::Storage with;
    float *numbers, *out;

    XLSTM_DEVICE const float* factor(Factor which) const { return numbers + which * kChunk; }
    XLSTM_DEVICE float* vector() const { return numbers + kFactors * kChunk; }
  };

  // What is on its way there.
  struct Stages {
    StageA a;
    StageX x;
    StageY y;
    StageScores scores;
    ScoresTurned scores_turned;  // of a reverse walk, where LDS is not read transposed
    StageRows with, own;
    StageFactors factors;
    StageVector vector;
    float decay;
  };

  const WalkParams* p;
  Segment segment;
  int tile;
  char* lds;
  int first_row = 0;  // of the slice at hand

  XLSTM_DEVICE int slice_row() const { return kWide ? first_row : 0; }
  XLSTM_DEVICE Room room(int n) const {
    Room r;
    char* at = lds + n % kShape.buffers * kShape.buffer_bytes;
    const auto take = [&](auto& tile, int bytes) {
      tile.base = reinterpret_cast<E*>(at);
      at += bytes;
    };
    r.out = reinterpret_cast<float*>(at);
    take(r.a, kShape.a_x_take_turns ? 0 : kShape.a_bytes);
    take(r.x, kShape.x_bytes);
    take(r.scores, kShape.scores_bytes);
    at = reinterpret_cast<char*>(r.out) + kShape.out_room;
    take(r.y, kShape.y_bytes);
    take(r.with, kShape.with_bytes);
    r.numbers = reinterpret_cast<float*>(lds + kShape.buffers * kShape.buffer_bytes) + n % 2 * kShape.numbers;
    return r;
  }

  // Tokens of the state's rows.
  XLSTM_DEVICE TokenRows<E> slice_rows(const Tokens& x) const {
    TokenRows<E> t = rows<E>(x, segment);
    t.data += slice_row();
    t.columns -= slice_row();
    return t;
  }
  // Tokens of y's tile.
  XLSTM_DEVICE TokenRows<E> tile_rows(const Tokens& x) const {
    TokenRows<E> t = rows<E>(x, segment);
    t.data += tile * kY;
    t.columns -= tile * kY;
    return t;
  }
  XLSTM_DEVICE int chunk_at(int n) const { return p->reverse ? segment.last_chunk - 1 - n : segment.first_chunk + n; }
  XLSTM_DEVICE int64_t begin_of(int n) const { return segment.begin + int64_t(chunk_at(n)) * kChunk; }
  XLSTM_DEVICE int valid_of(int64_t t0) const { return int(segment.end - t0 < kChunk ? segment.end - t0 : kChunk); }

  XLSTM_DEVICE void fetch_a(Stages& s, int n) {
    const int64_t t0 = begin_of(n), slots = segment.in_slots(p->where, chunk_at(n));
    const Room r = room(n);
    if (p->out.data) s.a.fetch(r.a, slice_rows(p->a), t0, valid_of(t0));
    const int64_t slot = slots / kChunk;
    s.factors.fetch({r.numbers}, {global(p->factors) + slot * kFactors * kChunk, 0, kFactors * kChunk, true}, 0, 1);
  }
  XLSTM_DEVICE void fetch_rest(Stages& s, int n) {
    const int64_t t0 = begin_of(n), slots = segment.in_slots(p->where, chunk_at(n));
    const int valid = valid_of(t0);
    const Room r = room(n);
    s.x.fetch(r.x, slice_rows(p->x), t0, valid);
    s.y.fetch(r.y, tile_rows(p->y), t0, valid);
    s.decay = global(p->decay)[slots / kChunk];
    if (p->vector)
      s.vector.fetch(r.vector(), global(p->vector) + slots / kChunk * p->y.columns + tile * kY,
                     p->y.columns - tile * kY);
    if (!p->out.data) return;
    const E* scores = global(static_cast<const E*>(p->scores)) + slots * kChunk;
    if (!kAsyncCopies && p->reverse)
      s.scores_turned.fetch(scores);
    else
      s.scores.fetch(r.scores, {scores, kChunk, kChunk, true}, 0, kChunk);
  }
  // What the outputs are multiplied with. In registers it comes late, when x and y have left theirs.
  XLSTM_DEVICE void fetch_outputs(Stages& s, int n) {
    const int64_t t0 = begin_of(n);
    const Room r = room(n);
    if (p->with.data) s.with.fetch(r.with, tile_rows(p->with), t0, valid_of(t0));
    if constexpr (!kAsyncCopies)
      if (p->with_self) s.own.fetch(r.with, tile_rows(p->y), t0, valid_of(t0));
  }
};

}  // namespace xlstm::gpu::mlstm
