// SPDX-License-Identifier: Apache-2.0
// Shared memory of MLA on Hopper (mla_hopper.h): its layout, the mbarriers that say when each part may be read and
// written (mla_hopper.h has their table), and the producer's cp.async loads of Q and keys.
#pragma once

#include "arch/hopper/hopper.h"
#include "attention/decode/few_rows.h"
#include "attention/mla/mla_hopper_shape.h"

namespace xlstm::gpu::attention {

template <class E, int kFeatures>
struct MlaHopperSmem {
  static constexpr MlaHopperOffsets kOffset{kFeatures};
  static constexpr int kKeys = kMlaHopperKeys, kBuffers = kMlaHopperBuffers;
  static constexpr int kPanel = panel_bytes(kKeys), kPanels = kFeatures / kPanelColumns;
  static constexpr int kGroupWarps = kWarpgroup / 32;
  static_assert(kMlaHopperRows == kKeys, "panels of Q are as large as those of keys");
  static_assert(kOffset.weights % kPanelAlignment == 0);

  // The panels of a tile are loaded and released in two parts, the values of either consumer warpgroup. Features beyond
  // the values belong to the first part, whose warpgroup computes the scores.
  static constexpr int kParts = 2, kPartPanels = kMlaValues / kPanelColumns / kParts;
  static constexpr int part_of_panel(int panel) { return panel / kPartPanels % kParts; }
  static_assert(kBuffers * kParts == kGroupWarps, "a warp brings each");

  enum BarrierIndex {
    kFull,
    kEmpty = kFull + kParts * kBuffers,
    kWeightsFull = kEmpty + kParts * kBuffers,
    kWeightsEmpty,
    kQueriesFull,
    kBarriers
  };
  static_assert(int(kBarriers) == kMlaHopperBarriers);

  const FewRowsParams& p;
  uint32_t batch, key_head, first_row;
  char* lds;
  uint32_t base;

  XLSTM_DEVICE MlaHopperSmem(const FewRowsParams& params, uint32_t sequence, uint32_t head, int64_t first, char* memory)
      : p(params),
        batch(sequence),
        key_head(head),
        first_row(uint32_t(first)),
        lds(memory),
        base(lds_address(memory)) {}

  XLSTM_DEVICE uint32_t queries() const { return base; }
  XLSTM_DEVICE uint32_t tile(int n) const { return base + uint32_t(kOffset.keys + n % kBuffers * kOffset.tile); }
  // Weights of this thread and of the thread in the other warpgroup that has the same rows.
  XLSTM_DEVICE Vec16* weights(int quarter) const {
    return reinterpret_cast<Vec16*>(lds + kOffset.weights) + quarter * kWarpgroup + threadIdx.x % kWarpgroup;
  }
  XLSTM_DEVICE float2* row_factors() const {
    return reinterpret_cast<float2*>(lds + kOffset.row_factors) + threadIdx.x % kWarpgroup;
  }

  // Consumers wait for full barriers, the producer for empty ones: of a part of tile n, of the weights.
  XLSTM_DEVICE Mbarrier barrier(int index) const { return {base + uint32_t(kOffset.barriers + 8 * index)}; }
  XLSTM_DEVICE Mbarrier full(int n, int part) const { return barrier(kFull + part * kBuffers + n % kBuffers); }
  XLSTM_DEVICE Mbarrier empty(int n, int part) const { return barrier(kEmpty + part * kBuffers + n % kBuffers); }
  XLSTM_DEVICE Mbarrier weights_full() const { return barrier(kWeightsFull); }
  XLSTM_DEVICE Mbarrier weights_empty() const { return barrier(kWeightsEmpty); }
  XLSTM_DEVICE Mbarrier queries_full() const { return barrier(kQueriesFull); }
  // Phase parities: parity(n) for the barriers of the buffer of tile n; every_parity(n) for barriers that complete once
  // per tile.
  XLSTM_DEVICE static uint32_t parity(int n) { return uint32_t(n / kBuffers % 2); }
  XLSTM_DEVICE static uint32_t every_parity(int n) { return uint32_t(n % 2); }

  // Initialises the barriers; the whole block calls it before anything else.
  XLSTM_DEVICE void init_barriers() const {
    if (threadIdx.x == 0) {
      for (int part = 0; part < kParts; ++part)
        for (int n = 0; n < kBuffers; ++n) full(n, part).init(1), empty(n, part).init(kGroupWarps);
      weights_full().init(kGroupWarps), weights_empty().init(kGroupWarps);
      queries_full().init(2 * kGroupWarps);
      fence_mbarrier_init();
    }
    __syncthreads();
  }

  // ---- loads: eight lanes load a row, 128 bytes at a time

  XLSTM_DEVICE static int lane_vec16() { return int(threadIdx.x) % 8; }

  // Loads Q, by the two consumer warpgroups. Rows beyond the last one repeat it.
  XLSTM_DEVICE void load_queries(const AttentionLayout& at) const {
    constexpr int kAtOnce = 2 * kWarpgroup / 8;
    const xlstm_attention& in = p.call.in;
    const uint32_t last = uint32_t(at.rows() - 1), group = uint32_t(at.group());
    const uint32_t to = queries() + panel_vec16_offset(threadIdx.x / 8 % 8, lane_vec16());
#pragma unroll
    for (int i = 0; i < kMlaHopperRows / kAtOnce; ++i) {
      const uint32_t r = uint32_t(threadIdx.x - kWarpgroup) / 8 + i * kAtOnce, row = first_row + r;
      const E* from = static_cast<const E*>(in.q.data) +
                      at.query(in.q, query_row(int64_t(key_head), row < last ? row : last, group)) + lane_vec16() * 8;
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel)
        cp_async_16(to + panel * kPanel + r / 8 * (8 * kPanelRowBytes), from + panel * kPanelColumns, 16);
    }
    cp_async_commit();
    cp_async_wait_group<0>();
    fence_async_proxy();
    queries_full().arrive_once_per_warp();
  }

  // Producer: one warp loads one part of the tiles of one buffer, so that another warp has a tile in flight while this
  // one waits. A lane looks up the addresses of two rows, one tile ahead, and passes them to the lanes that load the
  // rows. Keys beyond the last one repeat it.
  template <int kPart>
  XLSTM_DEVICE void produce_keys(const AttentionLayout& at, int begin, int tiles, int buffer) const {
    constexpr int kAtOnce = 4, kPasses = kKeys / kAtOnce;
    const xlstm_attention& in = p.call.in;
    const int row = lane_id() / 8, last = int(at.keys) - 1;
    int64_t offset[kPasses / 8];
    const auto look_up = [&](int n) {
#pragma unroll
      for (int i = 0; i < kPasses / 8; ++i) {
        const int j = begin + n * kKeys + (i * 8 + lane_vec16()) * kAtOnce + row;
        offset[i] = at.key(in.k, key_head, at.first_key + (j < last ? j : last));
      }
    };
    const E* const keys = static_cast<const E*>(in.k.data) + lane_vec16() * 8;
    const uint32_t to_lane[2] = {panel_vec16_offset(row, lane_vec16()),
                                 panel_vec16_offset(kAtOnce + row, lane_vec16())};
    look_up(buffer);
    for (int n = buffer; n < tiles; n += kBuffers) {
      empty(n, kPart).wait(parity(n) ^ 1);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const E* from = keys + shuffle_from(offset[pass / 8], pass % 8, 8);
        const uint32_t to = tile(n) + to_lane[pass % 2] + pass / 2 * (8 * kPanelRowBytes);
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
