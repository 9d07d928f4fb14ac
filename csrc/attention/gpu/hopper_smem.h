// SPDX-License-Identifier: Apache-2.0
// A block of attention on Hopper (forward_hopper.h, backward_hopper.h): which part of a call it has, what lies where in
// its shared memory, and the copies that bring it.
//
// "First" and "second" are what is paired: q and dout, or k and v; of what is owned and of each tile.
#pragma once

#include "arch/hopper/hopper.h"
#include "attention/backward/backward_params.h"
#include "attention/forward/forward_params.h"
#include "attention/gpu/hopper_shape.h"

namespace xlstm::gpu::attention {

// A call as kernels are given it: `of`, and maps of boxes of kPanelColumns tokens.
template <class Params>
struct HopperAttentionParams {
  Params of;
  CUtensorMap q, dout, k, v;  // dout: of backward
};

static_assert(kFactPad % kHopperOwned == 0);

template <class Params, HopperRoomShape kRoomShape>
struct HopperRoom {
  static constexpr HopperRoomShape kShape = kRoomShape;
  static constexpr bool kOfKeys = kShape.of_keys;
  static constexpr int kFeatures = kShape.features, kTile = kShape.tile, kStages = kShape.stages, kBox = 64;
  static constexpr int kPanels = kFeatures / kPanelColumns;
  static constexpr int kOwnedPanel = panel_bytes(kHopperOwned), kTilePanel = panel_bytes(kTile);
  static constexpr int kOwnedBytes = kPanels * kOwnedPanel, kTileBytes = kPanels * kTilePanel;

  // Shared memory: what is owned, the stages' tiles, their facts, limits, barriers.
  static constexpr int kTiles = kShape.owned * kOwnedBytes, kFacts = kTiles + kStages * 2 * kTileBytes,
                       kLimits = kFacts + kStages * kShape.facts_bytes(), kBarriers = kLimits + kLimitsBytes;
  static_assert(kBarriers + 8 * kShape.barriers() == kShape.lds_bytes() && kShape.lds_bytes() <= 227 << 10);
  enum BarrierIndex {
    kOwnedFirst,
    kOwnedSecond,
    kTail,
    kFirstFull,
    kSecondFull = kFirstFull + kStages,
    kFree = kSecondFull + kStages,
    kBarrierCount = kFree + kStages
  };
  static_assert(kBarrierCount == kShape.barriers());

  // What masks ask, in shared memory: few tiles need them, and registers are short.
  struct Limits {
    uint32_t span, apart_and_least;  // a key is seen with key - query - apart_and_least <= span
    int keys, pad;
  };
  static_assert(sizeof(Limits) == kLimitsBytes);

  // A tile of a query head. Heads take turns where keys are owned.
  struct Place {
    int member, first;
  };

  const HopperAttentionParams<Params>& params;
  const Params& p;
  AttentionLayout at;
  int key_head, query_head;  // of dk and dv: the first query head of the key head
  int queries, keys, owned;  // owned: first token of the block
  Band band;
  TilesSeen seen;
  int tiles;  // of all heads
  char* lds;
  uint32_t base;

  XLSTM_DEVICE HopperRoom(const HopperAttentionParams<Params>& all, int64_t b, int head, int block, char* memory)
      : params(all),
        p(all.of),
        at(all.of.call.in, b),
        queries(int(at.queries)),
        keys(int(at.keys)),
        owned(block * kHopperOwned),
        band(all.of.call.in, keys - queries),
        lds(memory),
        base(lds_address(memory)) {
    const int group = int(at.group());
    key_head = kOfKeys ? head : int(uint32_t(head) / uint32_t(group));
    query_head = kOfKeys ? head * group : head;
    seen = band.template tiles_seen<kOfKeys>(owned, kHopperOwned, queries, keys, kTile);
    tiles = seen.count * (kOfKeys ? group : 1);
  }

  XLSTM_DEVICE int owned_tokens() const { return kOfKeys ? keys : queries; }
  XLSTM_DEVICE Place first_place() const { return {0, seen.first * kTile}; }
  XLSTM_DEVICE Place next(Place place) const {
    place.first += kTile;
    if (place.first >= (seen.first + seen.count) * kTile) place = {place.member + 1, seen.first * kTile};
    return place;
  }

  XLSTM_DEVICE uint32_t owned_at(bool second) const { return base + uint32_t(second ? kOwnedBytes : 0); }
  XLSTM_DEVICE static int tile_offset(int n, bool second) { return kTiles + (n % kStages * 2 + second) * kTileBytes; }
  XLSTM_DEVICE uint32_t tile_at(int n, bool second) const { return base + uint32_t(tile_offset(n, second)); }
  XLSTM_DEVICE static int facts_offset(int n) { return kFacts + n % kStages * kShape.facts_bytes(); }
  XLSTM_DEVICE const float* facts(int n) const {  // of a tile, as fact_place() has them
    return reinterpret_cast<const float*>(lds + facts_offset(n));
  }

  XLSTM_DEVICE typename Band::Whole seen_whole(int mine, int count) const {
    return band.template seen_whole<kOfKeys>(mine, count, keys, kTile);
  }
  XLSTM_DEVICE Limits& limits() const { return *reinterpret_cast<Limits*>(lds + kLimits); }

  // Full is for who reads, free for who writes.
  XLSTM_DEVICE Mbarrier barrier(int index) const { return {base + uint32_t(kBarriers + 8 * index)}; }
  XLSTM_DEVICE Mbarrier first_full(int n) const { return barrier(kFirstFull + n % kStages); }
  XLSTM_DEVICE Mbarrier second_full(int n) const { return barrier(kSecondFull + n % kStages); }
  XLSTM_DEVICE Mbarrier free(int n) const { return barrier(kFree + n % kStages); }
  XLSTM_DEVICE static uint32_t parity(int n) { return uint32_t(n / kStages % 2); }

  // Of tile n all products are made that read it: by each warp of those that own tokens.
  XLSTM_DEVICE void give_free(int n) const { free(n).arrive_once_per_warp(); }

  // By the whole block, before anything else. Warps give tiles free.
  XLSTM_DEVICE void open() const {
    constexpr int kOwners = kHopperOwned / 16;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kFree; ++i) barrier(i).init(1);
      for (int i = kFree; i < kBarrierCount; ++i) barrier(i).init(kOwners);
      fence_mbarrier_init();
      limits() = {uint32_t(band.span), uint32_t(band.apart) + uint32_t(band.least), keys, 0};
    }
    __syncthreads();
  }

  // ---- copies, by one warp

  // The tokens [token, token + count) of a side's matrix, `count` a multiple of a box: zeros beyond the tensor.
  XLSTM_DEVICE void copy(uint32_t to, bool of_keys, bool second, int member, int token, int count,
                         Mbarrier full) const {
    const CUtensorMap& map = of_keys ? (second ? params.v : params.k) : second ? params.dout : params.q;
    const bool packed = of_keys ? at.in.cu_seqlens_k != nullptr : at.in.cu_seqlens_q != nullptr;
    const int first = int(of_keys ? at.first_token + at.first_key : at.first_query) + token;
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
      for (int box = 0; box < count; box += kBox)
        tma_load(to + i * panel_bytes(count) + panel_bytes(box), &map, i * kPanelColumns, first + box,
                 of_keys ? key_head : query_head + member, packed ? 0 : int(at.index), full);
  }
  XLSTM_DEVICE void copy_owned() const {
    for (int second = 0; second < kShape.owned; ++second) {
      const Mbarrier full = barrier(second ? kOwnedSecond : kOwnedFirst);
      full.arrive_expect_tx(kOwnedBytes);
      copy(owned_at(second), kOfKeys, second, 0, owned, kHopperOwned, full);
    }
  }
  XLSTM_DEVICE void copy_tile(int n, const Place& place, bool second, Mbarrier full) const {
    copy(tile_at(n, second), !kOfKeys, second, place.member, place.first, kTile, full);
    if constexpr (kShape.with_queries)
      if (!second)
        bulk_load(base + uint32_t(facts_offset(n)),
                  facts_of(p, at, query_head + place.member) + fact_place(place.first), kShape.facts_bytes(), full);
  }
  static constexpr uint32_t bytes_of(bool second) { return kTileBytes + (second ? 0 : kShape.facts_bytes()); }

  XLSTM_DEVICE void copy_tiles() const {
    const int lane = threadIdx.x % 32, there = kOfKeys ? queries : keys;
    if (lane == 0 && tiles > 0) copy_owned();
    int tails = 0;
    Place place = first_place();
    for (int n = 0; n < tiles; ++n, place = next(place)) {
      const int left = there - place.first;
      free(n).wait(parity(n) ^ 1);
      if (left < kTile) {
        copy_tail(n, place, left, tails++);
      } else if (lane == 0) {
        first_full(n).arrive_expect_tx(bytes_of(false)), copy_tile(n, place, false, first_full(n));
        second_full(n).arrive_expect_tx(bytes_of(true)), copy_tile(n, place, true, second_full(n));
      }
    }
  }
  // A tile that ends beyond its sequence. What lies there is another's, or nobody's, and zero times that may be NaN.
  XLSTM_DEVICE void copy_tail(int n, const Place& place, int left, int tails) const {
    const int lane = threadIdx.x % 32;
    const Mbarrier came = barrier(kTail);
    if (lane == 0) {
      came.arrive_expect_tx(bytes_of(false) + bytes_of(true));
      for (const bool second : {false, true}) copy_tile(n, place, second, came);
    }
    came.wait(uint32_t(tails % 2));
    for (const bool second : {false, true})
      for (int row = left; row < kTile; ++row)
        for (int piece = lane; piece < kPanels * 8; piece += 32)
          *reinterpret_cast<Vec16*>(lds + tile_offset(n, second) + piece / 8 * kTilePanel + row * kPanelRowBytes +
                                    piece % 8 * 16) = {{0, 0, 0, 0}};
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) first_full(n).arrive(), second_full(n).arrive();
  }
};

}  // namespace xlstm::gpu::attention
