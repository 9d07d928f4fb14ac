// SPDX-License-Identifier: Apache-2.0
// Attention backward: the products of one tile, and what becomes of scores between them (backward.h has the whole).
#pragma once

#include "arch/unrolled.h"
#include "attention/backward/backward_tiles.h"
#include "tile/columns.h"

namespace xlstm::gpu::attention {

template <class E, int kQk, int kV, bool kFull, bool kOfKeys>
struct BackwardProducts : BackwardTiles<E, kQk, kV, kFull, kOfKeys> {
  using Base = BackwardTiles<E, kQk, kV, kFull, kOfKeys>;
  using Base::kShape, Base::kThreads, Base::kTile, Base::kStepRows, Base::kColumnStrips, Base::kRowStrips,
      Base::kQkSteps, Base::kVSteps, Base::kRegisters, Base::kStreams, Base::kFirstSums, Base::kSecondSums,
      Base::kHeldChain, Base::kPairs, Base::kAllAtOnce, Base::p, Base::at, Base::query_head, Base::queries, Base::keys,
      Base::owned, Base::column0, Base::feature_wave, Base::band, Base::rows_of, Base::store, Base::room,
      Base::first_owned, Base::second_owned, Base::first_tile, Base::second_tile, Base::keep;
  using typename Base::Pair;

  ChainOperand<E> first_chain[kHeldChain ? kColumnStrips : 1][kHeldChain ? kQkSteps : 1];
  ChainOperand<E> second_chain[kHeldChain ? kColumnStrips : 1][kHeldChain ? kVSteps : 1];
  // k, or v, of a wave of a pair; what bends scores needs the registers.
  ChainOperand<E> pair_chain[kPairs && !kFull ? kColumnStrips : 1][kPairs && !kFull ? kQkSteps : 1];
  Strip<E> first_sums[kFirstSums][kColumnStrips];
  Strip<E> second_sums[kSecondSums > 0 ? kSecondSums : 1][kColumnStrips];
  Columns lse[kColumnStrips], delta[kColumnStrips];  // dq: of the owned queries

  // NVIDIA splits floats in three as it reads them: operands of several steps at once would not fit.
  static constexpr bool kRolled = kAsyncCopies && sizeof(E) == 4;
  static_assert(!kRolled || kColumnStrips == 1);

  using Base::Base;

  // Which wave of a pair this is (backward_warp_pairs.h).
  XLSTM_DEVICE static bool makes_weights() { return wave_id() < kShape.waves_along; }

  // What the block owns, as chain operands: through the tiles' room, a tile at a time.
  XLSTM_DEVICE void load_owned() {
    TokenRows<E> first, second;
    rows_of(kOfKeys, query_head, first, second);
    const int there = (kOfKeys ? keys : queries) - owned;
    constexpr int kVec16s = kShape.owned / kTile;
    static_assert(kShape.owned % kTile == 0);
    if constexpr (kAsyncCopies) {
      using Whole = PairStage<E, kShape.owned, kQk, kV, kThreads>;
      Whole::copy(first_owned(), first, owned, there < kShape.owned ? there : kShape.owned);
      Whole::copy(second_owned(), second, owned, there < kShape.owned ? there : kShape.owned);
    } else if constexpr (!kHeldChain) {
#pragma unroll 1
      for (int t = 0; t < kShape.owned; t += kTile)
        Pair::move(first, second, owned + t, there - t < kTile ? there - t : kTile,
                   [&](bool is_second, const Vec16* x, int token, int column) {
                     if (is_second)
                       Pair::store_along(second_owned(), x, t + token, column);
                     else
                       Pair::store_along(first_owned(), x, t + token, column);
                   });
    } else {
      Pair pair;
      pair.fetch(first, second, owned, there < kTile ? there : kTile);
#pragma unroll 1
      for (int j = 0; j < kVec16s; ++j) {
        char* to = room(0);
        arrive([&] { store(pair, to, true, false); });
        const int next = (j + 1) * kTile;
        if (j + 1 < kVec16s) pair.fetch(first, second, owned + next, there - next < kTile ? there - next : kTile);
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) {
          const int mine = column0 + c * kStripColumns - j * kTile;
          if (mine < 0 || mine >= kTile) continue;
#pragma unroll
          for (int k = 0; k < kQkSteps; ++k)
            first_chain[c][k] = load_chain_along<E>(first_tile(to), mine, k * kStepRows);
#pragma unroll
          for (int k = 0; k < kVSteps; ++k)
            second_chain[c][k] = load_chain_along<E>(second_tile(to), mine, k * kStepRows);
        }
        wait_lds_reads();
      }
    }
    if constexpr (!kOfKeys) {
      const float* facts = facts_of(*p, at, query_head);
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
        for (int j = 0; j < Columns::kEach; ++j) {
          const float* mine = facts + fact_place(owned + column0 + c * kStripColumns + Columns::position(j));
          lse[c].value[j] = mine[0];
          delta[c].value[j] = mine[kFactGroup];
        }
    }
  }
  template <bool kFirst>
  XLSTM_DEVICE ChainOperand<E> chain(int c, int k, int lane) const {
    if constexpr (kPairs && kFull)
      return load_chain_along<E>(makes_weights() ? first_owned() : second_owned(), column0 + c * kStripColumns,
                                 k * kStepRows, lane);
    else if constexpr (kPairs)
      return pair_chain[c][k];
    else if constexpr (kHeldChain)
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
    constexpr int kPart = sizeof(E) == 4 ? 4 : kSteps;  // steps: floats are summed in parts, so that none is long
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

  // sums += tile^T weights, whose rows are the tile's tokens.
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

  // Whether all of the wave's pairs of the tile's tokens [first, first + n) are seen. Those of which none is are not
  // left out: where a path goes around products, sums are copied from registers to registers on every other.
  XLSTM_DEVICE bool all_seen(int first, int n) const {
    const int mine = owned + column0;
    // The smallest and the largest of key - query.
    const int64_t low = kOfKeys ? int64_t(mine) - (first + n - 1) : int64_t(first) - (mine + kShape.columns - 1);
    const int64_t high = kOfKeys ? int64_t(mine + kShape.columns - 1) - first : int64_t(first + n - 1) - mine;
    const int64_t begin = int64_t(band.least) + band.apart, end = begin + uint32_t(band.span);
    return low >= begin && high <= end && (kOfKeys || first + n <= keys);
  }

  // Scores and dP into weights and ds. A wave of a pair makes either: weights, with what ds take of them in the place
  // of dP, or ds, with that in the place of scores.
  template <bool kWeights = true, bool kFlows = true>
  XLSTM_DEVICE void weigh(Scores& s, Scores& dp, const ScoreRules& rules, float slope, int first, int row0,
                          const float* facts, bool masked, int lane) const {
    const StripPosition own = strip_position(kFamily, sizeof(E), lane, 0);  // the others lie at known distances
    const int row = first + row0 + own.row, column = owned + column0 + own.column;
    const int apart_here = (kOfKeys ? column - row : row - column) - band.apart;
    const float* mine = facts + fact_place(row0 + own.row);
    // f(strip row, register, strip column, tokens down and across from the lane's first)
    const auto each = [&](auto&& f) {
#pragma unroll
      for (int rs = 0; rs < kRowStrips; ++rs)
#pragma unroll
        for (int r = 0; r < kRegisters; ++r)
#pragma unroll
          for (int c = 0; c < kColumnStrips; ++c) {
            const StripPosition by = strip_position(kFamily, sizeof(E), 0, r);
            f(rs, r, c, rs * kStepRows + by.row, c * kStripColumns + by.column);
          }
    };
    const auto lse_of = [&](int r, int c, int down) {
      return kOfKeys ? mine[fact_place(down)] : lse[c].value[Columns::of(r)];
    };
    const auto delta_of = [&](int r, int c, int down) {
      return kOfKeys ? mine[fact_place(down) + kFactGroup] : delta[c].value[Columns::of(r)];
    };
    if constexpr (kFlows && (kFull || !kAllAtOnce)) {  // made before the branches below
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) dp[r][c].materialise();
    }
    const auto distance = [&](int down, int across) { return apart_here + (kOfKeys ? across - down : down - across); };

    // y - lse
    float through[kRowStrips][kColumnStrips][kRegisters];  // dy/ds over scale
    if (!kWeights) {
    } else if (kFull && rules.cap > 0) {
      each([&](int rs, int r, int c, int down, int) {
        const float bent = tanh_of<E>(s[rs][c].value[r] * rules.to_cap);
        through[rs][c][r] = 1 - bent * bent;
        s[rs][c].value[r] = __builtin_fmaf(rules.cap, bent, -lse_of(r, c, down));
      });
    } else {
      each([&](int rs, int r, int c, int down, int) {
        through[rs][c][r] = 1;
        s[rs][c].value[r] = __builtin_fmaf(s[rs][c].value[r], rules.scale, -lse_of(r, c, down));
      });
    }
    if (kWeights && kFull && rules.slopes)
      each([&](int rs, int r, int c, int down, int across) {
        const int by = distance(down, across);
        s[rs][c].value[r] -= slope * float(by < 0 ? -by : by);
      });
    uint32_t dropped[kRowStrips][kColumnStrips] = {};  // a bit for each register
    if (kFull && rules.drops) {
      const float kept_scale = uniform(float(dropout_scale(p->call.in.dropout_p)));
      each([&](int rs, int r, int c, int down, int across) {
        const int key = kOfKeys ? column0 + own.column + across : row0 + own.row + down;
        const int query = kOfKeys ? row0 + own.row + down : column0 + own.column + across;
        constexpr int kQueries = kOfKeys ? kTile : kShape.owned;
        const uint32_t kept = keep()[key / kDrawsAtOnce * kQueries + query] >> (key % kDrawsAtOnce) & 1;
        dropped[rs][c] |= (kept ^ 1) << r;
        if constexpr (kFlows) dp[rs][c].value[r] = kept ? dp[rs][c].value[r] * kept_scale : 0.0f;
      });
    }
    if (kWeights && masked)
      each([&](int rs, int r, int c, int down, int across) {
        bool sees = uint32_t(distance(down, across)) - uint32_t(band.least) <= uint32_t(band.span);
        if (!kOfKeys) sees = sees && row + down < keys;
        s[rs][c].value[r] = sees ? s[rs][c].value[r] : -__builtin_inff();
      });
    each([&](int rs, int r, int c, int down, int) {
      const float y = s[rs][c].value[r];
      if constexpr (!kWeights) {
        dp[rs][c].value[r] = y * (dp[rs][c].value[r] - delta_of(r, c, down));
        return;
      }
      const float weight = exp2_fast(sizeof(E) == 4 ? y * kLog2E : y);
      if constexpr (kFlows)
        dp[rs][c].value[r] = weight * (dp[rs][c].value[r] - delta_of(r, c, down)) * through[rs][c][r];
      else
        dp[rs][c].value[r] = weight * through[rs][c][r];
      s[rs][c].value[r] = kFull && dropped[rs][c] >> r & 1 ? 0.0f : weight;
    });
  }
};

}  // namespace xlstm::gpu::attention
