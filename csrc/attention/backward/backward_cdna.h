// SPDX-License-Identifier: Apache-2.0
// Attention backward on CDNA in one kernel, with dq added by atomics: five products of a tile where the two kernels of
// backward.h compute seven. For plain scores in 2 bytes, in rows of 16-byte vectors. The order of the additions to dq
// varies from run to run, so a deterministic call takes the two kernels.
//
// A block owns keys and walks tiles of queries, as dkdv_kernel does, with the same operands and sums. In addition ds
// goes to LDS, queries by keys, and dq = K^T ds^T over the block's keys: each wave has its share of the features, with
// K^T in its registers, and adds the result to float32 sums in memory, which round_dq_kernel scales and rounds.
//
// With 128 features one wave has a SIMD, so nothing hides what a wave does between its products. The products of a tile
// are one run of steps, and everything else is issued behind single products (multiply_each):
//
//     products        issued behind them
//     S, dP           loads of the next tile; w = 2^(y - lse), and its rounding
//     dv += dout^T w  ds = w (dP - D), and its rounding; additions to dq of the tile before
//     dk += q^T ds    stores of ds, further additions
//     dq              stores of the next tile
//
// With 64 features two waves have a SIMD, with 256 registers each. So that dP, the next tile and dq are not in
// registers at once, there the additions are issued behind S, and the loads behind dv.
//
// Two barriers suffice for a tile: in dk, where all operands of this tile are read and ds is stored, and in dq, where
// the next tile is stored. Steps lie between each and the reads behind it.
#pragma once

#include "arch/device_scope.h"
#include "arch/memory_range.h"
#include "attention/backward/backward.h"
#include "attention/backward/delta.h"

namespace xlstm::gpu::attention {

// Calls item(n) for those of kItems items whose turn is behind product `i` of kProducts.
template <int kItems, int kProducts, class Index, class Item>
XLSTM_DEVICE void spread(Index i, Item&& item) {
  constexpr int first = i * kItems / kProducts, end = (i + 1) * kItems / kProducts;
  each_of<end - first>([&](auto n) { item(std::integral_constant<int, first + n>{}); });
}

template <class Tiles>
struct BackwardOnePass {
  using E = typename Tiles::E;
  using TileCoord = typename Tiles::TileCoord;
  using Products = BackwardProducts<Tiles>;
  using Softmax = BackwardSoftmax<Tiles>;
  using Scores = typename Tiles::Scores;
  using Operands = typename Tiles::Operands;
  using DsTile = Tile<E, Tiles::kTile, Tiles::kShape.owned>;
  static_assert(Tiles::kOfKeys && Products::kInOneRun && Tiles::kRowStrips == 1 && Tiles::kColumnStrips == 2);
  static constexpr int kTile = Tiles::kTile, kStepRows = Tiles::kStepRows;
  static constexpr int kQkSteps = Tiles::kQkSteps, kVSteps = Tiles::kVSteps;
  static constexpr int kSumSteps = Products::kSecondSums + Products::kFirstSums;
  static constexpr int kStepProducts = 4 * Tiles::kColumnStrips;              // of one stream operand
  static constexpr int kStreams = Products::kStreams, kAhead = kStreams - 1;  // operands that are read ahead
  // dq: a wave has 32 features of one or both strips of queries.
  static constexpr int kDqSteps = Tiles::kShape.owned / kStepRows;
  static constexpr int kFeatureWaves = Tiles::kQk / kStepRows;
  static constexpr int kDqColumns = 2 * kFeatureWaves / Tiles::kShape.waves_along;
  static constexpr int kDqStepProducts = 4 * kDqColumns, kDqFloats = Tiles::kRegisters * kDqColumns;
  static constexpr int kScores = 2 * Tiles::kRegisters, kWords = kScores / 2;
  static constexpr int kWordsBehindS = 3;  // of the weights: as many as their products hide
  static constexpr int kStripFloats = kDqStripFloats<E>;
  static constexpr bool kLoadsBehindS = Tiles::kShape.blocks == 1;  // registers suffice to load so early
  static constexpr int kStoresOfTile = 8;  // four vectors along the rows, four words transposed
  using Streams = typename Products::Streams;
  using DsOperands = ChainOperand<E>[kStreams][kDqColumns];
  using Pair = typename Tiles::Pair;
  using AlongTile = typename Tiles::FirstTile;
  using TransposedTile = typename Tiles::FirstTransposed;

  Tiles& tiles;
  Products& products;
  Softmax& softmax;
  StreamOperand<E> keys_transposed[kDqSteps];
  Strip<E> dq[kDqColumns];

  XLSTM_DEVICE BackwardOnePass(Tiles& t, Products& p, Softmax& s) : tiles(t), products(p), softmax(s) {}

  // Part `part` of `parts` of the tiles that see owned keys, over all heads: `count` tiles from `start` on; those of a
  // head begin at [first, end). As Backward::run() has it, which NVIDIA's compiler needs in one function.
  struct PartOfWalk {
    TileCoord start;
    int count, first, end;
  };
  XLSTM_DEVICE PartOfWalk part_of_walk(int part, int parts) const {
    const auto [first, count] =
        tiles.band.template visible_tiles<true>(tiles.owned, Tiles::kShape.owned, tiles.queries, tiles.keys, kTile);
    const auto border = [&, all = uint64_t(uint32_t(count)) * uint32_t(tiles.group)](int n) {  // first tile of part n
      return uniform(int(all * uint32_t(n) / uint32_t(parts)));
    };
    const int from = border(part), to = border(part + 1);
    if (from >= to) return {};
    return {{from / count, (first + from % count) * kTile}, to - from, first * kTile, (first + count) * kTile};
  }

  // ---- memory

  // Where a wave is in memory: what it loads of the tile, and the sums of dq that it adds to, in the order of the lanes
  // for each register. Uniform addresses, which advance with the tiles.
  struct Place {
    const char *rows, *stats;
    char* dq;
    int first;  // query
  };
  struct Source {
    uint32_t row, row_bytes, lane[4];  // bytes from row to row, of a row from the wave's column on; a lane's vectors
    uint32_t stat;
    int64_t rows_head, stats_head, dq_head;  // from the last tile of a query head to the next head's first
    int first_head, end, queries;

    static constexpr int kStatsTile = 2 * kTile * int(sizeof(float));
    static constexpr int kDqTile = kTile * Tiles::kQk * int(sizeof(float));

    XLSTM_DEVICE Source(const Tiles& tiles, const PartOfWalk& walk, Place& start)
        : first_head(walk.first), end(walk.end), queries(tiles.queries) {
      const xlstm_attention_backward& call = tiles.p->call;
      const bool second = Pair::wave_loads_second();
      TokenRows<E> a, b;
      tiles.token_rows(false, tiles.query_head, a, b);
      row = uint32_t(uniform(int(second ? b.stride : a.stride))) * uint32_t(sizeof(E));
      row_bytes = uint32_t((second ? Tiles::kV : Tiles::kQk) - Pair::wave_column()) * uint32_t(sizeof(E));
#pragma unroll
      for (int i = 0; i < 4; ++i) lane[i] = Pair::lane_offset(i, row);
      stat = threadIdx.x % (2 * kTile) * uint32_t(sizeof(float));
      const int64_t head = (second ? call.dout.stride[1] : call.in.q.stride[1]) * int64_t(sizeof(E));
      const int64_t stats = 2 * tiles.p->slots * int64_t(sizeof(float)), sums = Tiles::kQk / 2 * stats;
      const int from = walk.start.first, member = walk.start.member, strip = 2 * feature_wave() + query_wave();
      start.rows = uniform(reinterpret_cast<const char*>((second ? b.data : a.data) + Pair::wave_column()) +
                           member * head + from * int64_t(row));
      start.stats = uniform(reinterpret_cast<const char*>(row_stats_of(*tiles.p, tiles.at, tiles.query_head)) +
                            member * stats + from / kTile * kStatsTile);
      const char* const of_dq =
          reinterpret_cast<const char*>(dq_sums_of(*tiles.p, tiles.at, tiles.query_head) + strip * kStripFloats);
      start.dq = const_cast<char*>(uniform(of_dq + member * sums + from / kTile * int64_t(kDqTile)));
      start.first = uniform(from);
      const int back = end - kTile - first_head;  // tokens
      rows_head = head - back * int64_t(row);
      stats_head = stats - back / kTile * kStatsTile;
      dq_head = sums - back / kTile * int64_t(kDqTile);
    }
    // In kAdvances turns: one at once would keep the matrix unit waiting. Behind the last tile there is none: that one
    // is loaded twice, where a condition would wait for the loads.
    template <class Turn>
    XLSTM_DEVICE void advance(Place& place, const Place& now, bool last, Turn turn) const {
      const bool to_head = now.first + kTile >= end;
      const auto by = [&](auto tile, auto head) { return last ? decltype(tile)(0) : to_head ? head : tile; };
      if constexpr (turn == 0) place.rows = now.rows + by(int64_t(row) * kTile, rows_head);
      if constexpr (turn == 1) place.stats = now.stats + by(int64_t(kStatsTile), stats_head);
      if constexpr (turn == 2) place.dq = now.dq + by(int64_t(kDqTile), dq_head);
      if constexpr (turn == 3) place.first = now.first + by(kTile, first_head - now.first);
    }
  };
  static constexpr int kAdvances = 4;
  struct Stages {
    Vec16 vecs[4];
    float row_stat;
  };
  static constexpr int kLoads = 5;
  // Queries beyond the sequence's end are zeros.
  XLSTM_DEVICE static void load(int which, Stages& to, const Source& from, const Place& place) {
    if (which < 4) {
      const int left = from.queries - place.first, valid = left < kTile ? left : kTile;
      const MemoryRange range{place.rows, uint32_t(valid - 1) * from.row + from.row_bytes};
      to.vecs[which] = load_vec16(range, from.lane[which]);
    } else {
      to.row_stat = as_float(load_bits<uint32_t>(place.stats, from.stat));
    }
  }

  // ---- LDS: the tile, ds, and the tile's row statistics, a copy for each wave

  XLSTM_DEVICE DsTile ds_tile() const { return {reinterpret_cast<E*>(tiles.lds + Tiles::kShape.tile_bytes)}; }
  XLSTM_DEVICE float* row_stats() const {
    return reinterpret_cast<float*>(tiles.lds + Tiles::kShape.tile_bytes + DsTile::kBytes) + wave_id() * 2 * kTile;
  }
  // Where a wave stores its subtile of a tile.
  struct Target {
    AlongTile along;
    TransposedTile transposed;
    typename AlongTile::Cursor lane_along;
    typename TransposedTile::Cursor lane_transposed;

    XLSTM_DEVICE explicit Target(const Tiles& tiles) {
      const bool second = Pair::wave_loads_second();
      along.base = reinterpret_cast<E*>(tiles.lds + (second ? Tiles::matrix_offset(1) : Tiles::matrix_offset(0)));
      transposed.base = reinterpret_cast<E*>(tiles.lds + (second ? Tiles::matrix_offset(2) : Tiles::matrix_offset(3)));
      const SubtileCoord at = subtile_coord(kTile, lane_id());
      const int column = Pair::wave_column() + at.vec16 * kVec16Elements<E>;
      lane_along = along.cursor(4 * at.quad, column), lane_transposed = transposed.cursor(column, 4 * at.quad);
    }
    XLSTM_DEVICE void store(int which, const Vec16 (&x)[4]) const {
      if (which < 4)
        *reinterpret_cast<Vec16*>(along.at(lane_along, which, 0)) = x[which];
      else
        store_transposed_word<E>(
            transposed, lane_transposed, 2 * (which - 4),
            {{x[0].word[which - 4], x[1].word[which - 4], x[2].word[which - 4], x[3].word[which - 4]}});
    }
  };
  // Waves without a subtile of their own have loaded another's.
  static constexpr bool kAllStore = Pair::kSubtiles >= Tiles::kShape.waves_along;
  XLSTM_DEVICE void store_tile(const Stages& stages, const Target& to) const {
    if (kAllStore || wave_id() < Pair::kSubtiles) each_of<kStoresOfTile>([&](auto k) { to.store(k, stages.vecs); });
    store_row_stat(stages);
  }
  XLSTM_DEVICE void store_row_stat(const Stages& stages) const { row_stats()[lane_id()] = stages.row_stat; }
  XLSTM_DEVICE static void arrive_at_stages(Stages& stages) {
#pragma unroll
    for (Vec16& vec : stages.vecs) arrive_at(vec);
    stages.row_stat = as_float(opaque(as_bits(stages.row_stat)));
  }
  XLSTM_DEVICE static int feature_wave() { return wave_id() % kFeatureWaves; }
  XLSTM_DEVICE static int query_wave() { return kDqColumns == 2 ? 0 : wave_id() / kFeatureWaves; }

  // Loads k and v as chain operands, and this wave's features of k, transposed.
  XLSTM_DEVICE void load_owned() {
    TokenRows<E> first, second;
    tiles.token_rows(true, tiles.query_head, first, second);
    Pair pairs[kDqSteps];
    each_of<kDqSteps>([&](auto n) {
      const int valid = tiles.keys - tiles.owned - n * kTile;
      pairs[n].fetch(first, second, tiles.owned + n * kTile, valid < kTile ? valid : kTile);
    });
    each_of<kDqSteps>([&](auto n) {
      arrive([&] { tiles.store(pairs[n], tiles.buffer(0), true, true); });
      products.read_chains(n * kTile);
      keys_transposed[n] =
          load_stream<false, E>(Tiles::first_transposed(tiles.buffer(0)), feature_wave() * kStepRows, 0);
      wait_lds_reads();
    });
  }

  // ---- a tile

  struct Step {
    Place before, now, next, after;
    int lane, left;  // tiles, this one included
    char* buffer;
  };
  // A lane's lse, or D, of its 8 queries.
  struct RowStats {
    Vec16 vecs[2];

    XLSTM_DEVICE float at(int r) const { return as_float(vecs[r / 4].word[r % 4]); }
  };
  template <bool kOfLse>
  XLSTM_DEVICE RowStats read_row_stats(const Step& step) const {
    const float* of_lane =
        row_stats() + row_stats_index(step.lane / 16 * Tiles::kRegisters) + (kOfLse ? 0 : kStatsGroup);
    return {{read_vec16(of_lane), read_vec16(of_lane + 4)}};
  }
  using QkStreams = StreamOperand<E>[kQkSteps];
  template <class Index>
  XLSTM_DEVICE static void read_for_s(QkStreams& stream, const Step& step, Index n) {
    if constexpr (n < kQkSteps)
      stream[n] = load_stream<true, E>(Tiles::first_tile(step.buffer), 0, n * kStepRows, step.lane);
  }

  // S, one strip of keys after the other: behind the second one's products are the first one's weights.
  XLSTM_DEVICE void multiply_s(Scores& s, QkStreams& stream, Streams& of_dp, RowStats& lse, Operands& weights,
                               Stages& stages, const Source& source, float scale, const Step& step) {
#pragma unroll
    for (int c = 0; c < Tiles::kColumnStrips; ++c) s[0][c].zero();
    constexpr int kStripProducts = 4 * kQkSteps;
    each_of<2 * kQkSteps>([&](auto m) {
      constexpr int c = m / kQkSteps, n = m % kQkSteps;
      sched_barrier();
      if constexpr (c == 0)
        read_for_s(stream, step, std::integral_constant<int, n + kAhead>{});
      else if constexpr (n + kAhead >= kQkSteps)
        read_for_dp(of_dp, step, std::integral_constant<int, n + kAhead - kQkSteps>{});
      if constexpr (m == kQkSteps - 1) lse = read_row_stats<true>(step);
      sched_barrier();
      if constexpr (c == 0) arrive_at(stream[n].k[0]), arrive_at(stream[n].k[1]);
      multiply_each<1, true, true>(
          stream[n], [&](int) -> Strip<E>& { return s[0][c]; },
          [&](int) -> const ChainOperand<E>& { return products.first_chain[c][n]; },
          [&](auto i) {
            constexpr std::integral_constant<int, n * 4 + i> at;
            if constexpr (!kLoadsBehindS)
              spread<kDqFloats, 2 * kStripProducts>(std::integral_constant<int, m * 4 + i>{},
                                                    [&](auto k) { add_dq(step, k); });
            else if constexpr (c == 0)
              spread<kLoads, kStripProducts>(at, [&](auto k) { load(k, stages, source, step.next); });
            if constexpr (c == 1)
              spread<3 * kWordsBehindS, kStripProducts>(at, [&](auto k) { weigh_in_turn(s, lse, weights, scale, k); });
          });
    });
  }
  template <class Index>
  XLSTM_DEVICE static void read_for_dp(Streams& stream, const Step& step, Index n) {
    stream[n % kStreams] = load_stream<true, E>(Tiles::second_tile(step.buffer), 0, n * kStepRows, step.lane);
  }
  // dP, and the other weights.
  XLSTM_DEVICE void multiply_dp(Scores& s, Scores& dp, Streams& stream, Streams& of_sums, const RowStats& lse,
                                RowStats& delta, Operands& weights, float scale, const Step& step) {
#pragma unroll
    for (int c = 0; c < Tiles::kColumnStrips; ++c) dp[0][c].zero();
    each_of<kVSteps>([&](auto n) {
      sched_barrier();
      if constexpr (n + kAhead < kVSteps)
        read_for_dp(stream, step, std::integral_constant<int, n + kAhead>{});
      else
        Products::read_for_sums(of_sums, step.buffer, 0, step.lane, n + kAhead - kVSteps);
      if constexpr (n == kVSteps - 1) delta = read_row_stats<false>(step);
      sched_barrier();
      multiply_each<Tiles::kColumnStrips, false, true>(
          stream[n % kStreams], [&](int c) -> Strip<E>& { return dp[0][c]; },
          [&](int c) -> const ChainOperand<E>& { return products.second_chain[c][n]; },
          [&](auto i) {
            constexpr std::integral_constant<int, n * kStepProducts + i> at;
            spread<3 * (kWords - kWordsBehindS), kVSteps * kStepProducts>(at, [&](auto k) {
              weigh_in_turn(s, lse, weights, scale, std::integral_constant<int, 3 * kWordsBehindS + k>{});
            });
          });
    });
  }
  // Of each two weights the first, the second, and their rounding.
  template <class Turn>
  XLSTM_DEVICE static void weigh_in_turn(Scores& s, const RowStats& lse, Operands& weights, float scale, Turn turn) {
    if constexpr (turn % 3 < 2)
      weigh(s, lse, scale, std::integral_constant<int, 2 * (turn / 3) + turn % 3>{});
    else
      pack_word(weights, s, std::integral_constant<int, turn / 3>{});
  }
  template <class Score>
  XLSTM_DEVICE static void weigh(Scores& s, const RowStats& lse, float scale, Score k) {
    constexpr int r = k % Tiles::kRegisters;
    hold(s, k);
    float& x = s[0][k / Tiles::kRegisters].value[r];
    x = exp2_fast(__builtin_fmaf(x, scale, -lse.at(r)));
  }
  // Scores leave the products' registers when the first of four is used.
  template <class Score>
  XLSTM_DEVICE static void hold(Scores& x, Score k) {
    if constexpr (Tiles::kShape.blocks == 1 && k % 4 == 0)
      arrive_at(x[0][k / Tiles::kRegisters], k % Tiles::kRegisters);
  }
  // Opaque: else the compiler would round where a branch behind this point ends.
  template <class Word>
  XLSTM_DEVICE static void pack_word(Operands& to, const Scores& x, Word word) {
    constexpr int c = word / 4, w = word % 4;
    to[0][c].k.word[w] = opaque(pack(E{}, x[0][c].value[2 * w], x[0][c].value[2 * w + 1]));
  }
  // dv and dk. ds becomes an operand, and goes to LDS.
  XLSTM_DEVICE void add_sums(const Scores& s, Scores& dp, const RowStats& delta, Streams& stream,
                             const Operands& weights, Operands& ds, DsOperands& of_dq, Stages& stages,
                             const Source& source, Step& step) {
    constexpr int kOfDv = Products::kSecondSums * kStepProducts, kOfDk = Products::kFirstSums * kStepProducts;
    constexpr int kBarrier = kSumSteps - kAhead;  // of this tile nothing is read behind this step
    constexpr int kBeforeBarrier = (kBarrier - Products::kSecondSums) * kStepProducts * 3 / 4;  // done at the barrier
    const auto lane_ds = ds_tile().cursor(step.lane / 16 * Tiles::kRegisters, tiles.column0 + step.lane % 16);
    each_of<kSumSteps>([&](auto n) {
      sched_barrier();
      if constexpr (n == kBarrier) __syncthreads();
      if constexpr (n + kAhead < kSumSteps)
        Products::read_for_sums(stream, step.buffer, 0, step.lane, n + kAhead);
      else
        read_ds(of_dq, step, n + kAhead - kSumSteps);
      sched_barrier();
      constexpr bool kIsDv = n < Products::kSecondSums;
      multiply_each<Tiles::kColumnStrips, false, true>(
          stream[n % kStreams],
          [&](int c) -> Strip<E>& {
            if constexpr (kIsDv)
              return products.second_sums[n][c];
            else
              return products.first_sums[n - Products::kSecondSums][c];
          },
          [&](int c) -> const ChainOperand<E>& { return kIsDv ? weights[0][c] : ds[0][c]; },
          [&](auto i) {
            constexpr std::integral_constant<int, n * kStepProducts + i> at;
            if constexpr (kLoadsBehindS)
              spread<kDqFloats, kOfDv + kOfDk>(at, [&](auto k) { add_dq(step, k); });
            else if constexpr (at < kLoads)
              load(at, stages, source, step.next);
            if constexpr (kIsDv)
              spread<4 * kWords, kOfDv>(at, [&](auto k) {
                constexpr int kFirst = 2 * (k / 4);
                if constexpr (k % 4 < 2)
                  make_ds(dp, s, delta, std::integral_constant<int, kFirst + k % 4>{});
                else if constexpr (k % 4 == 2)
                  pack_word(ds, dp, std::integral_constant<int, k / 4>{});
              });
            else if constexpr (at - kOfDv < kBeforeBarrier)
              spread<kScores, kBeforeBarrier>(std::integral_constant<int, at - kOfDv>{},
                                              [&](auto k) { store_ds(lane_ds, ds, k); });
            if constexpr (n >= kBarrier)
              spread<kAdvances, kAhead * kStepProducts>(
                  std::integral_constant<int, (n - kBarrier) * kStepProducts + i>{},
                  [&](auto k) { source.advance(step.after, step.next, step.left <= 2, k); });
          });
    });
    static_assert(kOfDk >= kBeforeBarrier && kBeforeBarrier > 0);
  }
  template <class Score>
  XLSTM_DEVICE static void make_ds(Scores& dp, const Scores& s, const RowStats& delta, Score k) {
    constexpr int r = k % Tiles::kRegisters, c = k / Tiles::kRegisters;
    hold(dp, k);
    dp[0][c].value[r] = s[0][c].value[r] * (dp[0][c].value[r] - delta.at(r));
  }
  XLSTM_DEVICE void read_ds(DsOperands& to, const Step& step, int n) const {
#pragma unroll
    for (int c = 0; c < kDqColumns; ++c)
      to[n % kStreams][c] =
          load_chain_along<E>(ds_tile(), (query_wave() + c) * kStripColumns, n * kStepRows, step.lane);
  }
  // dq, the stores of the next tile, and what is read of it ahead.
  XLSTM_DEVICE void multiply_dq(DsOperands& of_dq, QkStreams& of_s, Stages& stages, const Target& target,
                                const Step& step) {
    constexpr int kBarrier = kDqSteps - 1, kBeforeBarrier = kBarrier * kDqStepProducts * 7 / 8;
    arrive_at_stages(stages);
    if constexpr (!kAllStore) store_tile(stages, target);
#pragma unroll
    for (int c = 0; c < kDqColumns; ++c) dq[c].zero();
    each_of<kDqSteps>([&](auto n) {
      sched_barrier();
      if constexpr (n + kAhead < kDqSteps) read_ds(of_dq, step, n + kAhead);
      if constexpr (n == kBarrier) {
        __syncthreads();
        each_of<kAhead>([&](auto m) { read_for_s(of_s, step, m); });
      }
      sched_barrier();
      multiply_each<kDqColumns, true, false>(
          keys_transposed[n], [&](int c) -> Strip<E>& { return dq[c]; },
          [&](int c) -> const ChainOperand<E>& { return of_dq[n % kStreams][c]; },
          [&](auto i) {
            constexpr std::integral_constant<int, n * kDqStepProducts + i> at;
            if constexpr (kAllStore && at < kBeforeBarrier)
              spread<kStoresOfTile + 1, kBeforeBarrier>(at, [&](auto k) {
                if constexpr (k < kStoresOfTile)
                  target.store(k, stages.vecs);
                else
                  store_row_stat(stages);
              });
          });
    });
  }
  template <class Float>
  XLSTM_DEVICE void add_dq(const Step& step, Float k) const {
    constexpr int r = k % Tiles::kRegisters, c = k / Tiles::kRegisters;
    add_device_scope(step.before.dq + (c * kStripFloats + r * kWave) * int(sizeof(float)), uint32_t(step.lane) * 4,
                     dq[c].value[r]);
  }
  template <class Score>
  XLSTM_DEVICE void store_ds(const typename DsTile::Cursor& lane, const Operands& ds, Score k) const {
    constexpr int r = k % Tiles::kRegisters, c = k / Tiles::kRegisters;
    *reinterpret_cast<uint16_t*>(ds_tile().at(lane, r, c * kStripColumns)) =
        uint16_t(ds[0][c].k.word[r / 2] >> (16 * (r % 2)));
  }
  // Weights of pairs that are not visible become zero.
  XLSTM_DEVICE void mask(Scores& s, Operands& weights, const Step& step) const {
    const int query = step.now.first + step.lane / 16 * Tiles::kRegisters;
    const int key = tiles.owned + tiles.column0 + step.lane % 16;
    const int distance = key - query - tiles.band.diagonal - tiles.band.min_distance;
#pragma unroll
    for (int c = 0; c < Tiles::kColumnStrips; ++c)
#pragma unroll
      for (int r = 0; r < Tiles::kRegisters; ++r) {
        const bool sees = uint32_t(distance + c * kStripColumns - r) <= uint32_t(tiles.band.span) &&
                          key + c * kStripColumns < tiles.keys;
        s[0][c].value[r] = sees ? s[0][c].value[r] : 0.0f;
      }
    each_of<kWords>([&](auto k) { pack_word(weights, s, k); });
  }

  // ---- mainloop

  XLSTM_DEVICE void run(int part, int parts) {
    const auto walk = part_of_walk(part, parts);
    products.zero_sums();
    if (walk.count <= 0) return;
    load_owned();
    const float scale = tiles.uniform_rules().scale;
    const int first_key = tiles.owned + tiles.column0, columns = Tiles::kShape.columns;
    auto visible = tiles.band.template fully_visible_tiles<true>(first_key, columns, tiles.keys, kTile);
    if (first_key + columns > tiles.keys) visible.end = 0;
    Step step{{}, {}, {}, {}, lane_id(), uniform(walk.count), tiles.buffer(0)};
    const Source source(tiles, walk, step.now);
    const Target target(tiles);
    Stages stages;
    each_of<kLoads>([&](auto l) { load(l, stages, source, step.now); });
    arrive_at_stages(stages);  // the loop waits for its loads alone
    arrive([&] { store_tile(stages, target); });
    QkStreams of_s;
    each_of<kAhead>([&](auto n) { read_for_s(of_s, step, n); });
    step.before = step.now;  // the first tile adds zeros
    each_of<kAdvances>([&](auto k) { source.advance(step.next, step.now, step.left == 1, k); });
#pragma unroll
    for (int c = 0; c < kDqColumns; ++c) dq[c].zero();
#pragma unroll 1
    for (; step.left > 0; --step.left) {
      Scores s, dp;
      Operands weights, ds;
      Streams of_dp, of_sums;
      RowStats lse, delta;
      DsOperands of_dq;
      multiply_s(s, of_s, of_dp, lse, weights, stages, source, scale, step);
      multiply_dp(s, dp, of_dp, of_sums, lse, delta, weights, scale, step);
      if (__builtin_expect(!visible.contains(step.now.first), 0)) mask(s, weights, step);
      add_sums(s, dp, delta, of_sums, weights, ds, of_dq, stages, source, step);
      multiply_dq(of_dq, of_s, stages, target, step);
      step.before = step.now, step.now = step.next, step.next = step.after;
    }
    each_of<kDqFloats>([&](auto k) { add_dq(step, k); });
  }
};

template <class E, int kFeatures>
__global__ __launch_bounds__(
    one_pass_shape(kFamily, kFeatures).threads,
    one_pass_shape(kFamily, kFeatures).blocks) void one_pass_kernel(const BackwardParams params) {
  extern __shared__ __align__(128) char lds[];
  if constexpr (kFamily == Family::cdna)
    run_backward<E, kFeatures, kFeatures, false, true, BackwardOnePass>(reload_params(kernel_params(params)), lds);
}

// dq from its sums. Who owns what: a block has 64 queries of a head, a wave one of their strips at a time. Floor: the
// sums are read once, memory binds.
template <class E, int kFeatures>
__global__ __launch_bounds__(kDeltaThreads) void round_dq_kernel(const BackwardParams params) {
  if constexpr (kFamily == Family::cdna) {
    constexpr int kStrips = 2 * kFeatures / kStep<E>, kTile = kStep<E>;  // strips of a tile
    const BackwardParams* p = kernel_params(params);
    const xlstm_attention& in = p->call.in;
    const int64_t heads = p->heads_all_q(), which = blockIdx.x / heads, head_of_all = blockIdx.x % heads;
    const AttentionLayout at(in, head_of_all / in.heads_q);
    const int64_t head = head_of_all % in.heads_q, first = which * kDeltaRows;
    const TokenRows<E> to = query_rows<E>(at, p->call.dq, head, in.dqk, p->aligned16.dq);
    const float* from = dq_sums_of(*p, at, head) + first * kFeatures;
    if (first >= at.queries) return;
#pragma unroll 1
    for (int strip = wave_id(); strip < kDeltaRows / kTile * kStrips; strip += kDeltaThreads / kWave) {
      Strip<E> sums;
#pragma unroll
      for (int r = 0; r < Strip<E>::kRegisters; ++r)
        sums.value[r] = from[strip * kDqStripFloats<E> + r * kWave + lane_id()];
      sums.scale(float(in.softmax_scale));
      const int64_t query = first + strip / kStrips * kTile + strip % 2 * kStripColumns + Columns::position(0);
      each_run(sums, [&](int row, int, const float(&value)[kRun<E>]) {
        if (query < at.queries)
          store_run_by_tests(const_cast<E*>(to.data) + query * to.stride, strip % kStrips / 2 * kStep<E> + row,
                             to.columns, to.is_aligned16, value);
      });
    }
  }
}

}  // namespace xlstm::gpu::attention
