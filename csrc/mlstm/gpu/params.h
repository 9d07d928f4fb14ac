// SPDX-License-Identifier: Apache-2.0
// Parameters of the mLSTM's GPU kernels: PODs that a launch passes by value. Tokens of a head are addressed in two
// ways. The caller's tensors are addressed by strides. Workspace is addressed as (row, slot, token of the chunk): row =
// batch NH + head, and a slot holds one chunk. A packed row holds several sequences. Sequence n has the slots from
// cu_seqlens[n] / L + n on. These slots suffice for any lengths, so the host never reads cu_seqlens.
//
// A packed row of short sequences without states may be walked as one sequence instead, a joined row: its chunks follow
// each other as in a batch row, and may have tokens of several sequences. Where a sequence begins, the state is cut:
// the chunk's decay is 0, the tokens from there on have inter = 0, those before the chunk's last sequence have into =
// 0, and the scores of pairs of two sequences are 0.
#pragma once

#include <stdint.h>

namespace xlstm::gpu::mlstm {

struct Sequences {
  const int64_t* cu_seqlens;  // on the device, sequences + 1 numbers, or null
  int64_t length, heads, sequences, rows, slots;
  int chunk;
  const int* sequence_begin;  // of a joined row, else null: for each token, where in the chunk its sequence begins, or
                              // -1: before the chunk
};

// How a joined row is found. Its Sequences are those of one sequence.
struct JoinedRow {
  const int64_t* cu_seqlens;  // or null: the rows are not joined
  int64_t sequences;
  int* sequence_begin;  // written for Sequences
};

// A tensor (B, NH, S, columns), or (B, NH, S) with columns = 1. element: the dtype as in xlstm_dtype, which may differ
// from q's.
struct Tokens {
  void* data;
  int64_t stride[3];
  int columns;
  int element;
  bool is_aligned16;  // each row is a multiple of 16 bytes and begins at a multiple of 16 bytes
};

// What tokens do to the stabiliser m: it becomes max(m + sum of lf, max). The first token's lf is stored apart from the
// sums of a chunk's tokens, because it belongs to the decay of what comes from before the chunk. In a joined row m
// restarts with each sequence: from there on max is m, and chunk_lf is -inf, of which nothing before the chunk is left.
struct StabiliserSums {
  double *lf, *max;                         // (rows, slots, L): the chunk's tokens up to this one, without the first lf
  double* column;                           // (rows, slots, L): the token's log input gate less `lf`
  double *first_lf, *chunk_lf, *chunk_max;  // (rows, slots): the first token's lf; all of the chunk, with it
};
struct GateParams {
  Sequences where;
  Tokens i, f;
  const float* m_initial;  // (N, NH), or null
  float* m_last;           // or null; here written for a sequence without tokens, else by the scores
  StabiliserSums sums;
  bool sigmoid;
  JoinedRow joined;
};

// The factors of a token that the walks read. They are contiguous for each chunk, so one copy loads all of them.
enum Factor {
  kInter,                // s e^(b + m_before - m), in backward over N
  kInto,                 // e^(i - b + b_end - m_end): weight of k v^T in the state after the chunk
  kInverseN,             // forward: 1 / N
  kInterDl = kInverseN,  // backward: inter dl N
  kRowSum = kInverseN,   // forward, for a walk that makes 1 / N itself: row sum of the scores
  kDiagonal,             // diagonal of dS
  kLeastN = kDiagonal,   // for such a walk: e^-m
  kFactors
};

// Outputs of backward's scores for the gates' gradients, all (rows, slots, L). G_ts = dS_ts q_t k_s, s < t, is the
// flow of the pair (t, s): its part of the gradient of the forget gates between s and t (gate_gradients.h). Within the
// chunk: across, the flow from all tokens before each token to it and to all tokens after it; leaving, the flow from
// each token to later ones. walk_reaching and walk_leaving are the flows to and from each token that follow from dS as
// the walks read it, rounded to q's dtype.
struct TokenFlows {
  double* dm;            // gradient of m at each token
  float* state_share;    // share of the state before the chunk that is left at each token
  float* diagonal_flow;  // the diagonal of dS times q k
  float *across, *leaving, *walk_reaching, *walk_leaving;
};

struct ScoreParams {
  Sequences where;
  Tokens q, k, i, f;
  StabiliserSums sums;
  const float* m_initial;  // (N, NH), or null
  float* m_last;           // or null
  double* m;               // (rows, slots, L): m after each token
  bool sigmoid, normalize, normalizer_grad;
  double eps, scale;
  void* scores;          // (rows, slots, L, L): s (q k) D; in backward over N
  float* factors;        // (rows, slots, Factor, L)
  float* decay;          // (rows, slots)
  float* chunk_n;        // (rows, slots, DHQK): sum of kInto k, which the chunk adds to n
  float* row_sums;       // forward: (rows, slots, L), row sums of the scores; null: kRowSum and kLeastN are written
  Tokens v, h, dh;       // from here on: backward only
  const float* l_saved;  // (rows, S)
  void* d_scores;        // s / N (dh v + dl N) D without the diagonal
  float* chunk_dn;       // (rows, slots, DHQK): sum of inter dl N q, which the chunk adds to dn
  TokenFlows flows;
};

// A state's layout in segment_states, for a walk that reads it transposed: the walk whose states they are has tiles of
// 2^y_bits columns, and waves of 2^x_bits rows.
struct StateTiles {
  int x_bits, y_bits, waves_x, threads, tiles;
};

// The scan over chunks turns what each chunk adds to a vector (n or dn) into the vector before the chunk.
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
  float* factors;  // reads kInter, writes kInverseN
  double eps;
  bool normalize;
};

// For a Hopper walk that computes scores, n and normalisers itself.
struct ScoringParams {
  const float* gate_terms;  // (rows, slots, kGateTermFloats), see chunk_walk_hopper_shape.h
  const float* n_initial;   // (N, NH, DHQK), or null
  float *n_last, *l;        // or null
  float* segment_n;         // (N NH, segments - 1, the kernel's rows), as WalkParams::segment_states
  float scale, eps;
  bool normalize;
};

struct WalkParams {
  Sequences where;
  Tokens a, x, y, out;
  const void* scores;    // (rows, slots, L, L)
  const float* factors;  // (rows, slots, Factor, L)
  const float* decay;    // (rows, slots)
  const float* vector;   // gradient terms (walk_outputs.h): (rows, slots, y's columns). n before each chunk for a walk
                         // that makes 1 / N: (rows, slots, DHQK)
  Tokens dot_with;
  float* dots;               // (tiles of y, rows, slots, L)
  const float* state_in;     // (N, NH, DHQK, DHHV), or null
  float* state_out;          // or null
  int64_t state_x, state_y;  // strides of x and y in state_in and state_out
  float* state_before_last;  // (N NH, tiles, slices, accumulators): the state before the last chunk, or null
  float* segment_states;     // (N NH, segments - 1, tiles, accumulators): states between segments; for a walk in slices
                             // the states themselves, (N NH, tiles, slices, accumulators); or null
  int segments, segment_chunks, tiles, slices;
  StateTiles transposed;  // where segment_states are another walk's, this one's transposed; else tiles is 0
  // For a walk that makes 1 / N.
  float* l;  // (rows, S), or null
  float eps;
  bool normalize;
};

struct StateDotParams {  // <dc_last, state_before_last> of each tile
  const float *state_before_last, *dc_last;
  float* dots;  // (tiles, slices, N NH)
  int64_t states, state_x, state_y;
  int tiles, slices, x_columns, y_columns;
};

struct ScanParams {  // over segment_states
  Sequences where;
  float* segment_states;
  const float* decay;
  const float* state_in;
  int64_t state_x, state_y;
  int segments, segment_chunks, tiles, x_columns, y_columns;
  bool reverse;
};

// Before walks in segments there are two launches. A block has one number in all that a launch does.
struct SegmentStatesParams {  // what each segment adds to the state, and n and dn before each chunk
  WalkParams walks[2];        // forward, reverse
  VectorParams vectors[2];
  uint32_t walk_blocks[2], vector_blocks[2];
};
struct SegmentScanParams {  // the states between segments, and the normalisers
  ScanParams scans[2];
  NormaliserParams normaliser;
  uint32_t scan_blocks[2];  // the others make normalisers
};

constexpr int kBorderParts = 4;  // blocks for one tile of a state
struct BorderParams {            // at the borders between backward's segments; states are laid out as in
                                 // WalkParams::segment_states
  Sequences where;
  const float *c,
      *dc;  // segment states of the walk for dq, and of the walk for dk, which runs from the end to the beginning
  const float *chunk_n, *chunk_dn;  // (rows, slots, DHQK): n before each chunk, dn after it
  double* flows;                    // (N NH, segments - 1, tiles, kBorderParts)
  int segments, segment_chunks, tiles, tile_floats;
  int64_t dqk;
};

// The gates' gradients: gate_gradients.h defines the terms. Per-token arrays are (rows, slots, L), per-chunk arrays
// (rows, slots).
struct FlowSums {
  // Per token: the flow across it without what crosses its chunk; squares of the flows that reach the token and later
  // ones from before the chunk; squares of the flows that leave earlier tokens for after the chunk.
  double *local, *noise_from, *noise_before;
  // Per chunk, by chunk_gate_flows: sums over its tokens of these flows, and of their squares; the gradient of m that
  // the chunk passes on to the one before; whether it stops the gradient of m of later chunks.
  double *reaching, *entering, *reaching_noise, *entering_noise, *dm_before;
  int* stops;
  // Per chunk, by scan_gate_flows: the flow across the chunk, the noise since the last known value, the gradient of m
  // from later chunks, the correction, and the correction of the next chunk.
  double *crossing, *noise_since_known, *dm_after, *correction, *correction_after;
};
struct FlowParams {
  Sequences where;
  Tokens i, f, di, df;
  const double* m;
  const float *factors, *decay;
  TokenFlows flows;
  FlowSums sums;
  const float *q_dots, *k_dots;  // (tiles, rows, slots, L)
  int q_tiles, k_tiles, state_tiles;
  const float* state_dots;     // (state_tiles, N NH): <dC_last, C before the last chunk>, or null
  const double* border_flows;  // BorderParams::flows, or null
  int segments, segment_chunks;
  const float *dn_last, *chunk_n, *dm_last;
  const float *dc_initial, *dn_initial, *c_initial, *n_initial;
  float* dm_initial;
  int64_t dqk, dhv;
  bool sigmoid, normalizer_grad, has_initial;
};

}  // namespace xlstm::gpu::mlstm
