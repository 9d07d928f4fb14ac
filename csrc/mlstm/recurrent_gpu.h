// SPDX-License-Identifier: Apache-2.0
// The recurrent mLSTM on a GPU: any number of tokens, one after the other, in one launch. One token is the decode step,
// with a kernel of its own (recurrent_step_gpu.h).
//
//     m', forget, input from the gates (recurrence.h, in double)
//     n' = forget n + input k      C' = forget C + input k v^T      l = s q n'      h = s q C' / N(l, m')
//
// Who owns what: a block owns a tile of 8, 16 or 32 values (columns of C) of one head, a thread 8 keys by 4 values of
// it: a piece of 16 bytes of each of 8 rows, all of them in flight before anything waits. They stay in its registers
// for all tokens. n, q and k lie the same way, so a thread needs no LDS for them; each lane along a row holds the
// same 8. What the rows add to h and l is summed by shuffles within a wave and then through LDS, where two buffers take
// turns: one barrier a token. The gates of 16 tokens are made at a time, only the chain of m one after the other.
//
// Dims and strides that pieces do not fit, and heads of more keys than a block's registers hold, take the plain kernel
// (recurrent_plain_gpu.h): C goes through memory once a token, each thread reading what it wrote itself, and n through
// workspace.
//
// n and m are single copies that every tile of a head reads and one writes. In place, that tile must not be early: it
// cannot know whether the others have begun, and a counter of those that have would need zeros from a node before this
// one. So it leaves n and m in workspace and a small second kernel moves them. Out of place there is one kernel.
//
// Floor: C read and written once, 8 DHQK DHHV bytes a head; memory binds. With few heads latency does: a block's loads
// of C, gates, q, k, v, n are all issued at the start.
#pragma once

#include "arch/overlap.h"
#include "mlstm/recurrent_plan.h"
#include "mlstm/sequences_gpu.h"

namespace xlstm::gpu {

struct RecurrentParams {
  Sequences where;
  Tokens q, k, v, h;
  Tokens gate[2];                                  // forget, input
  const float *c_initial, *n_initial, *m_initial;  // (N, NH, DHQK, DHHV), (N, NH, DHQK), (N, NH), or null
  float* n_between;  // (N NH, tiles, 2, DHQK): the plain kernel's n after every other token
  float* l;          // (B, NH, S), or null
  int tiles, together;
  bool sigmoid, normalize;
  float scale;
  double eps, gate_soft_cap;
  float *c_last, *n_last, *m_last;
};

// Which tile of which head this block has; false when there is none.
XLSTM_DEVICE bool find_tile(const RecurrentParams& p, int64_t& state, int& tile) {
  const unsigned turn = blockIdx.x / p.together;
  tile = turn % p.tiles;
  state = int64_t(turn / p.tiles * p.together + blockIdx.x % p.together);
  return state < p.where.sequences * p.where.heads;
}

// ---- the gates

constexpr int kGateTokens = 16;  // whose gates are made at a time, by twice as many threads: forget, then input

struct Steps {  // in LDS
  double m[kGateTokens], logs[2][kGateTokens];
  float factor[2][kGateTokens];  // forget, input
};

// The one that this thread makes. Chosen ahead of a loop, it is in vector registers; scalar ones are few there.
XLSTM_DEVICE Tokens own_gate(const RecurrentParams& p) { return p.gate[threadIdx.x / kGateTokens % 2]; }

// The gates of up to kGateTokens tokens from t on. m, of the threads that make them: before the first, after the last.
XLSTM_DEVICE void make_steps(const RecurrentParams& p, const Tokens& gate, const Head& head, int64_t t, int count,
                             double& m, Steps& steps) {
  const int own = threadIdx.x % kGateTokens, is_input = threadIdx.x / kGateTokens;
  const bool makes = is_input < 2 && own < count;
  if (makes) {
    const double x = capped_gate(load_gate(gate, head, t + own), p.gate_soft_cap);
    steps.logs[is_input][own] = is_input && !p.sigmoid ? x : log_sigmoid(x);
  }
  __syncthreads();
  if (is_input < 2) {
    double log_factor = 0;
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      const double lf = steps.logs[0][j], ig = steps.logs[1][j], next = next_stabiliser(p.sigmoid, lf, m, ig);
      if (j == own) {
        log_factor = is_input ? ig - next : lf + m - next;
        if (!is_input) steps.m[j] = next;
      }
      m = next;
    }
    if (makes) steps.factor[is_input][own] = float(exp(log_factor));
  }
  __syncthreads();
}

// ---- h and l

// What parts of a block (waves, or groups of threads) have summed up over their keys.
template <int kColumns, int kMostParts>
struct Sums {                                            // in LDS
  alignas(16) float value[2][kMostParts][kColumns + 4];  // h, then l
};

// Where a thread writes h and l of token after token: one column of a tile.
template <class E>
struct TokenOutput {
  E* h;  // null without such a column
  float* l;

  XLSTM_DEVICE TokenOutput(const RecurrentParams& p, const Head& head, int tile, int columns) : h(nullptr), l(nullptr) {
    const int column = threadIdx.x, value = tile * columns + column;
    const TokenRows<E> to = rows<E>(p.h, head);
    if (column < columns && value < to.columns) h = const_cast<E*>(to.data) + head.begin * to.stride + value;
    if (value == 0 && p.l) l = p.l + head.row * p.where.length + head.begin;
  }

  // After a barrier.
  template <int kColumns, int kMostParts>
  XLSTM_DEVICE void write(const RecurrentParams& p, const Sums<kColumns, kMostParts>& sums, int buffer, int parts,
                          double m) {
    if (!h) return;
    float num = 0, sum = 0;
    for (int part = 0; part < parts; ++part) {
      num += sums.value[buffer][part][threadIdx.x];
      sum += sums.value[buffer][part][kColumns];
    }
    *h = from_float<E>(num * float(1 / normaliser(p.normalize, sum, m, p.eps)));
    h += p.h.stride[2];
    if (l) *l++ = sum;
  }
};

// ---- the state in registers

XLSTM_DEVICE void store_four(float* to, const float* x) {
  *reinterpret_cast<Piece*>(to) = {{as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])}};
}

// Element j of packed ones.
template <class E>
XLSTM_DEVICE float unpack(const uint32_t* words, int j) {
  if constexpr (sizeof(E) == 4)
    return as_float(words[j]);
  else
    return j % 2 ? high_float(E{}, words[j / 2]) : low_float(E{}, words[j / 2]);
}

// sum = by sum + x. What that rounds away is carried over to the next time: over thousands of tokens of which nothing
// is forgotten it would add up to many times what a matrix product loses. fma(a, b, 0) is a product that the compiler
// leaves alone.
XLSTM_DEVICE void add_carried(float by, float x, float& sum, float& carried) {
  const float added = __builtin_fmaf(by, carried, x), kept = __builtin_fmaf(by, sum, 0.0f);
  const float of_product = __builtin_fmaf(by, sum, -kept), all = kept + added, back = all - kept;
  const float lost = ((kept - (all - back)) + (added - back)) + of_product;
  carried = lost == lost ? lost : 0.0f;  // of an infinite sum
  sum = all;
}

// What one thread owns of a tile, and of the token at hand. Threads beyond the keys or the values have zeros.
// kCarries: for many tokens in float32.
template <class E, int kColumns, bool kCarries = false>
struct HeadTile {
  static constexpr int kRows = kRecurrentRows, kWidth = kRecurrentColumns, kLanes = kColumns / kWidth;
  static constexpr int n_piece = kPieceElements<E>;
  struct alignas(kWidth * sizeof(E)) Values {
    uint32_t word[kWidth * sizeof(E) / 4];
  };

  int64_t dhv;
  int column, row;  // its first value and key
  bool has_keys, inside;
  const E *q_at = nullptr, *k_at = nullptr, *v_at = nullptr;
  float c[kRows][kWidth] = {}, n[kRows] = {};
  float c_carried[kCarries ? kRows : 1][kWidth] = {}, n_carried[kCarries ? kRows : 1] = {};
  Piece q[kRows / n_piece] = {}, k[kRows / n_piece] = {};
  Values v = {};

  XLSTM_DEVICE HeadTile(const RecurrentParams& p, int tile) : dhv(p.v.columns) {
    column = tile * kColumns + int(threadIdx.x) % kLanes * kWidth;
    row = int(threadIdx.x) / kLanes * kRows;
    has_keys = row < p.q.columns;
    inside = has_keys && column < p.v.columns;
  }

  // From this head's states.
  XLSTM_DEVICE void load(const float* c_from, const float* n_from) {
    if (inside) {
      Piece piece[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) piece[r] = *reinterpret_cast<const Piece*>(c_from + (row + r) * dhv + column);
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int j = 0; j < kWidth; ++j) c[r][j] = as_float(piece[r].word[j]);
    }
    if (has_keys) {
      Piece piece[kRows / 4];
#pragma unroll
      for (int r = 0; r < kRows / 4; ++r) piece[r] = *reinterpret_cast<const Piece*>(n_from + row + 4 * r);
#pragma unroll
      for (int r = 0; r < kRows; ++r) n[r] = as_float(piece[r / 4].word[r % 4]);
    }
  }
  // Before an earlier kernel has ended, which may still write it: L2 has what it writes.
  XLSTM_DEVICE void ask_into_l2(const float* c_from) const {
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) ask_line_into_l2(c_from + (row + r) * dhv + column);
  }
  XLSTM_DEVICE void store_c(float* to) const {
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) store_four(to + (row + r) * dhv + column, c[r]);
  }
  XLSTM_DEVICE void store_n(float* to) const {
    if (!has_keys) return;
#pragma unroll
    for (int r = 0; r < kRows; r += 4) store_four(to + row + r, n + r);
  }

  // What this thread needs of a token; it may still be under way when this returns.
  XLSTM_DEVICE void fetch() {
    if (has_keys) {
#pragma unroll
      for (int j = 0; j < kRows / n_piece; ++j) {
        q[j] = *reinterpret_cast<const Piece*>(q_at + j * n_piece);
        k[j] = *reinterpret_cast<const Piece*>(k_at + j * n_piece);
      }
    }
    if (inside) v = *reinterpret_cast<const Values*>(v_at);
  }
  XLSTM_DEVICE void fetch(const RecurrentParams& p, const Head& head) {  // the first token
    const TokenRows<E> qs = rows<E>(p.q, head), ks = rows<E>(p.k, head), vs = rows<E>(p.v, head);
    q_at = qs.data + head.begin * qs.stride + row;
    k_at = ks.data + head.begin * ks.stride + row;
    v_at = vs.data + head.begin * vs.stride + column;
    fetch();
  }
  XLSTM_DEVICE void fetch_next(const RecurrentParams& p) {
    q_at += p.q.stride[2];
    k_at += p.k.stride[2];
    v_at += p.v.stride[2];
    fetch();
  }

  // One token: C' and n', and what they add to h and l. A thread without keys adds nothing, not even 0 times inf.
  XLSTM_DEVICE void update(float forget, float input, float scale, float (&h)[kWidth], float& l) {
    if (!has_keys) return;
    float values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = unpack<E>(v.word, j);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float key = input * unpack<E>(k[r / n_piece].word, r % n_piece);
      const float query = scale * unpack<E>(q[r / n_piece].word, r % n_piece);
      if constexpr (kCarries)
        add_carried(forget, key, n[r], n_carried[r]);
      else
        n[r] = forget * n[r] + key;
      l += query * n[r];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if constexpr (kCarries)
          add_carried(forget, key * values[j], c[r][j], c_carried[r][j]);
        else
          c[r][j] = forget * c[r][j] + key * values[j];
        h[j] += query * c[r][j];
      }
    }
  }
};

// What the threads of a head's tile have added to h and l of a token, in LDS: over the keys, the lanes of a wave that
// have the same values. Then a barrier.
template <class Tile, class TileSums>
XLSTM_DEVICE void leave_sums(TileSums& sums, int buffer, float (&h)[Tile::kWidth], float l) {
#pragma unroll
  for (int mask = Tile::kLanes; mask < kWave; mask *= 2) {
#pragma unroll
    for (int j = 0; j < Tile::kWidth; ++j) h[j] += shuffle_xor(h[j], mask);
    l += shuffle_xor(l, mask);
  }
  if (lane_id() >= Tile::kLanes) return;
  float* to = sums.value[buffer][wave_id()];
  store_four(to + lane_id() * Tile::kWidth, h);
  if (lane_id() == 0) to[Tile::kLanes * Tile::kWidth] = l;
}

template <class E, int kColumns>
__global__ __launch_bounds__(kMostRecurrentThreads, 1) void recurrent_tokens(const RecurrentParams p) {
  using Tile = HeadTile<E, kColumns, sizeof(E) == 4>;
  __shared__ Sums<kColumns, kMostRecurrentThreads / kWave> sums;
  __shared__ Steps steps;
  let_next_kernel_begin();
  wait_for_earlier_kernels();
  int64_t state;
  int tile_index;
  if (!find_tile(p, state, tile_index)) return;

  Tile tile(p, tile_index);
  const int64_t n_offset = state * p.q.columns, c_offset = n_offset * p.v.columns;
  if (p.c_initial) tile.load(p.c_initial + c_offset, p.n_initial + n_offset);
  const Head head = head_of(p.where, state);
  const Tokens gate = own_gate(p);
  TokenOutput<E> output(p, head, tile_index, kColumns);
  if (head.begin < head.end) tile.fetch(p, head);
  double m = p.m_initial && threadIdx.x < 2 * kGateTokens ? double(p.m_initial[state]) : 0.0;

  int within = 0;
  for (int64_t t = head.begin; t < head.end; ++t, within = (within + 1) % kGateTokens) {
    const int buffer = within % 2;
    if (within == 0)
      make_steps(p, gate, head, t, int(head.end - t < kGateTokens ? head.end - t : kGateTokens), m, steps);
    float h[Tile::kWidth] = {}, l = 0;
    tile.update(steps.factor[0][within], steps.factor[1][within], p.scale, h, l);
    if (t + 1 < head.end) tile.fetch_next(p);
    leave_sums<Tile>(sums, buffer, h, l);
    __syncthreads();
    output.write(p, sums, buffer, blockDim.x / kWave, steps.m[within]);
  }

  tile.store_c(p.c_last + c_offset);
  if (tile.column != 0) return;
  tile.store_n(p.n_last + n_offset);
  if (threadIdx.x == 0) p.m_last[state] = float(m);
}

}  // namespace xlstm::gpu
