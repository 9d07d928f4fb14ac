// SPDX-License-Identifier: Apache-2.0
// The mLSTM step within the megakernel (engine/megakernel/megakernel.h): each multiprocessor updates tiles of C, with
// the tiles of mlstm/recurrent/recurrent.h. q, k, v and the gates come from mailboxes, and h goes to mailboxes.
#pragma once

#include "engine/megakernel/mailbox.h"
#include "engine/megakernel/megakernel_weight_ring.h"
#include "mlstm/recurrent/recurrent_step.h"

namespace xlstm::gpu::engine {

struct MegakernelMlstmStep {
  using Tile = mlstm::HeadTile<float, kStepColumns>;
  using TileSums = mlstm::PartialSums<float, kStepColumns, kMegakernelWarps>;
  static_assert(sizeof(TileSums) == kStepSumBytes && sizeof(mlstm::OneStep) <= kStepBytes);

  const MegakernelParams& p;
  char* lds;

  XLSTM_DEVICE MegakernelMlstmStep(const MegakernelParams& params, char* memory) : p(params), lds(memory) {}

  // Loads a token's q, k and the tile's part of v from mailboxes to shared memory, with all warps but the first, which
  // computes the gates. A barrier must follow.
  XLSTM_DEVICE void load_token(int block, int head, int tile) const {
    const int keys = p.step.q.columns / 4, all = 2 * keys + kStepColumns / 4;
    for (int index = int(threadIdx.x) - kWave; index < all; index += kMegakernelThreads - kWave) {
      if (index < 0) continue;
      const int linear = index < keys ? 0 : index < 2 * keys ? 1 : 2, vec16 = index - linear * keys;
      const int begin = linear < 2 ? head * p.step.q.columns : head * p.step.v.columns + tile * kStepColumns;
      const Vec16 data = spin_until_vec16_published(p.to(Phase::projections, linear, block) + begin + vec16 * 4);
      reinterpret_cast<Vec16*>(lds + p.smem.token)[index] = data;
    }
  }
  XLSTM_DEVICE void step(int block_index) {
    const MegakernelBlock& block = p.block[block_index];
    const int keys = p.step.q.columns, values = p.step.v.columns, tiles = p.step.tiles * p.heads;
    TileSums& sums = *reinterpret_cast<TileSums*>(lds + p.smem.partial_sums);
    mlstm::OneStep& one = *reinterpret_cast<mlstm::OneStep*>(lds + p.smem.step);
#pragma unroll 1
    for (int state_tile = int(blockIdx.x); state_tile < tiles; state_tile += int(gridDim.x)) {
      const int head = int(unsigned(state_tile) / unsigned(p.step.tiles)), which = state_tile % p.step.tiles;
      float* const c = block.c + int64_t(head) * keys * values;
      Tile tile(p.step, which);
      tile.load(c, block.n + head * keys);  // the state before this token, ahead of the loads that wait
      mlstm::OneGate gate;
      if (gate.computes) {
        gate.m = double(block.m[head]);
        gate.x = double(spin_until_published(
            p.to(Phase::projections, gate.is_input ? kFirstGate : kFirstGate + 1, block_index) + head));
      }
      load_token(block_index, head, which);
      gate.compute(p.step, one);
      __syncthreads();
      const float* const token = reinterpret_cast<const float*>(lds + p.smem.token);
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
        const float h_value = mlstm::TokenOutput<float>::sum_up(p.step, sums, 0, waves, one.m, l);
        float* const h_at = p.from(Phase::output, block_index) + head * values + which * kStepColumns;
        publish(h_at + threadIdx.x, h_value);
      }
      __syncthreads();
    }
  }
  // Copies n and m from the workspace, where this block left them, to where they are updated in place: every tile of
  // the head has read the old ones, since all of h has been published.
  XLSTM_DEVICE void apply_pending_state(const MegakernelBlock& block) const {
    const int keys = p.step.q.columns;
    for (int state_tile = int(blockIdx.x); state_tile < p.step.tiles * p.heads; state_tile += int(gridDim.x)) {
      if (state_tile % p.step.tiles) continue;
      const int head = state_tile / p.step.tiles;
      for (int k = int(threadIdx.x); k < keys; k += kMegakernelThreads)
        block.n[head * keys + k] = p.step.n_last[head * keys + k];
      if (threadIdx.x == 0) block.m[head] = p.step.m_last[head];
    }
  }
};

}  // namespace xlstm::gpu::engine
