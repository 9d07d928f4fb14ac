// SPDX-License-Identifier: Apache-2.0
// What a warp of a whole step (decode/whole_hopper.h) makes of 64 features of 16 rows of weights and the one x.
// Quantised weights: as clusters do (decode/cluster_sums_hopper.h). bfloat16 below: x is the sum of two of them,
// columns of one product in turn, so that each lane's two columns are its upper and its lower part.
#pragma once

#include "decode/cluster_sums_hopper.h"

namespace xlstm::gpu {

template <class Weights>
struct RowSums : DigitSums<Weights, 1> {};

template <>
struct RowSums<Bfloat16Weights> {
  static constexpr int kPartBytes = kStepFeatures * 2, kStepBytes = 2 * kPartBytes;
  float sum[4] = {};

  XLSTM_DEVICE static void store(const ClusterX& x, int step, int n, int, const float (&y)[kEight], bool there) {
    if (!there) return;
    Piece upper, lower;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float a = y[2 * w], b = y[2 * w + 1];
      upper.word[w] = pack(BFloat16{}, a, b);
      lower.word[w] =
          pack(BFloat16{}, a - low_float(BFloat16{}, upper.word[w]), b - high_float(BFloat16{}, upper.word[w]));
    }
    Piece* const to = reinterpret_cast<Piece*>(x.values + step * kStepBytes + n * 16);
    to[0] = upper, to[kPartBytes / 16] = lower;
  }
  // row: where a step of this lane's two rows begins, as it would lie unturned; turn: what its places are turned by.
  XLSTM_DEVICE void multiply(const ClusterX& x, int at, const char* rows, int begin, int turn) {
    const char* const own = x.values + at * kStepBytes + item_row() % 2 * kPartBytes + quarter() * 16;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const char* const from = rows + ((begin + u * 64 + quarter() * 16) ^ turn);
      const Piece upper = read_piece(from), lower = read_piece(from + 8 * whole_segment_bytes(16)),
                  by = read_piece(own + u * 64);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t a[4] = {upper.word[2 * k], lower.word[2 * k], upper.word[2 * k + 1], lower.word[2 * k + 1]};
        mma_bfloat16(sum, a, by.word[2 * k], by.word[2 * k + 1]);
      }
    }
  }

  XLSTM_DEVICE static int own_row() { return quarter() % 2 == 0 ? item_row() + 4 * quarter() : -1; }
  XLSTM_DEVICE float alone() const { return quarter() == 0 ? sum[0] + sum[1] : sum[2] + sum[3]; }
};

}  // namespace xlstm::gpu
