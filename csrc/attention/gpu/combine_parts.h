// SPDX-License-Identifier: Apache-2.0
// Combines the parts of split-KV attention on a GPU:
//
//     out = sum_s e^(lse_s - lse) out_s        lse = log sum_s e^lse_s        over the parts s that have keys
//
// Who owns what: a block combines a few rows, 64 features of each, on AMD 128. Its 16 lines of 16 threads are divided
// into `groups` lines per row, which walk the row's parts in turn, four features (16 bytes) per thread, on AMD twice;
// LDS (4 or 8 KB) adds the lines of a row. Each line computes the weights itself: first one part per thread, then once
// more in every thread of the line when it adds the part. These exponentials are few compared with the bytes; with
// where rows lie, they are most of the instructions, and bind AMD's vector units where a thread has four features.
//
// Floor: each part is read once; memory binds.
#pragma once

#include "attention/combine.h"
#include "tile/lds_tile.h"
#include "tile/vectors.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::attention {

constexpr int kCombineLines = 16, kCombineLineThreads = 16, kCombineThreads = kCombineLines * kCombineLineThreads;
constexpr int kCombineVecs = kAsyncCopies ? 1 : 2;  // of four features, for a thread
constexpr int kCombineColumns = 4 * kCombineVecs * kCombineLineThreads;

// Parameters that all rows share.
struct Parts {
  const float *out, *lse;
  int64_t out_step, lse_step;  // from part to part
  int splits, dv;
  int groups;         // lines per row: a power of two
  bool is_aligned16;  // rows of the parts and of out begin at multiples of 16 bytes and consist of 16-byte vectors
};
// Offsets of one row: its parts, its out and its lse.
struct PartsRow {
  int64_t out_part, lse_part, out, lse;
  bool has_sink, lse_with_sink;
  float sink;
};

// The parts that a split-KV forward call writes to its workspace: out (splits, B, HQ, length_q, DV), each part
// normalised over its own keys, and lse (splits, B, HQ, length_q), infinite where a part has no keys.
struct ForwardParts {
  float *out, *lse;

  XLSTM_HOST_DEVICE static int64_t rows(const xlstm_attention& in) { return in.batch * in.heads_q * in.length_q; }
  XLSTM_HOST_DEVICE static int64_t row(const xlstm_attention& in, int64_t b, int64_t head, int64_t i) {
    return (b * in.heads_q + head) * in.length_q + i;
  }
  static size_t bytes(const xlstm_attention& in, int64_t splits) {
    return splits > 1 ? size_t(splits * rows(in) * (in.dv + 1)) * sizeof(float) : 0;
  }
  static ForwardParts in_workspace(const xlstm_attention& in, int64_t splits, void* workspace) {
    float* out = static_cast<float*>(workspace);
    return {out, out + splits * rows(in) * in.dv};
  }
};
// First tile of part `split`, when `tiles` tiles are divided into `splits` parts whose sizes differ by one at most.
XLSTM_DEVICE int part_of(int tiles, int64_t split, int64_t splits) {
  const uint32_t each = uint32_t(tiles) / uint32_t(splits), more = uint32_t(tiles) % uint32_t(splits);
  return int(uint32_t(split) * each + (uint32_t(split) < more ? uint32_t(split) : more));
}
// Combines the parts into the call's out and lse, with its sink.
void combine_forward_parts(const xlstm_attention_forward&, const ForwardParts&, int64_t splits, Stream);

inline int64_t combine_blocks(int64_t rows, const Parts& p) {
  const int rows_of_block = kCombineLines / p.groups;
  return (rows + rows_of_block - 1) / rows_of_block * ((p.dv + kCombineColumns - 1) / kCombineColumns);
}

// Reduces x with f over the threads of a line; all threads get the result.
template <class F>
XLSTM_DEVICE float reduce_line(float x, F&& f) {
#pragma unroll
  for (int mask = kCombineLineThreads / 2; mask > 0; mask /= 2) x = f(x, shuffle_xor(x, mask));
  return x;
}

// row_of(n, row) fills in row n and returns whether the row exists.
template <class E, class RowOf>
XLSTM_DEVICE void combine_rows(const Parts& p, E* out, float* lse, RowOf&& row_of) {
  __shared__ Vec16 sums[kCombineVecs][kCombineThreads];
  const int tiles = (p.dv + kCombineColumns - 1) / kCombineColumns, tile = int(blockIdx.x) % tiles;
  const int line = int(threadIdx.x) / kCombineLineThreads, lane = int(threadIdx.x) % kCombineLineThreads;
  const int first = line % p.groups;
  const auto column = [&](int v) { return tile * kCombineColumns + 4 * (v * kCombineLineThreads + lane); };
  PartsRow row;
  const bool valid = row_of(int64_t(int(blockIdx.x) / tiles) * (kCombineLines / p.groups) + line / p.groups, row);

  float max_lse = -__builtin_inff(), weight_sum = 0, sum[kCombineVecs][4] = {};
  if (valid) {
    const float* lses = p.lse + row.lse_part;
    for (int s = lane; s < p.splits; s += kCombineLineThreads)
      if (const float x = lses[s * p.lse_step]; has_keys(x)) max_lse = fmaxf(max_lse, x);
    max_lse = reduce_line(max_lse, [](float x, float y) { return fmaxf(x, y); });
    for (int s = lane; s < p.splits; s += kCombineLineThreads)
      if (const float x = lses[s * p.lse_step]; has_keys(x)) weight_sum += exp2_fast((x - max_lse) * kLog2E);
    weight_sum = reduce_line(weight_sum, [](float x, float y) { return x + y; });
    const float* parts = p.out + row.out_part;
    for (int s = first; s < p.splits; s += p.groups) {
      const float x = lses[s * p.lse_step];
      if (!has_keys(x)) continue;
      const float weight = exp2_fast((x - max_lse) * kLog2E);
      const TokenRows<float> part{parts, p.out_step, p.dv, p.is_aligned16};
#pragma unroll
      for (int v = 0; v < kCombineVecs; ++v) {
        if (column(v) >= p.dv) continue;
        const Vec16 vec = part.vec16(s, column(v), true);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[v][j] += weight * as_float(vec.word[j]);
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kCombineVecs; ++v)
    sums[v][threadIdx.x] = {{as_bits(sum[v][0]), as_bits(sum[v][1]), as_bits(sum[v][2]), as_bits(sum[v][3])}};
  __syncthreads();
  if (!valid || first != 0) return;
  for (int g = 1; g < p.groups; ++g)
#pragma unroll
    for (int v = 0; v < kCombineVecs; ++v) {
      const Vec16 vec = sums[v][threadIdx.x + g * kCombineLineThreads];
#pragma unroll
      for (int j = 0; j < 4; ++j) sum[v][j] += as_float(vec.word[j]);
    }
  const float keys = weight_sum == 0 ? -__builtin_inff() : max_lse + ::log(weight_sum);  // NaN propagates
  const WithSink<float> sink = row.has_sink ? with_sink(keys, row.sink, row.lse_with_sink) : without_sink(keys);
  const float factor = weight_sum == 0 ? 0.0f : sink.factor / weight_sum;
#pragma unroll
  for (int v = 0; v < kCombineVecs; ++v) {
    if (column(v) >= p.dv) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) sum[v][j] *= factor;
    store_run(out + row.out, column(v), p.dv, p.is_aligned16, sum[v]);
  }
  if (column(0) == 0) lse[row.lse] = sink.lse;
}

}  // namespace xlstm::gpu::attention
