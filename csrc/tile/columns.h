// SPDX-License-Identifier: Apache-2.0
// A number for each column of a strip, with reductions over the strip's rows: the online softmax's statistics, and
// factors of tokens along the chain. A lane has the numbers of its columns (arch/layouts.h), two on NVIDIA and one
// elsewhere.
#pragma once

#include "arch/fragments.h"

namespace xlstm::gpu {

struct Columns {
  static constexpr int kEach = lane_columns(kFamily);
  float value[kEach];

  XLSTM_DEVICE static Columns all(float x) {
    Columns c;
#pragma unroll
    for (int j = 0; j < kEach; ++j) c.value[j] = x;
    return c;
  }
  // of(r): the lane's column that register r of a strip belongs to. position(j): the strip's column that the lane's
  // column j is.
  XLSTM_DEVICE static constexpr int of(int r) { return lane_column(kFamily, r); }
  XLSTM_DEVICE static int position(int j) { return column_position(kFamily, lane_id(), j); }

  // Reduces each column by f over the lanes that have the column's other rows; all these lanes get the result.
  // lane: nothing, or the lane's id for shuffle_xor().
  template <class F, class... Lane>
  XLSTM_DEVICE void over_rows(F&& f, Lane... lane) {
#pragma unroll
    for (int bit = 1; bit < kWave; bit *= 2)
      if (row_lanes(kFamily) & bit)
#pragma unroll
        for (int j = 0; j < kEach; ++j) value[j] = f(value[j], shuffle_xor(value[j], bit, lane...));
  }
  // Reduces a strip's values in this lane into the columns: value = f(value, x).
  template <class E, class F>
  XLSTM_DEVICE void take_in(const Strip<E>& s, F&& f) {
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) value[of(r)] = f(value[of(r)], s.value[r]);
  }
  // Adds a strip's values in this lane to the columns.
  template <class E>
  XLSTM_DEVICE void add(const Strip<E>& s) {
    if constexpr (kFamily == Family::cdna) {
      value[0] += sum_by_pairs(s.value);
    } else {
      take_in(s, [](float a, float b) { return a + b; });
    }
  }
};

template <class E>
XLSTM_DEVICE void scale_columns(Strip<E>& s, const Columns& by) {
#pragma unroll
  for (int r = 0; r < Strip<E>::kRegisters; ++r) s.value[r] *= by.value[Columns::of(r)];
}

}  // namespace xlstm::gpu
