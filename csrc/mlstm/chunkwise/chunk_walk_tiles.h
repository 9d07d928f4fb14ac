// SPDX-License-Identifier: Apache-2.0
// The operands of a walk (chunk_walk.h), chunk by chunk: their layout in LDS, and how they are loaded.
#pragma once

#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/chunkwise/walk_outputs.h"
#include "mlstm/gpu/sequences.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::mlstm {

// kWide: the state has more rows than registers hold, and the walk processes it in slices (chunk_walk_wide.h).
template <class E, int kClass, int kChunk, class Output, bool kWide>
struct WalkOperands {
  static constexpr WalkTerms kTerms = Output::kTerms;
  static constexpr WalkShape kShape = walk_shape(kFamily, sizeof(E), kClass, kChunk);
  static constexpr int kRows = class_rows(kClass), kY = kShape.y_tile, kThreads = kShape.threads;

  using StageA = Stage<E, kChunk, kRows, false, kThreads>;
  using StageX = Stage<E, kChunk, kRows, true, kThreads>;
  using StageY = Stage<E, kChunk, kY, true, kThreads>;
  using StageRows = Stage<E, kChunk, kY, false, kThreads>;  // of outputs
  using StageScores = Stage<E, kChunk, kChunk, false, kThreads>;
  using StageTransposedScores = TransposedSubtile<E, kChunk, kThreads>;
  using StageFactors = Stage<float, 1, kFactors * kChunk, false, kThreads>;
  using StageVector = FloatStage<kY, kThreads>;
  static_assert(kFactors == kTokenFactors);

  // The tiles of one chunk in LDS.
  struct ChunkTiles {
    typename StageA::Storage a;
    typename StageX::Storage x;
    typename StageY::Storage y;
    typename StageScores::Storage scores;
    typename StageRows::Storage dot_with;
    float *factors, *out;

    XLSTM_DEVICE const float* factor(Factor which) const { return factors + which * kChunk; }
    XLSTM_DEVICE float* vector() const { return factors + kFactors * kChunk; }
  };

  // Loads in flight: registers on AMD, asynchronous copies on NVIDIA.
  struct Stages {
    StageA a;
    StageX x;
    StageY y;
    StageScores scores;
    StageTransposedScores transposed_scores;  // for a reverse walk, where LDS is not read transposed
    StageRows dot_with, diagonal_y;
    StageFactors factors;
    StageVector vector;
    float decay;
  };

  const WalkParams* p;
  Segment segment;
  int tile;
  char* lds;
  int first_row = 0;  // of the current slice

  XLSTM_DEVICE int slice_row() const { return kWide ? first_row : 0; }
  XLSTM_DEVICE ChunkTiles chunk_tiles(int n) const {
    ChunkTiles tiles;
    char* at = lds + n % kShape.buffers * kShape.buffer_bytes;
    const auto take = [&](auto& tile, int bytes) {
      tile.base = reinterpret_cast<E*>(at);
      at += bytes;
    };
    char* const buffer = at;
    take(tiles.a, kShape.a_x_share_buffer ? 0 : kShape.a_bytes);
    take(tiles.x, kShape.x_bytes);
    at = buffer + kShape.scores_begin;
    take(tiles.scores, kShape.scores_bytes);
    at = buffer + kShape.y_begin;
    take(tiles.y, kShape.y_bytes);
    take(tiles.dot_with, kShape.with_bytes);
    tiles.out = reinterpret_cast<float*>(buffer + kShape.out_begin);
    tiles.factors = reinterpret_cast<float*>(lds + kShape.buffers * kShape.buffer_bytes) + n % 2 * kShape.factor_floats;
    return tiles;
  }

  // Token rows, from the current slice of the state's rows on.
  XLSTM_DEVICE TokenRows<E> slice_rows(const Tokens& x) const {
    TokenRows<E> t = rows<E>(x, segment);
    t.data += slice_row();
    t.columns -= slice_row();
    return t;
  }
  // Token rows, from the block's tile of y's columns on.
  XLSTM_DEVICE TokenRows<E> tile_rows(const Tokens& x) const {
    TokenRows<E> t = rows<E>(x, segment);
    t.data += tile * kY;
    t.columns -= tile * kY;
    return t;
  }
  XLSTM_DEVICE int chunk_at(int n) const {
    return kTerms.reverse ? segment.last_chunk - 1 - n : segment.first_chunk + n;
  }
  XLSTM_DEVICE int64_t begin_of(int n) const { return segment.begin + int64_t(chunk_at(n)) * kChunk; }
  XLSTM_DEVICE int valid_of(int64_t t0) const { return int(segment.end - t0 < kChunk ? segment.end - t0 : kChunk); }

  XLSTM_DEVICE void fetch_a(Stages& s, int n) {
    const int64_t t0 = begin_of(n), slots = segment.in_slots(p->where, chunk_at(n));
    const ChunkTiles tiles = chunk_tiles(n);
    if (!kTerms.states_only) s.a.fetch(tiles.a, slice_rows(p->a), t0, valid_of(t0));
    const int64_t slot = slots / kChunk;
    s.factors.fetch({tiles.factors}, {global(p->factors) + slot * kFactors * kChunk, 0, kFactors * kChunk, true}, 0, 1);
  }
  XLSTM_DEVICE void fetch_rest(Stages& s, int n) {
    const int64_t t0 = begin_of(n), slots = segment.in_slots(p->where, chunk_at(n));
    const int valid = valid_of(t0);
    const ChunkTiles tiles = chunk_tiles(n);
    s.x.fetch(tiles.x, slice_rows(p->x), t0, valid);
    s.y.fetch(tiles.y, tile_rows(p->y), t0, valid);
    s.decay = global(p->decay)[slots / kChunk];
    if (kTerms.gradient_terms)
      s.vector.fetch(tiles.vector(), global(p->vector) + slots / kChunk * p->y.columns + tile * kY,
                     p->y.columns - tile * kY);
    if (kTerms.states_only) return;
    const E* scores = global(static_cast<const E*>(p->scores)) + slots * kChunk;
    if (!kAsyncCopies && kTerms.reverse)
      s.transposed_scores.fetch(scores);
    else
      s.scores.fetch(tiles.scores, {scores, kChunk, kChunk, true}, 0, kChunk);
  }
  XLSTM_DEVICE static void store_scores(Stages& s, const ChunkTiles& tiles) {
    if (kTerms.states_only) return;
    if (kTerms.reverse)
      s.transposed_scores.store(tiles.scores);
    else
      s.scores.store(tiles.scores);
  }
  // The tensors that the outputs are multiplied with. Where they are held in registers they are loaded late, after x
  // and y have left theirs.
  XLSTM_DEVICE void fetch_output_inputs(Stages& s, int n) {
    if (!kTerms.gradient_terms) return;
    const int64_t t0 = begin_of(n);
    const ChunkTiles tiles = chunk_tiles(n);
    s.dot_with.fetch(tiles.dot_with, tile_rows(p->dot_with), t0, valid_of(t0));
    if constexpr (!kAsyncCopies) s.diagonal_y.fetch(tiles.dot_with, tile_rows(p->y), t0, valid_of(t0));
  }
};

}  // namespace xlstm::gpu::mlstm
