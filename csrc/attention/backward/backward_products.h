// SPDX-License-Identifier: Apache-2.0
// Attention backward (backward.h): the products of one tile, and the softmax gradient between them.
#pragma once

#include "arch/unrolled.h"
#include "attention/backward/backward_tiles.h"
#include "tile/columns.h"

namespace xlstm::gpu::attention {

template <class E, int kQk, int kV, bool kHasScoreMod, bool kOfKeys>
struct BackwardProducts : BackwardTiles<E, kQk, kV, kHasScoreMod, kOfKeys> {
  using Base = BackwardTiles<E, kQk, kV, kHasScoreMod, kOfKeys>;
  using Base::kShape, Base::kThreads, Base::kTile, Base::kStepRows, Base::kColumnStrips, Base::kRowStrips,
      Base::kQkSteps, Base::kVSteps, Base::kRegisters, Base::kStreams, Base::kFirstSums, Base::kSecondSums,
      Base::kChainInRegisters, Base::kPairs, Base::kAllAtOnce, Base::p, Base::at, Base::query_head, Base::queries,
      Base::keys, Base::owned, Base::column0, Base::feature_wave, Base::band, Base::token_rows, Base::store,
      Base::buffer, Base::first_owned, Base::second_owned, Base::first_tile, Base::second_tile, Base::keep;
  using typename Base::Pair;

  ChainOperand<E> first_chain[kChainInRegisters ? kColumnStrips : 1][kChainInRegisters ? kQkSteps : 1];
  ChainOperand<E> second_chain[kChainInRegisters ? kColumnStrips : 1][kChainInRegisters ? kVSteps : 1];
  // k, or v, of a wave of a pair; with a score modification its registers are needed elsewhere.
  ChainOperand<E> pair_chain[kPairs && !kHasScoreMod ? kColumnStrips : 1][kPairs && !kHasScoreMod ? kQkSteps : 1];
  Strip<E> first_sums[kFirstSums][kColumnStrips];
  Strip<E> second_sums[kSecondSums > 0 ? kSecondSums : 1][kColumnStrips];
  Columns lse[kColumnStrips], delta[kColumnStrips];  // dq: of the owned queries

  // NVIDIA splits floats in three as it reads them: operands of several steps at once would not fit.
  static constexpr bool kRolled = kAsyncCopies && sizeof(E) == 4;
  static_assert(!kRolled || kColumnStrips == 1);

  using Base::Base;

  // Whether this is the wave of a pair that computes the weights (backward_warp_pairs.h).
  XLSTM_DEVICE static bool makes_weights() { return wave_id() < kShape.waves_along; }

  // Loads the owned tokens as chain operands: through the tiles' buffer, a tile at a time.
  XLSTM_DEVICE void load_owned() {
    TokenRows<E> first, second;
    token_rows(kOfKeys, query_head, first, second);
    const int valid = (kOfKeys ? keys : queries) - owned;
    constexpr int kVec16s = kShape.owned / kTile;
    static_assert(kShape.owned % kTile == 0);
    if constexpr (kAsyncCopies) {
      using OwnedStage = PairStage<E, kShape.owned, kQk, kV, kThreads>;
      OwnedStage::copy(first_owned(), first, owned, valid < kShape.owned ? valid : kShape.owned);
      OwnedStage::copy(second_owned(), second, owned, valid < kShape.owned ? valid : kShape.owned);
    } else if constexpr (!kChainInRegisters) {
#pragma unroll 1
      for (int t = 0; t < kShape.owned; t += kTile)
        Pair::move(first, second, owned + t, valid - t < kTile ? valid - t : kTile,
                   [&](bool is_second, const Vec16* x, int token, int column) {
                     if (is_second)
                       Pair::store_along(second_owned(), x, t + token, column);
                     else
                       Pair::store_along(first_owned(), x, t + token, column);
                   });
    } else {
      Pair pair;
      pair.fetch(first, second, owned, valid < kTile ? valid : kTile);
#pragma unroll 1
      for (int j = 0; j < kVec16s; ++j) {
        char* to = buffer(0);
        arrive([&] { store(pair, to, true, false); });
        const int next = (j + 1) * kTile;
        if (j + 1 < kVec16s) pair.fetch(first, second, owned + next, valid - next < kTile ? valid - next : kTile);
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) {
          const int row_in_tile = column0 + c * kStripColumns - j * kTile;
          if (row_in_tile < 0 || row_in_tile >= kTile) continue;
#pragma unroll
          for (int k = 0; k < kQkSteps; ++k)
            first_chain[c][k] = load_chain_along<E>(first_tile(to), row_in_tile, k * kStepRows);
#pragma unroll
          for (int k = 0; k < kVSteps; ++k)
            second_chain[c][k] = load_chain_along<E>(second_tile(to), row_in_tile, k * kStepRows);
        }
        wait_lds_reads();
      }
    }
    if constexpr (!kOfKeys) {
      const float* row_stats = row_stats_of(*p, at, query_head);
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
        for (int j = 0; j < Columns::kEach; ++j) {
          const float* lane_stats =
              row_stats + row_stats_index(owned + column0 + c * kStripColumns + Columns::position(j));
          lse[c].value[j] = lane_stats[0];
          delta[c].value[j] = lane_stats[kStatsGroup];
        }
    }
  }
  template <bool kFirst>
  XLSTM_DEVICE ChainOperand<E> chain(int c, int k, int lane) const {
    if constexpr (kPairs && kHasScoreMod)
      return load_chain_along<E>(makes_weights() ? first_owned() : second_owned(), column0 + c * kStripColumns,
                                 k * kStepRows, lane);
    else if constexpr (kPairs)
      return pair_chain[c][k];
    else if constexpr (kChainInRegisters)
      return kFirst ? first_chain[c][k] : second_chain[c][k];
    else if constexpr (kFirst)
      return load_chain_along<E>(first_owned(), column0 + c * kStripColumns, k * kStepRows, lane);
    else
      return load_chain_along<E>(second_owned(), column0 + c * kStripColumns, k * kStepRows, lane);
  }

  using Scores = Strip<E>[kRowStrips][kColumnStrips];

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
    load(0);
    Scores part;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      sched_barrier();
      if (kStreams == 1 ? k > 0 : k + 1 < kSteps) load(k + kStreams - 1);
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) {
        const ChainOperand<E> owned_operand = chain<kFirst>(c, k, lane);
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r) {
          Strip<E>& sum = k < kPart ? products[r][c] : part[r][c];
          if (k >= kPart && k % kPart == 0) sum.zero();
          multiply(sum, stream[k % kStreams][r], owned_operand);
          if (k >= kPart && k % kPart == kPart - 1)
#pragma unroll
            for (int j = 0; j < kRegisters; ++j) products[r][c].value[j] += part[r][c].value[j];
        }
      }
    }
  }

  // sums += tile^T weights; rows of weights are tokens of the tile.
  template <int kSums, class AnyTile>
  XLSTM_DEVICE void add_rows(Strip<E> (&sums)[kSums][kColumnStrips], const AnyTile& tile, int row0,
                             const ChainOperand<E> (&weights)[kRowStrips][kColumnStrips], int lane) const {
    const int feature0 = kShape.waves_across > 1 ? feature_wave * kSums * kStepRows : 0;
    StreamOperand<E> stream[kStreams];
    const auto load = [&](int n) {
      stream[n % kStreams] = load_stream<false, E>(tile, feature0 + n % kSums * kStepRows, row0 + n / kSums * kStepRows,
                                                   kRolled ? opaque_lane() : lane);
    };
    load(0);
    each_of<kSums * kRowStrips>([&](auto n) {
      sched_barrier();
      if (kStreams == 1 ? n > 0 : n + 1 < kSums * kRowStrips) load(n + kStreams - 1);
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) multiply(sums[n % kSums][c], stream[n % kStreams], weights[n / kSums][c]);
    });
  }

  // Whether all of the wave's pairs with the tile's tokens [first, first + n) are visible. A wave does not skip the
  // products of a tile of which no pair is visible: where one path skips the products, the compiler copies the sums
  // from registers to registers on every other path.
  XLSTM_DEVICE bool fully_visible(int first, int n) const {
    const int wave_token = owned + column0;
    // The smallest and the largest key - query.
    const int64_t low =
        kOfKeys ? int64_t(wave_token) - (first + n - 1) : int64_t(first) - (wave_token + kShape.columns - 1);
    const int64_t high =
        kOfKeys ? int64_t(wave_token + kShape.columns - 1) - first : int64_t(first + n - 1) - wave_token;
    const int64_t begin = int64_t(band.min_distance) + band.diagonal, end = begin + uint32_t(band.span);
    return low >= begin && high <= end && (kOfKeys || first + n <= keys);
  }

  // Turns scores and dP into weights and ds. A wave of a pair does half of it: kMakesWeights alone computes the
  // weights, and puts w dy/ds (the factor of ds) into dp; kMakesDs alone computes ds from that factor in s.
  template <bool kMakesWeights = true, bool kMakesDs = true>
  XLSTM_DEVICE void softmax_gradient(Scores& s, Scores& dp, const ScoreRules& rules, float slope, int first, int row0,
                                     const float* row_stats, bool masked, int lane) const {
    const StripPosition lane_position =
        strip_position(kFamily, sizeof(E), lane, 0);  // the other registers are at known distances
    const int row = first + row0 + lane_position.row, column = owned + column0 + lane_position.column;
    const int lane_distance = (kOfKeys ? column - row : row - column) - band.diagonal;
    const float* lane_stats = row_stats + row_stats_index(row0 + lane_position.row);
    // f(strip row, register, strip column, tokens down and across from the lane's first)
    const auto each = [&](auto&& f) {
#pragma unroll
      for (int rs = 0; rs < kRowStrips; ++rs)
#pragma unroll
        for (int r = 0; r < kRegisters; ++r)
#pragma unroll
          for (int c = 0; c < kColumnStrips; ++c) {
            const StripPosition shift = strip_position(kFamily, sizeof(E), 0, r);
            f(rs, r, c, rs * kStepRows + shift.row, c * kStripColumns + shift.column);
          }
    };
    const auto lse_of = [&](int r, int c, int down) {
      return kOfKeys ? lane_stats[row_stats_index(down)] : lse[c].value[Columns::of(r)];
    };
    const auto delta_of = [&](int r, int c, int down) {
      return kOfKeys ? lane_stats[row_stats_index(down) + kStatsGroup] : delta[c].value[Columns::of(r)];
    };
    if constexpr (kMakesDs && (kHasScoreMod || !kAllAtOnce)) {  // computed before the branches below
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) dp[r][c].materialise();
    }
    const auto distance = [&](int down, int across) {
      return lane_distance + (kOfKeys ? across - down : down - across);
    };

    // y - lse
    float dy_ds[kRowStrips][kColumnStrips][kRegisters];  // dy/ds over scale
    if (!kMakesWeights) {
    } else if (kHasScoreMod && rules.cap > 0) {
      each([&](int rs, int r, int c, int down, int) {
        const float capped = tanh_of<E>(s[rs][c].value[r] * rules.to_cap);
        dy_ds[rs][c][r] = 1 - capped * capped;
        s[rs][c].value[r] = __builtin_fmaf(rules.cap, capped, -lse_of(r, c, down));
      });
    } else {
      each([&](int rs, int r, int c, int down, int) {
        dy_ds[rs][c][r] = 1;
        s[rs][c].value[r] = __builtin_fmaf(s[rs][c].value[r], rules.scale, -lse_of(r, c, down));
      });
    }
    if (kMakesWeights && kHasScoreMod && rules.slopes)
      each([&](int rs, int r, int c, int down, int across) {
        const int shift = distance(down, across);
        s[rs][c].value[r] -= slope * float(shift < 0 ? -shift : shift);
      });
    uint32_t dropped[kRowStrips][kColumnStrips] = {};  // a bit for each register
    if (kHasScoreMod && rules.drops) {
      const float keep_scale = uniform(float(dropout_scale(p->call.in.dropout_p)));
      each([&](int rs, int r, int c, int down, int across) {
        const int key = kOfKeys ? column0 + lane_position.column + across : row0 + lane_position.row + down;
        const int query = kOfKeys ? row0 + lane_position.row + down : column0 + lane_position.column + across;
        constexpr int kQueries = kOfKeys ? kTile : kShape.owned;
        const uint32_t keep_bit = keep()[key / kDrawsAtOnce * kQueries + query] >> (key % kDrawsAtOnce) & 1;
        dropped[rs][c] |= (keep_bit ^ 1) << r;
        if constexpr (kMakesDs) dp[rs][c].value[r] = keep_bit ? dp[rs][c].value[r] * keep_scale : 0.0f;
      });
    }
    if (kMakesWeights && masked)
      each([&](int rs, int r, int c, int down, int across) {
        bool sees = uint32_t(distance(down, across)) - uint32_t(band.min_distance) <= uint32_t(band.span);
        if (!kOfKeys) sees = sees && row + down < keys;
        s[rs][c].value[r] = sees ? s[rs][c].value[r] : -__builtin_inff();
      });
    each([&](int rs, int r, int c, int down, int) {
      const float y = s[rs][c].value[r];
      if constexpr (!kMakesWeights) {
        dp[rs][c].value[r] = y * (dp[rs][c].value[r] - delta_of(r, c, down));
        return;
      }
      const float weight = exp2_fast(sizeof(E) == 4 ? y * kLog2E : y);
      if constexpr (kMakesDs)
        dp[rs][c].value[r] = weight * (dp[rs][c].value[r] - delta_of(r, c, down)) * dy_ds[rs][c][r];
      else
        dp[rs][c].value[r] = weight * dy_ds[rs][c][r];
      s[rs][c].value[r] = kHasScoreMod && dropped[rs][c] >> r & 1 ? 0.0f : weight;
    });
  }
};

}  // namespace xlstm::gpu::attention
