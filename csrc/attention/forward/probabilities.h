// SPDX-License-Identifier: Apache-2.0
// Attention probabilities, which a caller may ask to see: e^(y - lse), with a minus sign where dropout drops one. This
// kernel recomputes them after the forward kernel has written lse; blocks, waves and tiles are those of the forward
// kernel.
#pragma once

#include "attention/forward/forward.h"

namespace xlstm::gpu::attention {

template <class E, class Key, int kDqk, int kDv>
struct Probabilities {
  using ForwardKernel = Forward<E, Key, kDqk, kDv, true>;
  static constexpr ForwardShape kShape = ForwardKernel::kShape;
  static constexpr int kKeys = kShape.keys, kStrips = kShape.strips, kEach = Columns::kEach;

  ForwardKernel forward;

  XLSTM_DEVICE void run(const AttentionLayout& at) {
    const xlstm_attention_forward& call = forward.p->call;
    const xlstm_attention& in = call.in;
    const int key_head = forward.key_head;
    forward.load_q(at);
    float row_lse[kStrips][kEach];  // the log of a row's sum, to base 2
    E* to[kStrips][kEach];
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int64_t row = forward.clamp_row(forward.row_of(c, j)), i = row / at.group();
        const int64_t head = key_head * at.group() + row % at.group();
        const float lse = static_cast<const float*>(call.lse.data)[at.query(call.lse, head, i)];
        row_lse[c][j] = kLog2E * lse;
        if (in.sink && !call.lse_with_sink)
          row_lse[c][j] =
              kLog2E *
              with_sink(has_keys(lse) ? lse : -__builtin_inff(), static_cast<const float*>(in.sink)[head], true).lse;
        to[c][j] = static_cast<E*>(call.probs.data) + at.index * call.probs.stride[0] + head * call.probs.stride[1] +
                   i * call.probs.stride[2] + at.first_key;
      }
    const HeadTokens<E, Key> k(at, in.k, key_head, in.dqk, forward.p->k_aligned16);
    const ScoreRules rules = forward.score_rules(at);
    const typename ForwardKernel::Tiles tiles(forward, at);
    typename ForwardKernel::StageK stage[ForwardKernel::kParts];
    for (int tile = tiles.from; tile < tiles.to; ++tile) {
      const int first = tile * kKeys;
      forward.fetch_k(stage, k, first);
      arrive([&] { forward.store_k(stage, k, first); });
      typename ForwardKernel::Scores s;
      if (forward.visible.any(first, kKeys)) {
        forward.multiply_keys(s);
        ForwardKernel::each_strip(s, first, [](Strip<E>& strip, int, int) { strip.materialise(); });
#pragma unroll
        for (int t = 0; t < ForwardKernel::kKeyStrips; ++t)
#pragma unroll
          for (int c = 0; c < kStrips; ++c) write(s[t][c], rules, c, first + t * kStep<E>, row_lse[c], to[c]);
      }
      __syncthreads();  // all waves have finished reading the tile
    }
  }

 private:
  XLSTM_DEVICE void write(Strip<E>& s, const ScoreRules& rules, int c, int first, const float (&row_lse)[kEach],
                          E* const (&to)[kEach]) const {
    rules.apply_score_mod(s, forward.row_info, c, first);
    forward.row_info.mask(s, c, first);
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) s.value[r] = exp2_fast(s.value[r] - row_lse[Columns::of(r)]);
    if (rules.drops)
      rules.each_draw<E>(forward.row_info, c, first,
                         [&](int r, bool keeps) { s.value[r] = keeps ? s.value[r] : -s.value[r]; });
    each_run(s, [&](int row, int j, const float(&value)[kRun<E>]) {
      if (forward.inside(c, j)) store_run(to[j], first + row, forward.keys, false, value);
    });
  }
};

template <class Elements, int kDqk, int kDv>
__global__ __launch_bounds__(forward_shape(kFamily, sizeof(QueryOf<Elements>), {kDqk, kDv}, true)
                                 .threads) void probabilities_kernel(XLSTM_PARAM ForwardParams p) {
  using Kernel = Probabilities<QueryOf<Elements>, KeyOf<Elements>, kDqk, kDv>;
  extern __shared__ __align__(128) char lds[];
  const ForwardBlock block(p, Kernel::kShape.rows);
  if (!block.empty()) Kernel{{kernel_params(p), block, lds}}.run(block.at);
}

}  // namespace xlstm::gpu::attention
