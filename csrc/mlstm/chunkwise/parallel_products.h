// SPDX-License-Identifier: Apache-2.0
// Products of the parallel schedule (parallel_scores.h): a triangular matrix of scores times tokens.
//
// A block has two chunks of the output by kProductColumns columns. It walks over pairs of chunks of y, up to its tokens
// or, where scores are transposed, from its tokens on: half of the waves take the first chunk of each pair, the others
// the second, and the two sums are added in LDS at the end. Scores go from memory to the registers that multiply them;
// y goes through LDS, which turns it, in two buffers with one barrier a step.
//
// Floor: S / 2 flops and two bytes a token and column of output; latency binds.
#pragma once

#include "arch/operands.h"
#include "mlstm/chunkwise/chunk_rows_cdna.h"
#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/chunkwise/parallel_params.h"
#include "mlstm/gpu/sequences.h"

namespace xlstm::gpu::mlstm {

template <class E>
struct ParallelProducts {
  static constexpr int kChunk = kParallelChunk, n = kVec16Elements<E>, kTilePairs = kChunk * kChunk;
  static constexpr int kGroups = 2, kGroupThreads = kProductThreads / kGroups;  // waves that share chunks of y
  static constexpr int kTStrips = kProductTokens / kChunk;
  static constexpr int kYStrips = kProductColumns / (kGroupThreads / 64) / kStripColumns, kYPerWave = kYStrips * 16;
  using StageY = Stage<E, kChunk, kProductColumns, true, kGroupThreads>;
  using YTile = typename StageY::Storage;
  using Rows = ChunkRows<E, kChunk>;
  static_assert(kStep<E> == kChunk && YTile::kBytes * 2 * kGroups == kProductLds);

  struct Loads {  // of a step
    StageY y;
    StreamOperand<E> scores[kTStrips];
  };

  const ParallelProductParams& params;
  const Sequences& where;
  const ParallelProduct& p;
  char* lds;
  Head head;
  int tile, chunks, out_chunk, group, thread;  // out_chunk: the block's first; thread: of the group

  XLSTM_DEVICE ParallelProducts(const ParallelProductParams& all, const ParallelProduct& product, uint32_t block,
                                char* memory)
      : params(all), where(all.where), p(product), lds(memory) {
    block = block_by_die(p.blocks, block);
    const int pairs = chunk_pairs(), pair = int(block / uint32_t(p.tiles) % uint32_t(pairs));
    tile = int(block % uint32_t(p.tiles));
    head = head_of(where, block / uint32_t(p.tiles) / uint32_t(pairs));
    chunks = int(where.slots);
    out_chunk = 2 * (p.transposed ? pair : pairs - 1 - pair);  // the longest first
    group = wave_id() / (kGroupThreads / 64);
    thread = int(threadIdx.x) % kGroupThreads;
  }
  XLSTM_DEVICE int chunk_pairs() const { return int(where.slots + 1) / 2; }
  XLSTM_DEVICE Rows column_rows(const Tokens& x) const {
    TokenRows<E> of = rows<E>(x, head);
    of.data += tile * kProductColumns;
    of.columns -= tile * kProductColumns;
    return Rows(of, 0);
  }
  // A chunk of a tensor; nothing where it is beyond the sequence.
  XLSTM_DEVICE MemoryRange range_of(const Rows& rows, int chunk) const {
    const int left = int(where.length) - chunk * kChunk;
    if (left <= 0) return {rows.first, 0};
    return rows.chunk(chunk, left < kChunk ? left : kChunk);
  }
  XLSTM_DEVICE YTile y_tile(int step) const {
    return {reinterpret_cast<E*>(lds + (step % 2 * kGroups + group) * YTile::kBytes)};
  }

  XLSTM_DEVICE void load(Loads& to, const Rows& y, int chunk) const {
    const uint32_t offset = y.offset(StageY::first_token(thread), StageY::first_column(thread));
    to.y.fetch_range(range_of(y, chunk), y.stride, thread < StageY::kUnits ? offset : kBeyond);
    const int64_t matrix = head.row * where.slots * where.slots;
    const int lane16 = lane_id() % 16;
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts) {
      const int later = p.transposed ? chunk : out_chunk + ts, earlier = p.transposed ? out_chunk + ts : chunk;
      const bool exists = earlier <= later && later < chunks;
      const int64_t at = matrix + (exists ? later * where.slots + earlier : 0);
      const MemoryRange scores{static_cast<const char*>(p.scores) + at * (kTilePairs * int(sizeof(E))),
                               exists ? kTilePairs * uint32_t(sizeof(E)) : 0};
#pragma unroll
      for (int j = 0; j < kStreamVec16s<E>; ++j)
        to.scores[ts].k[j] = load_vec16(
            scores, uint32_t(interleaved_row(lane16, j) * kChunk + lane_id() / 16 * n) * uint32_t(sizeof(E)));
    }
  }
  XLSTM_DEVICE void multiply_step(Strip<E> (&sum)[kTStrips][kYStrips], const StreamOperand<E> (&scores)[kTStrips],
                                  const YTile& y) const {
    const int y0 = thread / 64 * kYPerWave;
    ChainOperand<E> chain[kYStrips];
#pragma unroll
    for (int ys = 0; ys < kYStrips; ++ys) chain[ys] = load_chain_along<E>(y, y0 + ys * kStripColumns, 0);
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) multiply(sum[ts][ys], scores[ts], chain[ys]);
  }

  // ---- the epilogue: the groups' sums through LDS to memory, 16 bytes of a token's row at a time

  XLSTM_DEVICE void add_groups(Strip<E> (&sum)[kTStrips][kYStrips]) const {
    constexpr int kEach = Strip<E>::kRegisters;
    float* const sums = reinterpret_cast<float*>(lds) + thread;
    const auto each = [&](auto&& f) {
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys)
#pragma unroll
          for (int r = 0; r < kEach; ++r)
            f(sum[ts][ys].value[r], sums[((ts * kYStrips + ys) * kEach + r) * kGroupThreads]);
    };
    __syncthreads();  // all waves have read y
    if (group == 1) each([](float x, float& at) { at = x; });
    __syncthreads();
    if (group == 0) each([](float& x, float at) { x += at; });
    __syncthreads();
  }
  // 1 / N of a token, in forward; the first thread of its row in the first tile writes l.
  XLSTM_DEVICE float inverse_n(int chunk, int t, bool first) const {
    if (!params.row_sums) return 1;
    const int64_t slot = head.row * where.slots + chunk, groups = score_groups(where.slots);
    const int64_t token = int64_t(chunk) * kChunk + t;
    if (token >= where.length) return 0;
    float l = 0;
    for (int group = 0; group <= chunk / kScoreWaves; ++group)
      l += params.row_sums[(slot * groups + group) * kChunk + t];
    if (params.l && first) params.l[head.row * where.length + token] = l;
    return float(1 / normaliser(params.normalize, l, params.m[slot * kChunk + t], params.eps));
  }
  XLSTM_DEVICE static int out_offset(int token, int column) {
    return xlstm::gpu::mlstm::out_offset(kFamily, sizeof(E), kProductColumns, token, column);
  }
  XLSTM_DEVICE void write(const Strip<E> (&sum)[kTStrips][kYStrips]) const {
    float* const out = reinterpret_cast<float*>(lds);
    if (group == 0)
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys)
#pragma unroll
          for (int r = 0; r < Strip<E>::kRegisters; ++r) {
            const StripPosition at = Strip<E>::position(r);
            out[out_offset(ts * kChunk + at.row, thread / 64 * kYPerWave + ys * kStripColumns + at.column)] =
                sum[ts][ys].value[r];
          }
    __syncthreads();
    constexpr int kRowVec16s = kProductColumns / n, kTokensAtOnce = kProductThreads / kRowVec16s;
    static_assert(kTokensAtOnce == kChunk);
    const Rows to = column_rows(p.out);
    const int t = int(threadIdx.x) / kRowVec16s, column = int(threadIdx.x) % kRowVec16s * n;
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts) {
      if (out_chunk + ts >= chunks) break;
      const int token = ts * kChunk + t;
      const float by = inverse_n(out_chunk + ts, t, tile == 0 && column == 0);
      float value[n];
#pragma unroll
      for (int j = 0; j < n; j += 4) {
        const Vec16 sums = read_vec16(out + out_offset(token, column + j));
#pragma unroll
        for (int e = 0; e < 4; ++e) value[j + e] = as_float(sums.word[e]) * by;
      }
      store_vec16(range_of(to, out_chunk + ts), to.offset(t, column),
                  __builtin_bit_cast(Vec16, pack_elements<E>(value)));
    }
  }

  XLSTM_DEVICE void run() const {
    const Rows y = column_rows(p.y);
    const int begin = p.transposed ? out_chunk / 2 : 0, end = p.transposed ? chunk_pairs() : out_chunk / 2 + 1;
    const auto chunk_of = [&](int step) { return 2 * (begin + step) + group; };
    Strip<E> sum[kTStrips][kYStrips];
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) sum[ts][ys].zero();
    Loads next;
    load(next, y, chunk_of(0));
    for (int step = 0; step < end - begin; ++step) {
      StreamOperand<E> scores[kTStrips];
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts) scores[ts] = next.scores[ts];
      next.y.store_fetched(y_tile(step), thread);
      load(next, y, chunk_of(step + 1 < end - begin ? step + 1 : step));  // a load again costs less than a branch
      sched_barrier();
      __syncthreads();
      multiply_step(sum, scores, y_tile(step));
      sched_barrier();
    }
    add_groups(sum);
    write(sum);
  }
};

template <class E>
__global__ __launch_bounds__(kProductThreads, 4) void parallel_products(const ParallelProductParams params) {
  if constexpr (kFamily == Family::cdna) {
    extern __shared__ __align__(128) char lds[];
    uint32_t block = blockIdx.x;
    int which = 0;
    for (; which + 1 < kMaxParallelProducts && block >= params.products[which].blocks; ++which)
      block -= params.products[which].blocks;
    ParallelProducts<E>(params, params.products[which], block, lds).run();
  }
}

}  // namespace xlstm::gpu::mlstm
