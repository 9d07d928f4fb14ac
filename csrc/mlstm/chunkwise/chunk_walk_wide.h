// SPDX-License-Identifier: Apache-2.0
// The walk (chunk_walk.h) for states of more rows than registers hold. In each chunk a block loads the state from
// workspace into its registers a slice of kWideRows rows at a time, updates it, and stores it again:
//
//     out = f sum over slices (a C) + scores y          C_slice = decay C_slice + (w x)^T y
//
// For: chunkwise calls with more than 512 rows of state (DHQK in forward and for dv, DHHV for dq and dk), so that every
// head dim has a kernel. Few models have such head dims. In bfloat16 it is faster than plain torch's chunkwise form
// from four heads on, in float32 mostly slower (docs/lab/mlstm-h200.md); tests/gfx942 executes it with 520 and 577
// rows.
//
// Floor: the state's traffic binds, 8 bytes for each of its elements and chunk, from L2 where the state fits. No
// sequence is split into segments, and no load is in flight while a slice is multiplied.
#pragma once

#include "mlstm/chunkwise/chunk_walk.h"
#include "mlstm/chunkwise/normalisers.h"

namespace xlstm::gpu::mlstm {

template <class E, int kChunk, class Output>
struct WideWalk {
  using SliceWalk = Walk<E, kWideRows, kChunk, Output, true>;
  static constexpr WalkTerms kTerms = Output::kTerms;
  using Outputs = Strip<E>[SliceWalk::kTStrips][SliceWalk::kYStrips];
  static constexpr int kSliceFloats = SliceWalk::kStateRegisters * SliceWalk::kThreads;

  SliceWalk walk;  // its state is the current slice

  // Address of the current slice, stored in the order of the registers.
  XLSTM_DEVICE float* slice_of(float* states) const {
    const auto& in = walk.in;
    const int slice = in.first_row / kWideRows;
    return global(states) + ((int64_t(in.segment.state) * in.p->tiles + in.tile) * in.p->slices + slice) * kSliceFloats;
  }
  template <class F>
  XLSTM_DEVICE void each_slice(F&& f) {
    auto& in = walk.in;
    for (int slice = 0; slice < in.p->slices; ++slice) {
      in.p = reload_params(in.p);
      in.first_row = slice * kWideRows;
      f();
    }
  }

  XLSTM_DEVICE void store_initial_states() {
    each_slice([&] {
      walk.load_state();
      walk.store_registers(slice_of(walk.in.p->segment_states));
    });
  }

  // Updates the current slice with chunk n, and adds the slice's part of the output to out.
  XLSTM_DEVICE void walk_slice(int n, Outputs& out, const typename SliceWalk::ChunkTiles& tiles) {
    auto& in = walk.in;
    typename SliceWalk::Stages s;
    __syncthreads();  // all waves have read the previous slice
    in.fetch_a(s, n);
    in.fetch_rest(s, n);
    arrive([&] {
      s.a.store(tiles.a);
      s.factors.store({tiles.factors});
    });
    walk.load_registers(slice_of(in.p->segment_states));
    Outputs part;
    walk.multiply_state(part, tiles);
    if constexpr (!kAsyncCopies)
      arrive([&] {
        s.x.store(tiles.x);
        s.y.store(tiles.y);
        in.store_scores(s, tiles);
        if (kTerms.gradient_terms) s.vector.store(tiles.vector());
      });
    walk.add_chunk(part, tiles, s.decay);
    walk.apply_decay(walk.pending_decay);
    walk.pending_decay = 1;
    walk.store_registers(slice_of(in.p->segment_states));
#pragma unroll
    for (int ts = 0; ts < SliceWalk::kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < SliceWalk::kYStrips; ++ys)
#pragma unroll
        for (int j = 0; j < Strip<E>::kRegisters; ++j) out[ts][ys].value[j] += part[ts][ys].value[j];
  }

  XLSTM_DEVICE void run() {
    auto& in = walk.in;
    store_initial_states();
    const int chunks = in.segment.last_chunk - in.segment.first_chunk;
    for (int n = 0; n < chunks; ++n) {
      walk.lane = opaque_thread() % kWave;
      if (n + 1 == chunks && in.p->state_before_last)
        each_slice([&] {
          walk.load_registers(slice_of(in.p->segment_states));
          walk.store_registers(slice_of(in.p->state_before_last));
        });
      const typename SliceWalk::ChunkTiles tiles = in.chunk_tiles(n);
      Outputs out;
#pragma unroll
      for (int ts = 0; ts < SliceWalk::kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < SliceWalk::kYStrips; ++ys) out[ts][ys].zero();
      each_slice([&] { walk_slice(n, out, tiles); });
      typename SliceWalk::Stages s;
      in.fetch_output_inputs(s, n);
      if constexpr (kAsyncCopies) arrive([] {});
      const int64_t t0 = in.begin_of(n);
      walk.write_outputs(out, tiles, s, t0, in.valid_of(t0), in.segment.in_slots(in.p->where, in.chunk_at(n)));
    }
    each_slice([&] {
      walk.load_registers(slice_of(in.p->segment_states));
      walk.store_state();
    });
  }
};

template <class E, int kChunk, class Output>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kWideRows, kChunk).threads) void chunk_walk_wide(
    const WalkParams params) {
  if constexpr (has_wide_walk(kFamily, sizeof(E), kChunk)) {
    extern __shared__ __align__(128) char lds[];
    const WalkParams* p = reload_params(kernel_params(params));
    const Segment segment = segment_of(p->where, blockIdx.x / p->tiles, 0, p->segment_chunks, Output::kTerms.reverse);
    if (segment.empty) return;
    WideWalk<E, kChunk, Output>{{p, segment, int(blockIdx.x % p->tiles), lds}}.run();
  }
}

}  // namespace xlstm::gpu::mlstm
