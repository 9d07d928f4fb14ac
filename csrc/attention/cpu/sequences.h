// SPDX-License-Identifier: Apache-2.0
// A sequence's tokens as rows for the CPU kernels of attention, and the rows of one task.
#pragma once

#include "attention/layout.h"
#include "attention/rules.h"
#include "base/arena.h"
#include "tile/cpu_panels.h"

namespace xlstm::XLSTM_ISA::attention {

struct AttentionSequence : AttentionLayout {
  using AttentionLayout::AttentionLayout;

  // Keys [j, j + n) of a head as rows. Where they are not a stride apart, `buffer` gets their offsets.
  template <class T>
  Rows<T> keys_at(const xlstm_tensor& x, int64_t head, int64_t features, int64_t j, int64_t n, int64_t* buffer) const {
    const int64_t bytes = element_bytes(x.dtype);
    if (!in.block_table)
      return {static_cast<const char*>(x.data) + key(x, head, first_key + j) * bytes, x.dtype, x.stride[2], features};
    for (int64_t t = 0; t < n; ++t) buffer[t] = key(x, head, first_key + j + t);
    return {x.data, x.dtype, 0, features, buffer};
  }
  // Rows [r, r + n) of the matrix of queries.
  template <class T>
  Rows<T> rows_at(const xlstm_tensor& x, int64_t key_head, int64_t features, int64_t r, int64_t n,
                  int64_t* buffer) const {
    for (int64_t t = 0; t < n; ++t) buffer[t] = row(x, key_head, r + t);
    return {x.data, x.dtype, 0, features, buffer};
  }
};

// The score rules of each row of a block, by lanes. Rows beyond the last one repeat it, so that they neither widen the
// range of keys that a panel sees nor count as masked.
template <class T>
struct RowRules {
  using Int = IntegerOf<T>;
  Int *begin, *end, *diagonal;  // the visible keys [begin, end), and the key at distance 0 for ALiBi
  T* slope;
  int64_t *query, *draw_row;  // for dropout
  bool slopes = false;

  RowRules() = default;
  RowRules(Arena& arena, int64_t rows)
      : begin(arena.take<Int>(rows)),
        end(arena.take<Int>(rows)),
        diagonal(arena.take<Int>(rows)),
        slope(arena.take<T>(rows)),
        query(arena.take<int64_t>(rows)),
        draw_row(arena.take<int64_t>(rows)) {}

  void fill(const AttentionSequence& s, int64_t key_head, int64_t first, int64_t live, int64_t rows) {
    const xlstm_attention& in = s.in;
    slopes = in.alibi_slopes != nullptr;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t source = first + (r < live ? r : live - 1), i = source / s.group();
      const int64_t head = key_head * s.group() + source % s.group();
      const KeyRange sees = visible_keys(i, s.queries, s.keys, in.window_left, in.window_right);
      begin[r] = Int(sees.begin), end[r] = Int(sees.end), diagonal[r] = Int(i + s.keys - s.queries);
      slope[r] = slopes ? T(in.alibi_slopes[s.index * in.alibi_stride + head]) : T(0);
      query[r] = i, draw_row[r] = s.index * in.heads_q + head;
    }
  }
  // any: the range of keys that some row of [r, r + n) sees; all: the keys that every row sees.
  KeyRange any(int64_t r, int64_t n) const {
    KeyRange range{begin[r], end[r]};
    for (int64_t t = r; t < r + n; ++t) {
      if (end[t] <= begin[t]) continue;
      if (range.end <= range.begin) range = {begin[t], end[t]};
      if (begin[t] < range.begin) range.begin = begin[t];
      if (end[t] > range.end) range.end = end[t];
    }
    return range;
  }
  KeyRange all(int64_t r, int64_t n) const {
    KeyRange range{begin[r], end[r]};
    for (int64_t t = r; t < r + n; ++t) {
      if (begin[t] > range.begin) range.begin = begin[t];
      if (end[t] < range.end) range.end = end[t];
    }
    return range;
  }
};

// Calls f(Op) with the operands that suit the inputs' dtype on this instruction set.
template <class F>
auto with_attention_operands(const xlstm_attention& in, F&& f) {
#if defined(__AVX512BF16__)
  if (in.q.dtype == XLSTM_BFLOAT16) return f(Bf16Pairs{});
#endif
  return in.q.dtype == XLSTM_FLOAT64 ? f(Plain<double>{}) : f(Plain<float>{});
}

}  // namespace xlstm::XLSTM_ISA::attention
