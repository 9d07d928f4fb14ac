// SPDX-License-Identifier: Apache-2.0
// How attention's forward kernel (forward.h) lies on each family: constexpr, so that the kernel, the plan and the
// tests have one answer.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"

namespace xlstm::gpu::attention {

// The head dims that there are kernels for; a call takes the first that holds its own.
struct HeadClass {
  int dqk, dv;
};
constexpr HeadClass kHeadClasses[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
constexpr int kMostHeadDim = 256;
constexpr int kKeyPart = 64;  // features of K and Q that an LDS tile holds: all classes have whole ones

struct ForwardShape {
  int waves, strips;  // of the block; columns of strips that a wave has: 16 rows each
  int rows;           // of the block: queries times the query heads of a key head
  int keys;           // of a tile
  bool q_in_lds;      // else in registers for the whole walk
  bool take_turns;    // K and V in one room
  bool ahead;         // K and V come through registers while others are multiplied: there are enough of them
  int threads;
  int blocks;  // that shall share a multiprocessor: a bound on registers
  int q_bytes, k_bytes, v_bytes, lds_bytes;
};

constexpr ForwardShape forward_shape(Family f, int element_bytes, HeadClass head) {
  const bool half = element_bytes == 2, wide = head.dv > 128;
  ForwardShape s{};
  s.waves = 4;
  s.ahead = f != Family::rdna || (half && !wide);
  if (f == Family::cdna) {
    // 32 rows a wave: with 16, LDS would be read as long as the matrix unit multiplies 2-byte elements. Accumulators
    // and Q of 128 features take 96 of 256 registers, so two waves share a SIMD; of 256 features, one has it to itself.
    s.strips = !half && head.dqk > 128 ? 1 : 2;
    s.keys = half && head.dqk <= 128 ? 64 : 32;
    s.blocks = wide || (!half && head.dqk > 128) ? 1 : 2;
  } else if (f == Family::rdna) {
    // 16 rows a wave: operands are of 8 registers, there are 256. Floats' are of 24, which leaves room for one strip of
    // scores beside 256 features of O.
    s.strips = 1;
    s.keys = half && head.dqk <= 128 ? 64 : !half && wide ? 16 : 32;
    s.q_in_lds = !half || head.dqk > 64;
    s.waves = half ? (head.dqk > 128 ? 4 : 8) : head.dqk > 128 ? 2 : 4;
    s.take_turns = !half && wide;
    s.blocks = 1;
  } else {
    // 32 rows a wave, for the same reason as on CDNA, where accumulators leave room for it.
    s.strips = half && !wide ? 2 : 1;
    s.keys = half ? 64 : 32;
    s.q_in_lds = !half || head.dqk > 64;
    s.waves = half && wide ? 8 : 4;
    s.blocks = half && !wide ? 2 : 1;
  }
  s.rows = s.waves * s.strips * kStripColumns;
  s.threads = s.waves * wave_size(f);
  // NVIDIA brings Q through LDS into registers.
  s.q_bytes = s.q_in_lds || f == Family::nvidia ? s.rows * head.dqk * element_bytes : 0;
  s.k_bytes = s.keys * head.dqk * element_bytes;
  s.v_bytes = s.keys * head.dv * element_bytes;
  s.lds_bytes = s.q_bytes + (s.take_turns ? (s.k_bytes > s.v_bytes ? s.k_bytes : s.v_bytes) : s.k_bytes + s.v_bytes);
  return s;
}

// Which part of a call a block of threads has. Blocks that follow each other have different heads, eight at a time: an
// MI300X deals them out to its eight dies, so that those of a head share a die's L2, and everywhere the keys of few
// heads are in use at once. Of each head the last rows come first: under a causal mask these see the most keys.
struct ForwardPlace {
  int64_t head, split, rows;  // head: batch heads_k + key head; rows: which block of them
};
constexpr ForwardPlace forward_place(uint32_t block, uint32_t heads, uint32_t splits, uint32_t row_blocks) {
  constexpr uint32_t kAtOnce = 8;
  const uint32_t items = heads * splits, first = block / (kAtOnce * row_blocks) * kAtOnce;
  const uint32_t here = items - first < kAtOnce ? items - first : kAtOnce, in_group = block - first * row_blocks;
  const uint32_t item = first + in_group % here;
  return {item % heads, item / heads, row_blocks - 1 - in_group / here};
}

}  // namespace xlstm::gpu::attention
