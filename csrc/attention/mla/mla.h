// SPDX-License-Identifier: Apache-2.0
// MLA decoding on a GPU: attention whose values are the first 512 features of its keys, 576 or 512. The maths and the
// orientation are those of forward.h.
//
// Who owns what: a block has 16 or 64 rows (query heads, or queries times them) of one key head and a part of the keys.
// A tile of 32 keys (16 on RDNA) lies in LDS once, as in memory, and serves both products: keys are read along the
// features, values across them and turned in registers (arch/operands.h).
//   scores   a wave has 16 rows, with Q in registers, and all of the features, or a part of them; such parts are added
//            up through LDS
//   softmax  by the waves that have the scores; with 64 rows their weights go to the others through LDS, as operands
//   out      each wave has 128 (NVIDIA, 64 rows: 64) of the 512 features for all rows of the block
// The next tile is under way in registers, or on NVIDIA into another buffer, while this one is multiplied. Eight lanes
// bring a key's row, a line of 128 bytes at a time: one entry of the page table for each, whatever the size of a page.
//
// 64 rows on NVIDIA are eight waves with half of the features each, and no registers for more than 32 keys. One after
// the other, scores, softmax and out would be three barriers a tile, with the tensor cores idle in the softmax. Where
// LDS has room (four tiles; 173 KB) three tiles overlap instead, with one barrier a tile: between two of them part 0
// makes weights of the scores before while part 1, of which each scheduler has a wave too, is at out of those before
// them, and both go on to the scores of a new tile. Part 0 keeps its half of the scores in registers over the barrier.
//
// LDS: 36 KB for a tile of 576 features, 4 KB of weights or 8 KB of parts. Registers on CDNA, 64 rows: out 128, Q 72,
// the next tile 36, scores 8, values 16 and as many turned: one wave a SIMD, which has 512.
//
// Floor, 128 heads: 2 (576 + 512) flops for each head and 1152 bytes a key, where a tile is shared through L2 by the
// two blocks of a sequence: the matrix units bind, and LDS as long in the scores' product, for which each wave reads
// the whole tile (or its part of the features) for its 16 rows. On an SM of 64 rows, 32 keys are 1088 mma and 264 KB of
// LDS: 2100 cycles of LDS, 1740 of the tensor cores at what mma.sync reaches there.
#pragma once

#include "attention/mla/mla_tile.h"

namespace xlstm::gpu::attention {

template <class E, int kRows, int kFeatures, bool kAhead>
struct Mla : MlaTiles<E, kRows, kFeatures, kAhead> {
  using Tiles = MlaTiles<E, kRows, kFeatures, kAhead>;
  using Tiles::Tiles, Tiles::kKeys, Tiles::kShape, Tiles::kRowStrips, Tiles::kParts, Tiles::kBlocks;
  using typename Tiles::Scores;

  // Keys [begin, end), a tile at a time. begin is a multiple of a tile.
  XLSTM_DEVICE void walk(int begin, int end, const RowsSee& see) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t)
#pragma unroll
        for (int rs = 0; rs < kRowStrips; ++rs) this->out[b][t][rs].zero();
    if (begin < end) this->fetch(0, begin);
    if constexpr (kAhead)
      walk_overlapped(begin, end, see);
    else
      walk_in_turn(begin, end, see);
    this->sum.over_rows([](float x, float y) { return x + y; });
    if (this->part == 0) {
      this->write_rows(Tiles::kMost, this->most);
      this->write_rows(Tiles::kSum, this->sum);
    }
    __syncthreads();
  }

  XLSTM_DEVICE void walk_in_turn(int begin, int end, const RowsSee& see) {
    int n = 0;
    for (int first = begin; first < end; first += kKeys, ++n) {
      arrive(n);
      if (first + kKeys < end) this->fetch(n + 1, first + kKeys);
      Scores s;
      this->multiply_keys(s, n);
      if constexpr (kParts > 1) {
        this->write_part(s, n, wave_id());
        __syncthreads();
#pragma unroll
        for (Strip<E>& strip : s) strip.zero();
        this->add_parts(s, n, kShape.waves);
      }
      Columns by;
      const bool more = this->weigh(s, first, see.whole(first, kKeys), by);
      if constexpr (kRowStrips == 1) {
        if (more) this->scale_out(0, by);
      } else {
        if (this->part == 0) this->share(s, n, more, by);
        __syncthreads();
        this->scale_where_grown(n);
      }
      this->multiply_values(&s, n);
    }
  }
  // A tile in LDS for all, and what the one before left there read by all.
  XLSTM_DEVICE void arrive([[maybe_unused]] int n) {
    if constexpr (kAsyncCopies) {
      cp_async_wait_all();
      __syncthreads();
    } else {
      __syncthreads();
      this->store(n);
      __syncthreads();
    }
  }

  // The ends of this walk are steps of their own: sums that some paths go around would be copied between registers.
  XLSTM_DEVICE void walk_overlapped(int begin, int end, const RowsSee& see) {
    const int tiles = (end - begin + kKeys - 1) / kKeys;
    if (tiles < 1) return;
    Scores s;
    step<false, false, true>(s, 0, begin, tiles, see);
    if (tiles == 1) {
      step<true, false, false>(s, 1, begin, tiles, see);
    } else {
      step<true, false, true>(s, 1, begin, tiles, see);
      for (int n = 2; n < tiles; ++n) step<true, true, true>(s, n, begin, tiles, see);
      step<true, true, false>(s, tiles, begin, tiles, see);
    }
    step<false, true, false>(s, tiles + 1, begin, tiles, see);
  }
  // Weights of tile n - 1 by the waves of part 0; out of tile n - 2, then the scores of tile n by all. Part 0 keeps its
  // own in s until the others' are there.
  template <bool kWeigh, bool kOut, bool kScores>
  XLSTM_DEVICE void step(Scores& s, int n, int begin, int tiles, const RowsSee& see) {
    static_assert(kParts == 2 && kRowStrips > 1);
    const int first = begin + n * kKeys;
    arrive(n);
    if (n + 1 < tiles) this->fetch(n + 1, first + kKeys);
    if (kWeigh && this->part == 0) {
      Columns by;
      this->add_parts(s, n - 1, kShape.waves - kRowStrips);
      const bool more = this->weigh(s, first - kKeys, see.whole(first - kKeys, kKeys), by);
      this->share(s, n - 1, more, by);
    }
    if constexpr (kOut) {
      this->scale_where_grown(n - 2);
      this->multiply_values(nullptr, n - 2);
    }
    if constexpr (kScores) {
      this->multiply_keys(s, n);
      if (this->part != 0) this->write_part(s, n, wave_id() - kRowStrips);
    }
  }

  // Rows to memory, a lane's neighbouring features at a time: as they are wanted, or as a part.
  XLSTM_DEVICE void write(int64_t split) const {
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) {
      const Columns row_most = this->read_rows(Tiles::kMost, rs), row_sum = this->read_rows(Tiles::kSum, rs);
      float factor[Columns::kEach];
      int64_t to[Columns::kEach];  // where the row of out lies; -1: there is none
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        const uint32_t r = this->first_row + rs * kStripColumns + Columns::position(j);
        to[j] = -1;
        if (r >= uint32_t(this->at.queries) * this->group) continue;
        const auto [head, i] = this->query_of(r);
        const float whole = row_sum.value[j],
                    keys = whole == 0 ? -__builtin_inff() : row_most.value[j] * kLn2 + ::log(whole);
        WithSink<float> sink = without_sink(keys);
        if (this->p.splits == 1 && this->in.sink)
          sink = with_sink(keys, static_cast<const float*>(this->in.sink)[head], this->p.call.lse_with_sink != 0);
        factor[j] = whole == 0 ? 0.0f : sink.factor / whole;
        const int64_t row = split * ForwardParts::rows(this->in) + ForwardParts::row(this->in, this->at.index, head, i);
        to[j] = this->p.splits > 1 ? row * kMlaValues : this->at.query(this->p.call.out, head, i);
        if (wave_id() != 0 || Strip<E>::position(0).row != 0) continue;
        if (this->p.splits > 1)
          this->p.parts.lse[row] = keys;
        else
          static_cast<float*>(this->p.call.lse.data)[this->at.query(this->p.call.lse, head, i)] = sink.lse;
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        each_held<E>(&this->out[b][0][rs], kRowStrips, [&](int feature, int j, const float* value) {
          if (to[j] < 0) return;
          float scaled[kTransposedElements<E>];
#pragma unroll
          for (int e = 0; e < kTransposedElements<E>; ++e) scaled[e] = value[e] * factor[j];
          this->store_row(to[j] + this->feature0(b) + feature, scaled);
        });
    }
  }
  template <int n>
  XLSTM_DEVICE void store_row(int64_t place, const float (&value)[n]) const {
    if (this->p.splits > 1) {
#pragma unroll
      for (int e = 0; e < n; e += 4) {
        const float four[4] = {value[e], value[e + 1], value[e + 2], value[e + 3]};
        store_elements(this->p.parts.out + place + e, four);
      }
    } else if (this->p.whole_out) {
      store_elements(static_cast<E*>(this->p.call.out.data) + place, value);
    } else {
#pragma unroll
      for (int e = 0; e < n; ++e) static_cast<E*>(this->p.call.out.data)[place + e] = from_float<E>(value[e]);
    }
  }
};

template <class E, int kRows, int kFeatures, bool kAhead>
__global__ __launch_bounds__(mla_shape(kFamily, kRows, kFeatures, kAhead).threads, 1) void mla(const FewRowsParams p) {
  if constexpr (has_mla(kFamily, kRows, kAhead)) {
    extern __shared__ __align__(128) char lds[];
    const xlstm_attention& in = p.call.in;
    const ForwardPlace place = forward_place(blockIdx.x, in.batch * in.heads_k, p.splits, p.blocks);
    const uint32_t head = uint32_t(place.head), heads_k = uint32_t(in.heads_k);
    const AttentionLayout at(in, head / heads_k);
    const int64_t first = place.rows * kRows, left = at.rows() - first;
    if (left <= 0) return;
    Mla<E, kRows, kFeatures, kAhead> block(p, at, head % heads_k, first, lds);
    const RowsSee see(at, first, left < kRows ? left : kRows);
    constexpr int kKeys = decltype(block)::kKeys;
    const int origin = see.begin / kKeys, tiles = (see.end + kKeys - 1) / kKeys - origin;
    const int from = origin + part_of(tiles, place.split, p.splits);
    const int to = origin + part_of(tiles, place.split + 1, p.splits);
    block.load_q();
    block.walk(from * kKeys, to * kKeys < see.end ? to * kKeys : see.end, see);
    block.write(place.split);
  }
}

}  // namespace xlstm::gpu::attention
