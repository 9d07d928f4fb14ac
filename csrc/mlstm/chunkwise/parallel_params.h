// SPDX-License-Identifier: Apache-2.0
// Parameters of the parallel schedule (parallel_scores.h). Matrices of pairs are stored by chunks: the tile of the
// pairs of a later chunk's tokens with an earlier chunk's tokens, L by L, is at (row, later, earlier).
#pragma once

#include "mlstm/chunkwise/parallel_shape.h"
#include "mlstm/gpu/params.h"

namespace xlstm::gpu::mlstm {

// Blocks of scores of a chunk: groups of the chunks up to it.
constexpr int64_t score_groups(int64_t slots) { return (slots + kScoreWaves - 1) / kScoreWaves; }

// The flows between tokens of different chunks (gate_gradients.h), in float, beside those inside a chunk.
struct PairFlows {
  float* reaching;  // (rows, slots, groups, L): to each token, from the earlier chunks of each block of scores
  float* leaving;   // (rows, later slots, slots, L): from each token to a later chunk
  float* between;   // (rows, later slots, slots): from all tokens of a chunk to a later one
};

struct ParallelScoreParams {
  // Of these, scores hold s (q k) D in forward, in backward its transposed tiles over N; d_scores hold dS with its
  // diagonal; of flows these are written: dm, diagonal_flow, across, leaving.
  ScoreParams base;
  float* row_sums;          // forward: (rows, slots, groups, L), of the scores of each block
  void* transposed_scores;  // backward: of dS
  PairFlows flows;
};

// out = scores y, or over N.
struct ParallelProduct {
  Tokens y, out;
  const void* scores;
  bool transposed = false;  // the tiles of scores are: a token's sum is over later tokens
  int tiles = 0;            // of columns
  uint32_t blocks = 0;
};
constexpr int kMaxParallelProducts = 3;
struct ParallelProductParams {
  Sequences where;
  const float* row_sums;  // of forward, from which l and N follow; in backward null
  const double* m;
  float* l;  // (rows, S), or null
  double eps;
  bool normalize;
  ParallelProduct products[kMaxParallelProducts];
};

struct ParallelGateParams {
  Sequences where;
  Tokens i, f, di, df;
  const double* m;
  TokenFlows inside;
  PairFlows between;
  bool sigmoid, normalizer_grad;
};

}  // namespace xlstm::gpu::mlstm
