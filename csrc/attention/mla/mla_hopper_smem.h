// SPDX-License-Identifier: Apache-2.0
// The room of MLA on Hopper (mla_hopper.h): what lies where in shared memory, the barriers that say when it may be read
// and written, and the copies that bring Q and keys.
#pragma once

#include "arch/hopper/hopper.h"
#include "attention/forward/forward_params.h"
#include "attention/mla/mla_hopper_shape.h"

namespace xlstm::gpu::attention {

template <class E, int kFeatures>
struct MlaHopperRoom {
  static constexpr MlaHopperPlaces kAt{kFeatures};
  static constexpr int kKeys = kMlaHopperKeys, kBuffers = kMlaHopperBuffers;
  static constexpr int kPanel = panel_bytes(kKeys), kPanels = kFeatures / kPanelColumns;
  static constexpr int kGroupWarps = kWarpgroup / 32;
  static_assert(kMlaHopperRows == kKeys, "panels of Q are as large as those of keys");
  static_assert(kAt.weights % kPanelAlignment == 0);

  // A tile's panels come and are given free in two parts, the values of either warpgroup that multiplies by them.
  // Features beyond the values come with the first, whose warpgroup makes the scores.
  static constexpr int kParts = 2, kPartPanels = kMlaValues / kPanelColumns / kParts;
  static constexpr int part_of_panel(int panel) { return panel / kPartPanels % kParts; }
  static_assert(kBuffers * kParts == kGroupWarps, "a warp brings each");

  enum BarrierIndex {
    kFull,
    kFree = kFull + kParts * kBuffers,
    kWeightsFull = kFree + kParts * kBuffers,
    kWeightsFree,
    kQueriesFull,
    kBarriers
  };
  static_assert(int(kBarriers) == kMlaHopperBarriers);

  const FewRowsParams& p;
  uint32_t batch, key_head, first_row;
  char* lds;
  uint32_t base;

  XLSTM_DEVICE MlaHopperRoom(const FewRowsParams& params, uint32_t sequence, uint32_t head, int64_t first, char* memory)
      : p(params),
        batch(sequence),
        key_head(head),
        first_row(uint32_t(first)),
        lds(memory),
        base(lds_address(memory)) {}

  XLSTM_DEVICE uint32_t queries() const { return base; }
  XLSTM_DEVICE uint32_t tile(int n) const { return base + uint32_t(kAt.keys + n % kBuffers * kAt.tile); }
  // Of this thread and its namesake in the other warpgroup, which has the same rows.
  XLSTM_DEVICE Vec16* weights(int quarter) const {
    return reinterpret_cast<Vec16*>(lds + kAt.weights) + quarter * kWarpgroup + threadIdx.x % kWarpgroup;
  }
  XLSTM_DEVICE float2* numbers() const {
    return reinterpret_cast<float2*>(lds + kAt.numbers) + threadIdx.x % kWarpgroup;
  }

  // Full is for who reads, free for who writes: of a part of the nth tile, of its weights.
  XLSTM_DEVICE Mbarrier barrier(int index) const { return {base + uint32_t(kAt.barriers + 8 * index)}; }
  XLSTM_DEVICE Mbarrier full(int n, int part) const { return barrier(kFull + part * kBuffers + n % kBuffers); }
  XLSTM_DEVICE Mbarrier free(int n, int part) const { return barrier(kFree + part * kBuffers + n % kBuffers); }
  XLSTM_DEVICE Mbarrier weights_full() const { return barrier(kWeightsFull); }
  XLSTM_DEVICE Mbarrier weights_free() const { return barrier(kWeightsFree); }
  XLSTM_DEVICE Mbarrier queries_full() const { return barrier(kQueriesFull); }
  // Phases: of a buffer's barriers, which the nth tile ends; and of those that every tile ends.
  XLSTM_DEVICE static uint32_t parity(int n) { return uint32_t(n / kBuffers % 2); }
  XLSTM_DEVICE static uint32_t every_parity(int n) { return uint32_t(n % 2); }

  // By the whole block, before anything else.
  XLSTM_DEVICE void open() const {
    if (threadIdx.x == 0) {
      for (int part = 0; part < kParts; ++part)
        for (int n = 0; n < kBuffers; ++n) full(n, part).init(1), free(n, part).init(kGroupWarps);
      weights_full().init(kGroupWarps), weights_free().init(kGroupWarps);
      queries_full().init(2 * kGroupWarps);
      fence_mbarrier_init();
    }
    __syncthreads();
  }

  // ---- copies: eight lanes have a row, 128 bytes of it at a time

  XLSTM_DEVICE static int lane_piece() { return int(threadIdx.x) % 8; }

  // Q, by the two warpgroups behind the first. Rows beyond the last one repeat it.
  XLSTM_DEVICE void bring_queries(const AttentionLayout& at) const {
    constexpr int kAtOnce = 2 * kWarpgroup / 8;
    const xlstm_attention& in = p.call.in;
    const uint32_t last = uint32_t(at.rows() - 1), group = uint32_t(at.group());
    const uint32_t to = queries() + panel_vec16_offset(threadIdx.x / 8 % 8, lane_piece());
#pragma unroll
    for (int i = 0; i < kMlaHopperRows / kAtOnce; ++i) {
      const uint32_t r = uint32_t(threadIdx.x - kWarpgroup) / 8 + i * kAtOnce, row = first_row + r;
      const E* from = static_cast<const E*>(in.q.data) +
                      at.query(in.q, query_row(int64_t(key_head), row < last ? row : last, group)) + lane_piece() * 8;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        cp_async_16(to + panel * kPanel + r / 8 * (8 * kPanelRowBytes), from + panel * kPanelColumns, 16);
    }
    cp_async_commit();
    cp_async_wait_group<0>();
    fence_async_proxy();
    queries_full().arrive_once_per_warp();
  }

  // A part of the tiles of one buffer, by one warp, so that another has a tile under way while this one waits. A lane
  // looks up where two rows lie, a tile ahead, and tells those that bring them. Keys beyond the last one repeat it.
  template <int kPart>
  XLSTM_DEVICE void bring_keys(const AttentionLayout& at, int begin, int tiles, int buffer) const {
    constexpr int kAtOnce = 4, kTimes = kKeys / kAtOnce;
    const xlstm_attention& in = p.call.in;
    const int row = lane_id() / 8, last = int(at.keys) - 1;
    int64_t place[kTimes / 8];
    const auto look_up = [&](int n) {
#pragma unroll
      for (int i = 0; i < kTimes / 8; ++i) {
        const int j = begin + n * kKeys + (i * 8 + lane_piece()) * kAtOnce + row;
        place[i] = at.key(in.k, key_head, at.first_key + (j < last ? j : last));
      }
    };
    const E* const keys = static_cast<const E*>(in.k.data) + lane_piece() * 8;
    const uint32_t to_lane[2] = {panel_vec16_offset(row, lane_piece()),
                                 panel_vec16_offset(kAtOnce + row, lane_piece())};
    look_up(buffer);
    for (int n = buffer; n < tiles; n += kBuffers) {
      free(n, kPart).wait(parity(n) ^ 1);
#pragma unroll
      for (int time = 0; time < kTimes; ++time) {
        const E* from = keys + shuffle_from(place[time / 8], time % 8, 8);
        const uint32_t to = tile(n) + to_lane[time % 2] + time / 2 * (8 * kPanelRowBytes);
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel)
          if (part_of_panel(panel) == kPart) cp_async_16(to + panel * kPanel, from + panel * kPanelColumns, 16);
      }
      cp_async_commit();
      if (n + kBuffers < tiles) look_up(n + kBuffers);
      cp_async_wait_group<0>();
      fence_async_proxy();
      full(n, kPart).arrive_once_per_warp();
    }
  }
};

}  // namespace xlstm::gpu::attention
