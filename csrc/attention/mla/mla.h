// SPDX-License-Identifier: Apache-2.0
// MLA decode on a GPU: attention whose values are the first 512 features of its keys, 576 or 512. The maths and the
// orientation are those of forward.h.
//
// Who owns what: a block has 16 or 64 rows (query heads, or queries times query heads) of one key head and a part of
// the keys; CDNA has another kernel for more (mla_cdna.h). A tile of 32 keys (16 on RDNA) is in LDS once, in the layout
// of memory, and serves both products: keys are read along the features, values across them and transposed in registers
// (arch/operands.h).
//   scores   a wave has 16 rows, with Q in registers, and all or a part of the features; LDS adds the partial scores
//   softmax  by the waves that have the scores; with 64 rows they send the weights, as operands, to the other waves
//            through LDS
//   out      each wave has 128 (64 rows: 64) of the 512 features for all rows of the block
// The next tile loads into registers, or on NVIDIA, unless it has 8 bits, into another buffer, while this one is
// multiplied; with 16 rows on CDNA the next two, because their products are shorter than HBM's latency. Eight lanes
// load a key's row, a line of 128 bytes at a time: one page-table entry per row, whatever the page size, loaded a tile
// ahead (key_slots.h).
//
// 64 rows take eight waves with half of the features each: two waves a SIMD on CDNA, where one wave's products hide the
// other's reads of LDS. In sequence, scores, softmax and out need four barriers a tile, and the matrix units are idle
// during the softmax. On NVIDIA registers do not suffice for more than 32 keys, but where LDS holds four tiles (173
// KB), three tiles overlap instead, with one barrier a tile. Between two barriers the waves of part 0 turn the previous
// tile's scores into weights, while the waves of part 1, of which each scheduler has one too, multiply the values of
// the tile before that; then both compute the scores of a new tile. Part 0 keeps its half of the scores in registers
// across the barrier.
//
//   step n          part 0                           part 1
//                   softmax of tile n - 1            out of tile n - 2
//                   out of tile n - 2                scores of tile n, half of the features
//                   scores of tile n, other half     partial scores of tile n to LDS
//                   -------- __syncthreads() --------
//
// LDS: 36 KB for a tile of 576 features, 4 KB of weights and 16 KB of partial scores, or 8 KB of these. Registers on
// CDNA, 64 rows: out 64, Q 36, the next tile 20, scores 8, two operands of keys 16, values 32 and as many transposed.
//
// Floor, 64 rows: 2 (576 + 512) flops for each row and 1152 bytes for each key, where the blocks of a sequence share a
// tile through L2. The matrix units bind, and LDS takes as long in the scores' product, for which each wave
// reads all of the tile (or its part of the features) for its 16 rows. On an SM with 64 rows, 32 keys are 1088 mma and
// 264 KB of LDS: 2100 cycles of LDS, 1740 of the tensor cores at the rate that mma.sync reaches.
#pragma once

#include "attention/gpu/epilogue.h"
#include "attention/mla/mla_tile.h"

namespace xlstm::gpu::attention {

// The walk and the epilogue of a block.
template <class Tiles>
struct Mla {
  using E = typename Tiles::E;
  using Scores = typename Tiles::Scores;
  static constexpr MlaShape kShape = Tiles::kShape;
  static constexpr int kKeys = Tiles::kKeys, kRowStrips = Tiles::kRowStrips, kParts = Tiles::kParts;
  static constexpr int kBlocks = Tiles::kBlocks, kAhead = kShape.tiles_ahead;

  Tiles& tiles;

  // Walks keys [begin, end), a tile at a time. begin is a multiple of a tile.
  XLSTM_DEVICE void walk(int begin, int end, const VisibleKeys& visible) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t)
#pragma unroll
        for (int rs = 0; rs < kRowStrips; ++rs) tiles.out[b][t][rs].zero();
    if (begin < end) {
      tiles.keys = KeySlots(tiles.at, tiles.key_head, sizeof(typename Tiles::Key), uniform(end - 1));
      tiles.look_up(begin);
#pragma unroll
      for (int n = 0; n < kAhead; ++n) tiles.fetch(n, begin + n * kKeys, n);
    }
    if constexpr (Tiles::kOverlapped)
      walk_overlapped(begin, end, visible);
    else
      walk_in_turn(begin, end, visible);
    tiles.row_sum.over_rows([](float x, float y) { return x + y; });
    if (tiles.part == 0) {
      tiles.write_rows(Tiles::kRowMax, tiles.row_max);
      tiles.write_rows(Tiles::kRowSum, tiles.row_sum);
    }
    __syncthreads();
  }

  XLSTM_DEVICE void walk_in_turn(int begin, int end, const VisibleKeys& visible) {
    int n = 0, first = begin;
    for (; first + (kAhead - 1) * kKeys < end; first += kAhead * kKeys, n += kAhead)
#pragma unroll
      for (int set = 0; set < kAhead; ++set) run_tile(n + set, first + set * kKeys, set, end, visible);
    static_assert(kAhead <= 2);
    if (kAhead == 2 && first < end) run_tile(n, first, 0, end, visible);
  }
  XLSTM_DEVICE void run_tile(int n, int first, int set, int end, const VisibleKeys& visible) {
    arrive(n, set);
    // With tiles ahead the walk loads its last key once more: a condition would wait for loads.
    if (kAhead > 1 || first + kKeys < end) tiles.fetch(n + kAhead, first + kAhead * kKeys, set);
    Scores s;
    tiles.multiply_keys(s, n);
    if constexpr (kParts > 1) {
      tiles.write_part(s, n, wave_id());
      __syncthreads();
#pragma unroll
      for (Strip<E>& strip : s) strip.zero();
      if (kRowStrips == 1 || tiles.part == 0) tiles.add_parts(s, n, kShape.waves);
    }
    if (kRowStrips == 1 || tiles.part == 0) {
      Columns rescale;
      const bool rescales = tiles.online_softmax(tiles, s, first, visible.fully(first, kKeys), rescale);
      if constexpr (kRowStrips > 1)
        tiles.share_weights(s, n, rescales, rescale);
      else if (rescales)
        tiles.scale_out(0, rescale);
    }
    typename Tiles::Values v;
    if constexpr (Tiles::kReadsAhead) tiles.read_values(v, n, 0);
    if constexpr (kRowStrips > 1) {
      __syncthreads();
      tiles.rescale_out(n);
    }
    tiles.multiply_values(&s, v, n);
  }
  // Makes tile n visible to all waves, after all waves have finished reading the tile before.
  XLSTM_DEVICE void arrive([[maybe_unused]] int n, [[maybe_unused]] int set) {
    if constexpr (Tiles::kCopiesAsync) {
      cp_async_wait_all();
      __syncthreads();
    } else {
      __syncthreads();
      tiles.store(n, set);
      __syncthreads();
    }
  }

  // The prologue and the epilogue of this pipeline are steps of their own: the compiler would copy sums between
  // registers if some paths went around the products.
  XLSTM_DEVICE void walk_overlapped(int begin, int end, const VisibleKeys& visible) {
    const int count = (end - begin + kKeys - 1) / kKeys;
    if (count < 1) return;
    Scores s;
    step<false, false, true>(s, 0, begin, count, visible);
    if (count == 1) {
      step<true, false, false>(s, 1, begin, count, visible);
    } else {
      step<true, false, true>(s, 1, begin, count, visible);
      for (int n = 2; n < count; ++n) step<true, true, true>(s, n, begin, count, visible);
      step<true, true, false>(s, count, begin, count, visible);
    }
    step<false, true, false>(s, count + 1, begin, count, visible);
  }
  // One step of the pipeline: softmax of tile n - 1 by the waves of part 0; out of tile n - 2, then the scores of tile
  // n, by all waves. Part 0 keeps its partial scores in s until the other part's are in LDS.
  template <bool kSoftmax, bool kOut, bool kScores>
  XLSTM_DEVICE void step(Scores& s, int n, int begin, int count, const VisibleKeys& visible) {
    static_assert(kParts == 2 && kRowStrips > 1);
    const int first = begin + n * kKeys;
    arrive(n, 0);
    if (n + 1 < count) tiles.fetch(n + 1, first + kKeys, 0);
    if (kSoftmax && tiles.part == 0) {
      Columns rescale;
      tiles.add_parts(s, n - 1, kShape.waves - kRowStrips);
      const bool rescales = tiles.online_softmax(tiles, s, first - kKeys, visible.fully(first - kKeys, kKeys), rescale);
      tiles.share_weights(s, n - 1, rescales, rescale);
    }
    if constexpr (kOut) {
      tiles.rescale_out(n - 2);
      typename Tiles::Values v;
      tiles.multiply_values(nullptr, v, n - 2);
    }
    if constexpr (kScores) {
      tiles.multiply_keys(s, n);
      if (tiles.part != 0) tiles.write_part(s, n, wave_id() - kRowStrips);
    }
  }

  // Stores the rows, a lane's neighbouring features at a time: as the call's out, or as a split's part.
  XLSTM_DEVICE void write(int64_t split) const {
    const ForwardEpilogue<typename Tiles::Out, FewRowsParams> epilogue{tiles.p, tiles.at, split};
    const float descale = key_descale<typename Tiles::Key>(tiles.in.v_descale, tiles.at, tiles.key_head);
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) {
      const Columns shared_max = tiles.read_rows(Tiles::kRowMax, rs), shared_sum = tiles.read_rows(Tiles::kRowSum, rs);
      float factor[Columns::kEach];
      int64_t to[Columns::kEach];  // offset of the row of out; -1: no row
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        const uint32_t r = tiles.first_row + rs * kStripColumns + Tiles::column(j);
        to[j] = -1;
        if (r >= uint32_t(tiles.at.queries) * tiles.group) continue;
        const auto [head, i] = tiles.query_of(r);
        const auto row = epilogue.finish(shared_max.value[j], shared_sum.value[j], head, descale);
        const auto offset = epilogue.offset(head, i);
        factor[j] = row.factor;
        to[j] = offset.out;
        if (tiles.stores_lse()) epilogue.store_lse(offset, row.lse);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        for_each_run<E>(
            &tiles.out[b][0][rs], kRowStrips,
            [&](int feature, int j, const float* value) {
              if (to[j] < 0) return;
              float scaled[kTransposedElements<E>];
#pragma unroll
              for (int e = 0; e < kTransposedElements<E>; ++e) scaled[e] = value[e] * factor[j];
              epilogue.store(to[j] + tiles.feature0(b) + feature, 0, kTransposedElements<E>, scaled, true);
            },
            Tiles::lane());
    }
  }
};

template <class Elements, int kRows, int kFeatures, bool kOverlapped>
__global__ __launch_bounds__(mla_shape(kFamily, kRows, kFeatures, kOverlapped).threads,
                             kFamily == Family::cdna ? 2 : 1) void mla_kernel(const FewRowsParams p) {
  if constexpr (has_mla(kFamily, kRows, kOverlapped) && kMultiplies<QueryOf<Elements>>) {
    extern __shared__ __align__(128) char lds[];
    using Tiles = MlaTiles<Elements, kRows, kFeatures, kOverlapped>;
    constexpr int kKeys = Tiles::kKeys;
    const FewRowsBlock<kRows, kKeys> part(p);
    if (part.empty()) return;
    Tiles tiles(p, part.at, part.key_head, part.first, lds);
    Mla<Tiles> block{tiles};
    const VisibleKeys visible = part.visible();
    const auto [from, to] = part.tiles(visible);
    tiles.load_q();
    block.walk(from * kKeys, to * kKeys < visible.end ? to * kKeys : visible.end, visible);
    block.write(part.coord.split);
  }
}

}  // namespace xlstm::gpu::attention
