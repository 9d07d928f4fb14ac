// SPDX-License-Identifier: Apache-2.0
// The rules of attention on a wave's strips of scores (keys along the rows): which keys a row sees, softcap, ALiBi and
// dropout, and the row maxima of the online softmax. Scores are logarithms to base 2.
#pragma once

#include <numbers>

#include "arch/operands.h"
#include "attention/layout.h"
#include "attention/rules.h"
#include "tile/columns.h"

namespace xlstm::gpu::attention {

// O and the row sums are rescaled only when a row's maximum has grown by more than this, to base 2; and the maximum of
// a row that has seen no key.
constexpr float kRescaleThreshold = 8, kLowestMax = -0x1p126f;

// Whether some row of the wave has a maximum that exceeds the current one by more than the threshold.
XLSTM_DEVICE bool needs_rescale(const Columns& row_max, const Columns& tile_max, float threshold = kRescaleThreshold) {
  bool grew = false;
#pragma unroll
  for (int j = 0; j < Columns::kEach; ++j) grew = grew || tile_max.value[j] > row_max.value[j] + threshold;
  return any_lane(grew);
}
// Raises the row maxima and rescales the row sums. Returns the factor by which the caller must rescale out.
XLSTM_DEVICE Columns update_row_max(Columns& row_max, Columns& sum, const Columns& tile_max) {
  Columns rescale;
#pragma unroll
  for (int j = 0; j < Columns::kEach; ++j) {
    const float next = fmaxf(row_max.value[j], tile_max.value[j]);
    rescale.value[j] = exp2_fast(row_max.value[j] - next);
    row_max.value[j] = next;
    sum.value[j] *= rescale.value[j];
  }
  return rescale;
}

// The keys that some of the rows [first, first + count) see, and the keys that all of them see. A later row sees at
// least as many keys at the end as an earlier row, and at most as many at the beginning.
struct VisibleKeys {
  int begin, end, fully_begin, fully_end;

  XLSTM_DEVICE VisibleKeys(const AttentionLayout& at, int64_t first, int64_t count) {
    const xlstm_attention& in = at.in;
    const uint32_t group = uint32_t(at.group()), last = uint32_t(first + count - 1);
    const KeyRange a = visible_keys(uint32_t(first) / group, at.queries, at.keys, in.window_left, in.window_right);
    const KeyRange b = visible_keys(last / group, at.queries, at.keys, in.window_left, in.window_right);
    begin = uniform(int(a.begin)), end = uniform(int(b.end));
    fully_begin = uniform(int(b.begin)), fully_end = uniform(int(a.end));
  }
  XLSTM_DEVICE bool any(int first, int n) const { return first < end && first + n > begin; }
  XLSTM_DEVICE bool fully(int first, int n) const { return first >= fully_begin && first + n <= fully_end; }
};

// Per-row data that a lane needs for the rows in its columns. Rows beyond the last one repeat the last one.
template <int kStrips>
struct RowInfo {
  static constexpr int kEach = Columns::kEach;
  static constexpr int kUnlimited = 1 << 30;  // more than any number of tokens
  int diagonal_key[kStrips][kEach];           // the key aligned with the row's query
  int draw_row[kStrips][kEach];
  float slope[kStrips][kEach];
  int query_offset;  // query = diagonal key + query_offset
  int keys, left;
  uint32_t span;  // a row sees keys [diagonal_key - left, diagonal_key - left + span], clipped to the keys that exist

  XLSTM_DEVICE RowInfo(const AttentionLayout& at, int64_t key_head, int64_t first) {
    const xlstm_attention& in = at.in;
    const uint32_t group = uint32_t(at.group()), last = uint32_t(at.rows() - 1);
    query_offset = uniform(int(at.queries - at.keys)), keys = uniform(int(at.keys));
    left = clamp_window(in.window_left), span = uint32_t(left) + uint32_t(clamp_window(in.window_right));
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const uint32_t r = uint32_t(first) + c * kStripColumns + Columns::position(j), row = r < last ? r : last;
        const auto [head, i] = query_row(uint32_t(key_head), row, group);
        draw_row[c][j] = int(uint32_t(at.index) * uint32_t(in.heads_q) + head);
        diagonal_key[c][j] = int(i + at.keys - at.queries);
        slope[c][j] = in.alibi_slopes ? in.alibi_slopes[at.index * in.alibi_stride + head] * kLog2E : 0.0f;
      }
  }

  // Sets the scores of keys that a row does not see to -infinity, in a strip that begins with key `first`.
  template <class E>
  XLSTM_DEVICE void mask(Strip<E>& s, int c, int first, int lane = lane_id(), float hidden = -__builtin_inff()) const {
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      const int key = first + strip_position(kFamily, sizeof(E), lane, r).row;
      const uint32_t from_left = uint32_t(key) - uint32_t(diagonal_key[c][Columns::of(r)]) + uint32_t(left);
      s.value[r] = from_left <= span && key < keys ? s.value[r] : hidden;
    }
  }

 private:
  XLSTM_DEVICE static int clamp_window(int64_t side) { return side < 0 || side > kUnlimited ? kUnlimited : int(side); }
};

// tanh; for 2-byte dtypes with an absolute error of 2^-23.
template <class E>
XLSTM_DEVICE float tanh_of(float x) {
  if constexpr (sizeof(E) == 4) return tanhf(x);
  const float within = fminf(fmaxf(x, -16.0f), 16.0f);
  return 1 - 2 * reciprocal(1 + exp2_fast(within * (2 * kLog2E)));
}

struct ScoreRules {
  float scale;        // of q k, to base 2
  float to_cap, cap;  // softcap: cap tanh(to_cap q k), to base 2; cap 0: none
  int slopes, drops;  // flags; ints, because AMD's compiler keeps a bool as a bit per lane
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

  // descale: what 1 in the keys stands for. The products are in vector registers, of which kernels have more left.
  XLSTM_DEVICE void scale_keys(float descale) { scale *= descale, to_cap *= descale; }

  // Turns products into scores (scale or softcap, then ALiBi), in a strip that begins with key `first`.
  template <class E, int kStrips>
  XLSTM_DEVICE void apply_score_mod(Strip<E>& s, const RowInfo<kStrips>& row_info, int c, int first) const {
    // Reloading the lane id keeps the compiler from holding one distance per register from tile to tile; RDNA has no
    // registers to spare.
    const int lane = is_rdna(kFamily) ? opaque_lane() : lane_id();
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      if (r % 4 == 0) sched_barrier();
      const int j = Columns::of(r);
      float y = cap > 0 ? cap * tanh_of<E>(s.value[r] * to_cap) : s.value[r] * scale;
      if (slopes) {
        const int distance = row_info.diagonal_key[c][j] - (first + strip_position(kFamily, sizeof(E), lane, r).row);
        y -= row_info.slope[c][j] * float(distance < 0 ? -distance : distance);
      }
      s.value[r] = y;
    }
  }

  // Calls f(r, whether dropout keeps the weight in register r), for a strip that begins with key `first`, a multiple of
  // eight.
  template <class E, int kStrips, class F>
  XLSTM_DEVICE void each_draw(const RowInfo<kStrips>& row_info, int c, int first, F&& f) const {
    constexpr int kAtOnce = eight_registers(kFamily, sizeof(E));
    Philox draws{};
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) {
      const int row = Strip<E>::position(r).row, j = Columns::of(r);
      if (r % kAtOnce == 0) {
        sched_barrier();  // one Philox call at a time: registers do not suffice for more, nor for the keys of its
                          // rounds
        const uint64_t key =
            uint64_t(uint32_t(opaque_uniform(int(seed >> 32)))) << 32 | uint32_t(opaque_uniform(int(seed)));
        draws =
            philox(uint32_t(first + row) / kDrawsAtOnce, uint32_t(row_info.diagonal_key[c][j] + row_info.query_offset),
                   uint32_t(row_info.draw_row[c][j]), offset, key);
      }
      f(r, draw_at(draws.word[0], draws.word[1], draws.word[2], draws.word[3], row) >= threshold);
    }
  }

 private:
  // draw_of() without an index: an index would put the words into memory.
  XLSTM_DEVICE static uint32_t draw_at(uint32_t a, uint32_t b, uint32_t c, uint32_t d, int j) {
    const uint32_t low = j & 2 ? b : a, high = j & 2 ? d : c;
    return (j & 4 ? high : low) >> (j & 1) * 16 & 0xffff;
  }
};

}  // namespace xlstm::gpu::attention
