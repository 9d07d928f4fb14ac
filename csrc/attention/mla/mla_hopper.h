// SPDX-License-Identifier: Apache-2.0
// MLA decode on Hopper (mla.h says what MLA computes): a warp-specialised kernel with 64 rows and tiles of 64 keys,
// whose first 512 features are the values; both wgmma products read the tile from the same shared memory.
//     S [rows][keys] = Q K^T        O [rows][512] = O + P V,  P = 2^(S - m)
//
// Who owns what: the first warpgroup is the producer. Each of its warps loads half of the values of every other tile,
// eight lanes per row: pages may hold a single token, so TMA does not apply and cp.async loads the rows. The second
// warpgroup (softmax consumer) has the rows by features 0 to 255 of O in accumulators and computes scores and weights.
// The third (values consumer) has features 256 to 511 and takes the weights from shared memory, as operands: thread t
// of both has the same rows. A consumer releases its half of a tile as soon as its product of the values is done, so
// that the producer can load the tile after next.
//
//   barrier        arrives                                count  waits                       parity
//   full(n, part)  the producer warp of (part, n % 2)     1      softmax consumer            parity(n) = n / 2 % 2
//   empty(n, part) each warp of the consumer of the part  4      that producer warp          parity(n) ^ 1
//   weights_full   each warp of the softmax consumer      4      values consumer             n % 2; last: tiles % 2
//   weights_empty  each warp of the values consumer       4      softmax consumer            n % 2 ^ 1
//   queries_full   each warp of both consumers            8      softmax consumer, once      0
//
//   producer (per buffer)  load tile n: full(n, 0), full(n, 1)  | wait empty(n, part) | load tile n + 2 ...
//   softmax consumer       S(n) = Q K^T | softmax | weights_full | O[0:256] += P V | empty(n, 0) | S(n + 1) ...
//   values consumer                               wait weights   | O[256:512] += P V | empty(n, 1) | wait weights ...
//
// The second warpgroup computes S, the weights and its half of O of a tile in sequence; the third computes O only, and
// its products overlap with the second's O and S. The tensor cores are idle in the rest of the softmax. Computing S of
// the next tile before the softmax would need that tile earlier; only two tiles fit, so its load would have no time.
//
// LDS, 576 features: Q 72 KB, two tiles 144, weights 8, row factors 1: 230,488 bytes. Registers of a thread: O 128, S
// 32, weights 16, of the 216 that each of the two consumer warpgroups has; the producer keeps 72.
//
// Floor, 128 heads: 2 (576 + 512) flops for each head and key. On an SM a tile takes 1152 cycles of the tensor cores
// for S and 1024 for O. Of shared memory, at 128 bytes a cycle, S reads 144 KB (A and B of products of 64 by 64: as
// long as the product takes), O reads 64, 72 arrive and 16 are weights: 2370 cycles. A tile that comes from L2 at 31
// bytes a cycle takes as many.
#pragma once

#include <numbers>

#include "attention/gpu/epilogue.h"
#include "attention/gpu/score_rules.h"
#include "attention/mla/mla_hopper_smem.h"

namespace xlstm::gpu::attention {

constexpr int kMlaProducerRegisters = 72, kMlaConsumerRegisters = 216;
static_assert(kMlaProducerRegisters + 2 * kMlaConsumerRegisters == 3 * 168);

template <class E, int kFeatures>
struct MlaHopper {
  using Smem = MlaHopperSmem<E, kFeatures>;
  static constexpr int kKeys = Smem::kKeys, kPanel = Smem::kPanel, kPanels = Smem::kPanels;
  static constexpr int kHalf = kMlaValues / Smem::kParts;  // features of O that a warpgroup has

  using Scores = float[kKeys / 2];  // of a thread: rows as Columns has them, keys 8 (i / 4) + 2 (lane % 4) + i % 2
  using Probabilities = uint32_t[kKeys / 4];  // the same, packed in pairs
  using Out = float[kHalf / 2];               // the same rows; features take the place of keys

  const Smem& smem;
  int begin, tiles;  // first key of the first tile

  // ---- both consumer warpgroups

  XLSTM_DEVICE static void scale(Out& o, const Columns& rescale) {
#pragma unroll
    for (int i = 0; i < kHalf / 2; ++i) o[i] *= rescale.value[Columns::of(i % 8)];
  }
  // O += P V of a tile, for this warpgroup's half of the features.
  template <int kPart>
  XLSTM_DEVICE void multiply_values(Out& o, const Probabilities& weights, int n) const {
    const uint64_t values = mn_major_descriptor(smem.tile(n) + kPart * Smem::kPartPanels * kPanel, kPanel);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) wgmma_rs<true, E>(o, weights + 4 * k, values + k * kNextMnMajor);
    wgmma_commit();
  }

  // ---- scores and weights, by the second warpgroup

  struct Softmax {
    const VisibleKeys& visible;
    RowInfo<1> row_info;
    float scale;
    Columns row_max = Columns::all(kLowestMax), row_sum = Columns::all(0);

    XLSTM_DEVICE Softmax(const AttentionLayout& at, const Smem& smem, const VisibleKeys& sees)
        : visible(sees),
          row_info(at, smem.key_head, smem.first_row + wave_id() % Smem::kGroupWarps * kStripColumns),
          scale(float(at.in.softmax_scale * std::numbers::log2e)) {}

    // Sets the scores of keys that a row does not see to -infinity.
    XLSTM_DEVICE void mask(Scores& s, int first) const {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int key = first + 8 * (i / 4) + 2 * (lane_id() % 4) + i % 2;
        const uint32_t from_left =
            uint32_t(key) - uint32_t(row_info.diagonal_key[0][Columns::of(i % 8)]) + uint32_t(row_info.left);
        if (!(from_left <= row_info.span && key < row_info.keys)) s[i] = -__builtin_inff();
      }
    }
    // Online softmax: turns the scores of the tile that begins with key `first` into weights. Returns whether a maximum
    // has grown so much that sums must be rescaled, and the factor.
    XLSTM_DEVICE bool online_softmax(Scores& s, int first, Probabilities& weights, Columns& rescale) {
#pragma unroll
      for (float& x : s) x *= scale;
      if (!visible.fully(first, kKeys)) mask(s, first);
      Columns tile_max = Columns::all(-__builtin_inff());
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        float& row_tile_max = tile_max.value[Columns::of(i % 8)];
        row_tile_max = fmaxf(row_tile_max, s[i]);
      }
      tile_max.over_rows([](float x, float y) { return fmaxf(x, y); });
      const bool rescales = needs_rescale(row_max, tile_max);
      rescale = Columns::all(1);
      if (rescales) rescale = update_row_max(row_max, row_sum, tile_max);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        s[i] = exp2_fast(s[i] - row_max.value[Columns::of(i % 8)]);
        row_sum.value[Columns::of(i % 8)] += s[i];
      }
#pragma unroll
      for (int w = 0; w < kKeys / 4; ++w) weights[w] = pack(E{}, s[2 * w], s[2 * w + 1]);
      return rescales;
    }
  };

  // S = Q K^T over a part of the features, or S +=. The address of Q is recomputed: otherwise the compiler keeps 36
  // descriptors in registers.
  template <int kPart>
  XLSTM_DEVICE void multiply_keys(Scores& s, int n) const {
    const uint64_t queries = k_major_descriptor(uint32_t(opaque(int(smem.queries())))),
                   keys = k_major_descriptor(smem.tile(n));
    smem.full(n, kPart).wait(Smem::parity(n));
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      if (Smem::part_of_panel(panel) == kPart)
#pragma unroll
        for (int k = 0; k < kPanelColumns / 16; ++k) {
          const uint64_t at = panel * (kPanel >> 4) + k * kNextKMajor;
          wgmma_ss<false, false, E>(s, queries + at, keys + at, kPart > 0 || panel > 0 || k > 0);
        }
    wgmma_commit();
  }
  XLSTM_DEVICE void publish(const Probabilities& weights, const Columns& rescale, int n) const {
    smem.weights_empty().wait(Smem::every_parity(n) ^ 1);
#pragma unroll
    for (int q = 0; q < kKeys / 16; ++q)
      *smem.weights(q) = {{weights[4 * q], weights[4 * q + 1], weights[4 * q + 2], weights[4 * q + 3]}};
    publish(rescale);
  }
  XLSTM_DEVICE void publish(const Columns& rescale) const {
    *smem.row_factors() = make_float2(rescale.value[0], rescale.value[1]);
    smem.weights_full().arrive_once_per_warp();
  }

  XLSTM_DEVICE void run_softmax_warpgroup(const VisibleKeys& visible, int64_t split) const {
    Out o{};
    Softmax softmax(AttentionLayout(smem.p.call.in, smem.batch), smem, visible);
    if (tiles > 0) smem.queries_full().wait(0);
    for (int n = 0; n < tiles; ++n) {
      Scores s;
      multiply_keys<0>(s, n);
      multiply_keys<1>(s, n);
      wgmma_wait<0>(s);
      Probabilities weights;
      Columns rescale;
      const bool rescales = softmax.online_softmax(s, begin + n * kKeys, weights, rescale);
      publish(weights, rescale, n);
      if (rescales) scale(o, rescale);
      multiply_values<0>(o, weights, n);
      wgmma_wait<0>(o);
      smem.empty(n, 0).arrive_once_per_warp();
    }
    softmax.row_sum.over_rows([](float x, float y) { return x + y; });
    const Columns factor = write_lse(softmax, split);
    smem.weights_empty().wait(Smem::every_parity(tiles) ^ 1);
    publish(factor);
    write<0>(o, factor, split);
  }

  // ---- the other half of O, by the third warpgroup

  XLSTM_DEVICE Columns wait_row_factors(int n) const {
    smem.weights_full().wait(Smem::every_parity(n));
    const float2 pair = *smem.row_factors();
    Columns x;
    x.value[0] = pair.x, x.value[1] = pair.y;
    return x;
  }
  XLSTM_DEVICE void run_values_warpgroup(int64_t split) const {
    Out o{};
    for (int n = 0; n < tiles; ++n) {
      const Columns rescale = wait_row_factors(n);
      Probabilities weights;
#pragma unroll
      for (int q = 0; q < kKeys / 16; ++q) {
        const Vec16 vec = *smem.weights(q);
#pragma unroll
        for (int w = 0; w < 4; ++w) weights[4 * q + w] = vec.word[w];
      }
      smem.weights_empty().arrive_once_per_warp();
      if (any_lane(rescale.value[0] != 1 || rescale.value[1] != 1)) scale(o, rescale);
      multiply_values<1>(o, weights, n);
      wgmma_wait<0>(o);
      smem.empty(n, 1).arrive_once_per_warp();
    }
    write<1>(o, wait_row_factors(tiles), split);
  }

  // ---- epilogue

  // Calls f(j, layout, head, query) for the thread's rows that exist. The layout is recomputed: otherwise it would stay
  // in registers for the whole kernel.
  template <class F>
  XLSTM_DEVICE void each_row(F&& f) const {
    const AttentionLayout at(smem.p.call.in, opaque(int(smem.batch)));
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j) {
      const uint32_t strip = wave_id() % Smem::kGroupWarps * kStripColumns;
      const uint32_t r = smem.first_row + strip + Columns::position(j);
      if (r >= uint32_t(at.rows())) continue;
      const auto [head, i] = query_row(int64_t(smem.key_head), r, uint32_t(at.group()));
      f(j, at, head, i);
    }
  }
  using Epilogue = ForwardEpilogue<E, FewRowsParams>;
  // Stores lse, and returns the factor of O.
  XLSTM_DEVICE Columns write_lse(const Softmax& softmax, int64_t split) const {
    Columns factor = Columns::all(0);
    each_row([&](int j, const AttentionLayout& at, int64_t head, int64_t i) {
      const Epilogue epilogue{smem.p, at, split};
      const auto row = epilogue.finish(softmax.row_max.value[j], softmax.row_sum.value[j], head);
      factor.value[j] = row.factor;
      if (lane_id() % 4 == 0) epilogue.store_lse(epilogue.offset(head, i), row.lse);
    });
    return factor;
  }
  template <int kPart>
  XLSTM_DEVICE void write(const Out& o, const Columns& factor, int64_t split) const {
    each_row([&](int j, const AttentionLayout& at, int64_t head, int64_t i) {
      const Epilogue epilogue{smem.p, at, split};
      const int64_t first = epilogue.offset(head, i).out + kPart * kHalf + 2 * (lane_id() % 4);
      const auto store_all = [&](auto* to, bool aligned) {
#pragma unroll
        for (int c = 0; c < kHalf / 8; ++c) {
          const float pair[2] = {o[4 * c + 2 * j] * factor.value[j], o[4 * c + 2 * j + 1] * factor.value[j]};
          store_run(to + 8 * c, 0, 2, aligned, pair);
        }
      };
      // The branches are outside the loop.
      if (epilogue.in_parts())
        store_all(epilogue.part() + first, true);
      else if (smem.p.out_aligned16)
        store_all(epilogue.out() + first, true);
      else
        store_all(epilogue.out() + first, false);
    });
  }
};

template <class E, int kFeatures>
__global__ __launch_bounds__(kMlaHopperThreads, 1) void mla_hopper_kernel(XLSTM_PARAM FewRowsParams p) {
  if constexpr (kHopper) {
    extern __shared__ __align__(1024) char lds[];
    const FewRowsBlock<kMlaHopperRows, kMlaHopperKeys> part_of_call(p);
    if (part_of_call.empty()) return;
    const AttentionLayout& at = part_of_call.at;
    const int64_t split = part_of_call.coord.split;
    using Smem = MlaHopperSmem<E, kFeatures>;
    const Smem smem(p, uint32_t(at.index), uint32_t(part_of_call.key_head), part_of_call.first, lds);
    const VisibleKeys visible = part_of_call.visible();
    const auto [from, to] = part_of_call.tiles(visible);
    const MlaHopper<E, kFeatures> block{smem, from * kMlaHopperKeys, to - from};
    smem.init_barriers();
    const int warp = shuffle_from(int(threadIdx.x / 32), 0, 32), group = warp / 4;
    if (group == 0) {
      setmaxnreg_dec<kMlaProducerRegisters>();
      if (block.tiles <= 0) return;
      const int part = warp % Smem::kParts, buffer = warp / Smem::kParts;
      if (part == 0)
        smem.template produce_keys<0>(at, block.begin, block.tiles, buffer);
      else
        smem.template produce_keys<1>(at, block.begin, block.tiles, buffer);
    } else {
      setmaxnreg_inc<kMlaConsumerRegisters>();
      if (block.tiles > 0) smem.load_queries(at);
      if (group == 1)
        block.run_softmax_warpgroup(visible, split);
      else
        block.run_values_warpgroup(split);
    }
  }
}

}  // namespace xlstm::gpu::attention
