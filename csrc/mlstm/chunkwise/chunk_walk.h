// SPDX-License-Identifier: Apache-2.0
// The walk over chunks on a GPU, the schedule for all chips: the mainloop of forward and of backward.
//
//     out = f (a C) + scores y          C = decay C + (w x)^T y
//
//               direction   a    x    y    scores       f, w              out    state C
//   forward     forward     q    k    v    s (q k) D    inter, into       h N    C
//   dq          forward     dh   v    k    dS           inter / N, into   dq     C^T
//   dk          reverse     v    dh   q    dS^T         into, inter / N   dk     dC^T
//   dv          reverse     k    q    dh   (s q k D/N)^T  into, inter / N dv     dC
//
// Each row is a kernel: walk_outputs.h has its constants.
//
// (mlstm/cpu/chunk_walk.h has the same table for the CPU, where the walk computes the scores itself. On a GPU the
// scores come from scores.h, computed once for all blocks of a head. The terms of n, dn and l are of rank one and are
// added in float.)
//
// Who owns what: a block walks one segment of one head for y_tile columns of y. Its waves hold the state, all rows by
// y_tile columns in float, in accumulators for the entire walk: the state between two chunks never goes to memory. The
// state's accumulators are the next product's chain operand as they are. A chunk's a, x, y and scores are staged in
// LDS. Where copies are asynchronous (NVIDIA), the next chunk is copied into a second buffer while this one is
// multiplied, a two-stage pipeline. Elsewhere a and then x share one buffer, and the next chunk's loads wait in
// registers. CDNA has a schedule of its own for aligned tensors (chunk_walk_cdna.h).
//
// Floor, forward at 256/512: 4 DHQK DHHV + L (DHHV + DHQK) flops a token for the matrix units, and each of q, k, v, h
// moved once. Each wave reads all of a and x from LDS for its 32 columns, one element for 32 multiply-adds. What binds,
// as measured on NVIDIA and counted by the gfx942 interpreter, are vector instructions and the latency of a chunk's
// phases, which run one after the other (docs/design/mlstm-gpu.md).
#pragma once

#include "arch/lds_read.h"
#include "mlstm/chunkwise/chunk_walk_tiles.h"

namespace xlstm::gpu::mlstm {

template <class E, int kRows, int kChunk, class Output, bool kWide = false>
struct Walk {
  using Operands = WalkOperands<E, kRows, kChunk, Output, kWide>;
  static constexpr WalkTerms kTerms = Output::kTerms;
  using ChunkTiles = typename Operands::ChunkTiles;
  using Stages = typename Operands::Stages;
  using StageRows = typename Operands::StageRows;
  static constexpr WalkShape kShape = Operands::kShape;
  static constexpr int kY = Operands::kY, kThreads = Operands::kThreads;

  static constexpr int kXStrips = kShape.x_per_wave / kStep<E>, kTStrips = kChunk / kStep<E>;
  static constexpr int kYStrips = kColumnsPerWave / kStripColumns;
  // Register budget of a lane: a float operand on RDNA takes 24 registers. There an operand is read after the previous
  // one is used, and the unweighted y only where it is multiplied.
  static constexpr bool kOperandAhead = sizeof(StreamOperand<E>) <= 32;
  static constexpr int kStateRegisters = kXStrips * kYStrips * Strip<E>::kRegisters;

  Operands in;  // this block's part of the walk, and its loads
  int x0, y0, wave_x;
  int lane;  // recomputed for each chunk, with the addresses that follow from it
  // The state is C / pending_decay: chunks' decays are accumulated in pending_decay until it is small.
  Strip<E> state[kXStrips][kYStrips];
  float pending_decay = 1;

  XLSTM_DEVICE Walk(const WalkParams* params, const Segment& where, int y_tile_index, char* memory)
      : in{params, where, y_tile_index, memory} {
    const int wave = wave_id();
    wave_x = wave % kShape.waves_x;
    x0 = wave_x * kShape.x_per_wave;
    y0 = wave / kShape.waves_x * kColumnsPerWave;
  }

  // ---- the state

  // Calls f(x, y, value) for each element that this lane holds.
  template <class F>
  XLSTM_DEVICE void each(F&& f) {
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys)
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; ++r) {
          const StripPosition at = Strip<E>::position(r);
          f(in.slice_row() + x0 + xs * kStep<E> + at.row, in.tile * kY + y0 + ys * kStripColumns + at.column,
            state[xs][ys].value[r]);
        }
  }
  XLSTM_DEVICE bool inside(int x, int y) const { return x < in.p->x.columns && y < in.p->y.columns; }
  XLSTM_DEVICE int64_t offset(int x, int y) const {
    return in.segment.state * int64_t(in.p->x.columns) * in.p->y.columns + x * in.p->state_x + y * in.p->state_y;
  }
  // Between segments the state is stored in the order of the registers.
  XLSTM_DEVICE float* segment_state(int order) const {
    return global(in.p->segment_states) +
           ((int64_t(in.segment.state) * (in.p->segments - 1) + order) * in.p->tiles + in.tile) *
               (kStateRegisters * kThreads);
  }

  // Calls f(value, address) for each element, strip by strip, for states that are stored in the order of the registers.
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
    if (kTerms.states_only || (in.segment.order() == 0 && !in.p->state_in))
      each([](int, int, float& v) { v = 0; });
    else if (in.segment.order() == 0)
      each([&](int x, int y, float& v) {
        sched_barrier();
        v = inside(x, y) ? opaque(in.p->state_in)[offset(x, y)] : 0.0f;
      });
    else if (kFamily == Family::cdna && kTerms.reverse && !kTerms.gradient_terms && in.p->transposed.tiles)
      load_transposed_state(in.segment.order() - 1);
    else
      load_registers(segment_state(in.segment.order() - 1));
  }
  // The state between segments of the walk for dk, which is this one's transposed: a lane's rows of a strip are
  // neighbouring columns there, which neighbouring lanes have stored.
  XLSTM_DEVICE void load_transposed_state(int order) {
    constexpr int kRun = Strip<E>::kRegisters;
    const StateTiles t = in.p->transposed;
    const int tile_floats = t.threads * (1 << t.x_bits) / kStep<E> * (kColumnsPerWave / kStripColumns) * kRun;
    const char* from = reinterpret_cast<const char*>(global(in.p->segment_states) +
                                                     (int64_t(in.segment.state) * (in.p->segments - 1) + order) *
                                                         (int64_t(t.tiles) * tile_floats));
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) {
        sched_barrier();
        const int y = in.tile * kY + y0 + ys * kStripColumns + lane_id() % 16;
        const int x = x0 + xs * kStep<E> + lane_id() / 16 * kRun;
        const int row = y & ((1 << t.x_bits) - 1), column = x & ((1 << t.y_bits) - 1);
        const int strip = row / kStep<E> * (kColumnsPerWave / kStripColumns) + column % kColumnsPerWave / kStripColumns;
        const int wave = column / kColumnsPerWave * t.waves_x + (y >> t.x_bits);
        const int of_lane = row % kStep<E> / kRun * 16 + column % kStripColumns;
        const int at = (x >> t.y_bits) * tile_floats + (strip * kRun + row % kRun) * t.threads + wave * kWave + of_lane;
        const bool exists = y < in.p->y.columns && x < in.p->x.columns;
#pragma unroll
        for (int h = 0; h < kRun / 4; ++h) {
          const Vec16 values = load_vec16(from, exists ? uint32_t(at + 4 * h) * 4 : 0);
#pragma unroll
          for (int e = 0; e < 4; ++e) state[xs][ys].value[4 * h + e] = exists ? as_float(values.word[e]) : 0.0f;
        }
      }
  }
  // Multiplies the state by the accumulated decay. Where a sequence of a joined row begins, nothing of it is left.
  XLSTM_DEVICE void apply_decay(float by) {
    const bool is_cut = uniform(in.p->where.sequence_begin && by == 0 ? 1 : 0) != 0;
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) {
        if (is_cut) state[xs][ys].zero_in_place();
        state[xs][ys].scale(by);
      }
  }
  XLSTM_DEVICE void load_registers(float* from) {
    each_register(from + opaque_thread(), [](float& v, const float* at) { v = *at; });
  }
  XLSTM_DEVICE void store_registers(float* to) {
    to += opaque_thread();
    each_register(to, [&](float& v, float* at) { *at = v * pending_decay; });
  }
  XLSTM_DEVICE void store_state() {
    if (kTerms.states_only)
      store_registers(segment_state(in.segment.order()));
    else if (in.segment.last() && in.p->state_out)
      each([&](int x, int y, float& v) {
        sched_barrier();
        if (inside(x, y)) opaque(in.p->state_out)[offset(x, y)] = v * pending_decay;
      });
  }

  XLSTM_DEVICE void store_before_last() {
    if (!kTerms.states_only && in.p->state_before_last && in.segment.last())
      store_registers(global(in.p->state_before_last) +
                      (int64_t(in.segment.state) * in.p->tiles + in.tile) * (kStateRegisters * kThreads));
  }

  // ---- one chunk's products

  // out = f (a C)
  XLSTM_DEVICE void multiply_state(Strip<E> (&out)[kTStrips][kYStrips], const ChunkTiles& tiles) {
    if (is_rdna(kFamily) && !separate_basic_block()) return;  // without it clang 19 spills up to 284 registers
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) out[ts][ys].zero();
    const float state_scale = operand_scale();
    const auto load = [&](int xs, StreamOperand<E>(&stream)[kTStrips]) {
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
        stream[ts] = load_stream<true, E>(tiles.a, ts * kStep<E>, x0 + xs * kStep<E>, lane);
    };
    StreamOperand<E> stream[2][kTStrips];  // for this strip and, where registers suffice, for the next
    if (kOperandAhead) load(0, stream[0]);
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs) {
      sched_barrier();
      if (!kOperandAhead) load(xs, stream[xs % 2]);
      if (kOperandAhead && xs + 1 < kXStrips) load(xs + 1, stream[(xs + 1) % 2]);
      ChainOperand<E> chain[kYStrips];
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) chain[ys] = as_chain(state[xs][ys], state_scale);
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) multiply(out[ts][ys], stream[xs % 2][ts], chain[ys]);
    }
    scale_by_factors(out, tiles, pending_decay / state_scale);
    sched_barrier();  // the products end before the next tiles are stored
  }
  XLSTM_DEVICE void scale_by_factors(Strip<E> (&out)[kTStrips][kYStrips], const ChunkTiles& tiles, float scale) {
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int j = 0; j < Strip<E>::kRegisters; ++j) {
        const float factor = tiles.factor(kTerms.inter)[ts * kStep<E> + Strip<E>::position(j).row] * scale;
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) out[ts][ys].value[j] *= factor;
      }
  }

  // float16 ends at 65504: for the product the state is scaled to below one.
  XLSTM_DEVICE float operand_scale() {
    if constexpr (__is_same(E, Float16)) {
      float largest = 0;
      each([&](int, int, float& v) { largest = fmaxf(largest, fabsf(v)); });
      for (int mask = kWave / 2; mask > 0; mask /= 2) largest = fmaxf(largest, shuffle_xor(largest, mask));
      // 2^-(exponent + 1), where this number and its reciprocal are normal
      const int exponent = int(as_bits(largest) >> 23);
      return exponent > 10 && exponent < 244 ? as_float(uint32_t(253 - exponent) << 23) : 1.0f;
    }
    return 1.0f;
  }

  // out += scores y; C = decay C + (w x)^T y. The waves along x share the first product. A decay is multiplied into
  // pending_decay, and w is divided by it, until pending_decay is too small for that; for float16 the limit is nearer,
  // because its products overflow earlier.
  XLSTM_DEVICE void add_chunk(Strip<E> (&out)[kTStrips][kYStrips], const ChunkTiles& tiles, float decay) {
    constexpr float kMinPendingDecay = __is_same(E, Float16) ? 0x1p-4f : 0x1p-40f;
    pending_decay = uniform(pending_decay * decay);
    if (!(pending_decay >= kMinPendingDecay)) {
      apply_decay(pending_decay);
      pending_decay = 1;
    }
    const float inverse_decay = uniform(reciprocal(pending_decay));
#pragma unroll
    for (int k = 0; k < kChunk; k += kStep<E>) {
      ChainOperand<E> y_chain[kYStrips], weighted_y[kYStrips];
      const auto load = [&] {
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys)
          load_chain<E>(tiles.y, y0 + ys * kStripColumns, k, tiles.factor(kTerms.weight), inverse_decay, y_chain[ys],
                        weighted_y[ys], lane);
      };
      load();
      add_scores_y(out, tiles, y_chain, k);
      if constexpr (!kOperandAhead) {
        sched_barrier();
        load();
      }
      const auto x_operand = [&](int xs) { return load_stream<false, E>(tiles.x, x0 + xs * kStep<E>, k, lane); };
      StreamOperand<E> stream[2];
      if (kOperandAhead) stream[0] = x_operand(0);
#pragma unroll
      for (int xs = 0; xs < kXStrips; ++xs) {
        sched_barrier();
        if (!kOperandAhead) stream[xs % 2] = x_operand(xs);
        if (kOperandAhead && xs + 1 < kXStrips) stream[(xs + 1) % 2] = x_operand(xs + 1);
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) multiply(state[xs][ys], stream[xs % 2], weighted_y[ys]);
      }
      // Otherwise the products are postponed, and RDNA has no registers for their operands.
      if constexpr (is_rdna(kFamily)) materialise_strips(out), materialise_strips(state);
    }
  }
  // out += scores y, for one step of y's tokens. The waves along x take turns: with the steps, and on CDNA, where a
  // step is a chunk, with the strips of columns too.
  static constexpr int kTurns = kFamily == Family::cdna && kShape.waves_x > 1 ? kYStrips : 1;  // of a step
  XLSTM_DEVICE void add_scores_y(Strip<E> (&out)[kTStrips][kYStrips], const ChunkTiles& tiles,
                                 const ChainOperand<E> (&y_chain)[kYStrips], int k) {
    if (kTerms.states_only || in.slice_row() != 0) return;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn)
      if (separate_basic_block() && (k / kStep<E> * kTurns + turn) % kShape.waves_x == wave_x)
#pragma unroll
        for (int ts = 0; ts < kTStrips; ++ts) {
          const int t = ts * kStep<E>;
          if (kTerms.reverse ? t > k : t < k) continue;  // above the diagonal: the strip has no pair
          const auto stream = load_stream<!kTerms.reverse, E>(tiles.scores, t, k, lane);
#pragma unroll
          for (int ys = turn * kYStrips / kTurns; ys < (turn + 1) * kYStrips / kTurns; ++ys)
            multiply(out[ts][ys], stream, y_chain[ys]);
        }
  }
  template <int kDown>
  XLSTM_DEVICE static void materialise_strips(Strip<E> (&sums)[kDown][kYStrips]) {
#pragma unroll
    for (int s = 0; s < kDown; ++s)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) sums[s][ys].materialise();
  }

  XLSTM_DEVICE static int out_offset(int token, int column) {
    return xlstm::gpu::mlstm::out_offset(kFamily, sizeof(E), kY, token, column);
  }

  // The epilogue: outputs from accumulators through LDS to memory, 16 bytes of a token's row at a time.
  XLSTM_DEVICE void write_outputs(Strip<E> (&out)[kTStrips][kYStrips], const ChunkTiles& tiles, const Stages& stages,
                                  int64_t t0, int valid, int64_t slots) {
    sched_barrier();  // the state's products end before the outputs are stored
    __syncthreads();  // all waves have read a, x and scores
    store_parts(out, tiles);
    __syncthreads();
    TokenRows<E> to = in.tile_rows(in.p->out);
    to.data += t0 * to.stride;
    float* dots = kTerms.gradient_terms ? dots_of(slots) : nullptr;
#pragma unroll
    for (int i = 0; i < StageRows::kEach; ++i) {
      const int t = StageRows::token(i), column = StageRows::column(i);
      if (StageRows::kUnits % kThreads != 0 && t >= kChunk) break;  // the same for all lanes of a wave
      float value[kVec16Elements<E>];
      add_parts(tiles, t, column, value);
      if (kTerms.divides_by_n) scale(value, tiles.factor(kInverseN)[t]);
      if (kTerms.gradient_terms)
        add_gradient_terms(tiles, t, column, value, stages.dot_with.vec16(tiles.dot_with, i), y_vec16(tiles, stages, i),
                           dots);
      if (t < valid) store_vec16(to, t, column, value);
    }
  }
  // Each wave's part of the outputs, those of its rows of the state.
  XLSTM_DEVICE void store_parts(Strip<E> (&out)[kTStrips][kYStrips], const ChunkTiles& tiles) {
    // The other registers' positions lie at distances that the compiler knows.
    const StripPosition first = strip_position(kFamily, sizeof(E), lane, 0);
    const int base = out_offset(wave_x * kChunk + first.row, y0 + first.column);
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys)
#pragma unroll
        for (int j = 0; j < Strip<E>::kRegisters; ++j) {
          const StripPosition at = strip_position(kFamily, sizeof(E), 0, j);
          const int t = ts * kStep<E> + at.row, column = ys * kStripColumns + at.column;
          tiles.out[xlstm::gpu::mlstm::out_offset_from(base, kFamily, sizeof(E), kY, t, column)] = out[ts][ys].value[j];
        }
  }
  // The sum of the parts.
  template <int n>
  XLSTM_DEVICE void add_parts(const ChunkTiles& tiles, int t, int column, float (&value)[n]) {
#pragma unroll
    for (int w = 0; w < kShape.waves_x; ++w)
#pragma unroll
      for (int j = 0; j < n; j += 4) {
        const Vec16 sums = read_vec16_at_once(tiles.out + out_offset(w * kChunk + t, column + j));
#pragma unroll
        for (int e = 0; e < 4; ++e) value[j + e] = w ? as_float(sums.word[e]) + value[j + e] : as_float(sums.word[e]);
      }
  }
  template <int n>
  XLSTM_DEVICE static void scale(float (&value)[n], float by) {
#pragma unroll
    for (int j = 0; j < n; ++j) value[j] *= by;
  }
  // The dots of a chunk's tokens with what lies in dot_with.
  XLSTM_DEVICE float* dots_of(int64_t slots) const {
    return global(in.p->dots) + in.tile * (in.p->where.rows * in.p->where.slots * kChunk) + slots;
  }
  template <int n>
  XLSTM_DEVICE void add_gradient_terms(const ChunkTiles& tiles, int t, int column, float (&value)[n],
                                       const Vec16& dot_with, const Vec16& y, float* dots) {
#pragma unroll
    for (int j = 0; j < n; ++j) value[j] += tiles.factor(kTerms.vector_factor)[t] * tiles.vector()[column + j];
    float dot = 0;
#pragma unroll
    for (int j = 0; j < n; ++j) dot += value[j] * element<E>(dot_with, j);
#pragma unroll
    for (int mask = kY / n / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
    if (column == 0) dots[t] = dot;
#pragma unroll
    for (int j = 0; j < n; ++j) value[j] += tiles.factor(kDiagonal)[t] * element<E>(y, j);
  }
  XLSTM_DEVICE static Vec16 y_vec16(const ChunkTiles& tiles, const Stages& stages, int i) {
    if constexpr (kAsyncCopies)
      return *reinterpret_cast<const Vec16*>(tiles.y.at(StageRows::token(i), StageRows::column(i)));  // as in memory
    else
      return stages.diagonal_y.fetched[i];
  }

  // ---- the mainloop

  XLSTM_DEVICE void run() {
    Stages s;
    load_state();
    const int chunks = in.segment.last_chunk - in.segment.first_chunk;
    in.fetch_a(s, 0);
    if (kAsyncCopies) {
      in.fetch_rest(s, 0);
      in.fetch_output_inputs(s, 0);
    }
    for (int n = 0; n < chunks; ++n) {
      in.p = reload_params(in.p);
      in.tile = uniform(in.tile);  // as 64 bits the compiler would keep it in registers from chunk to chunk
      lane = kFamily == Family::nvidia ? lane_id() : opaque_thread() % kWave;
      if (n + 1 == chunks) store_before_last();
      const ChunkTiles tiles = in.chunk_tiles(n);
      const int64_t t0 = in.begin_of(n);
      float decay = s.decay;
      arrive([&] {
        if (!kTerms.states_only) s.a.store(tiles.a);
        s.factors.store({tiles.factors});
      });
      if (!kAsyncCopies) {
        in.p = reload_params(in.p);
        in.fetch_rest(s, n);
      } else if (n + 1 < chunks) {
        in.fetch_a(s, n + 1);
        in.fetch_rest(s, n + 1);
        in.fetch_output_inputs(s, n + 1);
      }
      Strip<E> out[kTStrips][kYStrips];  // unused where the walk has no outputs
      if (!kTerms.states_only) multiply_state(out, tiles);
      if constexpr (!kAsyncCopies) {
        arrive([&] {
          s.x.store(tiles.x);
          s.y.store(tiles.y);
          in.store_scores(s, tiles);
          if (kTerms.gradient_terms) s.vector.store(tiles.vector());
        });
        decay = s.decay;
        if (n + 1 < chunks) in.fetch_a(s, n + 1);
      }
      in.p = reload_params(in.p);
      add_chunk(out, tiles, decay);
      in.p = reload_params(in.p);
      if constexpr (!kAsyncCopies) in.fetch_output_inputs(s, n);
      if (!kTerms.states_only)
        write_outputs(out, tiles, s, t0, in.valid_of(t0), in.segment.in_slots(in.p->where, in.chunk_at(n)));
    }
    store_state();
  }
};

// A block's part of a walk. AnyWalk: its schedule.
template <class AnyWalk>
XLSTM_DEVICE void walk_segment(const WalkParams* p, uint32_t block_in_grid = blockIdx.x) {
  constexpr WalkTerms kTerms = AnyWalk::kTerms;
  extern __shared__ __align__(128) char lds[];
  const uint32_t block =
      block_by_die(uint32_t(p->where.sequences * p->where.heads) * uint32_t(p->segments * p->tiles), block_in_grid);
  const int tile = block % p->tiles, order = block / p->tiles % p->segments;
  if (kTerms.states_only && order + 1 == p->segments) return;
  const Segment segment =
      segment_of(p->where, block / p->tiles / p->segments, order, p->segment_chunks, kTerms.reverse);
  if (segment.empty || (kTerms.states_only && segment.last())) return;
  AnyWalk(p, segment, tile, lds).run();
}

template <class E, int kRows, int kChunk, class Output>
__global__ __launch_bounds__(
    walk_shape(kFamily, sizeof(E), kRows, kChunk).threads,
    walk_shape(kFamily, sizeof(E), kRows, kChunk).blocks) void chunk_walk(const WalkParams params) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk))
    walk_segment<Walk<E, kRows, kChunk, Output>>(reload_params(kernel_params(params)));
}

}  // namespace xlstm::gpu::mlstm
