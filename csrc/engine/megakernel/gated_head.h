// SPDX-License-Identifier: Apache-2.0
// The norm of a head of h, times the sigmoid of the output gate, in the megakernels: a warp has the statistics of the
// whole head and the results of 256 of its values.
#pragma once

#include "engine/gpu/prologue_epilogue.h"
#include "engine/megakernel/megakernel_plan.h"

namespace xlstm::gpu::engine {

// loaded: the lane's vec8s of the head, n = lane + 32 j of `vec8s`; then its vec8 of the gate, which is that of part
// `part` of the head. y: the lane's values of that part.
XLSTM_DEVICE void gated_head(const float (&loaded)[kMaxHeadVec8s + 1][kVec8], int part, int vec8s, float eps,
                             const NormVec8& weight, xlstm_dtype dtype, float (&y)[kVec8]) {
  static_assert(kMaxHeadVec8s == 2);
  const auto& gate = loaded[kMaxHeadVec8s];
  const auto sum_of = [&](auto&& f) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kMaxHeadVec8s; ++j)
      if (lane_id() + j * kWave < vec8s)
#pragma unroll
        for (int e = 0; e < kVec8; ++e) sum += f(loaded[j][e]);
    return wave_sum(sum);
  };
  const float features = float(vec8s * kVec8), mean = sum_of([](float v) { return v; }) / features;
  const float variance = sum_of([&](float v) { return (v - mean) * (v - mean); }) / features;
  const float reciprocal = 1 / __builtin_sqrtf(variance + eps);
#pragma unroll
  for (int e = 0; e < kVec8; ++e) y[e] = ((part ? loaded[1][e] : loaded[0][e]) - mean) * reciprocal;
  weight.multiply(dtype, y);
#pragma unroll
  for (int e = 0; e < kVec8; ++e) y[e] *= sigmoid_of(gate[e]);
}

}  // namespace xlstm::gpu::engine
