// SPDX-License-Identifier: Apache-2.0
// Attention backward, dk and dv on NVIDIA: pairs of waves. The sums of dk and dv of 32 keys would take 256 registers of
// a wave with 128 features; so one wave of a pair computes S, the weights and dv, the other dP, ds and dk, of the same
// 32 keys. k, or v, stays in registers, and each operand that is read from LDS serves four mma; with 16 keys per wave
// and both sums it would serve two. The first wave sends the weights to the second as floats through LDS, 4 bytes per
// pair of tokens; a named barrier per pair of waves synchronises them.
#pragma once

#include "attention/backward/backward_products.h"

namespace xlstm::gpu::attention {

template <class E, int kQk, int kV, bool kHasScoreMod, bool kOfKeys>
struct BackwardPairs : BackwardProducts<E, kQk, kV, kHasScoreMod, kOfKeys> {
  using Base = BackwardProducts<E, kQk, kV, kHasScoreMod, kOfKeys>;
  using Base::kShape, Base::kColumnStrips, Base::kRowStrips, Base::kStepRows, Base::kQkSteps, Base::column0, Base::lds;
  using Base::makes_weights;
  using typename Base::Scores;

  using Base::Base;

  XLSTM_DEVICE static int pair() { return wave_id() % kShape.waves_along; }

  // Called after load_owned(): the copies of all threads are complete.
  XLSTM_DEVICE void hold_chain() {
    arrive_free([] {});
    const auto owned = makes_weights() ? Base::first_owned() : Base::second_owned();
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
      for (int k = 0; k < kQkSteps; ++k)
        Base::pair_chain[c][k] = load_chain_along<E>(owned, column0 + c * kStripColumns, k * kStepRows);
  }

  // One wave's half of the products of a loaded tile.
  XLSTM_DEVICE void run_pair(char* buffer, int first, const ScoreRules& rules, float slope, int lane) {
    constexpr int kPairThreads = 2 * kWave;
    const int barrier = 1 + pair();
    const bool weights = makes_weights();
    const auto along = weights ? Base::first_tile(buffer) : Base::second_tile(buffer),
               transposed = weights ? Base::second_tile(buffer) : Base::first_tile(buffer);
    Scores products;
    this->template multiply_rows<true>(products, along, 0, lane);
    Vec16* between = reinterpret_cast<Vec16*>(lds + (kHasScoreMod ? kShape.lds_bytes : 0)) +
                     pair() * (kShape.pairs_bytes / 16 / kShape.waves_along) + lane;
    const auto each_vec4 = [&](Scores& strips, auto&& f) {  // f(four floats, their slot in LDS)
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            f(strips[r][c].value + 4 * h, between + ((r * kColumnStrips + c) * 2 + h) * kWave);
    };
    const float* row_stats = Base::row_stats_in(buffer);
    if (weights) {
      Scores factors;
      this->template softmax_gradient<true, false>(products, factors, rules, slope, first, 0, row_stats,
                                                   !this->fully_visible(first, kShape.at_once), lane);
      each_vec4(factors, [](const float* x, Vec16* to) {
        *to = {{as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])}};
      });
      barrier_arrive(barrier, kPairThreads);
    } else {
      barrier_sync(barrier, kPairThreads);
      Scores factors;
      each_vec4(factors, [](float* x, const Vec16* from) {
        const Vec16 vec = *from;
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = as_float(vec.word[j]);
      });
      this->template softmax_gradient<false, true>(factors, products, rules, slope, first, 0, row_stats, false, lane);
    }
    ChainOperand<E> operand[kRowStrips][kColumnStrips];
#pragma unroll
    for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) operand[r][c] = as_chain(products[r][c], 1.0f);
    this->add_rows(Base::first_sums, transposed, 0, operand, lane);
  }
};

}  // namespace xlstm::gpu::attention
