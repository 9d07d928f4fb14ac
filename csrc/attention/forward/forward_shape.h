// SPDX-License-Identifier: Apache-2.0
// Shapes of attention's forward kernel (forward.h) on each family: constexpr, so that the kernel, the plan and the
// tests use the same numbers.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"

namespace xlstm::gpu::attention {

// The head dims that have kernels; a call takes the first class that is at least as large as its head dims.
struct HeadClass {
  int dqk, dv;
};
constexpr HeadClass kHeadClasses[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
constexpr int kMaxHeadDim = 256;
constexpr int kKeyPart = 64;  // features of K and Q in one LDS tile; divides dqk of every class

struct ForwardShape {
  int waves, strips;     // waves of the block; columns of strips of a wave, 16 rows each
  int rows;              // rows of the block: queries times the query heads of a key head
  int keys;              // of a tile
  bool q_in_lds;         // otherwise in registers for the whole walk
  bool kv_share_buffer;  // K and V share one buffer
  bool ahead;            // prefetch: K and V load into registers during products, if registers suffice
  bool plain_walk;  // with plain scores, full tiles of the usual layout have a loop of their own, if registers suffice
  int threads;
  int blocks;  // per multiprocessor (occupancy): a bound on registers
  int q_bytes, k_bytes, v_bytes, lds_bytes;
};

// has_score_mod: of the kernel for modified scores, which needs registers for them.
constexpr ForwardShape forward_shape(Family f, int element_bytes, HeadClass head, bool has_score_mod) {
  const bool half = element_bytes == 2, wide = head.dv > 128;
  ForwardShape s{};
  s.waves = 4;
  s.ahead = !is_rdna(f) || (half && !wide);
  if (f == Family::cdna) {
    // 32 rows per wave: with 16, reads of LDS take as long as the matrix unit multiplies 2-byte elements. Accumulators
    // and Q of 128 features take 96 of 256 registers, so two waves share a SIMD. With 256 features and 32 rows one wave
    // would have a SIMD, and copy every sum between its two register files; with 16 rows two share it (predicted, on an
    // MI300X: 1.34 times the speed, in tiles of 64 keys, which fill LDS).
    s.strips = (half ? wide : head.dqk > 128) ? 1 : 2;
    s.waves = half && wide ? 8 : 4;
    s.keys = !half || (head.dqk > 128 && !wide) ? 32 : head.dqk > 64 || has_score_mod ? 64 : 128;
    s.blocks = wide || (!half && head.dqk > 128) ? 1 : 2;
    s.plain_walk = half;
  } else if (is_rdna(f)) {
    // 16 rows per wave: operands take 8 of 256 registers. Float operands take 24, which leaves registers for one strip
    // of scores in addition to 256 features of O.
    s.strips = 1;
    s.keys = half && head.dqk <= 128 ? 64 : !half && wide ? 16 : 32;
    s.q_in_lds = !half || head.dqk > 64;
    s.waves = half ? (head.dqk > 128 ? 4 : 8) : head.dqk > 128 ? 2 : 4;
    s.kv_share_buffer = !half && wide;
    s.blocks = 1;
  } else {
    // 32 rows per wave, for the same reason as on CDNA, where accumulators leave registers for it.
    s.strips = half && !wide ? 2 : 1;
    s.keys = half ? 64 : 32;
    s.q_in_lds = !half || head.dqk > 64;
    s.waves = half && wide ? 8 : 4;
    s.blocks = half && !wide ? 2 : 1;
  }
  s.rows = s.waves * s.strips * kStripColumns;
  s.threads = s.waves * wave_size(f);
  // NVIDIA loads Q through LDS into registers.
  s.q_bytes = s.q_in_lds || f == Family::nvidia ? s.rows * head.dqk * element_bytes : 0;
  s.k_bytes = s.keys * head.dqk * element_bytes;
  s.v_bytes = s.keys * head.dv * element_bytes;
  s.lds_bytes =
      s.q_bytes + (s.kv_share_buffer ? (s.k_bytes > s.v_bytes ? s.k_bytes : s.v_bytes) : s.k_bytes + s.v_bytes);
  return s;
}

// Maps a block to its part of a call. Consecutive blocks have different heads, eight at a time: an MI300X distributes
// blocks over its eight dies, so the blocks of a head share a die's L2, and on every chip the keys of few heads are in
// use at once. The last rows of each head come first: under a causal mask they see the most keys.
struct ForwardCoord {
  int64_t head, split, rows;  // head: batch heads_k + key head; rows: index of the block of rows
};
constexpr ForwardCoord forward_coord(uint32_t block, uint32_t heads, uint32_t splits, uint32_t row_blocks) {
  constexpr uint32_t kAtOnce = 8;
  const uint32_t items = heads * splits, first = block / (kAtOnce * row_blocks) * kAtOnce;
  const uint32_t group_items = items - first < kAtOnce ? items - first : kAtOnce, in_group = block - first * row_blocks;
  const uint32_t item = first + in_group % group_items;
  return {item % heads, item / heads, row_blocks - 1 - in_group / group_items};
}

}  // namespace xlstm::gpu::attention
