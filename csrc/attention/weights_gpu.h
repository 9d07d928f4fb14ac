// SPDX-License-Identifier: Apache-2.0
// The weights of attention themselves, which a caller may ask to see: e^(y - lse), with a minus sign where dropout
// drops one. They are made once more when the forward kernel has left its lse: blocks, waves and tiles are its own.
#pragma once

#include "attention/forward_gpu.h"

namespace xlstm::gpu {

template <class E, int kDqk, int kDv>
struct Weights : Forward<E, kDqk, kDv, true> {
  using Base = Forward<E, kDqk, kDv, true>;
  using Base::at, Base::facts, Base::first_row, Base::key_head, Base::p, Base::see;
  using Base::Base;
  static constexpr int kKeys = Base::kKeys, kStrips = Base::kStrips, kEach = Columns::kEach;

  XLSTM_DEVICE void run(int64_t block_first) {
    const xlstm_attention& in = p.call.in;
    this->load_q();
    float whole[kStrips][kEach];  // the log of a row's sum, to base 2
    E* to[kStrips][kEach];
#pragma unroll
    for (int c = 0; c < kStrips; ++c)
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int64_t i = this->live(this->row_of(c, j)) / at.group(), head = this->head_of(this->row_of(c, j));
        const float lse = static_cast<const float*>(p.call.lse.data)[at.query(p.call.lse, head, i)];
        whole[c][j] = kLog2E * lse;
        if (in.sink && !p.call.lse_with_sink)
          whole[c][j] =
              kLog2E *
              with_sink(has_keys(lse) ? lse : -__builtin_inff(), static_cast<const float*>(in.sink)[head], true).lse;
        to[c][j] = static_cast<E*>(p.call.probs.data) + at.index * p.call.probs.stride[0] +
                   head * p.call.probs.stride[1] + i * p.call.probs.stride[2] + at.first_key;
      }
    const HeadTokens<E> keys(at, in.k, key_head, in.dqk, p.whole_k);
    const ScoreRules rules(in);
    const typename Base::Tiles tiles(*this, block_first);
    typename Base::StageK stage[Base::kParts];
    for (int tile = tiles.from; tile < tiles.to; ++tile) {
      const int first = tile * kKeys;
      this->fetch_k(stage, keys, first);
      arrive([&] { this->store_k(stage); });
      typename Base::Scores s;
      if (see.some(first, kKeys)) {
        this->multiply_keys(s);
#pragma unroll
        for (int k = 0; k < Base::kKeyStrips; ++k)
#pragma unroll
          for (int c = 0; c < kStrips; ++c) write(s[k][c], rules, c, first + k * kStep<E>, whole[c], to[c]);
      }
      __syncthreads();  // all are done with the tile
    }
  }

 private:
  XLSTM_DEVICE void write(Strip<E>& s, const ScoreRules& rules, int c, int first, const float (&whole)[kEach],
                          E* const (&to)[kEach]) const {
    rules.bend(s, facts, c, first);
    facts.mask(s, c, first);
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) s.value[r] = exp2_fast(s.value[r] - whole[Columns::of(r)]);
    if (rules.drops)
      rules.each_draw<E>(facts, c, first, [&](int r, bool kept) { s.value[r] = kept ? s.value[r] : -s.value[r]; });
    each_run(s, [&](int row, int j, const float(&value)[kRun<E>]) {
      if (this->inside(c, j)) this->store_run(to[j], first + row, int(at.keys), false, value);
    });
  }
};

template <class E, int kDqk, int kDv>
__global__ __launch_bounds__(forward_shape(kFamily, sizeof(E), {kDqk, kDv}).threads) void write_weights(
    XLSTM_PARAM ForwardParams p) {
  extern __shared__ __align__(128) char lds[];
  const xlstm_attention& in = p.call.in;
  const ForwardPlace place = forward_place(blockIdx.x, in.batch * in.heads_k, 1, p.blocks);
  const AttentionLayout at(in, place.head / in.heads_k);
  const int64_t first = place.rows * Weights<E, kDqk, kDv>::kShape.rows;
  if (first < at.rows()) Weights<E, kDqk, kDv>(p, at, place.head % in.heads_k, 0, first, lds).run(first);
}

}  // namespace xlstm::gpu
