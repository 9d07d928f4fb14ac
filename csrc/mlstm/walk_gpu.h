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
// (walk.h beside this has the same table for the CPU, where scores are made inside the walk. Here they come from
// scores_gpu.h, once for all blocks of a head. What n, dn and l add is of rank one, and is added in float.)
//
// Who owns what: a block walks one segment of one head for y_tile columns of y. Its waves hold the state, all rows by
// y_tile columns in float, in 128 accumulators a lane, for the whole walk: no chunk's state goes to memory. a, then x, y
// and the scores of one chunk take turns in LDS; what comes next is under way while the waves multiply. The state's
// accumulators are the next product's chain operand as they are.
//
// Floor, forward at 256/512: 4 DHQK DHHV + L (DHHV + DHQK) flops a token for the matrix units, each of q, k, v, h moved
// once. Each wave reads all of a and x from LDS for its 32 columns: with 128 rows a wave (NVIDIA, RDNA) that is
// 0.25 bytes a multiply-add, which binds before the matrix units do.
#pragma once

#include "mlstm/sequences_gpu.h"
#include "mlstm/walk_shape.h"
#include "tile/gpu.h"

namespace xlstm::gpu {

template <class E, int kRows, int kChunk>
struct Walk {
  static constexpr WalkShape kShape = walk_shape(kFamily, sizeof(E), kRows, kChunk);
  static constexpr int kY = kShape.y_tile, kThreads = kShape.threads;
  static constexpr int kXStrips = kShape.x_per_wave / kStep<E>, kTStrips = kChunk / kStep<E>;
  static constexpr int kYStrips = kColumnsPerWave / kStripColumns;
  static constexpr int kStateRegisters = kXStrips * kYStrips * Strip<E>::kRegisters;

  using StageA = Stage<E, kChunk, kRows, false, kThreads>;
  using StageX = Stage<E, kChunk, kRows, true, kThreads>;
  using StageY = Stage<E, kChunk, kY, true, kThreads>;
  using StageScores = Stage<E, kChunk, kChunk, false, kThreads>;
  using StageScoresTurned = Stage<E, kChunk, kChunk, true, kThreads>;

  const WalkParams& p;
  Segment segment;
  int tile, x0, y0, wave_x;
  typename StageA::Storage a_tile;
  typename StageX::Storage x_tile;
  typename StageY::Storage y_tile;
  typename StageScores::Storage score_tile;
  float *out_tile, *factors;
  Strip<E> state[kXStrips][kYStrips];

  XLSTM_DEVICE Walk(const WalkParams& params, const Segment& where, int y_tile_index, char* lds)
      : p(params), segment(where), tile(y_tile_index) {
    const int wave = wave_id();
    wave_x = wave % kShape.waves_x;
    x0 = wave_x * kShape.x_per_wave;
    y0 = wave / kShape.waves_x * kColumnsPerWave;
    a_tile.base = reinterpret_cast<E*>(lds);
    if (!kShape.shared_a_x) lds += kShape.a_bytes;
    x_tile.base = reinterpret_cast<E*>(lds);
    y_tile.base = reinterpret_cast<E*>(lds += kShape.x_bytes);
    score_tile.base = reinterpret_cast<E*>(lds += kShape.y_bytes);
    out_tile = reinterpret_cast<float*>(lds += kShape.scores_bytes);
    factors = reinterpret_cast<float*>(lds + kShape.out_bytes);
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
          f(x0 + xs * kStep<E> + at.row, tile * kY + y0 + ys * kStripColumns + at.column, state[xs][ys].value[r]);
        }
  }
  XLSTM_DEVICE bool inside(int x, int y) const { return x < p.x.columns && y < p.y.columns; }
  XLSTM_DEVICE int64_t offset(int x, int y) const {
    return segment.state * int64_t(p.x.columns) * p.y.columns + x * p.state_x + y * p.state_y;
  }
  // Between segments the state lies as the registers do.
  XLSTM_DEVICE float* between(int order) const {
    return p.between + ((segment.state * (p.segments - 1) + order) * p.tiles + tile) * (kStateRegisters * kThreads) +
           threadIdx.x;
  }

  XLSTM_DEVICE void load_state() {
    if (p.alone || (segment.order == 0 && !p.state_in)) {
      each([](int, int, float& v) { v = 0; });
    } else if (segment.order == 0) {
      each([&](int x, int y, float& v) { v = inside(x, y) ? p.state_in[offset(x, y)] : 0.0f; });
    } else {
      const float* from = between(segment.order - 1);
      int r = 0;
      each([&](int, int, float& v) { v = from[kThreads * r++]; });
    }
  }
  XLSTM_DEVICE void store_state() {
    if (p.alone) {
      float* to = between(segment.order);
      int r = 0;
      each([&](int, int, float& v) { to[kThreads * r++] = v; });
    } else if (segment.last && p.state_out) {
      each([&](int x, int y, float& v) {
        if (inside(x, y)) p.state_out[offset(x, y)] = v;
      });
    }
  }

  // <dot_with, the state without the last token's share>: what its forget gate decays.
  XLSTM_DEVICE void store_state_dot() {
    const int64_t token = segment.end - 1;
    const E *x_row = rows<E>(p.x, segment).data + token * p.x.stride[2],
            *y_row = rows<E>(p.y, segment).data + token * p.y.stride[2];
    const float weight = p.weight[segment.in_slots(p.where, (segment.end - 1 - segment.begin) / kChunk) +
                                  (segment.end - 1 - segment.begin) % kChunk];
    float sum = 0;
    each([&](int x, int y, float& v) {
      if (!inside(x, y)) return;
      const float share = to_float(x_row[x]) * to_float(from_float<E>(to_float(y_row[y]) * weight));
      sum += p.dot_with[offset(x, y)] * (v - share);
    });
    for (int mask = kWave / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    __syncthreads();
    if (lane_id() == 0) out_tile[wave_id()] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int w = 1; w < kThreads / kWave; ++w) sum += out_tile[w];
    p.state_dots[tile * (p.where.sequences * p.where.heads) + segment.state] = sum;
  }

  // ---- one chunk's products

  // out = f (a C)
  XLSTM_DEVICE void read_state(Strip<E> (&out)[kTStrips][kYStrips], const float* f) {
    const float up = operand_scale();
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs) {
      ChainOperand<E> chain[kYStrips];
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) chain[ys] = as_chain(state[xs][ys], up);
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts) {
        const auto stream = load_stream<true, E>(a_tile, ts * kStep<E>, x0 + xs * kStep<E>);
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) multiply(out[ts][ys], stream, chain[ys]);
      }
    }
    const float down = 1 / up;
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int r = 0; r < Strip<E>::kRegisters; ++r) {
        const float factor = f[ts * kStep<E> + Strip<E>::position(r).row] * down;
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) out[ts][ys].value[r] *= factor;
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

  // out += scores y; C = decay C + (w x)^T y. The waves along x share the first.
  XLSTM_DEVICE void add_chunk(Strip<E> (&out)[kTStrips][kYStrips], const float* weight, float decay) {
#pragma unroll
    for (int xs = 0; xs < kXStrips; ++xs)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys) state[xs][ys].scale(decay);
#pragma unroll
    for (int k = 0; k < kChunk; k += kStep<E>) {
      ChainOperand<E> plain[kYStrips], weighted[kYStrips];
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys)
        load_chain<E>(y_tile, y0 + ys * kStripColumns, k, weight, plain[ys], weighted[ys]);
      if (p.out.data && k / kStep<E> % kShape.waves_x == wave_x)
#pragma unroll
        for (int ts = 0; ts < kTStrips; ++ts) {
          const int t = ts * kStep<E>;
          if (p.reverse ? t > k : t < k) continue;  // no token of the strip is reached
          const auto stream = p.reverse ? load_stream<false, E>(score_tile, t, k) : load_stream<true, E>(score_tile, t, k);
#pragma unroll
          for (int ys = 0; ys < kYStrips; ++ys) multiply(out[ts][ys], stream, plain[ys]);
        }
#pragma unroll
      for (int xs = 0; xs < kXStrips; ++xs) {
        const auto stream = load_stream<false, E>(x_tile, x0 + xs * kStep<E>, k);
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) multiply(state[xs][ys], stream, weighted[ys]);
      }
    }
  }

  // Outputs from accumulators to memory, a row of tokens at a time.
  XLSTM_DEVICE void write(Strip<E> (&out)[kTStrips][kYStrips], int64_t t0, int valid, int64_t slots) {
    float* mine = out_tile + wave_x * kChunk * kShape.out_stride;
#pragma unroll
    for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
      for (int ys = 0; ys < kYStrips; ++ys)
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; ++r) {
          const StripPosition at = Strip<E>::position(r);
          mine[(ts * kStep<E> + at.row) * kShape.out_stride + y0 + ys * kStripColumns + at.column] = out[ts][ys].value[r];
        }
    __syncthreads();
    constexpr int n = kPieceElements<E>, kLanes = kY / n;
    const int column = threadIdx.x % kLanes * n, y = tile * kY + column;
    for (int t = threadIdx.x / kLanes; t < kChunk; t += kThreads / kLanes) {
      float value[n];
#pragma unroll
      for (int j = 0; j < n; ++j) value[j] = out_tile[t * kShape.out_stride + column + j];
#pragma unroll
      for (int w = 1; w < kShape.waves_x; ++w)
#pragma unroll
        for (int j = 0; j < n; ++j) value[j] += out_tile[(w * kChunk + t) * kShape.out_stride + column + j];
      finish_row(value, t0 + t, t < valid, slots + t, y);
    }
  }

  template <int n>
  XLSTM_DEVICE void finish_row(float (&value)[n], int64_t token, bool valid, int64_t in_slots, int y) {
    if (p.gain) {
      const float gain = p.gain[in_slots];
#pragma unroll
      for (int j = 0; j < n; ++j) value[j] *= gain;
    }
    if (p.along) {
      const float along = p.along[in_slots];
      const float* vector = p.vector + in_slots / kChunk * p.y.columns + y;
#pragma unroll
      for (int j = 0; j < n; ++j)
        if (y + j < p.y.columns) value[j] += along * vector[j];
    }
    if (p.with.data) {
      const Piece with = rows<E>(p.with, segment).piece(token, y, valid);
      float dot = 0;
#pragma unroll
      for (int j = 0; j < n; ++j) dot += value[j] * element<E>(with, j);
#pragma unroll
      for (int mask = kY / n / 2; mask > 0; mask /= 2) dot += shuffle_xor(dot, mask);
      if (threadIdx.x % (kY / n) == 0) p.dots[tile * (p.where.rows * p.where.slots * kChunk) + in_slots] = dot;
    }
    if (!valid) return;
    if (p.self) {
      const float self = p.self[in_slots];
      const Piece own = rows<E>(p.y, segment).piece(token, y, true);
#pragma unroll
      for (int j = 0; j < n; ++j) value[j] += self * element<E>(own, j);
    }
    store_piece(rows<E>(p.out, segment), token, y, value);
  }

  XLSTM_DEVICE void run() {
    const bool outputs = p.out.data;
    const TokenRows<E> a = rows<E>(p.a, segment), x = rows<E>(p.x, segment);
    TokenRows<E> y = rows<E>(p.y, segment);
    y.data += tile * kY;
    y.columns -= tile * kY;
    StageA stage_a;
    StageX stage_x;
    StageY stage_y;
    StageScores stage_scores;
    StageScoresTurned stage_turned;
    load_state();
    const int chunks = segment.last_chunk - segment.first_chunk;
    const auto chunk_at = [&](int n) { return p.reverse ? segment.last_chunk - 1 - n : segment.first_chunk + n; };
    const auto begin_of = [&](int64_t chunk) { return segment.begin + chunk * kChunk; };
    const auto valid_of = [&](int64_t t0) { return int(segment.end - t0 < kChunk ? segment.end - t0 : kChunk); };
    const auto fetch_a = [&](int n) {
      const int64_t t0 = begin_of(chunk_at(n));
      if (outputs && n < chunks) stage_a.fetch(a_tile, a, t0, valid_of(t0));
    };
    fetch_a(0);
    for (int n = 0; n < chunks; ++n) {
      const int64_t t0 = begin_of(chunk_at(n)), slots = segment.in_slots(p.where, chunk_at(n));
      const int valid = valid_of(t0);
      float* const inter = factors + n % 2 * 2 * kChunk;
      float* const weight = inter + kChunk;
      arrive([&] {
        if (outputs) stage_a.store(a_tile);
        if (threadIdx.x < kChunk) {
          inter[threadIdx.x] = p.inter[slots + threadIdx.x];
          weight[threadIdx.x] = p.weight[slots + threadIdx.x];
        }
      });
      stage_x.fetch(x_tile, x, t0, valid);
      stage_y.fetch(y_tile, y, t0, valid);
      if (outputs) {
        const TokenRows<E> scores = {static_cast<const E*>(p.scores) + slots * kChunk, kChunk, kChunk, true};
        p.reverse ? stage_turned.fetch(score_tile, scores, 0, kChunk) : stage_scores.fetch(score_tile, scores, 0, kChunk);
      }
      Strip<E> out[kTStrips][kYStrips];
#pragma unroll
      for (int ts = 0; ts < kTStrips; ++ts)
#pragma unroll
        for (int ys = 0; ys < kYStrips; ++ys) out[ts][ys].zero();
      if (outputs) read_state(out, inter);
      arrive([&] {
        stage_x.store(x_tile);
        stage_y.store(y_tile);
        if (outputs) p.reverse ? stage_turned.store(score_tile) : stage_scores.store(score_tile);
      });
      fetch_a(n + 1);
      add_chunk(out, weight, p.decay[slots / kChunk]);
      if (outputs) write(out, t0, valid, slots);
    }
    store_state();
    if (!p.alone && segment.last && p.dot_with) store_state_dot();
  }
};

// Up to two walks of one shape in a grid: y of the block index chooses.
struct WalkPair {
  WalkParams walk[2];
};

template <class E, int kRows, int kChunk>
__global__ __launch_bounds__(walk_shape(kFamily, sizeof(E), kRows, kChunk).threads, 1) void walk(const WalkPair pair) {
  if constexpr (has_walk(kFamily, sizeof(E), kRows, kChunk)) {
    extern __shared__ __align__(16) char lds[];
    const WalkParams& p = pair.walk[blockIdx.y];
    const int tile = blockIdx.x % p.tiles, order = blockIdx.x / p.tiles % p.segments;
    if (p.alone && order + 1 == p.segments) return;
    const Segment segment = segment_of(p.where, blockIdx.x / p.tiles / p.segments, order, p.segment_chunks, p.reverse);
    if (segment.empty || (p.alone && segment.last)) return;
    Walk<E, kRows, kChunk>(p, segment, tile, lds).run();
  }
}

}  // namespace xlstm::gpu
