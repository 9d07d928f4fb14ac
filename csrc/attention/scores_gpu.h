// SPDX-License-Identifier: Apache-2.0
// What the rules of attention ask of the scores in a wave's strips, keys along the rows: which keys a row of queries
// sees, softcap, ALiBi, dropout. Scores are logarithms to base 2.
#pragma once

#include "attention/layout.h"
#include "attention/rules.h"
#include "tile/columns.h"

namespace xlstm::gpu {

constexpr float kLog2E = 1.44269504088896340736f, kLn2 = 0.693147180559945309417f;

// The keys that some of the rows [first, first + count) see, and those that all of them see. Rows see no less of the
// keys' end than those before them, and no more of their beginning.
struct RowsSee {
  int begin, end, all_begin, all_end;

  XLSTM_DEVICE RowsSee(const AttentionLayout& at, int64_t first, int64_t count) {
    const xlstm_attention& in = at.in;
    const uint32_t group = uint32_t(at.group()), last = uint32_t(first + count - 1);
    const KeyRange a = visible_keys(uint32_t(first) / group, at.queries, at.keys, in.window_left, in.window_right);
    const KeyRange b = visible_keys(last / group, at.queries, at.keys, in.window_left, in.window_right);
    begin = same_in_all(int(a.begin)), end = same_in_all(int(b.end));
    all_begin = same_in_all(int(b.begin)), all_end = same_in_all(int(a.end));
  }
  XLSTM_DEVICE bool some(int first, int n) const { return first < end && first + n > begin; }
  XLSTM_DEVICE bool whole(int first, int n) const { return first >= all_begin && first + n <= all_end; }
};

// What a lane must know of the rows in its columns. Rows beyond the last one repeat it.
template <int kStrips>
struct RowFacts {
  static constexpr int kEach = Columns::kEach;
  int begin[kStrips][kEach], end[kStrips][kEach];  // the keys that the row sees
  int query[kStrips][kEach], draw_row[kStrips][kEach], place[kStrips][kEach];
  float slope[kStrips][kEach];

  XLSTM_DEVICE RowFacts(const AttentionLayout& at, int64_t key_head, int64_t first) {
    const xlstm_attention& in = at.in;
    const uint32_t group = uint32_t(at.group()), last = uint32_t(at.rows() - 1);
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint32_t r = uint32_t(first) + c * kStripColumns + Columns::position(j), row = r < last ? r : last;
        const uint32_t i = row / group, head = uint32_t(key_head) * group + row % group;
        const KeyRange sees = visible_keys(i, at.queries, at.keys, in.window_left, in.window_right);
        begin[c][j] = int(sees.begin), end[c][j] = int(sees.end);
        query[c][j] = int(i), draw_row[c][j] = int(uint32_t(at.index) * uint32_t(in.heads_q) + head);
        place[c][j] = int(i + at.keys - at.queries);
        slope[c][j] = in.alibi_slopes ? in.alibi_slopes[at.index * in.alibi_stride + head] * kLog2E : 0.0f;
      }
  }

  // -infinity for the keys that a row does not see, of a strip that begins with key `first`.
  template <class E>
  XLSTM_DEVICE void mask(Strip<E>& s, int c, int first) const {
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      const int key = first + Strip<E>::position(r).row, j = Columns::of(r);
      s.value[r] = key >= begin[c][j] && key < end[c][j] ? s.value[r] : -__builtin_inff();
    }
  }
};

// tanh of the 2-byte dtypes' scores: its error, 2^-23, is of 1.
template <class E>
XLSTM_DEVICE float tanh_of(float x) {
  if constexpr (sizeof(E) == 4) return tanhf(x);
  const float within = fminf(fmaxf(x, -16.0f), 16.0f);
  return 1 - 2 * inverse(1 + exp2_fast(within * (2 * kLog2E)));
}

struct ScoreRules {
  float scale;        // of q k, to base 2
  float to_cap, cap;  // softcap: cap tanh(to_cap q k), to base 2; cap 0: none
  bool slopes;
  bool drops;
  uint32_t threshold, offset;
  uint64_t seed;

  XLSTM_DEVICE explicit ScoreRules(const xlstm_attention& in)
      : scale(float(in.softmax_scale * 1.44269504088896340736)),
        to_cap(in.softcap > 0 ? float(in.softmax_scale / in.softcap) : 0.0f),
        cap(float(in.softcap * 1.44269504088896340736)),
        slopes(in.alibi_slopes != nullptr),
        drops(in.dropout_p > 0),
        threshold(dropout_threshold(in.dropout_p)),
        offset(drops ? uint32_t(in.rng_state[1]) : 0),
        seed(drops ? uint64_t(in.rng_state[0]) : 0) {}

  // Products into scores, of a strip that begins with key `first`.
  template <class E, int kStrips>
  XLSTM_DEVICE void bend(Strip<E>& s, const RowFacts<kStrips>& facts, int c, int first) const {
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      const int j = Columns::of(r);
      float y = cap > 0 ? cap * tanh_of<E>(s.value[r] * to_cap) : s.value[r] * scale;
      if (slopes) {
        const int apart = facts.place[c][j] - (first + Strip<E>::position(r).row);
        y -= facts.slope[c][j] * float(apart < 0 ? -apart : apart);
      }
      s.value[r] = y;
    }
  }

  // f(r, whether dropout keeps the weight in register r), of a strip that begins with key `first`, a multiple of eight.
  template <class E, int kStrips, class F>
  XLSTM_DEVICE void each_draw(const RowFacts<kStrips>& facts, int c, int first, F&& f) const {
    constexpr int kAtOnce = eight_registers(kFamily, sizeof(E));
    Philox draws{};
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      const int row = Strip<E>::position(r).row, j = Columns::of(r);
      if (r % kAtOnce == 0)
        draws = philox(uint32_t(first + row) / kDrawsAtOnce, uint32_t(facts.query[c][j]),
                       uint32_t(facts.draw_row[c][j]), offset, seed);
      f(r, draw_of(draws, row) >= threshold);
    }
  }
};

}  // namespace xlstm::gpu
