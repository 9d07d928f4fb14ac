// SPDX-License-Identifier: Apache-2.0
// What the blocks of a forward call share, however their scores lie: the keys of a part, and the outputs of a row.
#pragma once

#include "attention/cpu/combine_parts.h"
#include "attention/cpu/scores.h"

namespace xlstm::XLSTM_ISA::attention {

// The keys of a part (split-KV) of those that a block sees, in whole tiles.
inline KeyRange keys_of_part(const KeyRange& sees, int64_t block_k, int64_t part, int64_t parts) {
  const int64_t origin = sees.begin / block_k * block_k, tiles = (sees.end - origin + block_k - 1) / block_k;
  const int64_t from = origin + tiles * part / parts * block_k, to = origin + tiles * (part + 1) / parts * block_k;
  return {from > sees.begin ? from : sees.begin, to < sees.end ? to : sees.end};
}

// The epilogue of a row whose keys are all summed: applies the sink and stores out and lse.
template <class T>
void store_out(const xlstm_attention_forward& p, const AttentionSequence& sequence, int64_t head, int64_t i, T keys,
               T* row) {
  const WithSink<double> sink = row_with_sink(p, head, keys);
  for (int64_t j = 0; p.in.sink && j < p.in.dv; ++j) row[j] *= T(sink.factor);
  store_row(p.out.data, p.out.dtype, sequence.query(p.out, head, i), row, p.in.dv);
  static_cast<T*>(p.lse.data)[sequence.query(p.lse, head, i)] = T(sink.lse);
}

// Stores the softmax of query i for keys [from, to). Its scores, exponents of e times `unit`, and dropout's mask, or
// NULL, are `step` apart; lse is that of its keys. row: a buffer.
template <class T>
void store_probs_of_row(const xlstm_attention_forward& p, const AttentionSequence& sequence, int64_t head, int64_t i,
                        double lse, double unit, int64_t from, int64_t to, const T* scores, const T* keep, int64_t step,
                        T* row) {
  const double log_sum = row_with_sink(p, head, T(lse)).log_sum;
  for (int64_t j = 0; j < to - from; ++j) {
    const double y = double(scores[j * step]), weight = y == -__builtin_inf() ? 0 : ::exp(y / unit - log_sum);
    row[j] = keep && keep[j * step] == 0 ? T(-weight) : T(weight);
  }
  const int64_t at = sequence.index * p.probs.stride[0] + head * p.probs.stride[1] + i * p.probs.stride[2];
  store_row(p.probs.data, p.probs.dtype, at + sequence.first_key + from, row, to - from);
}

}  // namespace xlstm::XLSTM_ISA::attention
