// SPDX-License-Identifier: Apache-2.0
// The walk (chunk_walk.h) for states of more rows than any kernel keeps in registers. In each chunk a block takes the
// state through its registers a slice of kWideRows rows at a time, from workspace and back:
//
//     out = f sum over slices (a C) + scores y          C_slice = decay C_slice + (w x)^T y
//
// The state's way to memory and back binds: 8 bytes for each of its elements and chunk, from L2 where it is not too
// large. No sequence is cut, and nothing is on its way while a slice is multiplied: this is for head dims that few
// models have.
#pragma once

#include "mlstm/chunkwise/chunk_walk.h"
#include "mlstm/chunkwise/normalisers.h"

namespace xlstm::gpu::mlstm {

template <class E, int kChunk>
struct WideWalk : Walk<E, kWideRows, kChunk, true> {
  using Base = Walk<E, kWideRows, kChunk, true>;
  using Base::Base, Base::p, Base::segment, Base::tile, Base::first_row, Base::held, Base::lane;
  static constexpr int kSliceFloats = Base::kStateRegisters * Base::kThreads;

  // Of the slice at hand, as its registers lie.
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

  XLSTM_DEVICE void begin() {
    each_slice([&] {
      this->load_state();
      this->store_registers(slice_of(p->between));
    });
  }

  // The slice at hand takes chunk n in, and out what it has for it.
  XLSTM_DEVICE void take_in(int n, Strip<E> (&out)[Base::kTStrips][Base::kYStrips], const typename Base::Room& r) {
    typename Base::Stages s;
    __syncthreads();  // the slice before is done with
    this->fetch_a(s, n);
    this->fetch_rest(s, n);
    arrive([&] {
      if (p->out.data) s.a.store(r.a);
      s.factors.store({r.numbers});
    });
    this->each_register(slice_of(p->between) + opaque_thread(), [](float& v, const float* from) { v = *from; });
    Strip<E> part[Base::kTStrips][Base::kYStrips];
    if (p->out.data) this->read_state(part, r);
    if constexpr (!kAsyncCopies)
      arrive([&] {
        s.x.store(r.x);
        s.y.store(r.y);
        if (p->out.data) p->reverse ? s.scores_turned.store(r.scores) : s.scores.store(r.scores);
        if (p->vector) s.vector.store(r.vector());
      });
    this->add_chunk(part, r, s.decay);
    this->settle(held);
    held = 1;
    this->store_registers(slice_of(p->between));
#pragma unroll
    for (int ts = 0; ts < Base::kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < Base::kYStrips; ++ys)
#pragma unroll
        for (int j = 0; j < Strip<E>::kRegisters; ++j) out[ts][ys].value[j] += part[ts][ys].value[j];
  }

  XLSTM_DEVICE void run() {
    begin();
    const int chunks = segment.last_chunk - segment.first_chunk;
    for (int n = 0; n < chunks; ++n) {
      lane = opaque_thread() % kWave;
      if (n + 1 == chunks && p->before_last)
        each_slice([&] {
          this->each_register(slice_of(p->between) + opaque_thread(), [](float& v, const float* from) { v = *from; });
          this->store_registers(slice_of(p->before_last));
        });
      const typename Base::Room r = this->room(n);
      Strip<E> out[Base::kTStrips][Base::kYStrips];
#pragma unroll
      for (int ts = 0; ts < Base::kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < Base::kYStrips; ++ys) out[ts][ys].zero();
      each_slice([&] { take_in(n, out, r); });
      if (!p->out.data) continue;
      typename Base::Stages s;
      this->fetch_outputs(s, n);
      if constexpr (kAsyncCopies) arrive([] {});
      const int64_t t0 = this->begin_of(n);
      this->write(out, r, s, t0, this->valid_of(t0), segment.in_slots(p->where, this->chunk_at(n)));
    }
    each_slice([&] {
      this->each_register(slice_of(p->between) + opaque_thread(), [](float& v, const float* from) { v = *from; });
      this->store_state();
    });
  }
};

template <class E, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kWideRows, kChunk).threads) void walk_wide(
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
