// SPDX-License-Identifier: Apache-2.0
// Attention backward, dk and dv on NVIDIA: pairs of waves. The sums of dk and dv of 32 keys would take 256 registers of
// a wave with 128 features; so one wave of a pair computes S, the weights and dv, the other dP, ds and dk, of the same
// 32 keys. k, or v, stays in registers, and each operand that is read from LDS serves four mma; with 16 keys per wave
// and both sums it would serve two. The first wave sends the weights to the second as floats through LDS, 4 bytes per
// pair of tokens; a named barrier per pair of waves synchronises them.
#pragma once

#include "attention/backward/backward_products.h"
#include "attention/backward/backward_softmax.h"

namespace xlstm::gpu::attention {

template <class Tiles>
struct BackwardWarpPairs {
  using E = typename Tiles::E;
  using Scores = typename Tiles::Scores;
  static constexpr BackwardShape kShape = Tiles::kShape;
  static constexpr int kColumnStrips = Tiles::kColumnStrips, kRowStrips = Tiles::kRowStrips;

  const Tiles& tiles;
  BackwardProducts<Tiles>& products;
  const BackwardSoftmax<Tiles>& softmax;

  XLSTM_DEVICE static int pair() { return wave_id() % kShape.waves_along; }

  // Called after load_owned(): the copies of all threads are complete.
  XLSTM_DEVICE void load_chain() const {
    arrive_free([] {});
    const auto owned = Tiles::makes_weights() ? tiles.first_owned() : tiles.second_owned();
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
      for (int k = 0; k < Tiles::kQkSteps; ++k)
        products.pair_chain[c][k] = load_chain_along<E>(owned, tiles.column0 + c * kStripColumns, k * Tiles::kStepRows);
  }

  // f(four floats, their slot in LDS) for the factors that go from one wave of the pair to the other.
  template <class F>
  XLSTM_DEVICE void each_vec4(Scores& strips, int lane, F&& f) const {
    Vec16* slots = reinterpret_cast<Vec16*>(tiles.lds + (Tiles::kHasScoreMod ? kShape.lds_bytes : 0)) +
                   pair() * (kShape.pairs_bytes / 16 / kShape.waves_along) + lane;
#pragma unroll
    for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
        for (int h = 0; h < 2; ++h) f(strips[r][c].value + 4 * h, slots + ((r * kColumnStrips + c) * 2 + h) * kWave);
  }

  // One wave's half of the products of a loaded tile.
  XLSTM_DEVICE void run_tile(char* buffer, int first, const ScoreRules& rules, float slope, int lane) const {
    constexpr int kPairThreads = 2 * kWave;
    const int barrier = 1 + pair();
    const bool weights = Tiles::makes_weights();
    const auto along = weights ? Tiles::first_tile(buffer) : Tiles::second_tile(buffer),
               transposed = weights ? Tiles::second_tile(buffer) : Tiles::first_tile(buffer);
    Scores strips;
    products.template multiply_rows<true>(strips, along, 0, lane);
    const typename BackwardSoftmax<Tiles>::Block block(softmax, rules, first, 0, Tiles::row_stats_in(buffer), lane);
    if (weights) {
      Scores factors;
      softmax.template gradient<true, false>(strips, factors, block, slope,
                                             !tiles.fully_visible(first, kShape.at_once));
      each_vec4(factors, lane, [](const float* x, Vec16* to) {
        *to = {{as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])}};
      });
      barrier_arrive(barrier, kPairThreads);
    } else {
      barrier_sync(barrier, kPairThreads);
      Scores factors;
      each_vec4(factors, lane, [](float* x, const Vec16* from) {
        const Vec16 vec = *from;
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = as_float(vec.word[j]);
      });
      softmax.template gradient<false, true>(factors, strips, block, slope, false);
    }
    typename Tiles::Operands operands;
#pragma unroll
    for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) operands[r][c] = as_chain(strips[r][c], 1.0f);
    products.add_rows(products.first_sums, transposed, 0, operands, lane);
  }
};

}  // namespace xlstm::gpu::attention
