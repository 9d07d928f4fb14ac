// SPDX-License-Identifier: Apache-2.0
// The x of a product of one row on its way to LDS, as the stream operand that weights meet. It comes as Between says:
// from mailboxes (engine/gpu/device_mailbox.h), or from a tensor (gemm_row_cdna.h).
//
// A step is 64 features. For weights that become bfloat16, each x is the sum of two bfloat16, as in gemm_mma. Integers
// are multiplied as bytes, with x in digits (engine/gpu/x_digits.h), as gemm_cluster does on Hopper.
#pragma once

#include "engine/gemm_mma/gemm_mma_shape.h"
#include "engine/gemm_row_cdna/gemm_row_cdna_plan.h"
#include "engine/gpu/half_vec8s.h"
#include "engine/gpu/weight_formats.h"
#include "engine/gpu/x_digits.h"

namespace xlstm::gpu::engine {

template <class Weights, class Between>
struct CdnaX {
  static constexpr int kStepVec8s = kStepFeatures / kVec8, kWaves = kRowCdnaThreads / kWave;
  static constexpr int kStepBytes = cdna_step_bytes(Weights::kIntegers);
  static constexpr int kBytesParts = kStepFeatures * 2;  // of a unit of features: two parts of 32 bfloat16

  char* lds;
  float* scales;   // of quantised weights: for each step what a sum of digits is multiplied by, and the sum of x
  float* squares;  // of each wave

  XLSTM_DEVICE static CdnaX at(char* lds, float* squares, int steps) {
    return {lds, reinterpret_cast<float*>(lds + steps * kStepBytes), squares};
  }

  // The lane's first bytes of a step, in unit 0 and, for bfloat16, in unit 1. Rows of the strip alternate between the
  // parts of x; four of them have one slice of features. `step` is the lane's first.
  XLSTM_DEVICE static int part_of_lane() { return lane_id() % (Weights::kIntegers ? 4 : 2); }
  XLSTM_DEVICE static int offset(int step, int unit, int part, int quarter) {
    if constexpr (Weights::kIntegers)
      return step * kStepBytes + part * kStepFeatures + (quarter ^ (part & 2)) * 16;
    else
      return step * kStepBytes + unit * kBytesParts + ((part * 4 + quarter) ^ (unit * 4) ^ (step % 2 * 2)) * 16;
  }

  // Waits for x and stores it, zeros behind its last feature. fetch_more() issues loads that are on their way
  // meanwhile. Before x has arrived they would delay it, also that of other waves. Barriers: none; one must follow.
  template <class Fetch>
  XLSTM_DEVICE void prepare(const GemmParams& p, int steps, Fetch&& fetch_more) const {
    if (steps * kStepVec8s <= kRowCdnaThreads)
      prepare_vec8s<1>(p, steps, fetch_more);
    else
      prepare_vec8s<kCdnaMostVec8s>(p, steps, fetch_more);
  }
  template <int kVec8s, class Fetch>
  XLSTM_DEVICE void prepare_vec8s(const GemmParams& p, int steps, Fetch&& fetch_more) const {
    const bool normed = p.input == Input::rms;
    const int thread = opaque_thread();  // addresses that a loop over products keeps in registers would spill others
    const auto fetch_norm = [&](int k, NormVec8& to) {
      if (normed) to.fetch({global(p.weight.data), p.weight.dtype}, k < p.columns ? k : 0);
    };
    NormVec8 weight;
    if (kVec8s == 1) fetch_norm(first_feature(thread, 0), weight);  // several would take too many registers
    const int lane = thread % kWave;
    HalfVec8s halves[kVec8s];
    Between::load_vec8s(
        {reinterpret_cast<const char*>(global(p.x)), uint32_t(p.columns) * 4}, lane,
        [&](int i, int of_lane) {
          const int k = first_feature(thread - lane + of_lane, i);
          return uint32_t(k < p.columns ? k : 0) * 4;
        },
        halves);
    sched_barrier();
    fetch_more();
    sched_barrier();
    float square_sum = 0;
#pragma unroll
    for (int i = 0; i < kVec8s; ++i) {
      const int k = first_feature(thread, i);
      float y[kVec8];
      halves[i].exchange(lane, y);
      if (k >= steps * kStepFeatures) continue;
      if (kVec8s > 1) fetch_norm(k, weight);
#pragma unroll
      for (float& x : y) x = k < p.columns ? x : 0.0f;
      square_sum += sum_of_squares(y);
      if (normed && k < p.columns) weight.multiply(p.weight.dtype, y);
      store(k / kVec8, y);
    }
    if (!normed) return;
    square_sum = sum_over_row(square_sum);
    square_sum += shuffle_xor(square_sum, 16);
    square_sum += shuffle_xor(square_sum, 32);
    if (lane_id() == 0) squares[wave_id()] = square_sum;
  }
  XLSTM_DEVICE static int first_feature(int thread, int i) { return (thread + i * kRowCdnaThreads) * kVec8; }

  XLSTM_DEVICE void store(int vec8, const float (&y)[kVec8]) const {
    const int step = vec8 / kStepVec8s;
    const Vec8Coord at = vec8_coord(Family::cdna, Weights::kBits, vec8 % kStepVec8s);
    float scale = 1, sum;
    if constexpr (Weights::kIntegers)
      store_digits(step, at, y, scale, sum);
    else
      store_parts(step, at, y, sum);
    if (Weights::kGroups && vec8 % kStepVec8s == 0) scales[2 * step] = scale, scales[2 * step + 1] = sum;
  }
  XLSTM_DEVICE void store_parts(int step, Vec8Coord at, const float (&y)[kVec8], float& sum) const {
    Vec16 part[2];
#pragma unroll
    for (int w = 0; w < 4; ++w)
      split_bfloat16(y[vec8_feature(Weights::kBits, 2 * w)], y[vec8_feature(Weights::kBits, 2 * w + 1)],
                     part[0].word[w], part[1].word[w]);
#pragma unroll
    for (int n = 0; n < 2; ++n) *reinterpret_cast<Vec16*>(lds + offset(step, at.unit, n, at.vec16)) = part[n];
    if constexpr (Weights::kGroups) {  // of the rounded x: sums of shifted weights are the greater part of the result
      sum = 0;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (const uint32_t word : part[n].word) sum += low_float(BFloat16{}, word) + high_float(BFloat16{}, word);
      sum = sum_over_lanes<kStepVec8s>(sum);
    }
  }
  XLSTM_DEVICE void store_digits(int step, Vec8Coord at, const float (&y)[kVec8], float& scale, float& sum) const {
    const XDigits of = digits_of(y);
    scale = of.scale, sum = of.sum;
#pragma unroll
    for (int n = 0; n < kXDigits; ++n) {
      uint32_t* const to = reinterpret_cast<uint32_t*>(lds + offset(step, 0, n, at.vec16) + at.unit * 8);
      to[0] = of.word[n][0], to[1] = of.word[n][1];
    }
  }

  // Behind the barrier: the RMS norm's factor.
  XLSTM_DEVICE float rms_factor(const GemmParams& p) const {
    if (p.input != Input::rms) return 1;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kWaves; ++n) sum += squares[n];
    return 1 / __builtin_sqrtf(sum / float(p.columns) + p.norm_eps);
  }
};

}  // namespace xlstm::gpu::engine
