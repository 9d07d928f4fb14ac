// SPDX-License-Identifier: Apache-2.0
// Attention backward: where a block's tiles lie in LDS, and how they come there (backward.h has the whole).
//
// "First" and "second" are what is paired: q and dout, or k and v. A tile's first matrix is read along its rows and
// turned, its second along its rows and, where keys are owned, turned.
#pragma once

#include "attention/backward/backward_params.h"
#include "tile/paired_tiles.h"

namespace xlstm::gpu::attention {

constexpr BackwardShape backward_shape(Family f, int element_bytes, int dqk, int dv, bool of_keys) {
  return of_keys ? key_gradients_shape(f, element_bytes, dqk, dv) : query_gradients_shape(f, element_bytes, dqk, dv);
}

template <class E, int kQk, int kV, bool kFull, bool kOfKeys>
struct BackwardTiles {
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
  static constexpr int kStreams = kShape.operands_ahead ? 2 : 1;
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
  int group, queries, keys, owned;  // owned: first token of the block
  int column0, feature_wave;        // of the wave's tokens in the block; which of the waves across it is
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
  XLSTM_DEVICE static FirstTile first_tile(char* room) { return matrix<FirstTile>(room, 0); }
  XLSTM_DEVICE static SecondTile second_tile(char* room) { return matrix<SecondTile>(room, 1); }
  XLSTM_DEVICE static SecondTurned second_turned(char* room) { return matrix<SecondTurned>(room, 2); }
  XLSTM_DEVICE static FirstTurned first_turned(char* room) { return matrix<FirstTurned>(room, 3); }
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
  XLSTM_DEVICE void store(const Pair& pair, char* room, bool along, bool transposed) const {
    pair.each([&](bool second, const Vec16* x, int token, int column) {
      put(room, second, x, token, column, along, transposed);
    });
  }
  XLSTM_DEVICE static void put(char* room, bool second, const Vec16* x, int token, int column, bool along,
                               bool transposed) {
    if (second) {
      if (along) Pair::store_along(second_tile(room), x, token, column);
      if (transposed && kOfKeys) Pair::template store_transposed<kV>(second_turned(room), x, token, column);
    } else {
      if (along) Pair::store_along(first_tile(room), x, token, column);
      if (transposed) Pair::template store_transposed<kQk>(first_turned(room), x, token, column);
    }
  }

  struct Stages {
    Pair pair;
    float fact;  // a thread's, of the tile's; those who have none bring another's
    // NVIDIA: what this thread brings of the next tile, whose query head is the member.
    const E *first, *second;
    const float* facts;
    int member = -1;
  };
  XLSTM_DEVICE void fetch(Stages& s, const Place& place, int n) const {
    char* to = room(n);
    if constexpr (kAsyncCopies) {
      fetch_next(s, place, to);
    } else {
      if constexpr (kShape.ahead) {
        TokenRows<E> first, second;
        rows_of(!kOfKeys, query_head + place.member, first, second);
        s.pair.fetch(first, second, place.first, valid(place.first));
      }
      if constexpr (kOfKeys) s.fact = tile_facts(place)[opaque_thread() % (2 * kTile)];
    }
  }
  XLSTM_DEVICE const float* tile_facts(const Place& place) const {
    return facts_of(*p, at, query_head + place.member) + fact_place(place.first);
  }
  // NVIDIA: tiles come in the order of their tokens, one after the other, so that the next is a step away.
  XLSTM_DEVICE void fetch_next(Stages& s, const Place& place, char* to) const {
    const xlstm_attention_backward& call = p->call;
    const xlstm_tensor &x = kOfKeys ? call.in.q : call.in.k, &y = kOfKeys ? call.dout : call.in.v;
    if (s.member != place.member) {
      s.member = place.member;
      TokenRows<E> first, second;
      rows_of(!kOfKeys, query_head + place.member, first, second);
      const int64_t mine = place.first + Pair::lane_token();
      s.first = first.data + mine * first.stride + Pair::lane_first_column();
      s.second = second.data + mine * second.stride + Pair::lane_first_column();
      if constexpr (kOfKeys) s.facts = tile_facts(place) + threadIdx.x;
    }
    const bool whole = kOfKeys ? p->whole.q && p->whole.dout : p->whole.k && p->whole.v;
    if (whole && valid(place.first) == kTile) {
      Pair::copy_whole(first_tile(to), s.first, x.stride[2], int(call.in.dqk));
      Pair::copy_whole(second_tile(to), s.second, y.stride[2], int(call.in.dv));
    } else {
      TokenRows<E> first, second;
      rows_of(!kOfKeys, query_head + place.member, first, second);
      Pair::copy(first_tile(to), first, place.first, valid(place.first));
      Pair::copy(second_tile(to), second, place.first, valid(place.first));
    }
    s.first += kTile * x.stride[2], s.second += kTile * y.stride[2];
    if constexpr (kOfKeys) {
      if (threadIdx.x < 2 * kTile) cp_async_float(facts_in(to) + threadIdx.x, s.facts);
      s.facts += 2 * kTile;
    }
  }
  // Matrices into the room of a tile, of those that LDS has together.
  XLSTM_DEVICE void bring(const Stages& s, const Place& place, char* room, int from_matrix) const {
    if constexpr (kAsyncCopies) return;
    const bool along = kAllAtOnce || from_matrix < 2, transposed = kAllAtOnce || from_matrix >= 2;
    if constexpr (kShape.ahead) {
      store(s.pair, room, along, transposed);
    } else {
      TokenRows<E> first, second;
      rows_of(!kOfKeys, query_head + place.member, first, second);
      const auto to = [&](bool is_second) {
        return [=](bool, const Vec16* x, int token, int column) {
          put(room, is_second, x, token, column, along, transposed);
        };
      };
      const bool both = kShape.matrices > 1;
      if (both ? along || transposed : from_matrix == 0 || from_matrix == 3)
        FirstOnly::move(first, first, place.first, valid(place.first), to(false));
      if (both ? along || kOfKeys : from_matrix == 1 || from_matrix == 2)
        SecondOnly::move(second, second, place.first, valid(place.first), to(true));
    }
  }

  // The rules as numbers that all lanes share, which AMD keeps once rather than in every lane.
  XLSTM_DEVICE ScoreRules rules_in_all() const {
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

  // Which weights of the tile dropout keeps: a byte for each eight keys and query.
  XLSTM_DEVICE void fill_keep(const ScoreRules& rules, const Place& place) const {
    if (!kFull || !rules.drops) return;
    constexpr int kQueries = kOfKeys ? kTile : kShape.owned, kBytes = kShape.keep_bytes;
    const int key0 = kOfKeys ? owned : place.first, query0 = kOfKeys ? place.first : owned;
    const uint32_t row = uint32_t(at.index * p->call.in.heads_q + query_head + place.member);
#pragma unroll 1
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
};

}  // namespace xlstm::gpu::attention
