// SPDX-License-Identifier: Apache-2.0
// What the GPU kernels of the mLSTM are given: PODs by value. Tokens of a head are addressed in two ways: as the caller's
// tensors lie, by strides, and in workspace as (row, slot, token of the chunk), where row = batch NH + head and a slot
// holds one chunk. A packed row holds several sequences; sequence n has slots from cu_seqlens[n] / L + n on, which are
// enough for any lengths, so that nothing needs to be read on the host.
#pragma once

#include <stdint.h>

namespace xlstm::gpu {

struct Sequences {
  const int64_t* cu_seqlens;  // on the device, sequences + 1, or null
  int64_t length, heads, sequences, rows, slots;
  int chunk;
};

// (B, NH, S, columns), or (B, NH, S) with columns 1. element: its dtype as in xlstm_dtype, where it may differ from q's.
struct Tokens {
  void* data;
  int64_t stride[3];
  int columns;
  int element;
  bool aligned;  // every piece of 16 bytes starts at a multiple of 16
};

struct GateParams {
  Sequences where;
  Tokens i, f;
  const float* m_initial;  // (N, NH), or null
  float* m_last;           // or null
  double *sums, *mosts;    // (rows, slots): what a chunk does to m
  double* m_before;        // (rows, slots)
  bool sigmoid;
};

struct ScoreParams {
  Sequences where;
  Tokens q, k, i, f;
  const double* m_before;  // (rows, slots)
  double* m;               // (rows, slots, L): after each token
  bool sigmoid, normalize, normalizer_grad;
  double eps, scale;
  void* scores;         // (rows, slots, L, L): s (q k) D; in backward over N
  float* inter;         // (rows, slots, L): s e^(b + m_before - m), in backward over N
  float* into;          // e^(i - b + b_end - m_end)
  float* decay;         // (rows, slots)
  float* keys;          // (rows, slots, DHQK): sum of into k, what the chunk adds to n
  float* l;             // forward: (rows, slots, L), row sums of the scores
  Tokens v, h, dh;      // the rest: backward
  const float* l_saved; // (rows, S)
  void* d_scores;       // s / N (dh v + dl N) D without the diagonal
  float* self;          // the diagonal
  float* own;           // times q k
  float* dl_inter;      // inter dl N
  float* queries;       // (rows, slots, DHQK): sum of inter dl N q, what the chunk adds to dn
  double* dm;           // what reaches m
  float* reach;         // what is left of the chunk's first state at each token
  // With G_ts = dS_ts q_t k_s, s < t, what flows inside the chunk: from the tokens before each to it and to those after;
  // what leaves each token; and, from dS as the walks see it, rounded, what reaches and what leaves each.
  float *across, *leaving, *walk_reaching, *walk_leaving;
};

// Turns what each chunk adds to a vector into the vector before the chunk.
struct VectorParams {
  Sequences where;
  float* vectors;        // (rows, slots, columns)
  const float* decay;    // (rows, slots)
  const float* initial;  // (N, NH, columns), or null
  float* last;           // or null
  int columns;
  bool reverse;
};

struct NormaliserParams {
  Sequences where;
  Tokens q;
  const float *inter, *row_sums, *n;  // n before each chunk
  const double* m;
  float* l;     // (rows, S)
  float* gain;  // (rows, slots, L): 1 / N
  double eps;
  bool normalize;
};

struct WalkParams {
  Sequences where;
  Tokens a, x, y, out;   // out without data: states only
  const void* scores;    // (rows, slots, L, L)
  const float* inter;    // what each token's row of a C is multiplied by
  const float* weight;   // what each token's x y is multiplied by
  const float* decay;    // (rows, slots)
  const float* gain;     // of the output, or null
  const float* vector;   // (rows, slots, y's columns) with
  const float* along;    // (rows, slots, L): out += along vector; or null
  const float* self;     // out += self y, or null
  Tokens with;           // and dots += out with, before self is added; or without data
  float* dots;           // (tiles of y, rows, slots, L)
  const float* state_in; // (N, NH, DHQK, DHHV), or null
  float* state_out;      // or null
  int64_t state_x, state_y;  // strides of x and y in those
  const float* dot_with;     // (N, NH, DHQK, DHHV), or null: its product with the state before the last chunk
  float* state_dots;         // (tiles of y, N NH)
  float* between;            // (N NH, segments - 1, tiles, accumulators): states between segments, or null
  int segments, segment_chunks, tiles;
  bool reverse, alone;  // alone: from zero, each segment but the last, to `between`
};

struct ScanParams {  // of `between`
  Sequences where;
  float* between;
  const float* decay;
  const float* state_in;
  int64_t state_x, state_y;
  int segments, segment_chunks, tiles, x_columns, y_columns;
  bool reverse;
};

// The gates' gradients: flows.h has what is what. All per token arrays are (rows, slots, L), per chunk (rows, slots).
struct FlowParams {
  Sequences where;
  Tokens i, f, di, df;
  const double *m, *m_before;
  const double* dm;
  const float *q_dots, *k_dots;  // (tiles, rows, slots, L)
  int q_tiles, k_tiles;
  const float *reach, *into, *own, *across, *leaving, *walk_reaching, *walk_leaving, *decay;
  double* local;                                // per token
  double *reaching, *entering, *over, *moving;  // per chunk
  double* behind;                               // what reaches m from behind the chunk
  int* stops;
  const float* state_dots;  // (q_tiles, N NH): <dC_last, C before the last chunk>, or null
  const float *dn_last, *keys, *dm_last;
  const float *dc_initial, *dn_initial, *c_initial, *n_initial;
  float* dm_initial;
  int64_t dqk, dhv;
  bool sigmoid, normalizer_grad;
};

}  // namespace xlstm::gpu
