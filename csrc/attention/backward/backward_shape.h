// SPDX-License-Identifier: Apache-2.0
// Shapes of attention's backward kernels on each family: constexpr, so that kernels, plans and tests use the same
// numbers.
//
// Both kernels have one form. A block owns tokens of one side, as columns of the chain (dk, dv: keys; dq: queries), and
// walks tiles of the other side's tokens: dk and dv tiles of q and dout, dq tiles of k and v.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"
#include "attention/gpu/row_stats.h"

namespace xlstm::gpu::attention {

constexpr int kDeltaRows = 64;  // queries whose row statistics a block of delta_kernel computes

struct BackwardShape {
  int waves_along, waves_across;  // along the tokens that a block owns; across the features of its sums
  int columns;                    // tokens that a wave owns
  int owned;                      // tokens that a block owns
  int tile;                       // tokens of a tile
  int at_once;                    // tokens of a tile whose scores are in registers at once
  bool pairs;                     // two waves share owned tokens: one computes weights and dv, one ds and dk
  bool chain_in_lds;              // owned tokens are read from LDS for each tile; otherwise they stay in registers
  int operands_ahead;             // so many next operands are read from LDS while this one is multiplied
  bool ahead;                     // prefetch: the next tile loads while this one is multiplied
  // AMD stores a tile along its rows and transposed: both in LDS at once or, where LDS is too small, one after the
  // other.
  int matrices;  // forms of a tile's matrices in LDS at a time
  int buffers;   // NVIDIA: tiles
  int threads;
  int blocks;  // per multiprocessor (occupancy): a bound on registers
  int tile_bytes, chain_bytes, row_stats_bytes, keep_bytes, lds_bytes;
  int pairs_bytes;  // weights between paired waves: in addition to the rest with a score modification, else in the
                    // space of the chain
};

namespace shapes {

constexpr int max_of(int a, int b) { return a > b ? a : b; }

// second_transposed: whether the second matrix is read transposed too.
constexpr BackwardShape finished(BackwardShape s, Family f, int element_bytes, int dqk, int dv, bool second_transposed,
                                 bool stats_of_tile) {
  s.owned = s.waves_along * s.columns;
  // On CDNA two where no other wave of the SIMD works while one waits. Floats, split in three, take 24 registers on the
  // other families.
  s.operands_ahead = f == Family::cdna ? (element_bytes == 2 && s.blocks == 1 ? 2 : 1) : element_bytes == 2;
  s.threads = s.waves_along * s.waves_across * wave_size(f) * (s.pairs ? 2 : 1);
  const int first = s.tile * dqk * element_bytes, second = s.tile * dv * element_bytes;
  if (f == Family::nvidia)
    s.tile_bytes = first + second;
  else if (s.matrices == 1)
    s.tile_bytes = max_of(first, second);
  else if (s.matrices == 2)
    s.tile_bytes = first + second;
  else
    s.tile_bytes = 2 * first + (second_transposed ? 2 : 1) * second;
  s.chain_bytes = s.chain_in_lds ? s.owned * (dqk + dv) * element_bytes : 0;
  s.row_stats_bytes = 2 * 4 * (stats_of_tile ? s.tile : s.owned);
  s.keep_bytes = s.tile * s.owned / 8;
  s.pairs_bytes = s.pairs ? 4 * s.owned * s.tile : 0;
  s.lds_bytes = s.chain_bytes + s.buffers * (s.tile_bytes + s.row_stats_bytes) + s.keep_bytes;
  return s;
}

}  // namespace shapes

// dk and dv. Per owned token the sums are dqk + dv floats, which take most of the registers.
constexpr BackwardShape key_gradients_shape(Family f, int element_bytes, int dqk, int dv) {
  const bool half = element_bytes == 2, wide = dv > 128;
  BackwardShape s{};
  s.waves_across = 1;
  s.buffers = 1;
  s.matrices = 4;
  s.ahead = true;
  if (f == Family::cdna) {
    // With 16 keys per wave, reads of LDS would take as long as the matrix unit multiplies, with 32 half as long. With
    // 128 features and more the sums, k and v take more than 256 registers: one wave has a SIMD.
    s.waves_along = 4;
    s.columns = half && !wide ? 32 : 16;
    s.tile = s.at_once = strip_step(f, element_bytes);
    s.blocks = dqk == 64 ? 2 : 1;
    s.matrices = wide ? 2 : 4;
  } else if (is_rdna(f)) {
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
    // LDS binds: with 32 tokens per wave an operand that is read from LDS serves four mma, with 16 two. Sums of 16 keys
    // and 128 features take half of the registers already, so pairs of waves have 32 (backward_warp_pairs.h).
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

// dq. The sums are dqk floats for each owned query.
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
  } else if (is_rdna(f)) {
    s.columns = 16;
    s.waves_along = half ? (wide ? 2 : 4) : wide ? 1 : dqk > 64 ? 2 : 4;
    s.tile = s.at_once = 16;
    s.chain_in_lds = !(half && dqk == 64);
    s.matrices = !half ? (wide ? 1 : 2) : 3;
    s.ahead = half ? dqk <= 128 : dqk == 64;
    s.blocks = 1;
  } else {
    // 32 queries where registers suffice for their sums.
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

// The kernel of backward_cdna.h, 2-byte elements: that of dk and dv, but in LDS ds, and row statistics for each wave.
constexpr BackwardShape one_pass_shape(Family f, int features) {
  BackwardShape s = key_gradients_shape(f, 2, features, features);
  s.keep_bytes = 0;
  s.row_stats_bytes *= s.waves_along;
  s.lds_bytes = s.tile_bytes + 2 * s.tile * s.owned + s.row_stats_bytes;
  return s;
}

}  // namespace xlstm::gpu::attention
