// SPDX-License-Identifier: Apache-2.0
// Shapes of the decode kernel (decode.h) on each family: constexpr, so that the kernel, the plan and the tests use the
// same numbers.
#pragma once

#include <stdint.h>

#include "arch/layouts.h"
#include "attention/forward/forward_shape.h"

namespace xlstm::gpu::attention {

constexpr int kDecodeRows = kStripColumns, kDecodeWaves = 4;

// On RDNA3 operands take 8 registers (floats 24) of a wave's 256; on CDNA wide floats leave too few scalar registers.
// The forward kernel takes the calls that need more.
constexpr bool has_decode(Family f, int element_bytes, HeadClass head) {
  if (f == Family::rdna) return element_bytes == 2 && head.dqk <= 128;
  return f == Family::nvidia || f == Family::rdna4 || element_bytes == 2 || head.dqk <= 64;
}

struct DecodeShape {
  int threads;
  int blocks;              // per multiprocessor (occupancy): a bound on registers
  int k_ahead, v_ahead;    // units of keys' features, blocks of values' features that a wave has in flight: divisors of
                           // their numbers
  bool q_in_lds;           // otherwise in registers
  int q_bytes, lds_bytes;  // lds_bytes: q, which the buffer for merging waves reuses
};

// Floats per row of out while waves merge, padded so that rows that are written together use different banks.
constexpr int merge_row(int dv) { return dv + 4; }

constexpr DecodeShape decode_shape(Family f, int element_bytes, HeadClass head) {
  const int units = head.dqk / unit_features(f, element_bytes), all = head.dv / transposed_features(f, element_bytes);
  const bool half = element_bytes == 2, wide = head.dv > 128;
  DecodeShape s{};
  s.threads = kDecodeWaves * wave_size(f);
  s.k_ahead = units;
  s.v_ahead = all;
  s.blocks = 1;
  if (f == Family::cdna) {
    // A full tile of 32 keys: 16 KB of 128 features are in flight in each wave.
    s.blocks = half && !wide ? 2 : 1;
  } else if (f == Family::rdna) {
    s.q_in_lds = true;
    s.k_ahead = 2;
    s.v_ahead = 1;
  } else if (f == Family::rdna4) {
    // A tile of 16 keys: 4 KB of 128 features are in flight in each wave.
    s.q_in_lds = true;
    if (wide || !half) s.k_ahead = 4, s.v_ahead = 1;
    s.blocks = half && !wide ? 2 : 1;
  } else {
    s.q_in_lds = wide || !half;
    s.k_ahead = half && !wide ? (units % 4 == 0 ? 4 : units % 3 == 0 ? 3 : 2) : 2;
    s.v_ahead = half && !wide && all > 1 ? 2 : 1;
    s.blocks = wide || !half ? 1 : 2;
  }
  s.q_bytes = s.q_in_lds ? kDecodeRows * head.dqk * element_bytes : 0;
  const int merge = kDecodeRows * (merge_row(head.dv) + 2 * kDecodeWaves) * 4;
  s.lds_bytes = s.q_bytes > merge ? s.q_bytes : merge;
  return s;
}

}  // namespace xlstm::gpu::attention
