// SPDX-License-Identifier: Apache-2.0
// Attention backward (backward.h): a block's part of the call, its tiles in LDS, and their loads.
//
// "First" and "second" name the two paired matrices, q and dout or k and v. A tile's first matrix is read along its
// rows and transposed; its second matrix along its rows and, where a block owns keys, transposed.
#pragma once

#include "attention/backward/backward_params.h"
#include "tile/paired_tiles.h"

namespace xlstm::gpu::attention {

constexpr BackwardShape backward_shape(Family f, int element_bytes, int dqk, int dv, bool of_keys) {
  return of_keys ? key_gradients_shape(f, element_bytes, dqk, dv) : query_gradients_shape(f, element_bytes, dqk, dv);
}

template <class E_, int kQk_, int kV_, bool kHasScoreMod_, bool kOfKeys_>
struct BackwardTiles {
  using E = E_;
  static constexpr int kQk = kQk_, kV = kV_;
  static constexpr bool kHasScoreMod = kHasScoreMod_, kOfKeys = kOfKeys_;
  static constexpr BackwardShape kShape = backward_shape(kFamily, sizeof(E), kQk, kV, kOfKeys);
  static constexpr int kThreads = kShape.threads, kTile = kShape.tile, kStepRows = kStep<E>;
  static constexpr int kColumnStrips = kShape.columns / kStripColumns, kRowStrips = kShape.at_once / kStepRows;
  static_assert(2 * kTile <= kThreads);
  static constexpr int kQkSteps = kQk / kStepRows, kVSteps = kV / kStepRows;
  static constexpr int kFirstSums = kQkSteps / kShape.waves_across;
  static constexpr bool kPairs = kShape.pairs;
  static_assert(!kPairs || (kOfKeys && kQk == kV && kShape.waves_across == 1 && kShape.at_once == kTile));
  static constexpr int kSecondSums = kOfKeys && !kPairs ? kVSteps / kShape.waves_across : 0;
  static constexpr float kUnit = score_unit<E>;
  static constexpr int kRegisters = Strip<E>::kRegisters;
  static constexpr int kSumRegisters = (kFirstSums + kSecondSums) * kColumnStrips * kRegisters;
  static constexpr int kStreams = kShape.operands_ahead + 1;
  static constexpr bool kChainInRegisters = !kShape.chain_in_lds;
  static constexpr int kMatrices = kOfKeys ? 4 : 3;  // forms of a tile in LDS on AMD
  static constexpr bool kAllAtOnce = kAsyncCopies || kShape.matrices == kMatrices;

  using Pair = PairStage<E, kTile, kQk, kV, kThreads>;
  using FirstOnly = PairStage<E, kTile, kQk, 0, kThreads>;
  using SecondOnly = PairStage<E, kTile, 0, kV, kThreads>;
  using FirstTile = Tile<E, kTile, kQk>;
  using SecondTile = Tile<E, kTile, kV>;
  using FirstTransposed = typename Pair::template Turned<kQk>;
  using SecondTransposed = typename Pair::template Turned<kV>;

  // Scores of a wave: one strip per step of the tile's tokens and per 16 owned tokens.
  using Scores = Strip<E>[kRowStrips][kColumnStrips];
  using Operands = ChainOperand<E>[kRowStrips][kColumnStrips];
  // NVIDIA splits floats in three as it reads them: operands of several steps at once would not fit.
  static constexpr bool kRolled = kAsyncCopies && sizeof(E) == 4;
  static_assert(!kRolled || kColumnStrips == 1);

  // A tile of a query head. Where a block owns keys it walks the query heads in turn.
  struct TileCoord {
    int member, first;
  };

  const BackwardParams* p;
  AttentionLayout at;
  int64_t key_head, query_head;  // dk and dv: the first query head of the key head
  char* lds;
  int group, queries, keys, owned;  // owned: first token of the block
  int column0, feature_wave;        // first token of the wave in the block; index of the wave across the features
  Band band;

  XLSTM_DEVICE BackwardTiles(const BackwardParams* params, int64_t b, int64_t head, int64_t block, char* memory)
      : p(params), at(params->call.in, b), lds(memory) {
    const xlstm_attention& in = p->call.in;
    group = int(uint32_t(in.heads_q) / uint32_t(in.heads_k));
    key_head = kOfKeys ? head : uint32_t(head) / uint32_t(group);
    query_head = kOfKeys ? head * group : head;
    queries = uniform(int(at.queries)), keys = uniform(int(at.keys));
    owned = int(block) * kShape.owned;
    column0 = (kPairs ? wave_id() % kShape.waves_along : wave_id() / kShape.waves_across) * kShape.columns;
    feature_wave = wave_id() % kShape.waves_across;
    band = Band(in, keys - queries);
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

  XLSTM_DEVICE int owned_tokens() const { return kOfKeys ? keys : queries; }
  // Whether this is the wave of a pair that computes the weights (backward_warp_pairs.h).
  XLSTM_DEVICE static bool makes_weights() { return wave_id() < kShape.waves_along; }

  // ---- layout of LDS

  XLSTM_DEVICE char* buffer(int n) const {
    return lds + kShape.chain_bytes + n % kShape.buffers * (kShape.tile_bytes + kShape.row_stats_bytes);
  }
  // Matrices of a buffer: 0 first, 1 second, 2 second transposed, 3 first transposed.
  static constexpr int matrix_offset(int matrix) {
    constexpr int first = FirstTile::kBytes, second = SecondTile::kBytes;
    if (kAsyncCopies) return matrix == 1 || matrix == 2 ? first : 0;
    if (kShape.matrices == 1) return 0;
    if (kShape.matrices == 2) return matrix == 1 ? first : matrix == 3 && kOfKeys ? second : 0;
    return matrix == 0 ? 0 : matrix == 1 ? first : matrix == 2 || !kOfKeys ? first + second : first + 2 * second;
  }
  template <class T>
  XLSTM_DEVICE static T matrix(char* buffer, int which) {
    return {reinterpret_cast<E*>(buffer + matrix_offset(which))};
  }
  XLSTM_DEVICE static FirstTile first_tile(char* buffer) { return matrix<FirstTile>(buffer, 0); }
  XLSTM_DEVICE static SecondTile second_tile(char* buffer) { return matrix<SecondTile>(buffer, 1); }
  XLSTM_DEVICE static SecondTransposed second_transposed(char* buffer) { return matrix<SecondTransposed>(buffer, 2); }
  XLSTM_DEVICE static FirstTransposed first_transposed(char* buffer) { return matrix<FirstTransposed>(buffer, 3); }
  XLSTM_DEVICE static float* row_stats_in(char* buffer) { return reinterpret_cast<float*>(buffer + kShape.tile_bytes); }
  XLSTM_DEVICE uint8_t* keep() const { return reinterpret_cast<uint8_t*>(lds + kShape.lds_bytes - kShape.keep_bytes); }
  XLSTM_DEVICE Tile<E, kShape.owned, kQk> first_owned() const { return {reinterpret_cast<E*>(lds)}; }
  XLSTM_DEVICE Tile<E, kShape.owned, kV> second_owned() const {
    return {reinterpret_cast<E*>(lds + kShape.owned * kQk * int(sizeof(E)))};
  }

  // ---- memory to LDS

  XLSTM_DEVICE void token_rows(bool of_keys, int64_t head, TokenRows<E>& first, TokenRows<E>& second) const {
    const xlstm_attention_backward& call = p->call;
    if (of_keys) {
      first = key_rows<E>(at, call.in.k, key_head, call.in.dqk, p->aligned16.k);
      second = key_rows<E>(at, call.in.v, key_head, call.in.dv, p->aligned16.v);
    } else {
      first = query_rows<E>(at, call.in.q, head, call.in.dqk, p->aligned16.q);
      second = query_rows<E>(at, call.dout, head, call.in.dv, p->aligned16.dout);
    }
  }
  XLSTM_DEVICE int valid(int first) const {
    const int left = (kOfKeys ? queries : keys) - first;
    return left < kTile ? left : kTile;
  }

  // Stores those matrices of a tile that are in the buffer together.
  XLSTM_DEVICE void store(const Pair& pair, char* buffer, bool along, bool transposed) const {
    store(pair, opaque_thread(), buffer, along, transposed);
  }
  XLSTM_DEVICE void store(const Pair& pair, int thread, char* buffer, bool along, bool transposed) const {
    pair.each(thread, [&](bool second, const Vec16* x, int token, int column) {
      put(buffer, second, x, token, column, along, transposed);
    });
  }
  XLSTM_DEVICE static void put(char* buffer, bool second, const Vec16* x, int token, int column, bool along,
                               bool transposed) {
    if (second) {
      if (along) Pair::store_along(second_tile(buffer), x, token, column);
      if (transposed && kOfKeys) Pair::template store_transposed<kV>(second_transposed(buffer), x, token, column);
    } else {
      if (along) Pair::store_along(first_tile(buffer), x, token, column);
      if (transposed) Pair::template store_transposed<kQk>(first_transposed(buffer), x, token, column);
    }
  }

  // A walk is plain if all tiles are full, in rows of 16-byte vectors and of as many features as the kernel has (AMD).
  // Its loop has no branches for other layouts, where the compiler would wait for loads as soon as it has issued them.
  static constexpr bool kMayBePlain =
      kFamily == Family::cdna && !kHasScoreMod && kShape.ahead && Pair::kEvenly && kTile == kShape.at_once;
  XLSTM_DEVICE bool is_plain() const {
    const xlstm_attention& in = p->call.in;
    const auto& aligned = p->aligned16;
    return (kOfKeys ? aligned.q && aligned.dout && queries % kTile == 0
                    : aligned.k && aligned.v && keys % kTile == 0) &&
           in.dqk == kQk && in.dv == kV;
  }
  // What a wave loads of a plain walk's tiles.
  struct PlainRows {
    const char* data[Pair::kEach];  // of token 0 of the first query head
    int64_t head[Pair::kEach];      // bytes from query head to query head
    uint32_t row[Pair::kEach], lane[Pair::kEach][4];
    const float* row_stats;
    int64_t row_stats_head;

    PlainRows() = default;
    XLSTM_DEVICE explicit PlainRows(const BackwardTiles& tiles) {
      const xlstm_attention_backward& call = tiles.p->call;
      TokenRows<E> a, b;
      tiles.token_rows(!kOfKeys, tiles.query_head, a, b);
      const int64_t head_a = kOfKeys ? call.in.q.stride[1] : 0, head_b = kOfKeys ? call.dout.stride[1] : 0;
#pragma unroll
      for (int j = 0; j < Pair::kEach; ++j) {
        const bool second = Pair::wave_loads_second(j);
        data[j] = uniform(reinterpret_cast<const char*>((second ? b.data : a.data) + Pair::wave_column(j)));
        head[j] = (second ? head_b : head_a) * int64_t(sizeof(E));
        row[j] = uint32_t(uniform(int(second ? b.stride : a.stride))) * uint32_t(sizeof(E));
#pragma unroll
        for (int i = 0; i < 4; ++i) lane[j][i] = Pair::lane_offset(i, row[j]);
      }
      if constexpr (kOfKeys) {
        row_stats = row_stats_of(*tiles.p, tiles.at, tiles.query_head) + threadIdx.x % (2 * kTile);
        row_stats_head = 2 * tiles.p->slots;
      }
    }
  };
  static constexpr int kPlainLoads = 4 * Pair::kEach + 1;  // of a lane: vectors, and a row statistic
  XLSTM_DEVICE void fetch_plain(int load, Pair& pair, float& row_stat, PlainRows& rows, const TileCoord& coord) const {
    const int j = load / 4;
    if (j < Pair::kEach)
      pair.fetch_vector(load, uniform(rows.data[j] + coord.member * rows.head[j] + int64_t(coord.first) * rows.row[j]),
                        rows.lane[j][load % 4]);
    else if constexpr (kOfKeys)
      row_stat = rows.row_stats[coord.member * rows.row_stats_head + row_stats_index(coord.first)];
  }

  struct Stages {
    Pair pair;
    Pair ahead;      // of a plain walk that stores a tile in two steps: the next one
    float row_stat;  // a thread's, of the tile; threads without one repeat another thread's
    PlainRows plain;
    // NVIDIA: the thread's source pointers for the next tile, whose query head is `member`.
    const E *first, *second;
    const float* row_stats;
    int member = -1;
  };
  XLSTM_DEVICE void fetch(Stages& s, const TileCoord& coord, int n) const {
    char* to = buffer(n);
    if constexpr (kAsyncCopies) {
      fetch_next(s, coord, to);
    } else {
      if constexpr (kShape.ahead) {
        TokenRows<E> first, second;
        token_rows(!kOfKeys, query_head + coord.member, first, second);
        s.pair.fetch(first, second, coord.first, valid(coord.first));
      }
      if constexpr (kOfKeys) s.row_stat = tile_row_stats(coord)[opaque_thread() % (2 * kTile)];
    }
  }
  XLSTM_DEVICE const float* tile_row_stats(const TileCoord& coord) const {
    return row_stats_of(*p, at, query_head + coord.member) + row_stats_index(coord.first);
  }
  // NVIDIA: tiles load in the order of their tokens, so that the next tile is one step away.
  XLSTM_DEVICE void fetch_next(Stages& s, const TileCoord& coord, char* to) const {
    const xlstm_attention_backward& call = p->call;
    const xlstm_tensor &x = kOfKeys ? call.in.q : call.in.k, &y = kOfKeys ? call.dout : call.in.v;
    if (s.member != coord.member) {
      s.member = coord.member;
      TokenRows<E> first, second;
      token_rows(!kOfKeys, query_head + coord.member, first, second);
      const int64_t token = coord.first + Pair::lane_token();
      s.first = first.data + token * first.stride + Pair::lane_first_column();
      s.second = second.data + token * second.stride + Pair::lane_first_column();
      if constexpr (kOfKeys) s.row_stats = tile_row_stats(coord) + threadIdx.x;
    }
    const bool is_aligned16 = kOfKeys ? p->aligned16.q && p->aligned16.dout : p->aligned16.k && p->aligned16.v;
    if (is_aligned16 && valid(coord.first) == kTile) {
      Pair::copy_unmasked(first_tile(to), s.first, x.stride[2], int(call.in.dqk));
      Pair::copy_unmasked(second_tile(to), s.second, y.stride[2], int(call.in.dv));
    } else {
      TokenRows<E> first, second;
      token_rows(!kOfKeys, query_head + coord.member, first, second);
      Pair::copy(first_tile(to), first, coord.first, valid(coord.first));
      Pair::copy(second_tile(to), second, coord.first, valid(coord.first));
    }
    s.first += kTile * x.stride[2], s.second += kTile * y.stride[2];
    if constexpr (kOfKeys) {
      if (threadIdx.x < 2 * kTile) cp_async_float(row_stats_in(to) + threadIdx.x, s.row_stats);
      s.row_stats += 2 * kTile;
    }
  }
  // Stores matrices of a tile into its buffer: those that LDS holds together.
  XLSTM_DEVICE void store_matrices(const Stages& s, const TileCoord& coord, char* buffer, int from_matrix) const {
    if constexpr (kAsyncCopies) return;
    const bool along = kAllAtOnce || from_matrix < 2, transposed = kAllAtOnce || from_matrix >= 2;
    if constexpr (kShape.ahead) {
      store(s.pair, buffer, along, transposed);
    } else {
      TokenRows<E> first, second;
      token_rows(!kOfKeys, query_head + coord.member, first, second);
      const auto to = [&](bool is_second) {
        return [=](bool, const Vec16* x, int token, int column) {
          put(buffer, is_second, x, token, column, along, transposed);
        };
      };
      const bool both = kShape.matrices > 1;
      if (both ? along || transposed : from_matrix == 0 || from_matrix == 3)
        FirstOnly::move(first, first, coord.first, valid(coord.first), to(false));
      if (both ? along || kOfKeys : from_matrix == 1 || from_matrix == 2)
        SecondOnly::move(second, second, coord.first, valid(coord.first), to(true));
    }
  }

  // The rules as uniform numbers, which AMD keeps in scalar registers rather than in every lane.
  XLSTM_DEVICE ScoreRules uniform_rules() const {
    const xlstm_attention& in = p->call.in;
    ScoreRules r(in);
    r.scale = uniform(sizeof(E) == 4 ? float(in.softmax_scale) : r.scale);
    r.cap = uniform(sizeof(E) == 4 ? float(in.softcap) : r.cap);
    r.to_cap = uniform(r.to_cap);
    r.threshold = uint32_t(uniform(int(r.threshold)));
    r.offset = uint32_t(uniform(int(r.offset)));
    r.seed = uint32_t(uniform(int(uint32_t(r.seed)))) | uint64_t(uint32_t(uniform(int(r.seed >> 32)))) << 32;
    return r;
  }

  // Fills the bits that say which weights of the tile dropout keeps: a byte for each eight keys and query.
  XLSTM_DEVICE void fill_keep(const ScoreRules& rules, const TileCoord& coord) const {
    if (!kHasScoreMod || !rules.drops) return;
    constexpr int kQueries = kOfKeys ? kTile : kShape.owned, kBytes = kShape.keep_bytes;
    const int key0 = kOfKeys ? owned : coord.first, query0 = kOfKeys ? coord.first : owned;
    const uint32_t row = uint32_t(at.index * p->call.in.heads_q + query_head + coord.member);
#pragma unroll 1
    for (int unit = threadIdx.x; unit < kBytes; unit += kThreads) {
      const int key_group = unit / kQueries, query = unit % kQueries;
      const Philox draws =
          philox(uint32_t(key0 / kDrawsAtOnce + key_group), uint32_t(query0 + query), row, rules.offset, rules.seed);
      uint32_t bits = 0;
#pragma unroll
      for (int j = 0; j < kDrawsAtOnce; ++j) bits |= uint32_t(draw_of(draws, j) >= rules.threshold) << j;
      keep()[unit] = uint8_t(bits);
    }
  }
};

}  // namespace xlstm::gpu::attention
