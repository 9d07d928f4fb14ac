// SPDX-License-Identifier: Apache-2.0
// Attention backward on a GPU, for CDNA, RDNA and NVIDIA. With y and lse to base 2, D of delta.h, c = 1 / (1 - p):
//
//     w = 2^(y - lse)     ds = w (c keep (dout v^T) - D) dy/ds     dv = c (keep w)^T dout     dk = scale ds^T q
//                                                                  dq = scale ds k
//
// One kernel body has two forms. A block owns tokens of one side and walks tiles of the other side:
//
//               owned     tiles of  scores, tokens of the tile down and owned ones across    sums
//     dk, dv    k, v      q, dout   S = q k^T     dP = dout v^T                              dv += dout^T w, dk += q^T
//     ds dq        q, dout   k, v      S = k q^T     dP = v dout^T                              dq += k^T ds
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

template <class E, int kQk, int kV, bool kHasScoreMod, bool kOfKeys>
struct Backward : BackwardPairs<E, kQk, kV, kHasScoreMod, kOfKeys> {
  using Base = BackwardPairs<E, kQk, kV, kHasScoreMod, kOfKeys>;
  using Base::kShape, Base::kThreads, Base::kTile, Base::kStepRows, Base::kColumnStrips, Base::kRowStrips,
      Base::kRegisters, Base::kAllAtOnce, Base::kRolled, Base::kPairs, Base::kFirstSums, Base::kSecondSums, Base::kUnit,
      Base::p, Base::at, Base::key_head, Base::query_head, Base::group, Base::queries, Base::keys, Base::owned,
      Base::column0, Base::feature_wave, Base::band, Base::first_sums, Base::second_sums, Base::buffer,
      Base::first_tile, Base::second_tile, Base::first_transposed, Base::second_transposed, Base::row_stats_in,
      Base::fetch, Base::store_matrices, Base::fill_keep, Base::uniform_rules, Base::load_owned, Base::add_rows,
      Base::fully_visible, Base::softmax_gradient;
  using typename Base::TileCoord, typename Base::Stages, typename Base::Scores;

  using Base::Base;

  XLSTM_DEVICE void run_tile(Stages& stages, const TileCoord& coord, const TileCoord& next, bool more, int n,
                             const ScoreRules& rules) {
    char* slot = buffer(n);
    const auto arrive_with = [&](int from_matrix) {
      arrive([&] { store_matrices(stages, coord, slot, from_matrix); });
    };
    const auto fetch_next = [&] {
      if (more) fetch(stages, next, n + 1);
    };
    if constexpr (kAsyncCopies && (kHasScoreMod || kShape.buffers == 1)) __syncthreads();
    if constexpr (kAsyncCopies && kShape.buffers == 1)
      if (n > 0) fetch(stages, coord, n);
    arrive([&] {
      store_matrices(stages, coord, slot, 0);
      if constexpr (kOfKeys && !kAsyncCopies)
        if (opaque_thread() < 2 * kTile) row_stats_in(slot)[opaque_thread()] = stages.row_stat;
      fill_keep(rules, coord);
    });
    if constexpr (kAllAtOnce && kShape.buffers * (kAsyncCopies ? 1 : 2) > 1) fetch_next();
    // Recomputed for each product, with the addresses that derive from it, where registers are short.
    const int lane_of_tile = kFamily == Family::nvidia ? lane_id() : opaque_thread() % kWave;
    const auto lane = [&] {
      return !kHasScoreMod && kFamily != Family::rdna ? lane_of_tile
             : kAsyncCopies                           ? opaque_lane()
                                                      : opaque_thread() % kWave;
    };
    const float slope =
        kHasScoreMod && rules.slopes
            ? p->call.in.alibi_slopes[at.index * p->call.in.alibi_stride + query_head + coord.member] * kUnit
            : 0.0f;
    if constexpr (kPairs) return this->run_pair(slot, coord.first, rules, slope, lane());
#pragma unroll 1
    for (int row0 = 0; row0 < kTile; row0 += kShape.at_once) {
      Scores s, dp;
      ChainOperand<E> weights[kRowStrips][kColumnStrips], ds[kRowStrips][kColumnStrips];
      this->template multiply_rows<true>(s, first_tile(slot), row0, lane());
      if constexpr (!kAllAtOnce && kShape.matrices == 1) {
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
          for (int c = 0; c < kColumnStrips; ++c) s[r][c].materialise();  // before the barrier
        arrive_with(1);
      }
      this->template multiply_rows<false>(dp, second_tile(slot), row0, lane());
      softmax_gradient(s, dp, rules, slope, coord.first, row0, row_stats_in(slot),
                       !fully_visible(coord.first + row0, kShape.at_once), lane());
#pragma unroll
      for (int r = 0; r < kRowStrips; ++r)
#pragma unroll
        for (int c = 0; c < kColumnStrips; ++c) {
          if constexpr (!kAllAtOnce) s[r][c].materialise(), dp[r][c].materialise();
          if constexpr (kOfKeys) weights[r][c] = as_chain(s[r][c], 1.0f);
          if constexpr (!kRolled) ds[r][c] = as_chain(dp[r][c], 1.0f);
        }
      if constexpr (!kAllAtOnce) arrive_with(kOfKeys ? 2 : 3);
      if constexpr (!kAllAtOnce && kShape.matrices == 2) fetch_next();
      if constexpr (kOfKeys) add_rows(second_sums, second_transposed(slot), row0, weights, lane());
      if constexpr (!kAllAtOnce && kShape.matrices == 1 && kOfKeys) {
        each_strip([](bool is_first, int, int, Strip<E>& sum) {
          if (!is_first) sum.materialise();
        });
        arrive_with(3);
      }
      if constexpr (!kAllAtOnce && kShape.matrices == 1) fetch_next();
      if constexpr (kRolled)  // operands take more registers than scores do
#pragma unroll
        for (int r = 0; r < kRowStrips; ++r) ds[r][0] = as_chain(dp[r][0], 1.0f);
      add_rows(first_sums, first_transposed(slot), row0, ds, lane());
    }
  }

  // ---- mainloop

  XLSTM_DEVICE void zero_sums() {
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
#pragma unroll
      for (int f = 0; f < kFirstSums; ++f) first_sums[f][c].zero();
#pragma unroll
      for (int f = 0; f < kSecondSums; ++f) second_sums[f][c].zero();
    }
  }

  // Walks part `part` of `parts` of the tiles that owned tokens see, or that see them, over all heads.
  XLSTM_DEVICE void walk(int part, int parts) {
    const auto [first, tiles] = band.template visible_tiles<kOfKeys>(owned, kShape.owned, queries, keys, kTile);
    const int members = kOfKeys ? group : 1;
    const auto border = [&](int n) {  // first tile of part n
      return uniform(int(uint64_t(uint32_t(tiles)) * uint32_t(members) * uint32_t(n) / uint32_t(parts)));
    };
    const int from = border(part), to = border(part + 1);
    zero_sums();
    if (from >= to) return;
    const ScoreRules rules = uniform_rules();
    load_owned();
    if constexpr (kPairs && !kHasScoreMod) this->hold_chain();
    Stages stages;
    TileCoord next{from / tiles, (first + from % tiles) * kTile};
    fetch(stages, next, 0);
#pragma unroll 1
    for (int n = 0; from + n < to; ++n) {
      p = reload_params(p);
      const TileCoord coord = next;
      next.first += kTile;
      if (next.first >= (first + tiles) * kTile) next = {coord.member + 1, first * kTile};
      run_tile(stages, coord, next, from + n + 1 < to, n, rules);
    }
  }

  // Calls f(is it of the first matrix, column strip, first feature, sums) for all strips of sums.
  template <class F>
  XLSTM_DEVICE void each_strip(F&& f) {
#pragma unroll
    for (int c = 0; c < kColumnStrips; ++c) {
#pragma unroll
      for (int s = 0; s < kFirstSums; ++s)
        f(!kPairs || !this->makes_weights(), c, (feature_wave * kFirstSums + s) * kStepRows, first_sums[s][c]);
#pragma unroll
      for (int s = 0; s < kSecondSums; ++s)
        f(false, c, (feature_wave * kSecondSums + s) * kStepRows, second_sums[s][c]);
    }
  }
  // Calls f(register, its address) for the sums of a part, which memory holds in the order of the registers.
  template <class F>
  XLSTM_DEVICE void each_register(float* base, F&& f) {
    int order = 0;
    base += threadIdx.x;
    each_strip([&](bool, int, int, Strip<E>& s) {
      sched_barrier();
      float* to = opaque(base) + order * (kRegisters * kThreads);
      ++order;
#pragma unroll
      for (int r = 0; r < kRegisters; ++r) f(s.value[r], to + r * kThreads);
    });
  }

  XLSTM_DEVICE void write() {
    const xlstm_attention_backward& call = p->call;
    const float scale = float(call.in.softmax_scale);
    const float keep_scale = call.in.dropout_p > 0 ? float(dropout_scale(call.in.dropout_p)) : 1.0f;
    TokenRows<E> first, second;
    if constexpr (kOfKeys) {
      first = key_rows<E>(at, call.dk, key_head, call.in.dqk, p->aligned16.dk);
      second = key_rows<E>(at, call.dv, key_head, call.in.dv, p->aligned16.dv);
      if constexpr (kPairs)
        if (this->makes_weights()) first = second;
    } else {
      first = query_rows<E>(at, call.dq, query_head, call.in.dqk, p->aligned16.dq);
    }
    each_strip([&](bool is_first, int c, int feature, Strip<E>& s) {
      sched_barrier();
      s.scale(is_first ? scale : keep_scale);
      const TokenRows<E>& to = kPairs || is_first ? first : second;
      each_run(s, [&](int row, int j, const float(&value)[kRun<E>]) {
        const int token = owned + column0 + c * kStripColumns + Columns::position(j);
        if (token < (kOfKeys ? keys : queries))
          store_run(const_cast<E*>(to.data) + token * to.stride, feature + row, to.columns, to.whole, value);
      });
    });
  }
};

// The body of dkdv_kernel and dq_kernel.
// blockIdx.x: heads vary fastest, so that the blocks of a head share a die's L2 where the chip distributes blocks over
// dies, and blocks with much work come first: under a causal mask early keys and late queries see the most tokens.
template <class E, int kQk, int kV, bool kHasScoreMod, bool kOfKeys>
XLSTM_DEVICE void run_backward(const BackwardParams* p, char* lds) {
  const xlstm_attention& in = p->call.in;
  using Walk = Backward<E, kQk, kV, kHasScoreMod, kOfKeys>;
  const uint32_t heads = uint32_t(kOfKeys ? in.heads_k : in.heads_q), all = heads * uint32_t(in.batch);
  const uint32_t which = blockIdx.x % all, rest = blockIdx.x / all;
  const uint32_t parts = kOfKeys ? uint32_t(p->parts) : 1;
  const uint32_t block = kOfKeys ? rest / parts : uint32_t(p->blocks_q) - 1 - rest, part = kOfKeys ? rest % parts : 0;
  Walk walk(p, which / heads, which % heads, block, lds);
  if constexpr (kOfKeys)
    if (part == 0) clear_pads<E, Walk::kThreads>(*p, walk.at, walk.key_head, walk.owned, Walk::kShape.owned);
  if (walk.owned >= (kOfKeys ? walk.keys : walk.queries)) return;
  walk.walk(int(part), int(parts));
  if (kOfKeys && parts > 1)
    walk.each_register(global(p->sums) + (int64_t(part) * (gridDim.x / parts) + block * all + which) *
                                             (Walk::kSumRegisters * Walk::kThreads),
                       [](float& v, float* to) { *to = v; });
  else
    walk.write();
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

}  // namespace xlstm::gpu::attention
