// SPDX-License-Identifier: Apache-2.0
// The row statistics that the backward kernels need of each query, and the gradient of the sinks:
//     lse      D = dout . out - dlse      dsink = -sum over queries of e^(sink - lse) D
// Queries beyond the last one of a sequence get lse = infinity and D = 0, so that their weights are zero.
//
// Who owns what: a block has 64 queries of one head, 16 lanes each. Floor: out and dout are read once, memory binds.
#pragma once

#include "attention/backward/backward_params.h"

namespace xlstm::gpu::attention {

constexpr int kDeltaThreads = 256;

XLSTM_DEVICE void clear_dq_sums(float* sums, int count) {
  for (int j = int(threadIdx.x) * 4; j < count; j += kDeltaThreads * 4)
    *reinterpret_cast<Vec16*>(sums + j) = {{0, 0, 0, 0}};
}

template <class E>
__global__ __launch_bounds__(kDeltaThreads) void delta_kernel(const BackwardParams params) {
  const BackwardParams* p = kernel_params(params);
  const xlstm_attention& in = p->call.in;
  const int64_t heads = p->heads_all_q(), which = blockIdx.x / heads, head_of_all = blockIdx.x % heads;
  const AttentionLayout at(in, head_of_all / in.heads_q);
  const int64_t head = head_of_all % in.heads_q, first = which * kDeltaRows;
  __shared__ float sink_gradients[kDeltaRows];
  const int64_t padded = (at.queries + kStatsPad - 1) / kStatsPad * kStatsPad;
  float* row_stats = row_stats_of(*p, at, head);
  const TokenRows<E> out = query_rows<E>(at, p->call.out, head, in.dv, p->aligned16.out);
  const TokenRows<E> dout = query_rows<E>(at, p->call.dout, head, in.dv, p->aligned16.dout);
  constexpr int n = kVec16Elements<E>, kLanes = 16;
  for (int t = threadIdx.x / kLanes; t < kDeltaRows; t += kDeltaThreads / kLanes) {
    const int64_t i = first + t;
    const bool valid = i < at.queries;
    float dot = 0;
    for (int column = threadIdx.x % kLanes * n; column < int(in.dv); column += kLanes * n) {
      const Vec16 x = out.vec16(i, column, valid), y = dout.vec16(i, column, valid);
#pragma unroll
      for (int j = 0; j < n; ++j) dot += element<E>(x, j) * element<E>(y, j);
    }
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
    if (threadIdx.x % kLanes != 0) continue;
    float lse = __builtin_inff(), sink_gradient = 0;
    if (valid) {
      lse = static_cast<const float*>(p->call.lse.data)[at.query(p->call.lse, head, i)];
      if (p->call.dlse.data) dot -= static_cast<const float*>(p->call.dlse.data)[at.query(p->call.dlse, head, i)];
      if (p->call.dsink) sink_gradient = -expf(static_cast<const float*>(in.sink)[head] - lse) * dot;
    }
    if (i < padded) {
      row_stats[row_stats_index(int(i))] = lse * score_unit<E>;
      row_stats[row_stats_index(int(i)) + kStatsGroup] = valid ? dot : 0.0f;
    }
    sink_gradients[t] = sink_gradient;
  }
  if (p->dq_sums && first < padded) clear_dq_sums(dq_sums_of(*p, at, head) + first * in.dqk, int(in.dqk) * kDeltaRows);
  if (!p->call.dsink) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;  // double: the terms cancel
  for (int t = 0; t < kDeltaRows; ++t) sum += double(sink_gradients[t]);
  p->dsink_parts[blockIdx.x] = float(sum);
}

// dsink of a head: adds the blocks' parts in the order of the blocks.
template <class E>  // a template, so that each file that includes this header has its own
__global__ __launch_bounds__(kDeltaThreads) void dsink_kernel(const BackwardParams params) {
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
