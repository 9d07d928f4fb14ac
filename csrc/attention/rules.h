// SPDX-License-Identifier: Apache-2.0
// The scalar rules of attention, for the host and for GPU kernels: which keys a query sees, the distance between a
// query and a key, and which weights dropout keeps. These rules are written in this file and nowhere else.
//
// Queries i of Q and keys j of K are counted within a sequence. The last query is aligned with the last key: the
// diagonal key of query i is i + K - Q. Dropout draws 16 bits per weight from Philox (base/philox.h) with
//     key = seed      counter = (j / 8, i, b HQ + head, offset)
// so that a mask depends on no tile, direction, thread or machine: weight j takes half j % 8 of the 128 bits.
#pragma once

#include <stdint.h>

#include "base/philox.h"

namespace xlstm {

// The keys [begin, end) that a query sees.
struct KeyRange {
  int64_t begin, end;
};
XLSTM_RULE KeyRange visible_keys(int64_t i, int64_t queries, int64_t keys, int64_t left, int64_t right) {
  const int64_t offset = i + keys - queries;
  int64_t begin = left < 0 || offset - left < 0 ? 0 : offset - left;
  int64_t end = right < 0 || right > keys - 1 - offset ? keys : offset + right + 1;
  if (end < 0) end = 0;
  if (begin > end) begin = end;
  return {begin, end};
}

constexpr int kDrawsAtOnce = 8;
XLSTM_RULE Philox dropout_draws(int64_t j, int64_t i, int64_t row, uint64_t seed, uint64_t offset) {
  return philox(uint32_t(j / kDrawsAtOnce), uint32_t(i), uint32_t(row), uint32_t(offset), seed);
}
XLSTM_RULE uint32_t draw_of(const Philox& draws, int j) { return draws.word[j % 8 / 2] >> (j % 2 * 16) & 0xffff; }

// Dropout drops a weight when its draw is below the threshold. p is rounded to steps of 2^-16, but p > 0 never becomes
// 0.
XLSTM_RULE uint32_t dropout_threshold(double p) {
  const uint32_t nearest = uint32_t(p * 65536 + 0.5);
  return p > 0 && nearest == 0 ? 1 : nearest > 65535 ? 65535 : nearest;
}
XLSTM_RULE double dropout_scale(double p) { return 1 / (1 - dropout_threshold(p) / 65536.0); }

}  // namespace xlstm
