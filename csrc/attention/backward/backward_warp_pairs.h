// SPDX-License-Identifier: Apache-2.0
// Attention backward, dk and dv on NVIDIA: pairs of waves. 32 keys of a wave would take their sums of dk and dv, 256
// registers of 128 features; so one wave of a pair has S, the weights and dv, the other dP, ds and dk, of the same 32
// keys. k, or v, is held in registers, and each operand that is read from LDS serves four mma, where 16 keys with both
// sums had two. What goes between the two are the weights, in float, 4 bytes of each pair of tokens.
#pragma once

#include "attention/backward/backward_products.h"

namespace xlstm::gpu::attention {

template <class E, int kQk, int kV, bool kFull, bool kOfKeys>
struct BackwardPairs : BackwardProducts<E, kQk, kV, kFull, kOfKeys> {
  using Base = BackwardProducts<E, kQk, kV, kFull, kOfKeys>;
  using Base::kShape, Base::kColumnStrips, Base::kRowStrips, Base::kStepRows, Base::kQkSteps, Base::column0, Base::lds;
  using Base::makes_weights;
  using typename Base::Scores;

  using Base::Base;

  XLSTM_DEVICE static int pair() { return wave_id() % kShape.waves_along; }

  // After load_owned(): everybody's copies are there.
  XLSTM_DEVICE void hold_chain() {
    arrive_free([] {});
    const auto owned = makes_weights() ? Base::first_owned() : Base::second_owned();
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
      for (int k = 0; k < kQkSteps; ++k)
        Base::pair_chain[c][k] = load_chain_along<E>(owned, column0 + c * kStripColumns, k * kStepRows);
  }

  // Of a tile that is there: this wave's part of its products.
  XLSTM_DEVICE void run_pair(char* room, int first, const ScoreRules& rules, float slope, int lane) {
    constexpr int kBoth = 2 * kWave;
    const int barrier = 1 + pair();
    const bool weights = makes_weights();
    const auto along = weights ? Base::first_tile(room) : Base::second_tile(room),
               transposed = weights ? Base::second_tile(room) : Base::first_tile(room);
    Scores products;
    this->template multiply_rows<true>(products, along, 0, lane);
    Vec16* between = reinterpret_cast<Vec16*>(lds + (kFull ? kShape.lds_bytes : 0)) +
                     pair() * (kShape.pairs_bytes / 16 / kShape.waves_along) + lane;
    const auto each_piece = [&](Scores& strips, auto&& f) {  // f(four floats, where they are on their way)
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
          for (int h = 0; h < 2; ++h)
            f(strips[r][c].value + 4 * h, between + ((r * kColumnStrips + c) * 2 + h) * kWave);
    };
    const float* facts = Base::facts_in(room);
    if (weights) {
      Scores sent;
      this->template weigh<true, false>(products, sent, rules, slope, first, 0, facts,
                                        !this->all_seen(first, kShape.at_once), lane);
      each_piece(sent, [](const float* x, Vec16* to) {
        *to = {{as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])}};
      });
      barrier_arrive(barrier, kBoth);
    } else {
      barrier_sync(barrier, kBoth);
      Scores got;
      each_piece(got, [](float* x, const Vec16* from) {
        const Vec16 piece = *from;
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = as_float(piece.word[j]);
      });
      this->template weigh<false, true>(got, products, rules, slope, first, 0, facts, false, lane);
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
