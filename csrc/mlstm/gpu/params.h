// SPDX-License-Identifier: Apache-2.0
// What the GPU kernels of the mLSTM are given: PODs by value. Tokens of a head are addressed in two ways: as the
// caller's tensors lie, by strides, and in workspace as (row, slot, token of the chunk), where row = batch NH + head
// and a slot holds one chunk. A packed row holds several sequences; sequence n has slots from cu_seqlens[n] / L + n on,
// which are enough for any lengths, so that nothing needs to be read on the host.
#pragma once

#include <stdint.h>

namespace xlstm::gpu::mlstm {

struct Sequences {
  const int64_t* cu_seqlens;  // on the device, sequences + 1, or null
  int64_t length, heads, sequences, rows, slots;
  int chunk;
};

// (B, NH, S, columns), or (B, NH, S) with columns 1. element: its dtype as in xlstm_dtype, where it may differ from
// q's.
struct Tokens {
  void* data;
  int64_t stride[3];
  int columns;
  int element;
  bool whole;  // rows are whole pieces of 16 bytes, at multiples of 16
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

// Numbers per token that the walks read, side by side for each chunk, so that one copy brings them.
enum Factor {
  kInter,          // s e^(b + m_before - m), in backward over N
  kInto,           // e^(i - b + b_end - m_end)
  kGain,           // forward: 1 / N
  kAlong = kGain,  // backward: inter dl N
  kSelf,           // the diagonal of dS
  kFactors
};

struct ScoreParams {
  Sequences where;
  Tokens q, k, i, f;
  const double* m_before;  // (rows, slots)
  double* m;               // (rows, slots, L): after each token
  bool sigmoid, normalize, normalizer_grad;
  double eps, scale;
  void* scores;          // (rows, slots, L, L): s (q k) D; in backward over N
  float* factors;        // (rows, slots, Factor, L)
  float* decay;          // (rows, slots)
  float* keys;           // (rows, slots, DHQK): sum of into k, what the chunk adds to n
  float* l;              // forward: (rows, slots, L), row sums of the scores
  Tokens v, h, dh;       // the rest: backward
  const float* l_saved;  // (rows, S)
  void* d_scores;        // s / N (dh v + dl N) D without the diagonal
  float* own;            // its diagonal times q k
  float* queries;        // (rows, slots, DHQK): sum of inter dl N q, what the chunk adds to dn
  double* dm;            // what reaches m
  float* reach;          // what is left of the chunk's first state at each token
  // With G_ts = dS_ts q_t k_s, s < t, what flows inside the chunk: from the tokens before each to it and to those
  // after; what leaves each token; and, from dS as the walks see it, rounded, what reaches and what leaves each.
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
  const float *row_sums, *n;  // n before each chunk
  const double* m;
  float* l;        // (rows, S)
  float* factors;  // kInter in, kGain out
  double eps;
  bool normalize;
};

// Of a Hopper walk that makes scores, n and normalisers itself.
struct ScoringParams {
  const float* measures;   // (rows, slots, kMeasureFloats), chunk_walk_hopper_shape.h
  const float* n_initial;  // (N, NH, DHQK), or null
  float *n_last, *l;       // or null
  float* n_between;        // (N NH, segments - 1, the kernel's rows), as WalkParams::between
  float scale, eps;
  bool normalize;
};

struct WalkParams {
  Sequences where;
  Tokens a, x, y, out;   // out without data: states only
  const void* scores;    // (rows, slots, L, L)
  const float* factors;  // (rows, slots, Factor, L)
  Factor inter, weight;  // what each token's row of a C, and its x y, is multiplied by
  bool gained;           // the output is multiplied by kGain
  const float* decay;    // (rows, slots)
  const float* vector;   // (rows, slots, y's columns), or null: out += along vector
  Factor along;
  bool with_self;            // out += kSelf y
  Tokens with;               // and dots += out with, before self is added; or without data
  float* dots;               // (tiles of y, rows, slots, L)
  const float* state_in;     // (N, NH, DHQK, DHHV), or null
  float* state_out;          // or null
  int64_t state_x, state_y;  // strides of x and y in those
  float* before_last;        // (N NH, tiles, slices, accumulators): the state before the last chunk, or null
  float* between;            // (N NH, segments - 1, tiles, accumulators): states between segments; with slices the
                             // states themselves, (N NH, tiles, slices, accumulators); or null
  int segments, segment_chunks, tiles, slices;
  bool reverse, alone;  // alone: from zero, each segment but the last, to `between`
};

struct StateDotParams {  // <dc_last, before_last> of each tile
  const float *before_last, *dc_last;
  float* dots;  // (tiles, slices, N NH)
  int64_t states, state_x, state_y;
  int tiles, slices, x_columns, y_columns;
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

constexpr int kBorderParts = 4;  // blocks for a tile of a state
struct BorderParams {            // of backward's segments; states as `between` has them
  Sequences where;
  const float *c, *dc;          // of the walk for dq, and of the one for dk, which comes from the end
  const float *keys, *queries;  // (rows, slots, DHQK): n before each chunk, dn behind it
  double* flows;                // (N NH, segments - 1, tiles, kBorderParts)
  int segments, segment_chunks, tiles, tile_floats;
  int64_t dqk;
};

// The gates' gradients: gate_gradients.h has what is what. All per token arrays are (rows, slots, L), per chunk (rows,
// slots).
struct FlowParams {
  Sequences where;
  Tokens i, f, di, df;
  const double *m, *m_before;
  const double* dm;
  const float *q_dots, *k_dots;  // (tiles, rows, slots, L)
  int q_tiles, k_tiles, state_tiles;
  const float *reach, *factors, *own, *across, *leaving, *walk_reaching, *walk_leaving, *decay;
  double *local, *noise_from, *noise_before;    // per token: squares of what tokens from it on reach with, and of
                                                // what those before it enter with
  double *reaching, *entering, *over, *moving;  // per chunk
  double *reaching_noise, *entering_noise;      // per chunk: the same of all its tokens
  double *behind, *spread, *correction;         // what reaches m from behind; see scan_flows
  double* correction_behind;                    // the next chunk's
  int* stops;
  const float* state_dots;     // (state_tiles, N NH): <dC_last, C before the last chunk>, or null
  const double* border_flows;  // BorderParams::flows, or null
  int segments, segment_chunks;
  const float *dn_last, *keys, *dm_last;
  const float *dc_initial, *dn_initial, *c_initial, *n_initial;
  float* dm_initial;
  int64_t dqk, dhv;
  bool sigmoid, normalizer_grad, has_initial;
};

}  // namespace xlstm::gpu::mlstm
