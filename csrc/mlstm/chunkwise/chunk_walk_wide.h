// SPDX-License-Identifier: Apache-2.0
// The walk (chunk_walk.h) for states of more rows than registers hold. In each chunk a block loads the state from
// workspace into its registers a slice of kWideRows rows at a time, updates it, and stores it again:
//
//     out = f sum over slices (a C) + scores y          C_slice = decay C_slice + (w x)^T y
//
// Floor: the state's traffic binds, 8 bytes for each of its elements and chunk, from L2 where the state fits. No
// sequence is split into segments, and no load is in flight while a slice is multiplied: this kernel is for head dims
// that few models have.
#pragma once

#include "mlstm/chunkwise/chunk_walk.h"
#include "mlstm/chunkwise/normalisers.h"

namespace xlstm::gpu::mlstm {

template <class E, int kChunk>
struct WideWalk : Walk<E, kWideRows, kChunk, true> {
  using Base = Walk<E, kWideRows, kChunk, true>;
  using Base::Base, Base::p, Base::segment, Base::tile, Base::first_row, Base::pending_decay, Base::lane;
  static constexpr int kSliceFloats = Base::kStateRegisters * Base::kThreads;

  // Address of the current slice, stored in the order of the registers.
  XLSTM_DEVICE float* slice_of(float* states) const {
    const int slice = first_row / kWideRows;
    return global(states) + ((int64_t(segment.state) * p->tiles + tile) * p->slices + slice) * kSliceFloats;
  }
  template <class F>
  XLSTM_DEVICE void each_slice(F&& f) {
    for (int slice = 0; slice < p->slices; ++slice) {
      p = reload_params(p);
      first_row = slice * kWideRows;
      f();
    }
  }

  XLSTM_DEVICE void store_initial_states() {
    each_slice([&] {
      this->load_state();
      this->store_registers(slice_of(p->segment_states));
    });
  }

  // Updates the current slice with chunk n, and adds the slice's part of the output to out.
  XLSTM_DEVICE void walk_slice(int n, Strip<E> (&out)[Base::kTStrips][Base::kYStrips],
                               const typename Base::ChunkTiles& tiles) {
    typename Base::Stages s;
    __syncthreads();  // all waves have read the previous slice
    this->fetch_a(s, n);
    this->fetch_rest(s, n);
    arrive([&] {
      if (p->out.data) s.a.store(tiles.a);
      s.factors.store({tiles.factors});
    });
    this->each_register(slice_of(p->segment_states) + opaque_thread(), [](float& v, const float* from) { v = *from; });
    Strip<E> part[Base::kTStrips][Base::kYStrips];
    if (p->out.data) this->multiply_state(part, tiles);
    if constexpr (!kAsyncCopies)
      arrive([&] {
        s.x.store(tiles.x);
        s.y.store(tiles.y);
        if (p->out.data) p->reverse ? s.transposed_scores.store(tiles.scores) : s.scores.store(tiles.scores);
        if (p->vector) s.vector.store(tiles.vector());
      });
    this->add_chunk(part, tiles, s.decay);
    this->apply_decay(pending_decay);
    pending_decay = 1;
    this->store_registers(slice_of(p->segment_states));
#pragma unroll
    for (int ts = 0; ts < Base::kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < Base::kYStrips; ++ys)
#pragma unroll
        for (int j = 0; j < Strip<E>::kRegisters; ++j) out[ts][ys].value[j] += part[ts][ys].value[j];
  }

  XLSTM_DEVICE void run() {
    store_initial_states();
    const int chunks = segment.last_chunk - segment.first_chunk;
    for (int n = 0; n < chunks; ++n) {
      lane = opaque_thread() % kWave;
      if (n + 1 == chunks && p->state_before_last)
        each_slice([&] {
          this->each_register(slice_of(p->segment_states) + opaque_thread(),
                              [](float& v, const float* from) { v = *from; });
          this->store_registers(slice_of(p->state_before_last));
        });
      const typename Base::ChunkTiles tiles = this->chunk_tiles(n);
      Strip<E> out[Base::kTStrips][Base::kYStrips];
#pragma unroll
      for (int ts = 0; ts < Base::kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < Base::kYStrips; ++ys) out[ts][ys].zero();
      each_slice([&] { walk_slice(n, out, tiles); });
      if (!p->out.data) continue;
      typename Base::Stages s;
      this->fetch_output_inputs(s, n);
      if constexpr (kAsyncCopies) arrive([] {});
      const int64_t t0 = this->begin_of(n);
      this->write_outputs(out, tiles, s, t0, this->valid_of(t0), segment.in_slots(p->where, this->chunk_at(n)));
    }
    each_slice([&] {
      this->each_register(slice_of(p->segment_states) + opaque_thread(),
                          [](float& v, const float* from) { v = *from; });
      this->store_state();
    });
  }
};

template <class E, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kWideRows, kChunk).threads) void chunk_walk_wide(
    const WalkParams params) {
  if constexpr (has_wide_walk(kFamily, sizeof(E), kChunk)) {
    extern __shared__ __align__(128) char lds[];
    const WalkParams* p = reload_params(kernel_params(params));
    const Segment segment = segment_of(p->where, blockIdx.x / p->tiles, 0, p->segment_chunks, p->reverse);
    if (segment.empty) return;
    WideWalk<E, kChunk>(p, segment, blockIdx.x % p->tiles, lds).run();
  }
}

}  // namespace xlstm::gpu::mlstm
