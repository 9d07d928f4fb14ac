// SPDX-License-Identifier: Apache-2.0
// The walk on a GPU, the common schedule: the one loop that forward and backward are made of.
//
//     out = f (a C) + scores y          C = decay C + (w x)^T y
//
//               direction   a    x    y    scores       f, w              out    state C
//   forward     forward     q    k    v    s (q k) D    inter, into       h N    C
//   dq          forward     dh   v    k    dS           inter / N, into   dq     C^T
//   dk          reverse     v    dh   q    dS^T         into, inter / N   dk     dC^T
//   dv          reverse     k    q    dh   (s q k D/N)^T  into, inter / N dv     dC
//
// (chunk_walk.h beside this has the same table for the CPU, where scores are made inside the walk. Here they come from
// scores.h, once for all blocks of a head. What n, dn and l add is of rank one, and is added in float.)
//
// Who owns what: a block walks one segment of one head for y_tile columns of y. Its waves hold the state, all rows by
// y_tile columns in float, in accumulators, for the whole walk: no chunk's state goes to memory. The
// state's accumulators are the next product's chain operand as they are. A chunk's a, x, y and scores come through LDS:
// where copies need no registers (NVIDIA) the next chunk is on its way into a second buffer while this one is
// multiplied; elsewhere a, and then the rest, take turns in one, and what comes next waits in registers.
//
// Floor, forward at 256/512: 4 DHQK DHHV + L (DHHV + DHQK) flops a token for the matrix units, each of q, k, v, h moved
// once. Each wave reads all of a and x from LDS for its 32 columns, an element for 32 multiply-adds. What binds,
// measured and executed, is beside it: vector instructions and the latency of a chunk's parts, one after the other
// (docs/design.md).
#pragma once

#include "mlstm/chunkwise/chunk_walk_tiles.h"

namespace xlstm::gpu::mlstm {

template <class E, int kRows, int kChunk, bool kWide = false>
struct Walk : WalkChunks<E, kRows, kChunk, kWide> {
  using Chunks = WalkChunks<E, kRows, kChunk, kWide>;
  using Chunks::fetch_a, Chunks::fetch_rest, Chunks::fetch_outputs;
  using Chunks::kShape, Chunks::kY, Chunks::kThreads;
  using Chunks::p, Chunks::segment, Chunks::tile;
  using Chunks::room, Chunks::slice_row, Chunks::tile_rows, Chunks::chunk_at, Chunks::begin_of, Chunks::valid_of;
  using typename Chunks::Room, typename Chunks::Stages, typename Chunks::StageRows;

  static constexpr int kXStrips = kShape.x_per_wave / kStep<E>, kTStrips = kChunk / kStep<E>;
  static constexpr int kYStrips = kColumnsPerWave / kStripColumns;
  // Of a lane's registers, floats' operands on RDNA take 24: there one is read when the last is done with, and y as it
  // is only where it is multiplied.
  static constexpr bool kOperandAhead = sizeof(StreamOperand<E>) <= 32;
  static constexpr int kStateRegisters = kXStrips * kYStrips * Strip<E>::kRegisters;

  int x0, y0, wave_x;
  int lane;                            // made anew for each chunk, with the addresses that follow from it
  Strip<E> state[kXStrips][kYStrips];  // C / held: the decay of chunks is kept apart until it is small
  float held = 1;

  XLSTM_DEVICE Walk(const WalkParams* params, const Segment& where, int y_tile_index, char* memory)
      : Chunks{params, where, y_tile_index, memory} {
    const int wave = wave_id();
    wave_x = wave % kShape.waves_x;
    x0 = wave_x * kShape.x_per_wave;
    y0 = wave / kShape.waves_x * kColumnsPerWave;
  }

  // ---- the state

  // f(x, y, value) for each element that this lane holds.
  template <class F>
  XLSTM_DEVICE void each(F&& f) {
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys)
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; ++r) {
          const StripPosition at = Strip<E>::position(r);
          f(slice_row() + x0 + xs * kStep<E> + at.row, tile * kY + y0 + ys * kStripColumns + at.column,
            state[xs][ys].value[r]);
        }
  }
  XLSTM_DEVICE bool inside(int x, int y) const { return x < p->x.columns && y < p->y.columns; }
  XLSTM_DEVICE int64_t offset(int x, int y) const {
    return segment.state * int64_t(p->x.columns) * p->y.columns + x * p->state_x + y * p->state_y;
  }
  // Between segments the state lies as the registers do.
  XLSTM_DEVICE float* between(int order) const {
    return global(p->between) +
           ((int64_t(segment.state) * (p->segments - 1) + order) * p->tiles + tile) * (kStateRegisters * kThreads);
  }

  // f(value, address) for each element, strip by strip, where the states lie as the registers do.
  template <class F>
  XLSTM_DEVICE void each_register(float* base, F&& f) {
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) {
        constexpr int kRegisters = Strip<E>::kRegisters;
        sched_barrier();
        float* at = opaque(base) + (xs * kYStrips + ys) * kRegisters * kThreads;
#pragma unroll
        for (int r = 0; r < kRegisters; ++r) f(state[xs][ys].value[r], at + r * kThreads);
      }
  }

  XLSTM_DEVICE void load_state() {
    if (p->alone || (segment.order() == 0 && !p->state_in))
      each([](int, int, float& v) { v = 0; });
    else if (segment.order() == 0)
      each([&](int x, int y, float& v) {
        sched_barrier();
        v = inside(x, y) ? opaque(p->state_in)[offset(x, y)] : 0.0f;
      });
    else
      each_register(between(segment.order() - 1) + opaque_thread(), [](float& v, const float* from) { v = *from; });
  }
  // Multiplies the state by what was kept apart.
  XLSTM_DEVICE void settle(float by) {
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) state[xs][ys].scale(by);
  }
  XLSTM_DEVICE void store_registers(float* to) {
    to += opaque_thread();
    each_register(to, [&](float& v, float* at) { *at = v * held; });
  }
  XLSTM_DEVICE void store_state() {
    if (p->alone)
      store_registers(between(segment.order()));
    else if (segment.last() && p->state_out)
      each([&](int x, int y, float& v) {
        sched_barrier();
        if (inside(x, y)) opaque(p->state_out)[offset(x, y)] = v * held;
      });
  }

  // ---- one chunk's products

  // out = f (a C)
  XLSTM_DEVICE void read_state(Strip<E> (&out)[kTStrips][kYStrips], const Room& r) {
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) out[ts][ys].zero();
    const float up = operand_scale();
    const auto load = [&](int xs, StreamOperand<E>(&stream)[kTStrips]) {
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
        stream[ts] = load_stream<true, E>(r.a, ts * kStep<E>, x0 + xs * kStep<E>, lane);
    };
    StreamOperand<E> stream[2][kTStrips];  // of this strip and, where registers suffice, the next
    if (kOperandAhead) load(0, stream[0]);
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs) {
      sched_barrier();
      if (!kOperandAhead) load(xs, stream[xs % 2]);
      if (kOperandAhead && xs + 1 < kXStrips) load(xs + 1, stream[(xs + 1) % 2]);
      ChainOperand<E> chain[kYStrips];
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) chain[ys] = as_chain(state[xs][ys], up);
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) multiply(out[ts][ys], stream[xs % 2][ts], chain[ys]);
    }
    const float down = held / up;
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int j = 0; j < Strip<E>::kRegisters; ++j) {
        const float factor = r.factor(p->inter)[ts * kStep<E> + Strip<E>::position(j).row] * down;
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) out[ts][ys].value[j] *= factor;
      }
  }

  // float16 ends at 65504: there the state is scaled to below one for the product.
  XLSTM_DEVICE float operand_scale() {
    if constexpr (__is_same(E, Float16)) {
      float most = 0;
      each([&](int, int, float& v) { most = fmaxf(most, fabsf(v)); });
      for (int mask = kWave / 2; mask > 0; mask /= 2) most = fmaxf(most, shuffle_xor(most, mask));
      // 2^-(exponent + 1), while that and its inverse are normal numbers
      const int exponent = int(as_bits(most) >> 23);
      return exponent > 10 && exponent < 244 ? as_float(uint32_t(253 - exponent) << 23) : 1.0f;
    }
    return 1.0f;
  }

  // out += scores y; C = decay C + (w x)^T y. The waves along x share the first. A decay joins what is held apart, and
  // w is divided by it, until it has grown too small for that; float16's products end early.
  XLSTM_DEVICE void add_chunk(Strip<E> (&out)[kTStrips][kYStrips], const Room& r, float decay) {
    constexpr float kLeast = __is_same(E, Float16) ? 0x1p-4f : 0x1p-40f;
    held = uniform(held * decay);
    if (!(held >= kLeast)) {
      settle(held);
      held = 1;
    }
    const float up = uniform(reciprocal(held));
#pragma unroll
    for (int k = 0; k < kChunk; k += kStep<E>) {
      ChainOperand<E> plain[kYStrips], weighted[kYStrips];
      const auto load = [&] {
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys)
          load_chain<E>(r.y, y0 + ys * kStripColumns, k, r.factor(p->weight), up, plain[ys], weighted[ys], lane);
      };
      load();
      if (p->out.data && slice_row() == 0 && k / kStep<E> % kShape.waves_x == wave_x)
#pragma unroll
        for (int ts = 0; ts < kTStrips; ++ts) {
          const int t = ts * kStep<E>;
          if (p->reverse ? t > k : t < k) continue;  // no token of the strip is reached
          const auto stream =
              p->reverse ? load_stream<false, E>(r.scores, t, k, lane) : load_stream<true, E>(r.scores, t, k, lane);
#pragma unroll
          for (int ys = 0; ys < kYStrips; ++ys) multiply(out[ts][ys], stream, plain[ys]);
        }
      if constexpr (!kOperandAhead) {
        sched_barrier();
        load();
      }
      const auto x_operand = [&](int xs) { return load_stream<false, E>(r.x, x0 + xs * kStep<E>, k, lane); };
      StreamOperand<E> stream[2];
      if (kOperandAhead) stream[0] = x_operand(0);
#pragma unroll
      for (int xs = 0; xs < kXStrips; ++xs) {
        sched_barrier();
        if (!kOperandAhead) stream[xs % 2] = x_operand(xs);
        if (kOperandAhead && xs + 1 < kXStrips) stream[(xs + 1) % 2] = x_operand(xs + 1);
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) multiply(state[xs][ys], stream[xs % 2], weighted[ys]);
      }
      if constexpr (kFamily == Family::rdna) made(out), made(state);  // there are no registers to put them off
    }
  }
  template <int kDown>
  XLSTM_DEVICE static void made(Strip<E> (&sums)[kDown][kYStrips]) {
#pragma unroll
    for (int s = 0; s < kDown; ++s)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) sums[s][ys].materialise();
  }

  XLSTM_DEVICE static int out_place(int token, int column) {
    return xlstm::gpu::mlstm::out_place(kFamily, sizeof(E), kY, token, column);
  }

  // Outputs from accumulators to memory, a piece of a token's row at a time.
  XLSTM_DEVICE void write(Strip<E> (&out)[kTStrips][kYStrips], const Room& r, const Stages& stages, int64_t t0,
                          int valid, int64_t slots) {
    __syncthreads();  // a, x and scores are done with
    const StripPosition first =
        strip_position(kFamily, sizeof(E), lane, 0);  // the others lie at distances that the compiler knows
    const int mine = out_place(wave_x * kChunk + first.row, y0 + first.column);
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys)
#pragma unroll
        for (int j = 0; j < Strip<E>::kRegisters; ++j) {
          const StripPosition at = strip_position(kFamily, sizeof(E), 0, j);
          const int t = ts * kStep<E> + at.row, column = ys * kStripColumns + at.column;
          r.out[xlstm::gpu::mlstm::out_place_from(mine, kFamily, sizeof(E), kY, t, column)] = out[ts][ys].value[j];
        }
    __syncthreads();
    constexpr int n = kVec16Elements<E>;
    TokenRows<E> to = tile_rows(p->out);
    to.data += t0 * to.stride;
#pragma unroll
    for (int i = 0; i < StageRows::kEach; ++i) {
      const int t = StageRows::token(i), column = StageRows::column(i);
      if (StageRows::kUnits % kThreads != 0 && t >= kChunk) break;  // whole waves
      float value[n];
#pragma unroll
      for (int w = 0; w < kShape.waves_x; ++w)
#pragma unroll
        for (int j = 0; j < n; j += 4) {
          const Vec16 four = read_vec16(r.out + out_place(w * kChunk + t, column + j));
#pragma unroll
          for (int e = 0; e < 4; ++e) value[j + e] = as_float(four.word[e]) + (w ? value[j + e] : 0.0f);
        }
      if (p->gained) {
#pragma unroll
        for (int j = 0; j < n; ++j) value[j] *= r.factor(kGain)[t];
      }
      if (p->vector) {
#pragma unroll
        for (int j = 0; j < n; ++j) value[j] += r.factor(p->along)[t] * r.vector()[column + j];
      }
      if (p->with.data) {
        const Vec16 with = stages.with.piece(r.with, i);
        float dot = 0;
#pragma unroll
        for (int j = 0; j < n; ++j) dot += value[j] * element<E>(with, j);
#pragma unroll
        for (int mask = kY / n / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
        if (column == 0) global(p->dots)[tile * (p->where.rows * p->where.slots * kChunk) + slots + t] = dot;
      }
      if (p->with_self) {
        const Vec16 own = own_piece(r, stages, i);
#pragma unroll
        for (int j = 0; j < n; ++j) value[j] += r.factor(kSelf)[t] * element<E>(own, j);
      }
      if (t < valid) store_piece(to, t, column, value);
    }
  }
  XLSTM_DEVICE static Vec16 own_piece(const Room& r, const Stages& stages, int i) {
    if constexpr (kAsyncCopies)
      return *reinterpret_cast<const Vec16*>(r.y.at(StageRows::token(i), StageRows::column(i)));  // y lies as in memory
    else
      return stages.own.held[i];
  }

  // ---- the loop

  XLSTM_DEVICE void run() {
    Stages s;
    load_state();
    const int chunks = segment.last_chunk - segment.first_chunk;
    fetch_a(s, 0);
    if (kAsyncCopies) {
      fetch_rest(s, 0);
      fetch_outputs(s, 0);
    }
    for (int n = 0; n < chunks; ++n) {
      p = reload_params(p);
      tile = uniform(tile);  // as 64 bits it would be kept from chunk to chunk
      lane = kFamily == Family::nvidia ? lane_id() : opaque_thread() % kWave;
      if (n + 1 == chunks && p->before_last && !p->alone && segment.last())
        store_registers(global(p->before_last) +
                        (int64_t(segment.state) * p->tiles + tile) * (kStateRegisters * kThreads));
      const Room r = room(n);
      const int64_t t0 = begin_of(n);
      float decay = s.decay;
      arrive([&] {
        if (p->out.data) s.a.store(r.a);
        s.factors.store({r.numbers});
      });
      if (!kAsyncCopies) {
        p = reload_params(p);
        fetch_rest(s, n);
      } else if (n + 1 < chunks) {
        fetch_a(s, n + 1);
        fetch_rest(s, n + 1);
        fetch_outputs(s, n + 1);
      }
      Strip<E> out[kTStrips][kYStrips];  // nobody's where there are no outputs
      if (p->out.data) read_state(out, r);
      if constexpr (!kAsyncCopies) {
        arrive([&] {
          s.x.store(r.x);
          s.y.store(r.y);
          if (p->out.data) p->reverse ? s.scores_turned.store(r.scores) : s.scores.store(r.scores);
          if (p->vector) s.vector.store(r.vector());
        });
        decay = s.decay;
        if (n + 1 < chunks) fetch_a(s, n + 1);
      }
      p = reload_params(p);
      add_chunk(out, r, decay);
      p = reload_params(p);
      if constexpr (!kAsyncCopies) fetch_outputs(s, n);
      if (p->out.data) write(out, r, s, t0, valid_of(t0), segment.in_slots(p->where, chunk_at(n)));
    }
    store_state();
  }
};

template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kRows, kChunk).threads,
                             walk_shape(kFamily, sizeof(E), kRows, kChunk).blocks) void walk(const WalkParams params) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk)) {
    extern __shared__ __align__(128) char lds[];
    const WalkParams* p = reload_params(kernel_params(params));
    const int tile = blockIdx.x % p->tiles, order = blockIdx.x / p->tiles % p->segments;
    if (p->alone && order + 1 == p->segments) return;
    const Segment segment =
        segment_of(p->where, blockIdx.x / p->tiles / p->segments, order, p->segment_chunks, p->reverse);
    if (segment.empty || (p->alone && segment.last())) return;
    Walk<E, kRows, kChunk>(p, segment, tile, lds).run();
  }
}

}  // namespace xlstm::gpu::mlstm
