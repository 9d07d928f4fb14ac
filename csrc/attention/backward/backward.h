// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU, for CDNA, RDNA and NVIDIA. With y and lse to base 2, D of delta.h, c = 1 / (1 - p):
//
//     w = 2^(y - lse)     ds = w (c keep (dout v^T) - D) dy/ds     dv = c (keep w)^T dout     dk = scale ds^T q
//                                                                  dq = scale ds k
//
// One kernel body has two forms. A block owns tokens of one side and walks tiles of the other side:
//
//               owned     tiles of  scores (tile's tokens down, owned ones across)  sums
//     dk, dv    k, v      q, dout   S = q k^T     dP = dout v^T                     dv += dout^T w, dk += q^T ds
//     dq        q, dout   k, v      S = k q^T     dP = v dout^T                     dq += k^T ds
//
// Who owns what: the owned tokens are the chain operand of both score products (in registers, or in LDS where registers
// do not suffice), and a tile is the stream operand. The strips of w and ds are the chain operand of the sums in the
// registers where they are; the sums, features down and owned tokens across, stay in accumulators for the whole walk.
// dk and dv of a key head walk the rows of all its query heads, one head after the other, so k and v are never
// expanded. Where blocks do not fill the chip, these rows are divided into parts with sums of their own, which
// sum_dkdv_kernel adds in a fixed order. Nothing uses atomics: the same call gives the same bits.
//
// A block skips tiles that no owned token sees, or is seen by, and applies masks only where a wave's pairs are not all
// visible.
//
// A tile's first matrix (q, k) is read along its rows for S and transposed for dk and dq, the second (dout, v) along
// its rows and transposed for dv. AMD stores both forms in LDS, from one fetch (tile/paired_tiles.h); where 64 KB do
// not hold four matrices, one replaces the other. NVIDIA reads one tile both ways, and may have two waves for the same
// keys: 160 bytes of LDS per mma, with 128 features (backward_warp_pairs.h). The next tile loads while this one is
// multiplied.
//
// Floor: 4 products of the tile for dk and dv and 3 for dq, 7 in all compared with 5 with atomics: 2 (4 dqk + 3 dv)
// flops for each pair. In addition a pair costs, twice, an exp, a multiply-add, a difference, a product and the
// rounding of ds, and once the rounding of w.
#pragma once

#include "attention/backward/backward_warp_pairs.h"
#include "attention/gpu/epilogue.h"

namespace xlstm::gpu::attention {

// The walk of a block. Its members are separate objects, each of which the compiler can keep in registers.
template <class Tiles>
struct Backward {
  using E = typename Tiles::E;
  using TileCoord = typename Tiles::TileCoord;
  using Stages = typename Tiles::Stages;
  using Scores = typename Tiles::Scores;
  using Operands = typename Tiles::Operands;
  static constexpr BackwardShape kShape = Tiles::kShape;
  static constexpr bool kHasScoreMod = Tiles::kHasScoreMod, kOfKeys = Tiles::kOfKeys, kPairs = Tiles::kPairs;
  static constexpr int kTile = Tiles::kTile;
  static constexpr int kColumnStrips = Tiles::kColumnStrips, kRowStrips = Tiles::kRowStrips;

  Tiles& tiles;
  BackwardProducts<Tiles>& products;
  BackwardSoftmax<Tiles>& softmax;

  // One tile of the walk: where it is, and what is loaded next.
  struct Step {
    TileCoord coord, next;
    bool more;  // whether `next` exists
    int n;
    char* buffer;
  };

  // ---- the family's half: how a tile arrives in LDS

  // NVIDIA: cp.async brought the tile; the next one follows as soon as a buffer is free.
  XLSTM_DEVICE void arrive_copied(Stages& stages, const Step& step, const ScoreRules& rules) const {
    if constexpr (kHasScoreMod || kShape.buffers == 1) __syncthreads();
    if constexpr (kShape.buffers == 1)
      if (step.n > 0) tiles.fetch(stages, step.coord, step.n);
    arrive([&] { tiles.fill_keep(rules, step.coord); });
    if constexpr (kShape.buffers > 1) fetch_next(stages, step);
  }
  // AMD: the tile goes from registers to LDS, as many of its matrices as fit.
  template <bool kPlain>
  XLSTM_DEVICE void arrive_through_registers(Stages& stages, const Step& step, const ScoreRules& rules) const {
    if constexpr (kPlain) {
      if constexpr (!Tiles::kAllAtOnce) stages.pair = stages.ahead;
#pragma unroll
      for (Vec16& vec : stages.pair.vecs) arrive_at(vec);
    }
    arrive([&] {
      const int thread = kPlain ? int(threadIdx.x) : opaque_thread();
      if constexpr (kPlain)
        tiles.store(stages.pair, thread, step.buffer, true, Tiles::kAllAtOnce);
      else
        tiles.store_matrices(stages, step.coord, step.buffer, 0);
      if constexpr (kOfKeys)
        if (thread < 2 * kTile) Tiles::row_stats_in(step.buffer)[thread] = stages.row_stat;
      tiles.fill_keep(rules, step.coord);
    });
    if constexpr (!kPlain && Tiles::kAllAtOnce) fetch_next(stages, step);
  }
  XLSTM_DEVICE void fetch_next(Stages& stages, const Step& step) const {
    if (step.more) tiles.fetch(stages, step.next, step.n + 1);
  }

  XLSTM_DEVICE void fetch_plain(int load, Stages& stages, const TileCoord& coord) const {
    tiles.fetch_plain(load, Tiles::kAllAtOnce ? stages.pair : stages.ahead, stages.row_stat, stages.plain, coord);
  }

  // The lane id. It is recomputed for each product, with the addresses that derive from it, where registers are short.
  template <bool kPlain>
  struct Lane {
    int of_tile = kFamily == Family::nvidia || kPlain ? lane_id() : opaque_thread() % kWave;
    XLSTM_DEVICE int operator()() const {
      if constexpr (!kHasScoreMod && !is_rdna(kFamily))
        return of_tile;
      else
        return kAsyncCopies ? opaque_lane() : opaque_thread() % kWave;
    }
  };

  // ---- a tile

  template <bool kPlain>
  XLSTM_DEVICE void run_tile(Stages& stages, const Step& step, const ScoreRules& rules) {
    if constexpr (kAsyncCopies)
      arrive_copied(stages, step, rules);
    else
      arrive_through_registers<kPlain>(stages, step, rules);
    const Lane<kPlain> lane;
    const xlstm_attention& in = tiles.p->call.in;
    const float slope =
        kHasScoreMod && rules.slopes
            ? in.alibi_slopes[tiles.at.index * in.alibi_stride + tiles.query_head + step.coord.member] * Tiles::kUnit
            : 0.0f;
    if constexpr (kPairs) {
      pairs().run_tile(step.buffer, step.coord.first, rules, slope, lane());
    } else {
#pragma unroll 1
      for (int row0 = 0; row0 < kTile; row0 += kShape.at_once) {
        if constexpr (BackwardProducts<Tiles>::kInOneRun)
          run_rows_in_one_run(step, rules, row0, lane(), [&](int product_step) {
            if constexpr (kPlain)
#pragma unroll
              for (int load = product_step; load < Tiles::kPlainLoads; load += Tiles::kQkSteps + Tiles::kVSteps)
                fetch_plain(load, stages, step.next);
          });
        else if constexpr (Tiles::kAllAtOnce)
          run_rows(step, rules, slope, row0, lane);
        else
          run_rows_staged<kPlain>(stages, step, rules, slope, row0, lane);
      }
    }
  }
  XLSTM_DEVICE BackwardWarpPairs<Tiles> pairs() { return {tiles, products, softmax}; }

  // at_once of the tile's tokens, of a tile whose matrices are all in LDS.
  template <class AnyLane>
  XLSTM_DEVICE void run_rows(const Step& step, const ScoreRules& rules, float slope, int row0, const AnyLane& lane) {
    Scores s, dp;
    Operands weights, ds;
    products.template multiply_rows<true>(s, Tiles::first_tile(step.buffer), row0, lane());
    products.template multiply_rows<false>(dp, Tiles::second_tile(step.buffer), row0, lane());
    softmax_gradient(s, dp, step, rules, slope, row0, lane());
#pragma unroll
    for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) {
        if constexpr (kOfKeys) weights[r][c] = as_chain(s[r][c], 1.0f);
        if constexpr (!Tiles::kRolled) ds[r][c] = as_chain(dp[r][c], 1.0f);
      }
    if constexpr (kOfKeys)
      products.add_rows(products.second_sums, Tiles::second_transposed(step.buffer), row0, weights, lane());
    if constexpr (Tiles::kRolled)  // operands take more registers than scores do
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r) ds[r][0] = as_chain(dp[r][0], 1.0f);
    products.add_rows(products.first_sums, Tiles::first_transposed(step.buffer), row0, ds, lane());
  }

  // The same on CDNA, where operands are read ahead across products.
  // between(n) is issued after step n of the products of scores: a plain walk loads the next tile there.
  template <class Between>
  XLSTM_DEVICE void run_rows_in_one_run(const Step& step, const ScoreRules& rules, int row0, int lane,
                                        Between&& between) {
    Scores s, dp;
    Operands weights, ds;
    typename BackwardProducts<Tiles>::Streams stream;
    const auto ahead = BackwardSoftmax<Tiles>::stats_ahead(Tiles::row_stats_in(step.buffer), row0, lane);
    set_wave_priority<1>();  // products first: the SIMD's other wave, if any, computes weights meanwhile
    products.multiply_both_rows(s, dp, step.buffer, row0, lane, between);
    set_wave_priority<0>();
    products.read_for_first_sums(stream, step.buffer, row0, lane);
    softmax_gradient(s, dp, step, rules, 0.0f, row0, lane, ahead);
    set_wave_priority<1>();
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
      if constexpr (kOfKeys) weights[0][c] = as_chain(s[0][c], 1.0f);
      ds[0][c] = as_chain(dp[0][c], 1.0f);
    }
    products.add_both_rows(stream, step.buffer, row0, weights, ds, lane);
    set_wave_priority<0>();
  }

  // The same where LDS holds one or two of the tile's matrices at a time (AMD): they arrive between the products.
  template <bool kPlain, class AnyLane>
  XLSTM_DEVICE void run_rows_staged(Stages& stages, const Step& step, const ScoreRules& rules, float slope, int row0,
                                    const AnyLane& lane) {
    constexpr bool kOneByOne = kShape.matrices == 1;
    const auto arrive_with = [&](int from_matrix) {
      arrive([&] { tiles.store_matrices(stages, step.coord, step.buffer, from_matrix); });
    };
    // A plain walk's loads: all at once would fill the address unit's queue.
    const auto fetch_third = [&](auto third) {
      if constexpr (kPlain) {
        sched_barrier();
        constexpr int kEach = (Tiles::kPlainLoads + 2) / 3;
        each_of<kEach>([&](auto load) {
          if (third * kEach + load < Tiles::kPlainLoads) fetch_plain(third * kEach + load, stages, step.next);
        });
        sched_barrier();
      }
    };
    Scores s, dp;
    Operands weights, ds;
    fetch_third(std::integral_constant<int, 0>{});
    products.template multiply_rows<true>(s, Tiles::first_tile(step.buffer), row0, lane());
    fetch_third(std::integral_constant<int, 1>{});
    if constexpr (kOneByOne) {
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) s[r][c].materialise();  // before the barrier
      arrive_with(1);
    }
    products.template multiply_rows<false>(dp, Tiles::second_tile(step.buffer), row0, lane());
    fetch_third(std::integral_constant<int, 2>{});
    softmax_gradient(s, dp, step, rules, slope, row0, lane());
#pragma unroll
    for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
      for (int c = 0; c < kColumnStrips; ++c) {
        s[r][c].materialise(), dp[r][c].materialise();
        if constexpr (kOfKeys) weights[r][c] = as_chain(s[r][c], 1.0f);
        ds[r][c] = as_chain(dp[r][c], 1.0f);
      }
    arrive_with(kOfKeys ? 2 : 3);
    if constexpr (!kPlain && !kOneByOne) fetch_next(stages, step);
    if constexpr (kOfKeys)
      products.add_rows(products.second_sums, Tiles::second_transposed(step.buffer), row0, weights, lane());
    if constexpr (kOneByOne && kOfKeys) {
      products.each_strip([](bool is_first, int, int, Strip<E>& sum) {
        if (!is_first) sum.materialise();
      });
      arrive_with(3);
    }
    if constexpr (kOneByOne) fetch_next(stages, step);
    products.add_rows(products.first_sums, Tiles::first_transposed(step.buffer), row0, ds, lane());
  }
  XLSTM_DEVICE void softmax_gradient(Scores& s, Scores& dp, const Step& step, const ScoreRules& rules, float slope,
                                     int row0, int lane,
                                     const typename BackwardSoftmax<Tiles>::StatsAhead& ahead = {}) const {
    const int first = step.coord.first;
    const typename BackwardSoftmax<Tiles>::Block block(softmax, rules, first, row0, Tiles::row_stats_in(step.buffer),
                                                       lane, ahead);
    softmax.gradient(s, dp, block, slope, !tiles.fully_visible(first + row0, kShape.at_once));
  }

  // ---- mainloop

  // Walks part `part` of `parts` of the tiles that owned tokens see, or that see them, over all heads.
  XLSTM_DEVICE void run(int part, int parts) {
    const auto [first, count] =
        tiles.band.template visible_tiles<kOfKeys>(tiles.owned, kShape.owned, tiles.queries, tiles.keys, kTile);
    const int members = kOfKeys ? tiles.group : 1, count_of_head = count;
    const auto border = [&](int n) {  // first tile of part n
      return uniform(int(uint64_t(uint32_t(count_of_head)) * uint32_t(members) * uint32_t(n) / uint32_t(parts)));
    };
    const int from = border(part), to = border(part + 1);
    products.zero_sums();
    if (from >= to) return;
    const ScoreRules rules = tiles.uniform_rules();
    products.load_owned();
    softmax.load_row_stats();
    if constexpr (kPairs && !kHasScoreMod) pairs().load_chain();
    const TileCoord start{from / count, (first + from % count) * kTile};
    if constexpr (Tiles::kMayBePlain)
      if (tiles.is_plain())
        return walk<true>({uniform(start.member), uniform(start.first)}, uniform(to - from), first * kTile,
                          (first + count) * kTile, rules);
    walk<false>(start, to - from, first * kTile, (first + count) * kTile, rules);
  }

  // Walks `count` tiles from `next` on; those of a head begin at [first, end).
  template <bool kPlain>
  XLSTM_DEVICE void walk(TileCoord next, int count, int first, int end, const ScoreRules& rules) {
    Stages stages;
    if constexpr (kPlain) {
      stages.plain = typename Tiles::PlainRows(tiles);
#pragma unroll
      for (int load = 0; load < Tiles::kPlainLoads; ++load) fetch_plain(load, stages, next);
    } else {
      tiles.fetch(stages, next, 0);
    }
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
      tiles.p = reload_params(tiles.p);
      const TileCoord coord = next;
      if (!kPlain || n + 1 < count) {  // a plain walk loads its last tile twice: a condition would wait for the loads
        next.first += kTile;
        if (next.first >= end) next = {coord.member + 1, first};
      }
      run_tile<kPlain>(stages, {coord, next, n + 1 < count, n, tiles.buffer(n)}, rules);
    }
  }
};

// The epilogue: stores the sums as dk and dv, or dq.
template <class Tiles>
XLSTM_DEVICE void write_gradients(const Tiles& tiles, BackwardProducts<Tiles>& products) {
  using E = typename Tiles::E;
  constexpr bool kOfKeys = Tiles::kOfKeys, kPairs = Tiles::kPairs;
  const xlstm_attention_backward& call = tiles.p->call;
  const float scale = float(call.in.softmax_scale);
  const float keep_scale = call.in.dropout_p > 0 ? float(dropout_scale(call.in.dropout_p)) : 1.0f;
  TokenRows<E> first, second;
  if constexpr (kOfKeys) {
    first = key_rows<E>(tiles.at, call.dk, tiles.key_head, call.in.dqk, tiles.p->aligned16.dk);
    second = key_rows<E>(tiles.at, call.dv, tiles.key_head, call.in.dv, tiles.p->aligned16.dv);
    if constexpr (kPairs)
      if (Tiles::makes_weights()) first = second;
  } else {
    first = query_rows<E>(tiles.at, call.dq, tiles.query_head, call.in.dqk, tiles.p->aligned16.dq);
  }
  products.each_strip([&](bool is_first, int c, int feature, Strip<E>& s) {
    sched_barrier();
    s.scale(is_first ? scale : keep_scale);
    const TokenRows<E>& to = kPairs || is_first ? first : second;
    each_run(s, [&](int row, int j, const float(&value)[kRun<E>]) {
      const int token = tiles.owned + tiles.column0 + c * kStripColumns + Columns::position(j);
      if (token < tiles.owned_tokens())
        store_run_by_tests(const_cast<E*>(to.data) + token * to.stride, feature + row, to.columns, to.is_aligned16,
                           value);
    });
  });
}

// The body of dkdv_kernel, dq_kernel and the kernel of backward_cdna.h, which differ in their walk.
// blockIdx.x: heads vary fastest, so that the blocks of a head share a die's L2 where the chip distributes blocks over
// dies, and blocks with much work come first: under a causal mask early keys and late queries see the most tokens.
template <class E, int kQk, int kV, bool kHasScoreMod, bool kOfKeys, template <class> class Walk = Backward>
XLSTM_DEVICE void run_backward(const BackwardParams* p, char* lds) {
  const xlstm_attention& in = p->call.in;
  using Tiles = BackwardTiles<E, kQk, kV, kHasScoreMod, kOfKeys>;
  const uint32_t heads = uint32_t(kOfKeys ? in.heads_k : in.heads_q), all = heads * uint32_t(in.batch);
  const uint32_t which = blockIdx.x % all, rest = blockIdx.x / all;
  const uint32_t whole = kOfKeys ? uint32_t(p->whole_k) : 0, parts = kOfKeys && rest >= whole ? uint32_t(p->parts) : 1;
  const uint32_t turn = parts > 1 ? rest - whole : rest, divided = turn / parts, part = turn % parts;
  const uint32_t block = kOfKeys ? (parts > 1 ? whole + divided : rest) : uint32_t(p->blocks_q) - 1 - rest;
  Tiles tiles(p, which / heads, which % heads, block, lds);
  if constexpr (kOfKeys)
    if (part == 0) clear_pads<E, Tiles::kThreads>(*p, tiles.at, tiles.key_head, tiles.owned, Tiles::kShape.owned);
  if (tiles.owned >= tiles.owned_tokens()) return;
  BackwardProducts<Tiles> products(tiles);
  BackwardSoftmax<Tiles> softmax(tiles);
  Walk<Tiles> walk{tiles, products, softmax};
  walk.run(int(part), int(parts));
  if (kOfKeys && parts > 1)
    products.each_register(global(p->sums_of(part, divided * all + which, Tiles::kSumRegisters * Tiles::kThreads)),
                           [](float& v, float* to) { *to = v; });
  else
    write_gradients(tiles, products);
}

template <class E, int kQk, int kV, bool kHasScoreMod>
__global__ __launch_bounds__(
    backward_shape(kFamily, sizeof(E), kQk, kV, true).threads,
    backward_shape(kFamily, sizeof(E), kQk, kV, true).blocks) void dkdv_kernel(const BackwardParams params) {
  extern __shared__ __align__(128) char lds[];
  run_backward<E, kQk, kV, kHasScoreMod, true>(reload_params(kernel_params(params)), lds);
}
template <class E, int kQk, int kV, bool kHasScoreMod>
__global__ __launch_bounds__(
    backward_shape(kFamily, sizeof(E), kQk, kV, false).threads,
    backward_shape(kFamily, sizeof(E), kQk, kV, false).blocks) void dq_kernel(const BackwardParams params) {
  extern __shared__ __align__(128) char lds[];
  run_backward<E, kQk, kV, kHasScoreMod, false>(reload_params(kernel_params(params)), lds);
}

// dk and dv: adds the sums of several parts in their order.
template <class E, int kQk, int kV>
__global__ __launch_bounds__(
    backward_shape(kFamily, sizeof(E), kQk, kV, true).threads,
    backward_shape(kFamily, sizeof(E), kQk, kV, true).blocks) void sum_dkdv_kernel(const BackwardParams params) {
  const BackwardParams* p = reload_params(kernel_params(params));
  const xlstm_attention& in = p->call.in;
  using Tiles = BackwardTiles<E, kQk, kV, true, true>;
  const uint32_t heads = uint32_t(in.heads_k), all = heads * uint32_t(in.batch), which = blockIdx.x % all;
  Tiles tiles(p, which / heads, which % heads, p->whole_k + blockIdx.x / all, nullptr);
  if (tiles.owned >= tiles.keys) return;
  BackwardProducts<Tiles> products(tiles);
  products.zero_sums();
  for (int part = 0; part < p->parts; ++part)
    products.each_register(global(p->sums_of(part, blockIdx.x, Tiles::kSumRegisters * Tiles::kThreads)),
                           [](float& v, const float* from) { v += *from; });
  write_gradients(tiles, products);
}

}  // namespace xlstm::gpu::attention
