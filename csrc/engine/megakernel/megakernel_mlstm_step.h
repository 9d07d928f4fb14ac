// SPDX-License-Identifier: Apache-2.0
// The mLSTM step within the megakernels (engine/megakernel/megakernel.h, megakernel_rows.h): each multiprocessor
// updates tiles of C, with the tiles of mlstm/recurrent/recurrent.h. q, k, v and the gates come from mailboxes, and h
// goes to mailboxes.
//
// Of one row, all threads update a tile. Of several rows there are more tiles than a block has turns for, so groups of
// threads update a tile each, at a barrier of their own: while one waits for memory, another computes.
#pragma once

#include "engine/megakernel/mailbox.h"
#include "engine/megakernel/megakernel_weight_ring.h"
#include "mlstm/recurrent/recurrent_step.h"

namespace xlstm::gpu::engine {

// kRows: of x that the kernel is made for.
template <int kRows>
struct MegakernelMlstmStep {
  using Tile = mlstm::HeadTile<float, kStepColumns>;
  using TileSums = mlstm::PartialSums<float, kStepColumns, kMegakernelWarps>;
  static_assert(sizeof(TileSums) == kStepSumBytes && sizeof(mlstm::OneStep) <= kStepBytes);

  const MegakernelParams& p;
  char* lds;
  int threads, group, thread;  // of a group; which it is; the thread's index in it

  XLSTM_DEVICE MegakernelMlstmStep(const MegakernelParams& params, char* memory) : p(params), lds(memory) {
    threads = kRows == 1 ? kMegakernelThreads : threads_of_tile(p.step.q.columns);
    group = kRows == 1 ? 0 : int(threadIdx.x) / threads;
    thread = kRows == 1 ? int(threadIdx.x) : int(threadIdx.x) % threads;
  }

  XLSTM_DEVICE void sync() const {
    if constexpr (kRows == 1)
      __syncthreads();
    else
      barrier_sync(1 + group, threads);
  }
  XLSTM_DEVICE char* token() const { return lds + p.smem.token + group * token_bytes(p.step.q.columns); }

  // Tiles of C, of all heads of all rows; a group's first, and how far apart the next is.
  XLSTM_DEVICE int tiles() const { return p.step.tiles * p.heads * p.batch; }
  XLSTM_DEVICE int first_tile() const { return int(blockIdx.x) + group * int(gridDim.x); }
  XLSTM_DEVICE int stride() const { return kMegakernelThreads / threads * int(gridDim.x); }
  struct Place {
    int state, row, head, tile;  // a head of a row of the batch; the tile's index in it
  };
  XLSTM_DEVICE Place place_of(int state_tile) const {
    const int state = int(unsigned(state_tile) / unsigned(p.step.tiles));
    const int row = kRows == 1 ? 0 : state / p.heads;
    return {state, row, state - row * p.heads, state_tile - state * p.step.tiles};
  }
  // The tile of a head that n and m are written with: another of each head, so that blocks have alike many.
  XLSTM_DEVICE int n_tile(int state) const { return state % p.step.tiles; }
  XLSTM_DEVICE int64_t c_offset(const Place& at) const {
    return int64_t(at.state) * p.step.q.columns * p.step.v.columns;
  }

  // Prefetches the lines of a tile of C, of which there is one in a row, and of n and m to L2.
  XLSTM_DEVICE void prefetch(const MegakernelBlock& block, int state_tile) const {
    if (state_tile >= tiles()) return;
    const Place at = place_of(state_tile);
    const int keys = p.step.q.columns;
    const float* const c = block.c + c_offset(at) + at.tile * kStepColumns;
    if (thread < keys) prefetch_l2_line(c + int64_t(thread) * p.step.v.columns);
    if (thread % kStepColumns == 0 && thread < keys) prefetch_l2_line(block.n + at.state * keys + thread);
    if (thread == 0) prefetch_l2_line(block.m + at.state);
  }

  // Loads a token's q, k and the tile's part of v from mailboxes to shared memory, with all warps but the first, which
  // computes the gates. A barrier must follow.
  XLSTM_DEVICE void load_token(int block, const Place& at) const {
    const int keys = p.step.q.columns, values = p.step.v.columns, all = (2 * keys + kStepColumns) / 4;
    for (int index = thread - kWave; index < all; index += threads - kWave) {
      if (index < 0) continue;
      const int linear = index < keys / 4 ? 0 : index < keys / 2 ? 1 : 2, vec16 = index - linear * (keys / 4);
      const int begin = linear < 2 ? at.state * keys : at.state * values + at.tile * kStepColumns;
      const Vec16 data = spin_until_vec16_published(p.to(Phase::projections, linear, block) + begin + vec16 * 4);
      reinterpret_cast<Vec16*>(token())[index] = data;
    }
  }
  XLSTM_DEVICE void step(int block_index) {
    const MegakernelBlock& block = p.block[block_index];
    const int keys = p.step.q.columns, values = p.step.v.columns;
    TileSums& sums = *reinterpret_cast<TileSums*>(lds + p.smem.partial_sums);
    mlstm::OneStep& one = *reinterpret_cast<mlstm::OneStep*>(lds + p.smem.step + group * kStepBytes);
#pragma unroll 1
    for (int state_tile = first_tile(); state_tile < tiles(); state_tile += stride()) {
      const Place at = place_of(state_tile);
      float* const c = block.c + c_offset(at);
      Tile tile(p.step, at.tile, thread);
      tile.load(c, block.n + at.state * keys);  // the state before this token, ahead of the loads that wait
      if (kRows > 1) prefetch(block, state_tile + stride());
      mlstm::OneGate gate(thread);
      if (gate.computes) {
        gate.m = double(block.m[at.state]);
        gate.x = double(spin_until_published(
            p.to(Phase::projections, gate.is_input ? kFirstGate : kFirstGate + 1, block_index) + at.state));
      }
      load_token(block_index, at);
      gate.compute(p.step, one);
      sync();
      const float* const from = reinterpret_cast<const float*>(token());
      tile.q_at = from + tile.row, tile.k_at = from + keys + tile.row;
      tile.v_at = from + 2 * keys + tile.column - at.tile * kStepColumns;
      tile.fetch();
      float h[Tile::kWidth] = {}, l = 0;
      tile.update({one.factor[0], 0, one.factor[1]}, h, l);
      tile.store_c(c);
      if (at.tile == n_tile(at.state)) {
        if (tile.column == at.tile * kStepColumns) tile.store_n(p.step.n_last + at.state * keys);
        if (thread == 0) p.step.m_last[at.state] = float(one.m);
      }
      mlstm::store_partial_sums<Tile>(sums, 0, h, l);
      sync();
      const int first = group * (threads / kWave), waves = (keys / Tile::kRows * Tile::kLanes + kWave - 1) / kWave;
      if (thread < kStepColumns) {
        const float h_value =
            mlstm::TokenOutput<float>::sum_up(p.step, sums, 0, thread, first, first + waves, one.m, l);
        publish(p.from(Phase::output, block_index) + at.state * values + at.tile * kStepColumns + thread, h_value);
      }
      sync();
    }
  }
  // Copies n and m from the workspace, where this block left them, to where they are updated in place: every tile of
  // the head has read the old ones, since all of its h has been published. With one row the prologue of output has seen
  // that; with several it has seen the h of its own features.
  XLSTM_DEVICE void apply_pending_state(int block_index) const {
    const MegakernelBlock& block = p.block[block_index];
    const int keys = p.step.q.columns;
    for (int state_tile = first_tile(); state_tile < tiles(); state_tile += stride()) {
      const auto [state, row, head, tile] = place_of(state_tile);
      if (tile != n_tile(state)) continue;
      if constexpr (kRows > 1) {
        const float* const h = p.from(Phase::output, block_index) + state * p.step.v.columns;
        for (int n = thread; n < p.step.v.columns / 4; n += threads) spin_until_vec16_published(h + 4 * n);
        sync();
      }
      for (int k = thread; k < keys; k += threads) block.n[state * keys + k] = p.step.n_last[state * keys + k];
      if (thread == 0) block.m[state] = p.step.m_last[state];
    }
  }
};

}  // namespace xlstm::gpu::engine
