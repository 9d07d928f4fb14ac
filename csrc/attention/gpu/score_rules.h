// SPDX-License-Identifier: Apache-2.0
// What the rules of attention ask of the scores in a wave's strips, keys along the rows: which keys a row of queries
// sees, softcap, ALiBi, dropout. Scores are logarithms to base 2.
#pragma once

#include <numbers>

#include "arch/operands.h"
#include "attention/layout.h"
#include "attention/rules.h"
#include "tile/columns.h"

namespace xlstm::gpu::attention {

// O and sums are scaled when a row's maximum has grown by more than this, to base 2; a maximum of nothing.
constexpr float kGrowth = 8, kLowest = -0x1p126f;

// Whether a row of the wave has a maximum beyond that of before by so much.
XLSTM_DEVICE bool has_grown(const Columns& most, const Columns& top) {
  bool grown = false;
#pragma unroll
  for (int j = 0; j < Columns::kEach; ++j) grown = grown || top.value[j] > most.value[j] + kGrowth;
  return any_lane(grown);
}
// Takes it in. Returns by what out is to be scaled, as the sum is here.
XLSTM_DEVICE Columns grow(Columns& most, Columns& sum, const Columns& top) {
  Columns by;
#pragma unroll
  for (int j = 0; j < Columns::kEach; ++j) {
    const float now = fmaxf(most.value[j], top.value[j]);
    by.value[j] = exp2_fast(most.value[j] - now);
    most.value[j] = now;
    sum.value[j] *= by.value[j];
  }
  return by;
}

// The keys that some of the rows [first, first + count) see, and those that all of them see. Rows see no less of the
// keys' end than those before them, and no more of their beginning.
struct RowsSee {
  int begin, end, all_begin, all_end;

  XLSTM_DEVICE RowsSee(const AttentionLayout& at, int64_t first, int64_t count) {
    const xlstm_attention& in = at.in;
    const uint32_t group = uint32_t(at.group()), last = uint32_t(first + count - 1);
    const KeyRange a = visible_keys(uint32_t(first) / group, at.queries, at.keys, in.window_left, in.window_right);
    const KeyRange b = visible_keys(last / group, at.queries, at.keys, in.window_left, in.window_right);
    begin = uniform(int(a.begin)), end = uniform(int(b.end));
    all_begin = uniform(int(b.begin)), all_end = uniform(int(a.end));
  }
  XLSTM_DEVICE bool some(int first, int n) const { return first < end && first + n > begin; }
  XLSTM_DEVICE bool whole(int first, int n) const { return first >= all_begin && first + n <= all_end; }
};

// What a lane must know of the rows in its columns. Rows beyond the last one repeat it.
template <int kStrips>
struct RowFacts {
  static constexpr int kEach = Columns::kEach;
  static constexpr int kFar = 1 << 30;  // tokens are fewer
  int place[kStrips][kEach];            // the key that the row stands beside
  int draw_row[kStrips][kEach];
  float slope[kStrips][kEach];
  int to_query;  // from a place
  int keys, left;
  uint32_t span;  // a row sees keys [place - left, place - left + span] of those that there are

  XLSTM_DEVICE RowFacts(const AttentionLayout& at, int64_t key_head, int64_t first) {
    const xlstm_attention& in = at.in;
    const uint32_t group = uint32_t(at.group()), last = uint32_t(at.rows() - 1);
    to_query = uniform(int(at.queries - at.keys)), keys = uniform(int(at.keys));
    left = far(in.window_left), span = uint32_t(left) + uint32_t(far(in.window_right));
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint32_t r = uint32_t(first) + c * kStripColumns + Columns::position(j), row = r < last ? r : last;
        const auto [head, i] = query_row(uint32_t(key_head), row, group);
        draw_row[c][j] = int(uint32_t(at.index) * uint32_t(in.heads_q) + head);
        place[c][j] = int(i + at.keys - at.queries);
        slope[c][j] = in.alibi_slopes ? in.alibi_slopes[at.index * in.alibi_stride + head] * kLog2E : 0.0f;
      }
  }

  // -infinity for the keys that a row does not see, of a strip that begins with key `first`.
  template <class E>
  XLSTM_DEVICE void mask(Strip<E>& s, int c, int first) const {
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      const int key = first + Strip<E>::position(r).row;
      const uint32_t from_left = uint32_t(key) - uint32_t(place[c][Columns::of(r)]) + uint32_t(left);
      s.value[r] = from_left <= span && key < keys ? s.value[r] : -__builtin_inff();
    }
  }

 private:
  XLSTM_DEVICE static int far(int64_t side) { return side < 0 || side > kFar ? kFar : int(side); }
};

// tanh of the 2-byte dtypes' scores: its error, 2^-23, is of 1.
template <class E>
XLSTM_DEVICE float tanh_of(float x) {
  if constexpr (sizeof(E) == 4) return tanhf(x);
  const float within = fminf(fmaxf(x, -16.0f), 16.0f);
  return 1 - 2 * reciprocal(1 + exp2_fast(within * (2 * kLog2E)));
}

struct ScoreRules {
  float scale;        // of q k, to base 2
  float to_cap, cap;  // softcap: cap tanh(to_cap q k), to base 2; cap 0: none
  int slopes, drops;  // whether there are any: numbers, of a bool AMD's compiler keeps a bit for every lane
  uint32_t threshold, offset;
  uint64_t seed;

  XLSTM_DEVICE explicit ScoreRules(const xlstm_attention& in)
      : scale(float(in.softmax_scale * std::numbers::log2e)),
        to_cap(uniform(in.softcap > 0 ? float(in.softmax_scale / in.softcap) : 0.0f)),
        cap(uniform(float(in.softcap * std::numbers::log2e))),
        slopes(uniform(int(in.alibi_slopes != nullptr))),
        drops(uniform(int(in.dropout_p > 0))),
        threshold(dropout_threshold(in.dropout_p)),
        offset(uint32_t(uniform(drops ? int(in.rng_state[1]) : 0))),
        seed(uint64_t(uint32_t(uniform(drops ? int(in.rng_state[0] >> 32) : 0))) << 32 |
             uint32_t(uniform(drops ? int(in.rng_state[0]) : 0))) {}

  // Products into scores, of a strip that begins with key `first`.
  template <class E, int kStrips>
  XLSTM_DEVICE void bend(Strip<E>& s, const RowFacts<kStrips>& facts, int c, int first) const {
    // Distances would be kept from tile to tile, a register each, and RDNA has none to spare.
    const int lane = kFamily == Family::rdna ? opaque_lane() : lane_id();
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      if (r % 4 == 0) sched_barrier();
      const int j = Columns::of(r);
      float y = cap > 0 ? cap * tanh_of<E>(s.value[r] * to_cap) : s.value[r] * scale;
      if (slopes) {
        const int apart = facts.place[c][j] - (first + strip_position(kFamily, sizeof(E), lane, r).row);
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
      if (r % kAtOnce == 0) {
        sched_barrier();  // one at a time: there are no registers for more, nor for the keys of its rounds
        const uint64_t key =
            uint64_t(uint32_t(opaque_uniform(int(seed >> 32)))) << 32 | uint32_t(opaque_uniform(int(seed)));
        draws = philox(uint32_t(first + row) / kDrawsAtOnce, uint32_t(facts.place[c][j] + facts.to_query),
                       uint32_t(facts.draw_row[c][j]), offset, key);
      }
      f(r, draw_at(draws.word[0], draws.word[1], draws.word[2], draws.word[3], row) >= threshold);
    }
  }

 private:
  // draw_of() without an index, which would put the words into memory.
  XLSTM_DEVICE static uint32_t draw_at(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int j) {
    const uint32_t low = j & 2 ? b : a, high = j & 2 ? d : c;
    return (j & 4 ? high : low) >> (j & 1) * 16 & 0xffff;
  }
};

}  // namespace xlstm::gpu::attention
