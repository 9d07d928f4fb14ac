// SPDX-License-Identifier: Apache-2.0
// A block of attention on Hopper (forward_hopper.h, backward_hopper.h): its part of the call, the layout of its shared
// memory, its mbarriers, and the producer's TMA loads.
//
// "First" and "second" name the two paired matrices, q and dout or k and v, both for the owned tokens and for each
// tile.
//
//   barrier       arrives                                  count  waits                    parity
//   kOwnedFirst   TMA, first owned matrix                  1      consumers, per item      item % 2
//   kOwnedSecond  TMA, second owned matrix                 1      consumers, once          0
//   kOwnedEmpty   persistent: each consumer warp           8      producer warp            item % 2 ^ 1
//   kTail         TMA, both matrices of a tail tile        1      producer warp            number of the tail % 2
//   kFirstFull    TMA (tail: producer lane 0), per stage   1      consumers                parity(n, false), tile n
//   kSecondFull   TMA (tail: producer lane 0), per stage   1      consumers                parity(n, true)
//   kFirstEmpty   each consumer warp, per stage            8      producer warp            parity(n, false) ^ 1
//   kSecondEmpty  each consumer warp, per stage            8      producer warp            parity(n, true) ^ 1
//   kWeightsFull  each warp of the first consumer group    4      second consumer group    n % 2
//   kWeightsEmpty each warp of the second consumer group   4      first consumer group     n % 2 ^ 1
//
// The two matrices of the tiles are rings of their own. Where they are released together, kFirstEmpty and kSecondEmpty
// are the same barriers. A persistent block takes several items, its tokens of a head, in turn: tiles, and items that
// have tiles, are numbered from its first item on, so that the producer runs ahead into the next item.
#pragma once

#include "arch/hopper/hopper.h"
#include "attention/gpu/band.h"
#include "attention/gpu/hopper_shape.h"
#include "attention/gpu/row_stats.h"
#include "attention/layout.h"

namespace xlstm::gpu::attention {

// Kernel parameters: the call's params `of`, and TMA tensor maps with boxes of kHopperBoxRows tokens, or of a tile.
template <class Params>
struct HopperAttentionParams {
  Params of;
  CUtensorMap q, dout, k, v;  // dout: backward only
};

template <class Params, HopperAttentionShape kSmemShape>
struct HopperSmem {
  static constexpr HopperAttentionShape kShape = kSmemShape;
  static constexpr bool kOfKeys = kShape.of_keys;
  static constexpr int kFeatures = kShape.features, kTile = kShape.tile, kOwned = kShape.owned_rows();
  static constexpr int kPanels = kFeatures / kPanelColumns;
  static constexpr int kOwnedPanel = panel_bytes(kOwned), kTilePanel = panel_bytes(kTile);
  static constexpr int kOwnedBytes = kPanels * kOwnedPanel, kTileBytes = kPanels * kTilePanel;

  // Shared memory: owned tokens, the stages' tiles, weights that one consumer warpgroup sends to the other, row
  // statistics (in stages of the first matrix), limits, barriers.
  static constexpr int stages(bool second) { return kShape.stages[second]; }
  static constexpr int kTiles = kShape.owned * kOwnedBytes, kSecondTiles = kTiles + stages(false) * kTileBytes,
                       kWeights = kSecondTiles + stages(true) * kTileBytes,
                       kRowStats = kWeights + kShape.weights_bytes(),
                       kLimits = kRowStats + stages(false) * kShape.row_stats_bytes(),
                       kBarriers = kLimits + kLimitsBytes;
  static_assert(kShape.released_apart || kShape.stages[0] == kShape.stages[1]);
  static_assert(kStatsPad % kOwned == 0 && (!kShape.with_queries || kStatsPad % kTile == 0));
  static_assert(kBarriers + 8 * kShape.barriers() == kShape.lds_bytes() && kShape.lds_bytes() <= 227 << 10);
  enum BarrierIndex {
    kOwnedFirst,
    kOwnedSecond,
    kOwnedEmpty = kOwnedSecond,  // persistent blocks own one matrix
    kTail,
    kFirstFull,
    kSecondFull = kFirstFull + kShape.stages[0],
    kFirstEmpty = kSecondFull + kShape.stages[1],
    kSecondEmpty = kFirstEmpty + (kShape.released_apart ? kShape.stages[0] : 0),
    kWeightsFull = kSecondEmpty + kShape.stages[1],
    kWeightsEmpty,
    kBarrierCount = kWeightsFull + 2 * kShape.shared_rows
  };
  static_assert(kBarrierCount == kShape.barriers());

  // Limits of the masks, in shared memory (but for persistent blocks, whose items' limits differ): few tiles need them,
  // and registers are short.
  struct Limits {
    uint32_t span, lowest;  // a key is visible when key - query - lowest <= span
    int keys, pad;
  };
  static_assert(sizeof(Limits) == kLimitsBytes);

  // What a persistent block has done before an item: tiles, items that have tiles.
  struct Progress {
    int tiles = 0, items = 0;
  };
  // A tile of a query head. Where a block owns keys it walks the query heads in turn.
  struct TileCoord {
    int member, first;
  };

  const HopperAttentionParams<Params>& params;
  const Params& p;
  AttentionLayout at;
  int key_head, query_head;  // dk and dv: the first query head of the key head
  int queries, keys, owned;  // owned: first token of the block
  Band band;
  VisibleTiles visible_tiles;
  int tiles;  // of all heads
  Progress done;
  char* lds;
  uint32_t base;

  XLSTM_DEVICE HopperSmem(const HopperAttentionParams<Params>& all, int64_t b, int head, int block, char* memory,
                          const Progress& before = {})
      : params(all),
        p(all.of),
        at(all.of.call.in, b),
        queries(int(at.queries)),
        keys(int(at.keys)),
        owned(block * kOwned),
        band(all.of.call.in, keys - queries),
        done(before),
        lds(memory),
        base(lds_address(memory)) {
    const int group = int(at.group());
    key_head = kOfKeys ? head : int(uint32_t(head) / uint32_t(group));
    query_head = kOfKeys ? head * group : head;
    visible_tiles = band.template visible_tiles<kOfKeys>(owned, kOwned, queries, keys, kTile);
    tiles = visible_tiles.count * (kOfKeys ? group : 1);
  }

  XLSTM_DEVICE int owned_tokens() const { return kOfKeys ? keys : queries; }
  XLSTM_DEVICE TileCoord first_coord() const { return {0, visible_tiles.first * kTile}; }
  XLSTM_DEVICE TileCoord next(TileCoord coord) const {
    coord.first += kTile;
    if (coord.first >= (visible_tiles.first + visible_tiles.count) * kTile)
      coord = {coord.member + 1, visible_tiles.first * kTile};
    return coord;
  }

  XLSTM_DEVICE uint32_t owned_at(bool second) const { return base + uint32_t(second ? kOwnedBytes : 0); }
  XLSTM_DEVICE static int stage(int n, bool second) { return second ? n % stages(true) : n % stages(false); }
  XLSTM_DEVICE static int tile_offset(int n, bool second) {
    return (second ? kSecondTiles : kTiles) + stage(n, second) * kTileBytes;
  }
  XLSTM_DEVICE uint32_t tile_at(int n, bool second) const { return base + uint32_t(tile_offset(n, second)); }
  XLSTM_DEVICE static int row_stats_offset(int n) { return kRowStats + stage(n, false) * kShape.row_stats_bytes(); }
  XLSTM_DEVICE const float* row_stats(int n) const {  // of tile n, indexed by row_stats_index()
    return reinterpret_cast<const float*>(lds + row_stats_offset(n));
  }

  XLSTM_DEVICE typename Band::FullyVisible fully_visible_tiles(int first_owned, int count) const {
    return band.template fully_visible_tiles<kOfKeys>(first_owned, count, keys, kTile);
  }
  XLSTM_DEVICE Limits limits_of_item() const {
    return {uint32_t(band.span), uint32_t(band.diagonal) + uint32_t(band.min_distance), keys, 0};
  }
  XLSTM_DEVICE Limits limits() const {
    if constexpr (kShape.persistent) return limits_of_item();
    return *reinterpret_cast<const Limits*>(lds + kLimits);
  }

  // Four weights of this thread and of the other warpgroup's thread with the same rows.
  XLSTM_DEVICE Vec16* weights(int quad) const {
    return reinterpret_cast<Vec16*>(lds + kWeights) + quad * kWarpgroup + threadIdx.x % kWarpgroup;
  }

  // Consumers wait for full barriers, the producer for empty ones.
  XLSTM_DEVICE Mbarrier barrier(int index) const { return {base + uint32_t(kBarriers + 8 * index)}; }
  XLSTM_DEVICE Mbarrier full(int n, bool second) const {
    return barrier((second ? kSecondFull : kFirstFull) + stage(n, second));
  }
  XLSTM_DEVICE Mbarrier empty(int n, bool second) const {
    return barrier((second ? kSecondEmpty : kFirstEmpty) + stage(n, second));
  }
  XLSTM_DEVICE static uint32_t parity(int n, bool second) {
    return uint32_t((second ? n / stages(true) : n / stages(false)) % 2);
  }
  XLSTM_DEVICE void wait_full(int n, bool second) const { full(n, second).wait(parity(n, second)); }
  XLSTM_DEVICE void wait_empty(int n, bool second) const {
    if (kShape.released_apart || !second) empty(n, second).wait(parity(n, second) ^ 1);
  }

  // A consumer warp releases a matrix of tile n when all its products that read it are done; the second one releases
  // both where they are released together.
  XLSTM_DEVICE void release(int n, bool second) const {
    if (kShape.released_apart || second) empty(n, second).arrive_once_per_warp();
  }

  // Initialises the barriers and limits; the whole block calls it before anything else. Consumers arrive once per warp.
  XLSTM_DEVICE void init_barriers() const {
    constexpr int kGroupWarps = kWarpgroup / 32;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kFirstEmpty; ++i)
        barrier(i).init(kShape.persistent && i == kOwnedEmpty ? 2 * kGroupWarps : 1);
      for (int i = kFirstEmpty; i < kWeightsFull; ++i) barrier(i).init(2 * kGroupWarps);
      for (int i = kWeightsFull; i < kBarrierCount; ++i) barrier(i).init(kGroupWarps);
      fence_mbarrier_init();
      if constexpr (!kShape.persistent) *reinterpret_cast<Limits*>(lds + kLimits) = limits_of_item();
    }
    __syncthreads();
  }
  XLSTM_DEVICE void wait_owned(bool second) const {
    barrier(second ? kOwnedSecond : kOwnedFirst).wait(uint32_t(done.items % 2));
  }
  XLSTM_DEVICE void release_owned() const {
    if constexpr (kShape.persistent) barrier(kOwnedEmpty).arrive_once_per_warp();
  }

  // ---- producer: TMA loads by one warp

  // Loads tokens [token, token + kCount) of one matrix, in boxes of kBox. TMA writes zeros beyond the tensor.
  template <int kCount, int kBox>
  XLSTM_DEVICE void load_tokens(uint32_t to, bool of_keys, bool second, int member, int token, Mbarrier full) const {
    static_assert(kCount % kBox == 0);
    const CUtensorMap& map = of_keys ? (second ? params.v : params.k) : second ? params.dout : params.q;
    const bool packed = of_keys ? at.in.cu_seqlens_k != nullptr : at.in.cu_seqlens_q != nullptr;
    const int first = int(of_keys ? at.first_token + at.first_key : at.first_query) + token;
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
      for (int box = 0; box < kCount; box += kBox)
        tma_load(to + i * panel_bytes(kCount) + panel_bytes(box), &map, i * kPanelColumns, first + box,
                 of_keys ? key_head : query_head + member, packed ? 0 : int(at.index), full);
  }
  XLSTM_DEVICE void load_owned() const {
    for (int second = 0; second < kShape.owned; ++second) {
      const Mbarrier full = barrier(second ? kOwnedSecond : kOwnedFirst);
      full.arrive_expect_tx(kOwnedBytes);
      load_tokens<kOwned, kHopperBoxRows>(owned_at(second), kOfKeys, second, 0, owned, full);
    }
  }
  XLSTM_DEVICE void load_tile(int n, const TileCoord& coord, bool second, Mbarrier full) const {
    load_tokens<kTile, kShape.tile_box()>(tile_at(n, second), !kOfKeys, second, coord.member, coord.first, full);
    if constexpr (kShape.with_queries)
      if (!second)
        bulk_load(base + uint32_t(row_stats_offset(n)),
                  row_stats_of(p, at, query_head + coord.member) + row_stats_index(coord.first),
                  kShape.row_stats_bytes(), full);
  }
  static constexpr uint32_t bytes_of(bool second) { return kTileBytes + (second ? 0 : kShape.row_stats_bytes()); }

  // tails: tail tiles that this block has loaded.
  XLSTM_DEVICE void produce_tiles(int& tails) const {
    const int lane = threadIdx.x % 32, walked_tokens = kOfKeys ? queries : keys;
    if (tiles == 0) return;
    if constexpr (kShape.persistent) barrier(kOwnedEmpty).wait(uint32_t(done.items % 2 ^ 1));
    if (lane == 0) load_owned();
    TileCoord coord = first_coord();
    for (int n = done.tiles; n < done.tiles + tiles; ++n, coord = next(coord)) {
      const int left = walked_tokens - coord.first;
      if (left < kTile) {
        load_tail(n, coord, left, tails++);
        continue;
      }
      for (const bool second : {false, true}) {
        wait_empty(n, second);
        if (lane == 0) full(n, second).arrive_expect_tx(bytes_of(second)), load_tile(n, coord, second, full(n, second));
      }
    }
  }
  // Loads a tile that ends beyond its sequence, and clears the rows beyond the end: they belong to another sequence or
  // to none, and zero times such a value may be NaN.
  XLSTM_DEVICE void load_tail(int n, const TileCoord& coord, int left, int tails) const {
    const int lane = threadIdx.x % 32;
    const Mbarrier tail_full = barrier(kTail);
    for (const bool second : {false, true}) wait_empty(n, second);
    if (lane == 0) {
      tail_full.arrive_expect_tx(bytes_of(false) + bytes_of(true));
      for (const bool second : {false, true}) load_tile(n, coord, second, tail_full);
    }
    tail_full.wait(uint32_t(tails % 2));
    for (const bool second : {false, true})
      for (int row = left; row < kTile; ++row)
        for (int vec = lane; vec < kPanels * 8; vec += 32)
          *reinterpret_cast<Vec16*>(lds + tile_offset(n, second) + vec / 8 * kTilePanel + row * kPanelRowBytes +
                                    vec % 8 * 16) = {{0, 0, 0, 0}};
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) full(n, false).arrive(), full(n, true).arrive();
  }
};

}  // namespace xlstm::gpu::attention
