// SPDX-License-Identifier: Apache-2.0
// The mLSTM's step within a whole step (engine/megakernel/megakernel.h): tiles of C by the tiles of
// mlstm/recurrent/recurrent.h, each a multiprocessor's own, from words that others leave to words that others look for.
#pragma once

#include "engine/megakernel/mailbox.h"
#include "engine/megakernel/megakernel_weight_ring.h"
#include "mlstm/recurrent/recurrent_step.h"

namespace xlstm::gpu::engine {

struct WholeToken {
  using Tile = mlstm::HeadTile<float, kStepColumns>;
  using TileSums = mlstm::PartialSums<float, kStepColumns, kWholeWarps>;
  static_assert(sizeof(TileSums) == kStepSumBytes && sizeof(mlstm::OneStep) <= kStepBytes);

  const WholeParams& p;
  char* lds;

  XLSTM_DEVICE WholeToken(const WholeParams& params, char* memory) : p(params), lds(memory) {}

  // A token's pieces of q, k and the tile's v, to LDS, by all warps but the first, which makes gates. Then a barrier.
  XLSTM_DEVICE void bring_token(int block, int head, int tile) const {
    const int keys = p.step.q.columns / 4, all = 2 * keys + kStepColumns / 4;
    for (int at = int(threadIdx.x) - kWave; at < all; at += kWholeThreads - kWave) {
      if (at < 0) continue;
      const int piece = at < keys ? 0 : at < 2 * keys ? 1 : 2, of = at - piece * keys;
      const int begin = piece < 2 ? head * p.step.q.columns : head * p.step.v.columns + tile * kStepColumns;
      const Vec16 own = await_piece(p.to(Phase::projections, piece, block) + begin + of * 4);
      reinterpret_cast<Vec16*>(lds + p.room.token)[at] = own;
    }
  }
  XLSTM_DEVICE void step(int at) {
    const WholeBlock& block = p.block[at];
    const int keys = p.step.q.columns, values = p.step.v.columns, tiles = p.step.tiles * p.heads;
    TileSums& sums = *reinterpret_cast<TileSums*>(lds + p.room.received);
    mlstm::OneStep& one = *reinterpret_cast<mlstm::OneStep*>(lds + p.room.step);
#pragma unroll 1
    for (int turn = int(blockIdx.x); turn < tiles; turn += int(gridDim.x)) {
      const int head = int(unsigned(turn) / unsigned(p.step.tiles)), which = turn % p.step.tiles;
      float* const c = block.c + int64_t(head) * keys * values;
      Tile tile(p.step, which);
      tile.load(c, block.n + head * keys);  // the last token's, before what waits
      mlstm::OneGate gate;
      if (gate.computes) {
        gate.m = double(block.m[head]);
        gate.x = double(await_word(p.to(Phase::projections, gate.is_input ? kFirstGate : kFirstGate + 1, at) + head));
      }
      bring_token(at, head, which);
      gate.compute(p.step, one);
      __syncthreads();
      const float* const token = reinterpret_cast<const float*>(lds + p.room.token);
      tile.q_at = token + tile.row, tile.k_at = token + keys + tile.row;
      tile.v_at = token + 2 * keys + tile.column - which * kStepColumns;
      tile.fetch();
      float h[Tile::kWidth] = {}, l = 0;
      tile.update({one.factor[0], 0, one.factor[1]}, h, l);
      tile.store_c(c);
      if (tile.column == 0) tile.store_n(p.step.n_last + head * keys);
      if (which == 0 && threadIdx.x == 0) p.step.m_last[head] = float(one.m);
      mlstm::store_partial_sums<Tile>(sums, 0, h, l);
      __syncthreads();
      const int waves = (keys / Tile::kRows * Tile::kLanes + kWave - 1) / kWave;
      if (threadIdx.x < kStepColumns) {
        const float own = mlstm::TokenOutput<float>::sum_up(p.step, sums, 0, waves, one.m, l);
        float* const h_at = p.from(Phase::output, at) + head * values + which * kStepColumns;
        leave(h_at + threadIdx.x, own);
      }
      __syncthreads();
    }
  }
  // n and m, which this block has left in workspace, to where they are updated in place: every tile of a head has read
  // them, for all of h is there.
  XLSTM_DEVICE void settle(const WholeBlock& block) const {
    const int keys = p.step.q.columns;
    for (int turn = int(blockIdx.x); turn < p.step.tiles * p.heads; turn += int(gridDim.x)) {
      if (turn % p.step.tiles) continue;
      const int head = turn / p.step.tiles;
      for (int k = int(threadIdx.x); k < keys; k += kWholeThreads)
        block.n[head * keys + k] = p.step.n_last[head * keys + k];
      if (threadIdx.x == 0) block.m[head] = p.step.m_last[head];
    }
  }
};

}  // namespace xlstm::gpu::engine
