// SPDX-License-Identifier: Apache-2.0
// Attention backward (backward.h): the products of one tile, their chain operands and the sums.
#pragma once

#include "arch/unrolled.h"
#include "attention/backward/backward_tiles.h"

namespace xlstm::gpu::attention {

template <class Tiles>
struct BackwardProducts {
  using E = typename Tiles::E;
  using Scores = typename Tiles::Scores;
  using Operands = typename Tiles::Operands;
  static constexpr BackwardShape kShape = Tiles::kShape;
  static constexpr bool kHasScoreMod = Tiles::kHasScoreMod, kOfKeys = Tiles::kOfKeys;
  static constexpr bool kPairs = Tiles::kPairs, kRolled = Tiles::kRolled, kChainInRegisters = Tiles::kChainInRegisters;
  static constexpr int kTile = Tiles::kTile, kStepRows = Tiles::kStepRows, kRegisters = Tiles::kRegisters;
  static constexpr int kColumnStrips = Tiles::kColumnStrips, kRowStrips = Tiles::kRowStrips;
  static constexpr int kQkSteps = Tiles::kQkSteps, kVSteps = Tiles::kVSteps, kStreams = Tiles::kStreams;
  static constexpr bool kReadsFirst = kFamily == Family::cdna;  // the next operand's reads, ahead of these products
  static constexpr int kFirstSums = Tiles::kFirstSums, kSecondSums = Tiles::kSecondSums;

  const Tiles& tiles;
  ChainOperand<E> first_chain[kChainInRegisters ? kColumnStrips : 1][kChainInRegisters ? kQkSteps : 1];
  ChainOperand<E> second_chain[kChainInRegisters ? kColumnStrips : 1][kChainInRegisters ? kVSteps : 1];
  // k, or v, of a wave of a pair; with a score modification its registers are needed elsewhere.
  ChainOperand<E> pair_chain[kPairs && !kHasScoreMod ? kColumnStrips : 1][kPairs && !kHasScoreMod ? kQkSteps : 1];
  Strip<E> first_sums[kFirstSums][kColumnStrips];
  Strip<E> second_sums[kSecondSums > 0 ? kSecondSums : 1][kColumnStrips];

  XLSTM_DEVICE explicit BackwardProducts(const Tiles& of) : tiles(of) {}

  // Loads the owned tokens as chain operands: to LDS, or through the tiles' buffer, a tile at a time, into registers.
  XLSTM_DEVICE void load_owned() {
    TokenRows<E> first, second;
    tiles.token_rows(kOfKeys, tiles.query_head, first, second);
    const int valid = tiles.owned_tokens() - tiles.owned;
    static_assert(kShape.owned % kTile == 0);
    if constexpr (kChainInRegisters)
      load_chains(first, second, valid);
    else
      store_owned(first, second, valid);
  }
  XLSTM_DEVICE void store_owned(const TokenRows<E>& first, const TokenRows<E>& second, int valid) const {
    using Pair = typename Tiles::Pair;
    if constexpr (kAsyncCopies) {
      using OwnedStage = PairStage<E, kShape.owned, Tiles::kQk, Tiles::kV, Tiles::kThreads>;
      OwnedStage::copy(tiles.first_owned(), first, tiles.owned, valid < kShape.owned ? valid : kShape.owned);
      OwnedStage::copy(tiles.second_owned(), second, tiles.owned, valid < kShape.owned ? valid : kShape.owned);
    } else {
#pragma unroll 1
      for (int t = 0; t < kShape.owned; t += kTile)
        Pair::move(first, second, tiles.owned + t, valid - t < kTile ? valid - t : kTile,
                   [&](bool is_second, const Vec16* x, int token, int column) {
                     if (is_second)
                       Pair::store_along(tiles.second_owned(), x, t + token, column);
                     else
                       Pair::store_along(tiles.first_owned(), x, t + token, column);
                   });
    }
  }
  XLSTM_DEVICE void load_chains(const TokenRows<E>& first, const TokenRows<E>& second, int valid) {
    typename Tiles::Pair pair;
    pair.fetch(first, second, tiles.owned, valid < kTile ? valid : kTile);
#pragma unroll 1
    for (int t = 0; t < kShape.owned; t += kTile) {
      char* to = tiles.buffer(0);
      arrive([&] { tiles.store(pair, to, true, false); });
      const int next = t + kTile;
      if (next < kShape.owned)
        pair.fetch(first, second, tiles.owned + next, valid - next < kTile ? valid - next : kTile);
      read_chains(t);
      wait_lds_reads();
    }
  }
  // Of the owned tokens [t, t + kTile), which are in LDS.
  XLSTM_DEVICE void read_chains(int t) {
    char* to = tiles.buffer(0);
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
      const int row_in_tile = tiles.column0 + c * kStripColumns - t;
      if (row_in_tile < 0 || row_in_tile >= kTile) continue;
#pragma unroll
      for (int k = 0; k < kQkSteps; ++k)
        first_chain[c][k] = load_chain_along<E>(Tiles::first_tile(to), row_in_tile, k * kStepRows);
#pragma unroll
      for (int k = 0; k < kVSteps; ++k)
        second_chain[c][k] = load_chain_along<E>(Tiles::second_tile(to), row_in_tile, k * kStepRows);
    }
  }
  template <bool kFirst>
  XLSTM_DEVICE ChainOperand<E> chain(int c, int k, int lane) const {
    if constexpr (kPairs && kHasScoreMod)
      return load_chain_along<E>(Tiles::makes_weights() ? tiles.first_owned() : tiles.second_owned(),
                                 tiles.column0 + c * kStripColumns, k * kStepRows, lane);
    else if constexpr (kPairs)
      return pair_chain[c][k];
    else if constexpr (kChainInRegisters)
      return kFirst ? first_chain[c][k] : second_chain[c][k];
    else if constexpr (kFirst)
      return load_chain_along<E>(tiles.first_owned(), tiles.column0 + c * kStripColumns, k * kStepRows, lane);
    else
      return load_chain_along<E>(tiles.second_owned(), tiles.column0 + c * kStripColumns, k * kStepRows, lane);
  }

  // products = tile owned^T, over the features of the first or the second matrix.
  template <bool kFirst, class AnyTile>
  XLSTM_DEVICE void multiply_rows(Scores& products, const AnyTile& tile, int row0, int lane) const {
    constexpr int kSteps = kFirst ? kQkSteps : kVSteps;
#pragma unroll
    for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) products[r][c].zero();
    constexpr int kPart =
        sizeof(E) == 4 ? 4 : kSteps;  // steps per partial sum: floats are summed in parts, so that no sum is long
    if constexpr (kRolled) {
#pragma unroll 1
      for (int first = 0; first < kSteps; first += kPart) {
        Scores part;
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r) part[r][0].zero();
#pragma unroll 1
        for (int k = first; k < first + kPart; ++k) {
          const ChainOperand<E> owned_operand = chain<kFirst>(0, k, lane);
#pragma unroll
          for (int r = 0; r < kRowStrips; ++r)
            multiply(part[r][0], load_stream<true, E>(tile, row0 + r * kStepRows, k * kStepRows, lane), owned_operand);
        }
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
          for (int j = 0; j < kRegisters; ++j) products[r][0].value[j] += part[r][0].value[j];
      }
      return;
    }
    StreamOperand<E> stream[kStreams][kRowStrips];  // of this step and the next
    const auto load = [&](int k) {
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
        stream[k % kStreams][r] = load_stream<true, E>(tile, row0 + r * kStepRows, k * kStepRows, lane);
    };
#pragma unroll
    for (int k = 0; k < kStreams - 1 || k == 0; ++k) load(k);
    Scores part;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      sched_barrier();
      if (kStreams == 1 ? k > 0 : k + kStreams - 1 < kSteps) load(k + kStreams - 1);
      if constexpr (kReadsFirst) sched_barrier();
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) {
        const ChainOperand<E> owned_operand = chain<kFirst>(c, k, lane);
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r) {
          Strip<E>& sum = k < kPart ? products[r][c] : part[r][c];
          if (k >= kPart && k % kPart == 0) sum.zero();
          multiply<false, kChainInRegisters>(sum, stream[k % kStreams][r], owned_operand);
          if (k >= kPart && k % kPart == kPart - 1)
#pragma unroll
            for (int j = 0; j < kRegisters; ++j) products[r][c].value[j] += part[r][c].value[j];
        }
      }
    }
  }

  // CDNA: the tile's two products of scores, and the two sums after the softmax, are one run of steps each. The
  // operands of the first steps of either product are then read while the product before is multiplied.
  static constexpr bool kInOneRun = kFamily == Family::cdna && sizeof(E) == 2 && !kHasScoreMod && Tiles::kAllAtOnce &&
                                    kRowStrips == 1 && kShape.waves_across == 1 && kChainInRegisters;
  using Streams = StreamOperand<E>[kStreams];

  // between(step) is issued after the products of each step.
  template <class Between>
  XLSTM_DEVICE void multiply_both_rows(Scores& s, Scores& dp, char* buffer, int row0, int lane,
                                       Between&& between) const {
    constexpr int kSteps = kQkSteps + kVSteps, kAhead = kStreams - 1;
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) s[0][c].zero(), dp[0][c].zero();
    Streams stream;
    const auto load = [&](int n) {
      stream[n % kStreams] =
          n < kQkSteps ? load_stream<true, E>(Tiles::first_tile(buffer), row0, n * kStepRows, lane)
                       : load_stream<true, E>(Tiles::second_tile(buffer), row0, (n - kQkSteps) * kStepRows, lane);
    };
    each_of<kAhead>([&](auto n) { load(n); });
    each_of<kSteps>([&](auto n) {
      sched_barrier();
      if constexpr (n + kAhead < kSteps) load(n + kAhead);
      sched_barrier();
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c)
        if constexpr (n < kQkSteps)
          multiply<false, true>(s[0][c], stream[n % kStreams], first_chain[c][n]);
        else
          multiply<false, true>(dp[0][c], stream[n % kStreams], second_chain[c][n - kQkSteps]);
      between(n);
    });
  }
  XLSTM_DEVICE static void read_for_sums(Streams& stream, char* buffer, int row0, int lane, int n) {
    stream[n % kStreams] =
        n < kSecondSums
            ? load_stream<false, E>(Tiles::second_transposed(buffer), n * kStepRows, row0, lane)
            : load_stream<false, E>(Tiles::first_transposed(buffer), (n - kSecondSums) * kStepRows, row0, lane);
  }
  // The operands of the first steps, ahead of the softmax.
  XLSTM_DEVICE static void read_for_first_sums(Streams& stream, char* buffer, int row0, int lane) {
    each_of<kStreams - 1>([&](auto n) { read_for_sums(stream, buffer, row0, lane, n); });
  }
  XLSTM_DEVICE void add_both_rows(Streams& stream, char* buffer, int row0, const Operands& weights, const Operands& ds,
                                  int lane) {
    constexpr int kSteps = kSecondSums + kFirstSums, kAhead = kStreams - 1;
    each_of<kSteps>([&](auto n) {
      sched_barrier();
      if constexpr (n + kAhead < kSteps) read_for_sums(stream, buffer, row0, lane, n + kAhead);
      sched_barrier();
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c)
        if constexpr (n < kSecondSums)
          multiply<false, true>(second_sums[n][c], stream[n % kStreams], weights[0][c]);
        else
          multiply<false, true>(first_sums[n - kSecondSums][c], stream[n % kStreams], ds[0][c]);
    });
  }

  // sums += tile^T weights; rows of weights are tokens of the tile.
  template <int kSums, class AnyTile>
  XLSTM_DEVICE void add_rows(Strip<E> (&sums)[kSums][kColumnStrips], const AnyTile& tile, int row0,
                             const Operands& weights, int lane) const {
    const int feature0 = kShape.waves_across > 1 ? tiles.feature_wave * kSums * kStepRows : 0;
    StreamOperand<E> stream[kStreams];
    const auto load = [&](int n) {
      stream[n % kStreams] = load_stream<false, E>(tile, feature0 + n % kSums * kStepRows, row0 + n / kSums * kStepRows,
                                                   kRolled ? opaque_lane() : lane);
    };
#pragma unroll
    for (int n = 0; n < kStreams - 1 || n == 0; ++n) load(n);
    each_of<kSums * kRowStrips>([&](auto n) {
      sched_barrier();
      if (kStreams == 1 ? n > 0 : n + kStreams - 1 < kSums * kRowStrips) load(n + kStreams - 1);
      if constexpr (kReadsFirst) sched_barrier();
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c)
        multiply<false, true>(sums[n % kSums][c], stream[n % kStreams], weights[n / kSums][c]);
    });
  }

  // ---- sums

  XLSTM_DEVICE void zero_sums() {
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
#pragma unroll
      for (int f = 0; f < kFirstSums; ++f) first_sums[f][c].zero();
#pragma unroll
      for (int f = 0; f < kSecondSums; ++f) second_sums[f][c].zero();
    }
  }
  // Calls f(is it of the first matrix, column strip, first feature, sums) for all strips of sums.
  template <class F>
  XLSTM_DEVICE void each_strip(F&& f) {
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
#pragma unroll
      for (int s = 0; s < kFirstSums; ++s)
        f(!kPairs || !Tiles::makes_weights(), c, (tiles.feature_wave * kFirstSums + s) * kStepRows, first_sums[s][c]);
#pragma unroll
      for (int s = 0; s < kSecondSums; ++s)
        f(false, c, (tiles.feature_wave * kSecondSums + s) * kStepRows, second_sums[s][c]);
    }
  }
  // Calls f(register, its address) for the sums of a part, which memory holds in the order of the registers.
  template <class F>
  XLSTM_DEVICE void each_register(float* base, F&& f) {
    int order = 0;
    base += threadIdx.x;
    each_strip([&](bool, int, int, Strip<E>& s) {
      sched_barrier();
      float* to = opaque(base) + order * (kRegisters * Tiles::kThreads);
      ++order;
#pragma unroll
      for (int r = 0; r < kRegisters; ++r) f(s.value[r], to + r * Tiles::kThreads);
    });
  }
};

}  // namespace xlstm::gpu::attention
