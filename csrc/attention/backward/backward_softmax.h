// SPDX-License-Identifier: Apache-2.0
// Attention backward (backward.h): the softmax gradient of a wave's scores, between the products of a tile.
//
//     w = 2^(y - lse)      ds = w (c keep dP - D) dy/ds
#pragma once

#include "attention/backward/backward_tiles.h"
#include "tile/columns.h"

namespace xlstm::gpu::attention {

template <class Tiles>
struct BackwardSoftmax {
  using E = typename Tiles::E;
  using Scores = typename Tiles::Scores;
  static constexpr bool kHasScoreMod = Tiles::kHasScoreMod, kOfKeys = Tiles::kOfKeys;
  static constexpr int kColumnStrips = Tiles::kColumnStrips, kRowStrips = Tiles::kRowStrips;
  static constexpr int kRegisters = Tiles::kRegisters;
  using Factors = float[kRowStrips][kColumnStrips][kRegisters];
  using Bits = uint32_t[kRowStrips][kColumnStrips];  // a bit for each register

  const Tiles& tiles;
  Columns lse[kColumnStrips], delta[kColumnStrips];  // dq: of the owned queries

  XLSTM_DEVICE explicit BackwardSoftmax(const Tiles& of) : tiles(of) {}

  XLSTM_DEVICE void load_row_stats() {
    if constexpr (!kOfKeys) {
      const float* row_stats = row_stats_of(*tiles.p, tiles.at, tiles.query_head);
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c)
#pragma unroll
        for (int j = 0; j < Columns::kEach; ++j) {
          const int query = tiles.owned + tiles.column0 + c * kStripColumns + Columns::position(j);
          const float* lane_stats = row_stats + row_stats_index(query);
          lse[c].value[j] = lane_stats[0];
          delta[c].value[j] = lane_stats[kStatsGroup];
        }
    }
  }

  // dk, dv on CDNA: lse and D of the queries that a lane has scores of, read from LDS ahead of the products.
  static constexpr bool kReadsStatsAhead =
      kFamily == Family::cdna && kOfKeys && sizeof(E) == 2 && !kHasScoreMod && kRowStrips == 1 && Tiles::kAllAtOnce;
  struct StatsAhead {
    Vec16 lse[2], delta[2];

    XLSTM_DEVICE float at(const Vec16 (&x)[2], int r) const { return as_float(x[r / 4].word[r % 4]); }
  };
  XLSTM_DEVICE static StatsAhead stats_ahead(const float* row_stats, int row0, int lane) {
    StatsAhead ahead;
    if constexpr (kReadsStatsAhead) {
      const float* of_lane = row_stats + row_stats_index(row0 + strip_position(kFamily, sizeof(E), lane, 0).row);
#pragma unroll
      for (int j = 0; j < 2; ++j)
        ahead.lse[j] = read_vec16(of_lane + 4 * j), ahead.delta[j] = read_vec16(of_lane + kStatsGroup + 4 * j);
    }
    return ahead;
  }

  // The scores of the tile's tokens [first + row0, first + row0 + kShape.at_once) in a wave's registers.
  struct Block {
    const BackwardSoftmax& softmax;
    const Tiles& tiles;
    const ScoreRules& rules;
    int row0;
    StripPosition lane_position;     // of register 0; the other registers are at known distances
    int row, column, lane_distance;  // of register 0: its tokens, and how far key - query is from the diagonal
    const float* lane_stats;         // dk, dv: of the lane's first query
    StatsAhead ahead;

    XLSTM_DEVICE Block(const BackwardSoftmax& s, const ScoreRules& r, int first, int row0, const float* row_stats,
                       int lane, const StatsAhead& stats = {})
        : softmax(s),
          tiles(s.tiles),
          rules(r),
          row0(row0),
          lane_position(strip_position(kFamily, sizeof(E), lane, 0)),
          row(first + row0 + lane_position.row),
          column(tiles.owned + tiles.column0 + lane_position.column),
          lane_distance((kOfKeys ? column - row : row - column) - tiles.band.diagonal),
          lane_stats(row_stats + row_stats_index(row0 + lane_position.row)),
          ahead(stats) {}

    // f(strip row, register, strip column, tokens down and across from the lane's first)
    template <class F>
    XLSTM_DEVICE static void each(F&& f) {
#pragma unroll
      for (int rs = 0; rs < kRowStrips; ++rs)
#pragma unroll
        for (int r = 0; r < kRegisters; ++r)
#pragma unroll
          for (int c = 0; c < kColumnStrips; ++c) {
            const StripPosition shift = strip_position(kFamily, sizeof(E), 0, r);
            f(rs, r, c, rs * Tiles::kStepRows + shift.row, c * kStripColumns + shift.column);
          }
    }
    XLSTM_DEVICE float lse(int r, int c, int down) const {
      if constexpr (kReadsStatsAhead) return ahead.at(ahead.lse, r);
      return kOfKeys ? lane_stats[row_stats_index(down)] : softmax.lse[c].value[Columns::of(r)];
    }
    XLSTM_DEVICE float delta(int r, int c, int down) const {
      if constexpr (kReadsStatsAhead) return ahead.at(ahead.delta, r);
      return kOfKeys ? lane_stats[row_stats_index(down) + kStatsGroup] : softmax.delta[c].value[Columns::of(r)];
    }
    XLSTM_DEVICE int distance(int down, int across) const {
      return lane_distance + (kOfKeys ? across - down : down - across);
    }

    // s = y - lse, without ALiBi; dy_ds = dy/ds over scale.
    XLSTM_DEVICE void subtract_lse(Scores& s, Factors& dy_ds) const {
      if (kHasScoreMod && rules.cap > 0) {
        each([&](int rs, int r, int c, int down, int) {
          const float capped = tanh_of<E>(s[rs][c].value[r] * rules.to_cap);
          dy_ds[rs][c][r] = 1 - capped * capped;
          s[rs][c].value[r] = __builtin_fmaf(rules.cap, capped, -lse(r, c, down));
        });
      } else {
        each([&](int rs, int r, int c, int down, int) {
          dy_ds[rs][c][r] = 1;
          s[rs][c].value[r] = __builtin_fmaf(s[rs][c].value[r], rules.scale, -lse(r, c, down));
        });
      }
    }
    XLSTM_DEVICE void subtract_alibi(Scores& s, float slope) const {
      each([&](int rs, int r, int c, int down, int across) {
        const int apart = distance(down, across);
        s[rs][c].value[r] -= slope * float(apart < 0 ? -apart : apart);
      });
    }
    // The weights that dropout drops, and dP of dropout's output (kMakesDs).
    template <bool kMakesDs>
    XLSTM_DEVICE void apply_dropout(Scores& dp, Bits& dropped) const {
      const float keep_scale = uniform(float(dropout_scale(tiles.p->call.in.dropout_p)));
      each([&](int rs, int r, int c, int down, int across) {
        const int key = kOfKeys ? tiles.column0 + lane_position.column + across : row0 + lane_position.row + down;
        const int query = kOfKeys ? row0 + lane_position.row + down : tiles.column0 + lane_position.column + across;
        constexpr int kQueries = kOfKeys ? Tiles::kTile : Tiles::kShape.owned;
        const uint32_t keep_bit = tiles.keep()[key / kDrawsAtOnce * kQueries + query] >> (key % kDrawsAtOnce) & 1;
        dropped[rs][c] |= (keep_bit ^ 1) << r;
        if constexpr (kMakesDs) dp[rs][c].value[r] = keep_bit ? dp[rs][c].value[r] * keep_scale : 0.0f;
      });
    }
    // -infinity for pairs that are not visible.
    XLSTM_DEVICE void mask(Scores& s) const {
      each([&](int rs, int r, int c, int down, int across) {
        bool sees = uint32_t(distance(down, across)) - uint32_t(tiles.band.min_distance) <= uint32_t(tiles.band.span);
        if (!kOfKeys) sees = sees && row + down < tiles.keys;
        s[rs][c].value[r] = sees ? s[rs][c].value[r] : -__builtin_inff();
      });
    }
  };

  // Turns scores and dP into weights and ds. A wave of a pair does half of it: kMakesWeights alone computes the
  // weights, and puts w dy/ds (the factor of ds) into dp; kMakesDs alone computes ds from that factor in s.
  template <bool kMakesWeights = true, bool kMakesDs = true>
  XLSTM_DEVICE void gradient(Scores& s, Scores& dp, const Block& block, float slope, bool masked) const {
    // Computed before the branches below, where its operands would take too many registers.
    if constexpr (kMakesDs && (kHasScoreMod || !Tiles::kAllAtOnce || is_rdna(kFamily))) {
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) dp[r][c].materialise();
    }
    Factors dy_ds;
    Bits dropped = {};
    if constexpr (kMakesWeights) block.subtract_lse(s, dy_ds);
    if (kMakesWeights && kHasScoreMod && block.rules.slopes) block.subtract_alibi(s, slope);
    if (kHasScoreMod && block.rules.drops) block.template apply_dropout<kMakesDs>(dp, dropped);
    // On RDNA dq masks every tile: with a branch around the mask clang 19 spills 12 to 536 registers.
    constexpr bool kAlwaysMasks = is_rdna(kFamily) && !kOfKeys;
    if (kMakesWeights && (kAlwaysMasks || masked)) block.mask(s);
    Block::each([&](int rs, int r, int c, int down, int) {
      const float y = s[rs][c].value[r];
      if constexpr (!kMakesWeights) {
        dp[rs][c].value[r] = y * (dp[rs][c].value[r] - block.delta(r, c, down));
      } else {
        const float weight = exp2_fast(sizeof(E) == 4 ? y * kLog2E : y);
        if constexpr (kMakesDs)
          dp[rs][c].value[r] = weight * (dp[rs][c].value[r] - block.delta(r, c, down)) * dy_ds[rs][c][r];
        else
          dp[rs][c].value[r] = weight * dy_ds[rs][c][r];
        s[rs][c].value[r] = kHasScoreMod && dropped[rs][c] >> r & 1 ? 0.0f : weight;
      }
    });
  }
};

}  // namespace xlstm::gpu::attention
