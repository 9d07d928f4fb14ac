// SPDX-License-Identifier: Apache-2.0
// How attention's backward kernels lie on each family: constexpr, so that kernels, plans and tests have one answer.
//
// Both kernels are one form. A block owns tokens of one side, as columns of the chain (dk, dv: keys; dq: queries), and
// walks along tokens of the other in tiles: of dk, dv tiles of q and dout, of dq tiles of k and v.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"

namespace xlstm::gpu::attention {

// What backward must know of each query, lse and D, lies in groups: 16 lse, then 16 D. There are such facts for whole
// blocks of queries; a block makes D for kDeltaRows of them.
constexpr int kFactGroup = 16, kFactPad = 128, kDeltaRows = 64;
constexpr int fact_place(int query) { return query / kFactGroup * 2 * kFactGroup + query % kFactGroup; }

struct BackwardShape {
  int waves_along, waves_across;  // along the tokens that a block owns; across the features of its sums
  int columns;                    // tokens that a wave owns
  int owned;                      // and a block
  int tile;                       // tokens of a tile
  int at_once;                    // tokens of a tile whose scores are in registers
  bool pairs;                     // two waves share owned tokens: one makes weights and dv of them, one ds and dk
  bool chain_in_lds;              // what is owned is read from LDS for each tile, else held in registers
  bool operands_ahead;            // the next operand is read from LDS while this one is multiplied
  bool ahead;                     // the next tile comes while this one is multiplied
  // AMD has a tile along its rows and turned, in LDS at once or, where there is no room, one after the other.
  int matrices;  // of a tile that LDS has at a time
  int buffers;   // NVIDIA: tiles
  int threads;
  int blocks;  // that shall share a multiprocessor: a bound on registers
  int tile_bytes, chain_bytes, facts_bytes, keep_bytes, lds_bytes;
  int pairs_bytes;  // weights on their way, beside all that where scores are bent, else in the place of the chain
};

namespace shapes {

constexpr int most(int a, int b) { return a > b ? a : b; }

// turned: whether the second matrix is read turned too.
constexpr BackwardShape finished(BackwardShape s, Family f, int element_bytes, int dqk, int dv, bool second_turned,
                                 bool facts_of_tile) {
  s.owned = s.waves_along * s.columns;
  s.operands_ahead = f == Family::cdna || element_bytes == 2;  // floats', split in three, take 24 registers elsewhere
  s.threads = s.waves_along * s.waves_across * wave_size(f) * (s.pairs ? 2 : 1);
  const int first = s.tile * dqk * element_bytes, second = s.tile * dv * element_bytes;
  if (f == Family::nvidia)
    s.tile_bytes = first + second;
  else if (s.matrices == 1)
    s.tile_bytes = most(first, second);
  else if (s.matrices == 2)
    s.tile_bytes = first + second;
  else
    s.tile_bytes = 2 * first + (second_turned ? 2 : 1) * second;
  s.chain_bytes = s.chain_in_lds ? s.owned * (dqk + dv) * element_bytes : 0;
  s.facts_bytes = 2 * 4 * (facts_of_tile ? s.tile : s.owned);
  s.keep_bytes = s.tile * s.owned / 8;
  s.pairs_bytes = s.pairs ? 4 * s.owned * s.tile : 0;
  s.lds_bytes = s.chain_bytes + s.buffers * (s.tile_bytes + s.facts_bytes) + s.keep_bytes;
  return s;
}

}  // namespace shapes

// dk and dv. Per token owned, sums are dqk + dv floats, which are most of the registers.
constexpr BackwardShape key_gradients_shape(Family f, int element_bytes, int dqk, int dv) {
  const bool half = element_bytes == 2, wide = dv > 128;
  BackwardShape s{};
  s.waves_across = 1;
  s.buffers = 1;
  s.matrices = 4;
  s.ahead = true;
  if (f == Family::cdna) {
    // With 16 keys a wave LDS would be read as long as the matrix unit multiplies, with 32 half as long. Of 128
    // features and more their sums, k and v take more than 256 registers: a wave has a SIMD to itself.
    s.waves_along = 4;
    s.columns = half && !wide ? 32 : 16;
    s.tile = s.at_once = strip_step(f, element_bytes);
    s.blocks = dqk == 64 ? 2 : 1;
    s.matrices = wide ? 2 : 4;
  } else if (f == Family::rdna) {
    // 256 registers: sums of 128 features and 16 keys take half of them.
    s.columns = 16;
    s.waves_across = wide || (!half && dqk > 128) ? 2 : 1;
    s.waves_along = wide ? (half ? 2 : 1) : half ? 4 : dqk > 64 ? 2 : 4;
    s.tile = s.at_once = 16;
    s.chain_in_lds = !(half && dqk == 64);
    s.matrices = !half ? (wide ? 1 : 2) : wide ? 2 : 4;
    s.ahead = half ? dqk <= 128 : dqk == 64;
    s.blocks = 1;
  } else {
    // LDS binds: of 32 tokens a wave an operand read from it serves four mma, of 16 two. Sums of 16 keys and 128
    // features take half of the registers already, so pairs of waves have 32 (backward_warp_pairs.h).
    s.pairs = half && dqk == 128 && dv == 128;
    s.columns = half && (dqk == 64 || s.pairs) ? 32 : 16;
    s.waves_across = wide ? 2 : 1;
    s.waves_along = half ? 4 : wide ? 1 : dqk > 128 ? 2 : 4;
    s.tile = half ? (wide ? 16 : dqk == 64 ? 64 : 32) : 16;
    s.at_once = half && !wide ? 32 : 16;
    s.chain_in_lds = true;
    s.buffers = half || !wide ? 2 : 1;
    s.blocks = half && dqk == 64 ? 2 : 1;
  }
  return shapes::finished(s, f, element_bytes, dqk, dv, true, true);
}

// dq. Sums are dqk floats for each query owned.
constexpr BackwardShape query_gradients_shape(Family f, int element_bytes, int dqk, int dv) {
  const bool half = element_bytes == 2, wide = dv > 128;
  BackwardShape s{};
  s.waves_across = 1;
  s.buffers = 1;
  s.matrices = 3;
  s.ahead = true;
  if (f == Family::cdna) {
    s.waves_along = 4;
    s.columns = half || dqk == 64 ? 32 : 16;
    s.tile = s.at_once = strip_step(f, element_bytes);
    s.blocks = half && dqk <= 128 ? 2 : 1;
  } else if (f == Family::rdna) {
    s.columns = 16;
    s.waves_along = half ? (wide ? 2 : 4) : wide ? 1 : dqk > 64 ? 2 : 4;
    s.tile = s.at_once = 16;
    s.chain_in_lds = !(half && dqk == 64);
    s.matrices = !half ? (wide ? 1 : 2) : 3;
    s.ahead = half ? dqk <= 128 : dqk == 64;
    s.blocks = 1;
  } else {
    // 32 queries where their sums leave registers for it.
    s.columns = half && dqk <= 128 ? 32 : 16;
    s.waves_along = half ? 4 : wide ? 1 : dqk > 128 ? 2 : 4;
    s.tile = half ? (wide ? 16 : dqk == 64 ? 64 : 32) : 16;
    s.at_once = half && dqk <= 128 ? 32 : 16;
    s.chain_in_lds = true;
    s.buffers = half || !wide ? 2 : 1;
    s.blocks = half && dqk <= 128 ? 2 : 1;
  }
  return shapes::finished(s, f, element_bytes, dqk, dv, false, false);
}

}  // namespace xlstm::gpu::attention
