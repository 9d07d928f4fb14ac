// SPDX-License-Identifier: Apache-2.0
// What backward must know of each query before its matrix products, and the gradient of the sinks:
//     lse      D = dout . out - dlse      dsink = -sum over queries of e^(sink - lse) D
// Queries beyond the last one of a sequence get lse = infinity and D = 0: their weights are zero.
//
// A block has 64 queries of one head, 16 lanes each. Floor: out and dout are read once, memory binds.
#pragma once

#include "attention/backward/backward_params.h"

namespace xlstm::gpu::attention {

constexpr int kDeltaThreads = 256;

template <class E>
__global__ __launch_bounds__(kDeltaThreads) void attention_delta(const BackwardParams params) {
  const BackwardParams* p = kernel_params(params);
  const xlstm_attention& in = p->call.in;
  const int64_t heads = p->heads_all_q(), which = blockIdx.x / heads, head_of_all = blockIdx.x % heads;
  const AttentionLayout at(in, head_of_all / in.heads_q);
  const int64_t head = head_of_all % in.heads_q, first = which * kDeltaRows;
  __shared__ float sunk[kDeltaRows];
  const int64_t padded = (at.queries + kFactPad - 1) / kFactPad * kFactPad;
  float* facts = facts_of(*p, at, head);
  const TokenRows<E> out = query_rows<E>(at, p->call.out, head, in.dv, p->whole.out);
  const TokenRows<E> dout = query_rows<E>(at, p->call.dout, head, in.dv, p->whole.dout);
  constexpr int n = kVec16Elements<E>, kLanes = 16;
  for (int t = threadIdx.x / kLanes; t < kDeltaRows; t += kDeltaThreads / kLanes) {
    const int64_t i = first + t;
    const bool there = i < at.queries;
    float dot = 0;
    for (int column = threadIdx.x % kLanes * n; column < int(in.dv); column += kLanes * n) {
      const Vec16 x = out.piece(i, column, there), y = dout.piece(i, column, there);
#pragma unroll
      for (int j = 0; j < n; ++j) dot += element<E>(x, j) * element<E>(y, j);
    }
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
    if (threadIdx.x % kLanes != 0) continue;
    float lse = __builtin_inff(), through_sink = 0;
    if (there) {
      lse = static_cast<const float*>(p->call.lse.data)[at.query(p->call.lse, head, i)];
      if (p->call.dlse.data) dot -= static_cast<const float*>(p->call.dlse.data)[at.query(p->call.dlse, head, i)];
      if (p->call.dsink) through_sink = -expf(static_cast<const float*>(in.sink)[head] - lse) * dot;
    }
    if (i < padded) {
      facts[fact_place(int(i))] = lse * score_unit<E>;
      facts[fact_place(int(i)) + kFactGroup] = there ? dot : 0.0f;
    }
    sunk[t] = through_sink;
  }
  if (!p->call.dsink) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;  // of terms that cancel
  for (int t = 0; t < kDeltaRows; ++t) sum += double(sunk[t]);
  p->dsink_parts[blockIdx.x] = float(sum);
}

// dsink of a head: the parts in the order of their blocks, whoever made them.
template <class E>  // one for each file that includes this
__global__ __launch_bounds__(kDeltaThreads) void sum_dsink(const BackwardParams params) {
  const BackwardParams* p = kernel_params(params);
  const xlstm_attention& in = p->call.in;
  const int64_t blocks = p->blocks_delta * in.batch;
  __shared__ double sums[kDeltaThreads];
  double sum = 0;
  for (int64_t j = threadIdx.x; j < blocks; j += kDeltaThreads)
    sum += double(p->dsink_parts[j * in.heads_q + blockIdx.x]);
  sums[threadIdx.x] = sum;
  for (int half = kDeltaThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (int(threadIdx.x) < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) static_cast<float*>(p->call.dsink)[blockIdx.x] = float(sums[0]);
}

}  // namespace xlstm::gpu::attention
