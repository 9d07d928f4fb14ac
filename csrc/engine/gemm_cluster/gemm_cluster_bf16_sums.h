// SPDX-License-Identifier: Apache-2.0
// Sums for bfloat16 weights, with the interface of Int8Sums (engine/gemm_cluster/gemm_cluster_int8_sums.h): each x is
// the sum of two bfloat16, whose products are summed separately and added up at the end, so a row has the same sums
// alone and in a batch. At batch 1 the two parts of x are alternate columns of one product, so that a lane's two
// columns are the upper and the lower part.
#pragma once

#include "engine/gemm_cluster/gemm_cluster_int8_sums.h"

namespace xlstm::gpu::engine {

template <int kBatch>
struct Bfloat16Sums {
  static constexpr int kStrips = kBatch == 1 ? 1 : kBatch / 8, kSumsPerStrip = kBatch == 1 ? 1 : 2;
  static constexpr int kRowBytes = kStepFeatures * 2, kPartBytes = kBatch * kRowBytes, kStepBytes = 2 * kPartBytes;
  float sum[kStrips][kSumsPerStrip][4] = {};

  XLSTM_DEVICE void clear() { *this = {}; }

  // Rows of the batch are swizzled, so that lanes that read two rows together have no bank conflict.
  XLSTM_DEVICE static int row_swizzle(int b) { return b % 2 * 64; }
  XLSTM_DEVICE static void store(const ClusterX& x, int step, int n, int b, const float (&y)[kVec8], bool is_inside) {
    if (!is_inside) return;
    Vec16 upper, lower;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float low = y[2 * w], high = y[2 * w + 1];
      upper.word[w] = pack(BFloat16{}, low, high);
      lower.word[w] =
          pack(BFloat16{}, low - low_float(BFloat16{}, upper.word[w]), high - high_float(BFloat16{}, upper.word[w]));
    }
    Vec16* const to =
        reinterpret_cast<Vec16*>(x.values + step * kStepBytes + b * kRowBytes + (n * 16 ^ row_swizzle(b)));
    to[0] = upper, to[kPartBytes / 16] = lower;
  }
  // row: the lane's two rows, whose step begins at `begin`; swizzle: that of the rows' vec16s.
  XLSTM_DEVICE void multiply(const ClusterX& x, int at, const char* const (&row)[2], int begin, int swizzle) {
    const char* const step_x = x.values + at * kStepBytes;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int byte_offset = (begin + u * 64 + quarter() * 16) ^ swizzle;
      const Vec16 upper = read_vec16(row[0] + byte_offset), lower = read_vec16(row[1] + byte_offset);
#pragma unroll
      for (int s = 0; s < kStrips; ++s)
#pragma unroll
        for (int part = 0; part < kSumsPerStrip; ++part) {
          const int b = 8 * s + item_row(), of_part = (kBatch == 1 ? item_row() % 2 : part) * kPartBytes;
          const int of_row = kBatch == 1 ? 0 : b * kRowBytes, x_swizzle = kBatch == 1 ? 0 : row_swizzle(b);
          const Vec16 by = read_vec16(step_x + of_part + of_row + ((u * 64 + quarter() * 16) ^ x_swizzle));
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const uint32_t a[4] = {upper.word[2 * k], lower.word[2 * k], upper.word[2 * k + 1], lower.word[2 * k + 1]};
            mma_bfloat16(sum[s][part], a, by.word[2 * k], by.word[2 * k + 1]);
          }
        }
    }
  }

  XLSTM_DEVICE static int lane_row() { return quarter() % 2 == 0 ? item_row() + 4 * quarter() : -1; }
  XLSTM_DEVICE float single_sum() const {
    const float(&lane_sums)[4] = sum[0][0];
    return quarter() == 0 ? lane_sums[0] + lane_sums[1] : lane_sums[2] + lane_sums[3];
  }
  XLSTM_DEVICE float batch_sum(int s, int j, int i) const {
    return sum[s][0][2 * j + i] + sum[s][kSumsPerStrip - 1][2 * j + i];
  }
};

template <class Weights, int kBatch>
struct SumsOf {
  using type = Int8Sums<Weights, kBatch>;
};
template <int kBatch>
struct SumsOf<Bfloat16Weights, kBatch> {
  using type = Bfloat16Sums<kBatch>;
};

}  // namespace xlstm::gpu::engine
