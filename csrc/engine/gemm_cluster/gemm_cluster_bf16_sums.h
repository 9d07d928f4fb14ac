// SPDX-License-Identifier: Apache-2.0
// bfloat16 weights and x's, as engine/gemm_cluster/gemm_cluster_int8_sums.h has quantised ones: each x is the sum of
// two bfloat16, whose products are summed apart and added up at the end. So a row has the same sums alone and in a
// batch. Of one x its parts are columns of one product in turn, so that each lane's two columns are its upper and its
// lower part.
#pragma once

#include "engine/gemm_cluster/gemm_cluster_int8_sums.h"

namespace xlstm::gpu::engine {

template <int kBatch>
struct PairSums {
  static constexpr int kStrips = kBatch == 1 ? 1 : kBatch / 8, kEach = kBatch == 1 ? 1 : 2;
  static constexpr int kRowBytes = kStepFeatures * 2, kPartBytes = kBatch * kRowBytes, kStepBytes = 2 * kPartBytes;
  float sum[kStrips][kEach][4] = {};

  XLSTM_DEVICE void clear() { *this = {}; }

  // Rows of the batch lie turned, so that lanes that read together, of two rows, do so from all banks.
  XLSTM_DEVICE static int turn_of(int b) { return b % 2 * 64; }
  XLSTM_DEVICE static void store(const ClusterX& x, int step, int n, int b, const float (&y)[kEight], bool there) {
    if (!there) return;
    Vec16 upper, lower;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float low = y[2 * w], high = y[2 * w + 1];
      upper.word[w] = pack(BFloat16{}, low, high);
      lower.word[w] =
          pack(BFloat16{}, low - low_float(BFloat16{}, upper.word[w]), high - high_float(BFloat16{}, upper.word[w]));
    }
    Vec16* const to = reinterpret_cast<Vec16*>(x.values + step * kStepBytes + b * kRowBytes + (n * 16 ^ turn_of(b)));
    to[0] = upper, to[kPartBytes / 16] = lower;
  }
  // row: where this lane's two rows lie, whose step begins at `begin`; turn: what places of them are turned by.
  XLSTM_DEVICE void multiply(const ClusterX& x, int at, const char* const (&row)[2], int begin, int turn) {
    const char* const own = x.values + at * kStepBytes;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int place = (begin + u * 64 + quarter() * 16) ^ turn;
      const Vec16 upper = read_vec16(row[0] + place), lower = read_vec16(row[1] + place);
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int part = 0; part < kEach; ++part) {
          const int b = 8 * s + item_row(), of_part = (kBatch == 1 ? item_row() % 2 : part) * kPartBytes;
          const int of_row = kBatch == 1 ? 0 : b * kRowBytes, transposed = kBatch == 1 ? 0 : turn_of(b);
          const Vec16 by = read_vec16(own + of_part + of_row + ((u * 64 + quarter() * 16) ^ transposed));
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const uint32_t a[4] = {upper.word[2 * k], lower.word[2 * k], upper.word[2 * k + 1], lower.word[2 * k + 1]};
            mma_bfloat16(sum[s][part], a, by.word[2 * k], by.word[2 * k + 1]);
          }
        }
    }
  }

  XLSTM_DEVICE static int own_row() { return quarter() % 2 == 0 ? item_row() + 4 * quarter() : -1; }
  XLSTM_DEVICE float alone() const {
    const float(&own)[4] = sum[0][0];
    return quarter() == 0 ? own[0] + own[1] : own[2] + own[3];
  }
  XLSTM_DEVICE float of_batch(int s, int j, int i) const { return sum[s][0][2 * j + i] + sum[s][kEach - 1][2 * j + i]; }
};

template <class Weights, int kBatch>
struct SumsOf {
  using type = DigitSums<Weights, kBatch>;
};
template <int kBatch>
struct SumsOf<Bfloat16Weights, kBatch> {
  using type = PairSums<kBatch>;
};

}  // namespace xlstm::gpu::engine
