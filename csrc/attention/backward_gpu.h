// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU. With y and lse to base 2, D of delta_gpu.h, c = 1 / (1 - p):
//
//     w = 2^(y - lse)     ds = w (c keep (dout v^T) - D) dy/ds     dv = c (keep w)^T dout     dk = scale ds^T q
//                                                                  dq = scale ds k
//
// One kernel in two forms. A block owns tokens of one side, and walks tiles of the other's:
//
//               owned     along    scores, tokens of the tile down and owned ones across    sums
//     dk, dv    k, v      q, dout  S = q k^T     dP = dout v^T                              dv += dout^T w, dk += q^T
//     ds dq        q, dout   k, v     S = k q^T     dP = v dout^T                              dq += k^T ds
//
// What is owned is the chain operand of both products (in registers, or in LDS where they have no room), a tile is the
// stream. The strips of w and ds are the chain operand of the sums as they lie, and the sums, features down and owned
// tokens across, stay in accumulators for the whole walk. dk and dv of a key head walk the rows of all its query heads,
// one head after the other, so they are never expanded; where blocks do not fill the chip these rows are dealt out to
// parts with sums of their own, which sum_parts() adds in their order. Nothing is added by atomics: the same call gives
// the same bits.
//
// Tiles that no owned token sees, or is seen by, are not visited; a wave leaves out what it has no part in, and masks
// only where a wave's pairs are not all seen.
//
// A tile's first matrix (q, k) is read along its rows for S and turned for dk and dq, the second (dout, v) along and
// turned for dv. AMD has both in LDS, from one fetch (tile/pair_gpu.h); where 64 KB do not hold four matrices they come
// one after the other. NVIDIA reads one tile both ways. The next tile is on its way while this one is multiplied.
//
// Floor: 4 products of the tile for dk and dv and 3 for dq, 7 in all against 5 with atomics: 2 (4 dqk + 3 dv) flops for
// each pair. Beside them a pair costs, twice, an exp, a multiply-add, a difference, a product and the rounding of ds,
// and once that of w.
#pragma once

#include "attention/backward_params.h"
#include "attention/scores_gpu.h"
#include "tile/columns.h"
#include "tile/pair_gpu.h"

namespace xlstm::gpu {

constexpr BackwardShape backward_shape(Family f, int element_bytes, int dqk, int dv, bool of_keys) {
  return of_keys ? key_gradients_shape(f, element_bytes, dqk, dv) : query_gradients_shape(f, element_bytes, dqk, dv);
}

// Features that a lane has one after the other, to memory.
template <class E, int kCount>
XLSTM_DEVICE void store_run(E* row, int column, int columns, bool whole, const float (&value)[kCount]) {
  constexpr int kWords = kCount * int(sizeof(E)) / 4;
  if (whole && column + kCount <= columns) {
    struct alignas(kWords < 4 ? kWords * 4 : 16) Run {
      uint32_t word[kWords];
    } run;
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (sizeof(E) == 4)
        run.word[w] = as_bits(value[w]);
      else
        run.word[w] = pack_exact(E{}, value[2 * w], value[2 * w + 1]);
    }
    *reinterpret_cast<Run*>(row + column) = run;
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    if (column + j < columns) row[column + j] = from_float<E>(value[j]);
}

template <class E, int kQk, int kV, bool kFull, bool kOfKeys>
struct Backward {
  static constexpr BackwardShape kShape = backward_shape(kFamily, sizeof(E), kQk, kV, kOfKeys);
  static constexpr int kThreads = kShape.threads, kTile = kShape.tile, kStepRows = kStep<E>;
  static constexpr int kColumnStrips = kShape.columns / kStripColumns, kRowStrips = kShape.at_once / kStepRows;
  static_assert(2 * kTile <= kThreads);
  static constexpr int kQkSteps = kQk / kStepRows, kVSteps = kV / kStepRows;
  static constexpr int kFirstSums = kQkSteps / kShape.waves_across;
  static constexpr int kSecondSums = kOfKeys ? kVSteps / kShape.waves_across : 0;
  static constexpr int kRegisters = Strip<E>::kRegisters;
  static constexpr int kSumRegisters = (kFirstSums + kSecondSums) * kColumnStrips * kRegisters;
  static constexpr bool kHeldChain = !kShape.chain_in_lds;
  static constexpr int kMatrices = kOfKeys ? 4 : 3;  // that a tile is in LDS on AMD
  static constexpr bool kAllAtOnce = kAsyncCopies || kShape.matrices == kMatrices;

  using Pair = PairStage<E, kTile, kQk, kV, kThreads>;
  using FirstOnly = PairStage<E, kTile, kQk, 0, kThreads>;
  using SecondOnly = PairStage<E, kTile, 0, kV, kThreads>;
  using FirstTile = Tile<E, kTile, kQk>;
  using SecondTile = Tile<E, kTile, kV>;
  using FirstTurned = typename Pair::template Turned<kQk>;
  using SecondTurned = typename Pair::template Turned<kV>;

  // A tile of a query head. Heads take turns where keys are owned.
  struct Place {
    int member, first;
  };

  const BackwardParams* p;
  AttentionLayout at;
  int64_t key_head, query_head;  // of dk and dv: the first query head of the key head
  char* lds;
  int queries, keys, owned, apart;  // owned: first token of the block; apart: keys - queries
  int column0, feature_wave;        // of the wave's tokens in the block; which of the waves across it is
  int least, span;                  // a query sees keys with least <= key - query - apart <= least + span
  ChainOperand<E> first_chain[kHeldChain ? kColumnStrips : 1][kHeldChain ? kQkSteps : 1];
  ChainOperand<E> second_chain[kHeldChain ? kColumnStrips : 1][kHeldChain ? kVSteps : 1];
  Strip<E> first_sums[kFirstSums][kColumnStrips];
  Strip<E> second_sums[kOfKeys ? kSecondSums : 1][kColumnStrips];
  Columns lse[kColumnStrips], delta[kColumnStrips];  // dq: of the owned queries

  XLSTM_DEVICE Backward(const BackwardParams* params, int64_t b, int64_t head, int64_t block, char* memory)
      : p(params), at(params->call.in, b), lds(memory) {
    const xlstm_attention& in = p->call.in;
    key_head = kOfKeys ? head : head / at.group();
    query_head = kOfKeys ? head * at.group() : head;
    queries = same_in_all(int(at.queries)), keys = same_in_all(int(at.keys)), apart = keys - queries;
    owned = int(block) * kShape.owned;
    column0 = wave_id() / kShape.waves_across * kShape.columns;
    feature_wave = wave_id() % kShape.waves_across;
    constexpr int64_t kFar = INT32_MAX;
    const int64_t left = in.window_left < 0 || in.window_left > kFar ? kFar : in.window_left;
    const int64_t right = in.window_right < 0 || in.window_right > kFar ? kFar : in.window_right;
    least = same_in_all(int(-left));
    span = same_in_all(int(uint32_t(right + left)));
  }

  // ---- where tiles lie in LDS

  XLSTM_DEVICE char* room(int n) const {
    return lds + kShape.chain_bytes + n % kShape.buffers * (kShape.tile_bytes + kShape.facts_bytes);
  }
  // The room's matrices: 0 first, 1 second, 2 second turned, 3 first turned.
  static constexpr int matrix_offset(int matrix) {
    constexpr int first = FirstTile::kBytes, second = SecondTile::kBytes;
    if (kAsyncCopies) return matrix == 1 || matrix == 2 ? first : 0;
    if (kShape.matrices == 1) return 0;
    if (kShape.matrices == 2) return matrix == 1 ? first : matrix == 3 && kOfKeys ? second : 0;
    return matrix == 0 ? 0 : matrix == 1 ? first : matrix == 2 || !kOfKeys ? first + second : first + 2 * second;
  }
  template <class T>
  XLSTM_DEVICE static T matrix(char* room, int which) {
    return {reinterpret_cast<E*>(room + matrix_offset(which))};
  }
  XLSTM_DEVICE static float* facts_in(char* room) { return reinterpret_cast<float*>(room + kShape.tile_bytes); }
  XLSTM_DEVICE uint8_t* keep() const { return reinterpret_cast<uint8_t*>(lds + kShape.lds_bytes - kShape.keep_bytes); }
  XLSTM_DEVICE Tile<E, kShape.owned, kQk> first_owned() const { return {reinterpret_cast<E*>(lds)}; }
  XLSTM_DEVICE Tile<E, kShape.owned, kV> second_owned() const {
    return {reinterpret_cast<E*>(lds + kShape.owned * kQk * int(sizeof(E)))};
  }

  // ---- memory to LDS

  XLSTM_DEVICE void rows_of(bool of_keys, int64_t head, TokenRows<E>& first, TokenRows<E>& second) const {
    const xlstm_attention_backward& call = p->call;
    if (of_keys) {
      first = key_rows<E>(at, call.in.k, key_head, call.in.dqk, p->whole.k);
      second = key_rows<E>(at, call.in.v, key_head, call.in.dv, p->whole.v);
    } else {
      first = query_rows<E>(at, call.in.q, head, call.in.dqk, p->whole.q);
      second = query_rows<E>(at, call.dout, head, call.in.dv, p->whole.dout);
    }
  }
  XLSTM_DEVICE int valid(int first) const {
    const int left = (kOfKeys ? queries : keys) - first;
    return left < kTile ? left : kTile;
  }

  // Which of the matrices of a tile go to the room together.
  XLSTM_DEVICE void store(const Pair& pair, char* room, bool along, bool turned) const {
    pair.each([&](bool second, const Piece* x, int token, int column) {
      put(room, second, x, token, column, along, turned);
    });
  }
  XLSTM_DEVICE static void put(char* room, bool second, const Piece* x, int token, int column, bool along,
                               bool turned) {
    if (second) {
      if (along) Pair::store_along(matrix<SecondTile>(room, 1), x, token, column);
      if (turned && kOfKeys) Pair::template store_turned<kV>(matrix<SecondTurned>(room, 2), x, token, column);
    } else {
      if (along) Pair::store_along(matrix<FirstTile>(room, 0), x, token, column);
      if (turned) Pair::template store_turned<kQk>(matrix<FirstTurned>(room, 3), x, token, column);
    }
  }

  struct Stages {
    Pair pair;
    float fact;  // a thread's, of the tile's; those who have none bring another's
  };
  XLSTM_DEVICE void fetch(Stages& s, const Place& place, int n) const {
    TokenRows<E> first, second;
    rows_of(!kOfKeys, query_head + place.member, first, second);
    char* to = room(n);
    if constexpr (kAsyncCopies) {
      Pair::copy(matrix<FirstTile>(to, 0), first, place.first, valid(place.first));
      Pair::copy(matrix<SecondTile>(to, 1), second, place.first, valid(place.first));
    } else if constexpr (kShape.ahead) {
      s.pair.fetch(first, second, place.first, valid(place.first));
    }
    if constexpr (kOfKeys) {
      const float* facts = facts_of(*p, at, query_head + place.member) + fact_place(place.first);
#if defined(__CUDACC__)
      if (threadIdx.x < 2 * kTile) copy_async_float(facts_in(to) + threadIdx.x, facts + threadIdx.x);
#else
      s.fact = facts[thread_here() % (2 * kTile)];
#endif
    }
  }
  // Matrices into the room of a tile, of those that LDS has together.
  XLSTM_DEVICE void bring(const Stages& s, const Place& place, char* room, int from_matrix) const {
    if constexpr (kAsyncCopies) return;
    const bool along = kAllAtOnce || from_matrix < 2, turned = kAllAtOnce || from_matrix >= 2;
    if constexpr (kShape.ahead) {
      store(s.pair, room, along, turned);
    } else {
      TokenRows<E> first, second;
      rows_of(!kOfKeys, query_head + place.member, first, second);
      const auto to = [&](bool is_second) {
        return
            [=](bool, const Piece* x, int token, int column) { put(room, is_second, x, token, column, along, turned); };
      };
      const bool both = kShape.matrices > 1;
      if (both ? along || turned : from_matrix == 0 || from_matrix == 3)
        FirstOnly::move(first, first, place.first, valid(place.first), to(false));
      if (both ? along || kOfKeys : from_matrix == 1 || from_matrix == 2)
        SecondOnly::move(second, second, place.first, valid(place.first), to(true));
    }
  }

  // Which weights of the tile dropout keeps: a byte for each eight keys and query.
  XLSTM_DEVICE void fill_keep(const ScoreRules& rules, const Place& place) const {
    if (!kFull || !rules.drops) return;
    constexpr int kQueries = kOfKeys ? kTile : kShape.owned, kBytes = kShape.keep_bytes;
    const int key0 = kOfKeys ? owned : place.first, query0 = kOfKeys ? place.first : owned;
    const uint32_t row = uint32_t(at.index * p->call.in.heads_q + query_head + place.member);
    for (int unit = threadIdx.x; unit < kBytes; unit += kThreads) {
      const int eight = unit / kQueries, query = unit % kQueries;
      const Philox draws =
          philox(uint32_t(key0 / kDrawsAtOnce + eight), uint32_t(query0 + query), row, rules.offset, rules.seed);
      uint32_t bits = 0;
#pragma unroll
      for (int j = 0; j < kDrawsAtOnce; ++j) bits |= uint32_t(draw_of(draws, j) >= rules.threshold) << j;
      keep()[unit] = uint8_t(bits);
    }
  }

  // What the block owns, as chain operands: through the tiles' room, a tile at a time.
  XLSTM_DEVICE void load_owned() {
    TokenRows<E> first, second;
    rows_of(kOfKeys, query_head, first, second);
    const int there = (kOfKeys ? keys : queries) - owned;
    constexpr int kPieces = kShape.owned / kTile;
    static_assert(kShape.owned % kTile == 0);
    if constexpr (kAsyncCopies) {
      using Whole = PairStage<E, kShape.owned, kQk, kV, kThreads>;
      Whole::copy(first_owned(), first, owned, there < kShape.owned ? there : kShape.owned);
      Whole::copy(second_owned(), second, owned, there < kShape.owned ? there : kShape.owned);
    } else if constexpr (!kHeldChain) {
#pragma unroll 1
      for (int t = 0; t < kShape.owned; t += kTile)
        Pair::move(first, second, owned + t, there - t < kTile ? there - t : kTile,
                   [&](bool is_second, const Piece* x, int token, int column) {
                     if (is_second)
                       Pair::store_along(second_owned(), x, t + token, column);
                     else
                       Pair::store_along(first_owned(), x, t + token, column);
                   });
    } else {
      Pair pair;
      pair.fetch(first, second, owned, there < kTile ? there : kTile);
#pragma unroll 1
      for (int j = 0; j < kPieces; ++j) {
        char* to = room(0);
        arrive([&] { store(pair, to, true, false); });
        const int next = (j + 1) * kTile;
        if (j + 1 < kPieces) pair.fetch(first, second, owned + next, there - next < kTile ? there - next : kTile);
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) {
          const int mine = column0 + c * kStripColumns - j * kTile;
          if (mine < 0 || mine >= kTile) continue;
#pragma unroll
          for (int k = 0; k < kQkSteps; ++k)
            first_chain[c][k] = load_chain_along<E>(matrix<FirstTile>(to, 0), mine, k * kStepRows);
#pragma unroll
          for (int k = 0; k < kVSteps; ++k)
            second_chain[c][k] = load_chain_along<E>(matrix<SecondTile>(to, 1), mine, k * kStepRows);
        }
        reads_done();
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
  XLSTM_DEVICE ChainOperand<E> chain(int c, int k) const {
    if constexpr (kHeldChain)
      return kFirst ? first_chain[c][k] : second_chain[c][k];
    else if constexpr (kFirst)
      return load_chain_along<E>(first_owned(), column0 + c * kStripColumns, k * kStepRows);
    else
      return load_chain_along<E>(second_owned(), column0 + c * kStripColumns, k * kStepRows);
  }

  // ---- one tile

  using Scores = Strip<E>[kRowStrips][kColumnStrips];

  // products = tile owned^T, over the features of the first or the second matrix.
  template <bool kFirst, class AnyTile>
  XLSTM_DEVICE void multiply_rows(Scores& products, const AnyTile& tile, int row0, int lane) const {
    constexpr int kSteps = kFirst ? kQkSteps : kVSteps;
#pragma unroll
    for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) products[r][c].zero();
    StreamOperand<E> stream[2][kRowStrips];  // of this step and the next
    const auto load = [&](int k) {
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
        stream[k % 2][r] = load_stream<true, E>(tile, row0 + r * kStepRows, k * kStepRows, lane);
    };
    load(0);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      in_order();
      if (k + 1 < kSteps) load(k + 1);
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) {
        const ChainOperand<E> owned_operand = chain<kFirst>(c, k);
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r) multiply(products[r][c], stream[k % 2][r], owned_operand);
      }
    }
  }

  // sums += tile^T weights, whose rows are the tile's tokens.
  template <int kSums, class AnyTile>
  XLSTM_DEVICE void add_rows(Strip<E> (&sums)[kSums][kColumnStrips], const AnyTile& tile, int row0,
                             const ChainOperand<E> (&weights)[kRowStrips][kColumnStrips], int lane) const {
    const int feature0 = kShape.waves_across > 1 ? feature_wave * kSums * kStepRows : 0;
    StreamOperand<E> stream[2];
    const auto load = [&](int n) {
      stream[n % 2] = load_stream<false, E>(tile, feature0 + n % kSums * kStepRows, row0 + n / kSums * kStepRows, lane);
    };
    load(0);
#pragma unroll
    for (int n = 0; n < kSums * kRowStrips; ++n) {
      in_order();
      if (n + 1 < kSums * kRowStrips) load(n + 1);
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) multiply(sums[n % kSums][c], stream[n % 2], weights[n / kSums][c]);
    }
  }

  // Whether the wave's pairs of the tile's tokens [first, first + n) are all seen, some, or none.
  enum class Seen { none, some, all };
  XLSTM_DEVICE Seen seen(int first, int n) const {
    const int mine = owned + column0;
    // The smallest and the largest of key - query - apart.
    const int64_t low = kOfKeys ? int64_t(mine) - (first + n - 1) : int64_t(first) - (mine + kShape.columns - 1);
    const int64_t high = kOfKeys ? int64_t(mine + kShape.columns - 1) - first : int64_t(first + n - 1) - mine;
    const int64_t begin = int64_t(least) + apart, end = begin + uint32_t(span);
    if (low > end || high < begin) return Seen::none;
    return low >= begin && high <= end && (kOfKeys || first + n <= keys) ? Seen::all : Seen::some;
  }

  // Scores and dP into weights and ds.
  XLSTM_DEVICE void weigh(Scores& s, Scores& dp, const ScoreRules& rules, float slope, int first, int row0,
                          const float* facts, bool masked, int lane) const {
    const StripPosition own = strip_position(kFamily, sizeof(E), lane, 0);  // the others lie at known distances
    const int row = first + row0 + own.row, column = owned + column0 + own.column;
    const int apart_here = (kOfKeys ? column - row : row - column) - apart;
    const float* mine = facts + fact_place(row0 + own.row);
    const float kept_scale = rules.drops ? float(dropout_scale(p->call.in.dropout_p)) : 1.0f;
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs)
#pragma unroll
      for (int r = 0; r < kRegisters; ++r) {
        const StripPosition by = strip_position(kFamily, sizeof(E), 0, r);
        const int down = rs * kStepRows + by.row;
        const float row_lse = kOfKeys ? mine[fact_place(down)] : 0,
                    row_delta = kOfKeys ? mine[fact_place(down) + kFactGroup] : 0;
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) {
          const float of_lse = kOfKeys ? row_lse : lse[c].value[Columns::of(r)];
          const float of_delta = kOfKeys ? row_delta : delta[c].value[Columns::of(r)];
          const int across = c * kStripColumns + by.column;
          const int distance = apart_here + (kOfKeys ? across - down : down - across);
          float y = s[rs][c].value[r] * rules.scale, through = 1, dweight = dp[rs][c].value[r];
          bool kept = true;
          if constexpr (kFull) {
            if (rules.cap > 0) {
              const float bent = tanh_of<E>(s[rs][c].value[r] * rules.to_cap);
              through = 1 - bent * bent;
              y = rules.cap * bent;
            }
            if (rules.slopes) y -= slope * float(distance < 0 ? -distance : distance);
            if (rules.drops) {
              const int key = kOfKeys ? column0 + own.column + across : row0 + own.row + down;
              const int query = kOfKeys ? row0 + own.row + down : column0 + own.column + across;
              constexpr int kQueries = kOfKeys ? kTile : kShape.owned;
              kept = keep()[key / kDrawsAtOnce * kQueries + query] >> (key % kDrawsAtOnce) & 1;
              dweight = kept ? dweight * kept_scale : 0.0f;
            }
          }
          if (masked) {
            bool sees = uint32_t(distance) - uint32_t(least) <= uint32_t(span);
            if (!kOfKeys) sees = sees && row + down < keys;
            y = sees ? y : -__builtin_inff();
          }
          const float weight = exp2_fast(y - of_lse);
          const float ds = weight * (dweight - of_delta);
          dp[rs][c].value[r] = kFull ? ds * through : ds;
          s[rs][c].value[r] = kept ? weight : 0.0f;
        }
      }
  }

  XLSTM_DEVICE void run_tile(Stages& stages, const Place& place, const Place& next, bool more, int n,
                             const ScoreRules& rules) {
    char* here = room(n);
    const Seen whole = seen(place.first, kTile);
    const auto arrive_with = [&](int from_matrix) { arrive([&] { bring(stages, place, here, from_matrix); }); };
    const auto fetch_next = [&] {
      if (more) fetch(stages, next, n + 1);
    };
    if constexpr (kAsyncCopies && (kFull || kShape.buffers == 1)) __syncthreads();
    if constexpr (kAsyncCopies && kShape.buffers == 1)
      if (n > 0) fetch(stages, place, n);
    arrive([&] {
      bring(stages, place, here, 0);
      if constexpr (kOfKeys && !kAsyncCopies)
        if (thread_here() < 2 * kTile) facts_in(here)[thread_here()] = stages.fact;
      fill_keep(rules, place);
    });
    if constexpr (kAllAtOnce && kShape.buffers * (kAsyncCopies ? 1 : 2) > 1) fetch_next();
    const int lane = kFamily == Family::nvidia ? lane_id() : thread_here() % kWave;
    const float slope =
        kFull && rules.slopes
            ? p->call.in.alibi_slopes[at.index * p->call.in.alibi_stride + query_head + place.member] * kLog2E
            : 0.0f;
#pragma unroll 1
    for (int row0 = 0; row0 < kTile; row0 += kShape.at_once) {
      const Seen now = kTile == kShape.at_once ? whole : seen(place.first + row0, kShape.at_once);
      if (kAllAtOnce && now == Seen::none) continue;
      Scores s, dp;
      ChainOperand<E> weights[kRowStrips][kColumnStrips], ds[kRowStrips][kColumnStrips];
      if (now != Seen::none) multiply_rows<true>(s, matrix<FirstTile>(here, 0), row0, lane);
      if constexpr (!kAllAtOnce && kShape.matrices == 1) arrive_with(1);
      if (now != Seen::none) {
        multiply_rows<false>(dp, matrix<SecondTile>(here, 1), row0, lane);
        weigh(s, dp, rules, slope, place.first, row0, facts_in(here), now == Seen::some, lane);
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
          for (int c = 0; c < kColumnStrips; ++c) {
            if constexpr (kOfKeys) weights[r][c] = as_chain(s[r][c], 1.0f);
            ds[r][c] = as_chain(dp[r][c], 1.0f);
          }
      }
      if constexpr (!kAllAtOnce) arrive_with(kOfKeys ? 2 : 3);
      if constexpr (!kAllAtOnce && kShape.matrices == 2) fetch_next();
      if constexpr (kOfKeys)
        if (now != Seen::none) add_rows(second_sums, matrix<SecondTurned>(here, 2), row0, weights, lane);
      if constexpr (!kAllAtOnce && kShape.matrices == 1 && kOfKeys) arrive_with(3);
      if constexpr (!kAllAtOnce && kShape.matrices == 1) fetch_next();
      if (now != Seen::none) add_rows(first_sums, matrix<FirstTurned>(here, 3), row0, ds, lane);
    }
  }

  // ---- the walk

  XLSTM_DEVICE void zero_sums() {
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
#pragma unroll
      for (int f = 0; f < kFirstSums; ++f) first_sums[f][c].zero();
#pragma unroll
      for (int f = 0; f < kSecondSums; ++f) second_sums[f][c].zero();
    }
  }

  // Of the tiles that owned tokens see, or that see them, of all heads: part `part` of `parts`.
  XLSTM_DEVICE void walk(int part, int parts) {
    const int64_t end_owned =
        owned + kShape.owned < (kOfKeys ? keys : queries) ? owned + kShape.owned : (kOfKeys ? keys : queries);
    const int64_t most = int64_t(least) + uint32_t(span);
    // Keys that a query sees: query + apart + [least, most].
    const int64_t low = kOfKeys ? owned - apart - most : owned + apart + int64_t(least);
    const int64_t high = kOfKeys ? end_owned - apart - int64_t(least) : end_owned + apart + most;  // excluded
    const int64_t all = kOfKeys ? queries : keys;
    const int64_t begin = low < 0 ? 0 : low, end = high < all ? high : all;
    const int first = same_in_all(int(begin / kTile));
    const int tiles = end > begin ? same_in_all(int((end + kTile - 1) / kTile)) - first : 0;
    const int members = kOfKeys ? int(at.group()) : 1;
    const int from = int(int64_t(tiles) * members * part / parts),
              to = int(int64_t(tiles) * members * (part + 1) / parts);
    zero_sums();
    if (from >= to) return;
    const ScoreRules rules(p->call.in);
    load_owned();
    Stages stages;
    Place next{from / tiles, (first + from % tiles) * kTile};
    fetch(stages, next, 0);
#pragma unroll 1
    for (int n = 0; from + n < to; ++n) {
      p = read_here(p);
      const Place place = next;
      next.first += kTile;
      if (next.first >= (first + tiles) * kTile) next = {place.member + 1, first * kTile};
      run_tile(stages, place, next, from + n + 1 < to, n, rules);
    }
  }

  // f(sums of strips, feature of the first, is it the first matrix) for all of them.
  template <class F>
  XLSTM_DEVICE void each_strip(F&& f) {
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
#pragma unroll
      for (int s = 0; s < kFirstSums; ++s) f(true, c, (feature_wave * kFirstSums + s) * kStepRows, first_sums[s][c]);
#pragma unroll
      for (int s = 0; s < kSecondSums; ++s)
        f(false, c, (feature_wave * kSecondSums + s) * kStepRows, second_sums[s][c]);
    }
  }
  // The sums of a part as the registers have them.
  template <class F>
  XLSTM_DEVICE void each_register(float* base, F&& f) {
    int order = 0;
    base += threadIdx.x;
    each_strip([&](bool, int, int, Strip<E>& s) {
      in_order();
      float* to = made_here(base) + order * (kRegisters * kThreads);
      ++order;
#pragma unroll
      for (int r = 0; r < kRegisters; ++r) f(s.value[r], to + r * kThreads);
    });
  }

  XLSTM_DEVICE void write() {
    const xlstm_attention_backward& call = p->call;
    const float scale = float(call.in.softmax_scale);
    const float kept = call.in.dropout_p > 0 ? float(dropout_scale(call.in.dropout_p)) : 1.0f;
    TokenRows<E> first, second;
    if constexpr (kOfKeys) {
      first = key_rows<E>(at, call.dk, key_head, call.in.dqk, p->whole.dk);
      second = key_rows<E>(at, call.dv, key_head, call.in.dv, p->whole.dv);
    } else {
      first = query_rows<E>(at, call.dq, query_head, call.in.dqk, p->whole.dq);
    }
    each_strip([&](bool is_first, int c, int feature, Strip<E>& s) {
      in_order();
      s.scale(is_first ? scale : kept);
      const TokenRows<E>& to = is_first ? first : second;
      each_run(s, [&](int row, int j, const float(&value)[kRun<E>]) {
        const int token = owned + column0 + c * kStripColumns + Columns::position(j);
        if (token < (kOfKeys ? keys : queries))
          store_run(const_cast<E*>(to.data) + token * to.stride, feature + row, to.columns, to.whole, value);
      });
    });
  }

  // Places of no key in use, each block its share: their gradients are zero.
  XLSTM_DEVICE void clear_pads() const {
    const int pads = int(at.capacity) - keys;
    for (int t = owned; t < owned + kShape.owned && t < pads; ++t) {
      const int64_t place = t < at.first_key ? t : t + keys;
      for (const bool is_first : {true, false}) {
        const xlstm_tensor& x = is_first ? p->call.dk : p->call.dv;
        E* to = static_cast<E*>(x.data) + key_offset(at, x, key_head, place);
        for (int j = threadIdx.x; j < (is_first ? p->call.in.dqk : p->call.in.dv); j += kThreads)
          to[j] = from_float<E>(0.0f);
      }
    }
  }
};

// blockIdx.x: heads vary first, so that those of a head share a die's L2 where blocks are dealt out to dies, and blocks
// with much work come early: early keys and late queries see most under a causal mask.
template <class E, int kQk, int kV, bool kFull, bool kOfKeys>
__global__ __launch_bounds__(
    backward_shape(kFamily, sizeof(E), kQk, kV, kOfKeys).threads,
    backward_shape(kFamily, sizeof(E), kQk, kV, kOfKeys).blocks) void attention_gradients(const BackwardParams params) {
  extern __shared__ __align__(128) char lds[];
  const BackwardParams* p = read_here(only_param(params));
  const xlstm_attention& in = p->call.in;
  using Walk = Backward<E, kQk, kV, kFull, kOfKeys>;
  const uint32_t heads = uint32_t(kOfKeys ? in.heads_k : in.heads_q), all = heads * uint32_t(in.batch);
  const uint32_t which = blockIdx.x % all, rest = blockIdx.x / all;
  const uint32_t parts = kOfKeys ? uint32_t(p->parts) : 1;
  const uint32_t block = kOfKeys ? rest / parts : uint32_t(p->blocks_q) - 1 - rest, part = kOfKeys ? rest % parts : 0;
  Walk walk(p, which / heads, which % heads, block, lds);
  if constexpr (kOfKeys)
    if (part == 0) walk.clear_pads();
  if (walk.owned >= (kOfKeys ? walk.keys : walk.queries)) return;
  walk.walk(int(part), int(parts));
  if (kOfKeys && parts > 1)
    walk.each_register(global(p->sums) + (int64_t(part) * (gridDim.x / parts) + block * all + which) *
                                             (Walk::kSumRegisters * Walk::kThreads),
                       [](float& v, float* to) { *to = v; });
  else
    walk.write();
}

// dk and dv of the sums of several parts, in their order.
template <class E, int kQk, int kV>
__global__ __launch_bounds__(
    backward_shape(kFamily, sizeof(E), kQk, kV, true).threads,
    backward_shape(kFamily, sizeof(E), kQk, kV, true).blocks) void sum_parts(const BackwardParams params) {
  const BackwardParams* p = read_here(only_param(params));
  const xlstm_attention& in = p->call.in;
  using Walk = Backward<E, kQk, kV, true, true>;
  const uint32_t heads = uint32_t(in.heads_k), which = blockIdx.x % (heads * uint32_t(in.batch));
  Walk walk(p, which / heads, which % heads, blockIdx.x / (heads * uint32_t(in.batch)), nullptr);
  if (walk.owned >= walk.keys) return;
  walk.zero_sums();
  for (int part = 0; part < p->parts; ++part)
    walk.each_register(
        global(p->sums) + (int64_t(part) * gridDim.x + blockIdx.x) * (Walk::kSumRegisters * Walk::kThreads),
        [](float& v, const float* from) { v += *from; });
  walk.write();
}

}  // namespace xlstm::gpu
