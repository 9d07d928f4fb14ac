// SPDX-License-Identifier: Apache-2.0
// The recurrent mLSTM on a GPU: any number of tokens, one after the other, in one launch. A single token is the decode
// step, which has a kernel of its own (recurrent_step.h).
//
//     m', forget, input from the gates (recurrence.h, in double)
//     n' = forget n + input k      C' = forget C + k (input v)^T      l = s q n'      h = s q C' / N(l, m')
//
// The chunkwise backward pass reads h and l from here, and recomputes C. Where l cancels, its rounding error appears
// twice in all of a token's dq and dn, and an error that all values of a token share does not average out in dh h. So
// float32 computes l, N and forget with more digits than a float has, s is multiplied after the sums, and input is
// multiplied into v, not into k.
//
// Who owns what: a block owns a tile of 8, 16 or 32 values (columns of C) of one head, and a thread 8 keys by 4 values
// of it: 16 bytes of each of 8 rows, whose loads are all in flight before anything waits. They stay in its registers
// for all tokens. Of a C in bfloat16, which the step alone takes, 16 bytes are 8 values, and a tile twice as wide. n, q
// and k are distributed the same way, so a thread needs no LDS for them; the lanes along a row hold the same 8. The
// rows' contributions to h and l are summed by shuffles within a wave and then through LDS, in two alternating buffers:
// one barrier a token. The gates of 16 tokens are computed at a time; only the chain of m is sequential.
//
// Dims and strides that are not multiples of 16 bytes, and heads of more keys than a block's registers hold, take the
// kernel for any shape (recurrent_any_shape.h): there C goes through memory once a token, each thread reading what it
// wrote itself, and n through workspace.
//
// n and m are single copies that every tile of a head reads and one tile writes. In place, that tile must not write
// early: it cannot know whether the other blocks have begun, and a counter of the blocks that have begun would need a
// kernel before this one to zero it. So it writes n and m to workspace, and a small second kernel copies them. Out of
// place there is one kernel.
//
// Floor: C read and written once, 8 DHQK DHHV bytes a head, 4 in bfloat16; memory binds. With few heads latency binds:
// a block issues all loads of C, gates, q, k, v, n at the start.
#pragma once

#include <type_traits>

#include "arch/nvidia/dependent_launch.h"
#include "mlstm/gpu/sequences.h"
#include "mlstm/recurrence.h"
#include "mlstm/recurrent/recurrent_plan.h"

namespace xlstm::gpu::mlstm {

struct RecurrentParams {
  Sequences where;
  Tokens q, k, v, h;
  Tokens gate[2];                      // forget, input
  const void* c_initial;               // (N, NH, DHQK, DHHV), float or bfloat16, or null
  const float *n_initial, *m_initial;  // (N, NH, DHQK), (N, NH), or null
  float* n_buffers;                    // (N NH, tiles, 2, DHQK): n after every other token, in the kernel for any shape
  float* l;                            // (B, NH, S), or null
  int tiles, interleaved_heads;
  bool sigmoid, normalize;
  double scale, eps, gate_soft_cap;
  void* c_last;
  float *n_last, *m_last;
};

// C of a head whose element is C.
template <class C>
XLSTM_DEVICE const C* initial_c(const RecurrentParams& p, int64_t offset) {
  return static_cast<const C*>(p.c_initial) + offset;
}
template <class C>
XLSTM_DEVICE C* last_c(const RecurrentParams& p, int64_t offset) {
  return static_cast<C*>(p.c_last) + offset;
}

// The tile and the head of this block. Returns false for a block without one.
XLSTM_DEVICE bool find_tile(const RecurrentParams& p, int64_t& state, int& tile) {
  const unsigned turn = blockIdx.x / p.interleaved_heads;
  tile = turn % p.tiles;
  state = int64_t(turn / p.tiles * p.interleaved_heads + blockIdx.x % p.interleaved_heads);
  return state < p.where.sequences * p.where.heads;
}

// head_of for rows that are a sequence of one token each. A block's number is an int, so its head is too.
XLSTM_DEVICE Head one_token_head(const RecurrentParams& p, int64_t state) {
  const unsigned heads = unsigned(p.where.heads), row = unsigned(state);
  return {int(state), int(row / heads), int(row % heads), int(state), 0, 1, 0};
}

// ---- the gates

// Tokens whose gates are computed at a time, by twice as many threads: forget, then input.
constexpr int kGateTokens = 16;

struct Steps {  // in LDS
  double m[kGateTokens], logs[2][kGateTokens];
  float factor[2][kGateTokens];    // forget, input
  float forget_rest[kGateTokens];  // rounding error of forget, for float32
};

// The gate tensor of this thread. Selected before a loop, it is held in vector registers; scalar registers are scarce
// there.
XLSTM_DEVICE Tokens thread_gate(const RecurrentParams& p) { return p.gate[threadIdx.x / kGateTokens % 2]; }

// The gates of up to kGateTokens tokens from t on. m, in the threads that compute gates: in, before the first token;
// out, after the last.
XLSTM_DEVICE void compute_steps(const RecurrentParams& p, const Tokens& gate, const Head& head, int64_t t, int count,
                                double& m, Steps& steps) {
  const int token = threadIdx.x % kGateTokens, is_input = threadIdx.x / kGateTokens;
  const bool computes = is_input < 2 && token < count;
  if (computes) {
    const double x = capped_gate(load_gate(gate, head, t + token), p.gate_soft_cap);
    steps.logs[is_input][token] = is_input && !p.sigmoid ? x : log_sigmoid(x);
  }
  __syncthreads();
  if (is_input < 2) {
    double log_factor = 0;
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      const double lf = steps.logs[0][j], ig = steps.logs[1][j], next = next_stabiliser(p.sigmoid, lf, m, ig);
      if (j == token) {
        log_factor = is_input ? ig - next : lf + m - next;
        if (!is_input) steps.m[j] = next;
      }
      m = next;
    }
    if (computes) {
      const double exact = exp(log_factor);
      const float factor = float(exact), rest = float(exact - factor);
      steps.factor[is_input][token] = factor;
      if (!is_input) steps.forget_rest[token] = isfinite(rest) ? rest : 0.0f;  // zero for an infinite factor
    }
  }
  __syncthreads();
}

// ---- h and l

// The type for l, N and every other number that all values of a token share.
template <class E>
using Precise = std::conditional_t<sizeof(E) == 4, double, float>;

// Partial sums over the keys of each part of a block (a wave, or a group of threads).
template <class L, int kColumns, int kMaxParts>
struct PartialSums {  // in LDS
  alignas(16) float h[2][kMaxParts][kColumns];
  L l[2][kMaxParts];
};

// The addresses of h and l that a thread writes token after token: one column of a tile.
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

  // After a barrier: returns h of a column, and l, of the parts from `part` on.
  template <class L, int kColumns, int kMaxParts>
  XLSTM_DEVICE static float sum_up(const RecurrentParams& p, const PartialSums<L, kColumns, kMaxParts>& sums,
                                   int buffer, int column, int part, int end, double m, L& scaled) {
    float num = 0;
    L sum = 0;
    for (; part < end; ++part) {
      num += sums.h[buffer][part][column];
      sum += sums.l[buffer][part];
    }
    const L scale = L(p.scale);
    scaled = scale * sum;
    return float(num * (scale * L(1 / normaliser(p.normalize, scaled, m, p.eps))));
  }
  template <class L, int kColumns, int kMaxParts>
  XLSTM_DEVICE void write(const RecurrentParams& p, const PartialSums<L, kColumns, kMaxParts>& sums, int buffer,
                          int parts, double m) {
    if (!h) return;
    L scaled;
    *h = from_float<E>(sum_up(p, sums, buffer, int(threadIdx.x), 0, parts, m, scaled));
    h += p.h.stride[2];
    if (l) *l++ = float(scaled);
  }
};

// ---- the state in registers

XLSTM_DEVICE void store_vec16_floats(float* to, const float* x) {
  *reinterpret_cast<Vec16*>(to) = {{as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])}};
}

// Element j of packed elements.
template <class E>
XLSTM_DEVICE float unpack(const uint32_t* words, int j) {
  if constexpr (sizeof(E) == 4)
    return as_float(words[j]);
  else
    return j % 2 ? high_float(E{}, words[j / 2]) : low_float(E{}, words[j / 2]);
}

// sum += x. Returns the rounding error, or NaN for an infinite sum.
XLSTM_DEVICE float add_exactly(float x, float& sum) {
  const float before = sum, all = before + x, back = all - before;
  sum = all;
  return (before - (all - back)) + (x - back);
}

// The factors of a token's gates.
struct Decay {
  float forget, forget_rest, input;
};

// sum = forget sum + x, with compensation: the rounding error is carried to the next token. Over thousands of tokens of
// which nothing is forgotten, the errors would otherwise add up to many times what a matrix product loses. fma(a, b, 0)
// is a product that the compiler does not contract.
XLSTM_DEVICE void add_compensated(const Decay& by, float x, float& sum, float& compensation) {
  const float added = __builtin_fmaf(by.forget, compensation, x), product = __builtin_fmaf(by.forget, sum, 0.0f);
  const float of_product = __builtin_fmaf(by.forget_rest, sum, __builtin_fmaf(by.forget, sum, -product));
  sum = product;
  const float lost = add_exactly(added, sum) + of_product;
  compensation = lost == lost ? lost : 0.0f;  // zero for an infinite sum
}

// A thread's part of a tile, and of the current token. Threads beyond the keys or the values hold zeros. kCompensated:
// for many tokens in float32. C: the element of the state, float, or bfloat16 for one token.
template <class E, int kColumns, bool kCompensated = false, class C = float>
struct HeadTile {
  static constexpr bool kRounded = sizeof(C) == 2;
  static constexpr int kRows = kRecurrentRows, kWidth = recurrent_columns(sizeof(C)), kLanes = kColumns / kWidth;
  static constexpr int kVec = kVec16Elements<E>;
  static_assert(!(kRounded && kCompensated));
  using L = std::conditional_t<kCompensated, Precise<E>, float>;
  struct alignas(kWidth * sizeof(E) < 16 ? kWidth * sizeof(E) : 16) Values {
    uint32_t word[kWidth * sizeof(E) / 4];
  };
  // A row's 16 bytes of C: as floats; bfloat16 stay packed, so that a thread's registers do for twice the columns.
  using FloatRow = float[kWidth];
  using StateRow = std::conditional_t<kRounded, Vec16, FloatRow>;

  int64_t dhv;
  int column, row;  // its first value and its first key
  bool has_keys, inside;
  const E *q_at = nullptr, *k_at = nullptr, *v_at = nullptr;
  StateRow c[kRows] = {};
  float n[kRows] = {};
  float c_compensation[kCompensated ? kRows : 1][kWidth] = {}, n_compensation[kCompensated ? kRows : 1] = {};
  Vec16 q[kRows / kVec] = {}, k[kRows / kVec] = {};
  Values v = {};

  XLSTM_DEVICE HeadTile(const RecurrentParams& p, int tile, int thread = int(threadIdx.x)) : dhv(p.v.columns) {
    column = tile * kColumns + thread % kLanes * kWidth;
    row = thread / kLanes * kRows;
    has_keys = row < p.q.columns;
    inside = has_keys && column < p.v.columns;
  }

  // Loads the states of this head.
  XLSTM_DEVICE void load(const C* c_from, const float* n_from) {
    if (inside) {
      Vec16 vec[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) vec[r] = *reinterpret_cast<const Vec16*>(c_from + (row + r) * dhv + column);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if constexpr (kRounded) {
          c[r] = vec[r];
        } else {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) c[r][j] = as_float(vec[r].word[j]);
        }
      }
    }
    if (has_keys) {
      Vec16 vec[kRows / 4];
#pragma unroll
      for (int r = 0; r < kRows / 4; ++r) vec[r] = *reinterpret_cast<const Vec16*>(n_from + row + 4 * r);
#pragma unroll
      for (int r = 0; r < kRows; ++r) n[r] = as_float(vec[r / 4].word[r % 4]);
    }
  }
  // Called before an earlier kernel has ended, which may still write C: L2 receives these writes.
  XLSTM_DEVICE void prefetch_to_l2(const C* c_from) const {
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) prefetch_l2_line(c_from + (row + r) * dhv + column);
  }
  XLSTM_DEVICE void store_c(C* to) const {
    if (!inside) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      C* at = to + (row + r) * dhv + column;
      if constexpr (kRounded)
        *reinterpret_cast<Vec16*>(at) = c[r];
      else
        store_vec16_floats(at, c[r]);
    }
  }
  XLSTM_DEVICE void store_n(float* to) const {
    if (!has_keys) return;
#pragma unroll
    for (int r = 0; r < kRows; r += 4) store_vec16_floats(to + row + r, n + r);
  }

  // Loads this thread's part of a token. The loads may still be in flight when this returns.
  XLSTM_DEVICE void fetch() {
    if (has_keys) {
#pragma unroll
      for (int j = 0; j < kRows / kVec; ++j) {
        q[j] = *reinterpret_cast<const Vec16*>(q_at + j * kVec);
        k[j] = *reinterpret_cast<const Vec16*>(k_at + j * kVec);
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

  // One token: C' and n', and their contributions to h and l. A thread without keys adds nothing, not even 0 times inf.
  XLSTM_DEVICE void update(const Decay& by, float (&h)[kWidth], L& l) {
    if (!has_keys) return;
    float values[kWidth], sum = 0, lost = 0;  // sum of l, and its rounding error
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = by.input * unpack<E>(v.word, j);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float key = unpack<E>(k[r / kVec].word, r % kVec);
      const float query = unpack<E>(q[r / kVec].word, r % kVec);
      if constexpr (kCompensated) {
        add_compensated(by, by.input * key, n[r], n_compensation[r]);
        const float term = __builtin_fmaf(query, n[r], 0.0f);
        lost += __builtin_fmaf(query, n[r], -term) + query * n_compensation[r] + add_exactly(term, sum);
      } else {
        n[r] = by.forget * n[r] + by.input * key;
        sum += query * n[r];
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        if constexpr (kCompensated)
          add_compensated(by, key * values[j], c[r][j], c_compensation[r][j]);
        else
          c[r][j] = by.forget * c[r][j] + key * values[j];
        h[j] += query * c[r][j];
      }
    }
    l = L(sum) + (lost == lost ? lost : 0.0f);  // NaN for an infinite sum
  }

  // The same of a C in bfloat16, whose rows are widened, updated and rounded one by one. h is of C' before its
  // rounding. Instructions of an element beside its four of arithmetic: one to widen it, two for its share of the
  // bits, and between three and four for the rounding.
  XLSTM_DEVICE void update_rounded(const Decay& by, int head, float (&h)[kWidth], float& l) {
    if (!has_keys) return;
    const uint32_t token = token_bits(head, as_bits(by.forget), as_bits(by.input));
    float values[kWidth];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values[j] = by.input * unpack<E>(v.word, j);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float key = unpack<E>(k[r / kVec].word, r % kVec);
      const float query = unpack<E>(q[r / kVec].word, r % kVec);
      const uint32_t bits = row_bits(token, row + r, as_bits(n[r]));
      n[r] = by.forget * n[r] + by.input * key;
      l += query * n[r];
#pragma unroll
      for (int j = 0; j < kWidth; j += 2) {
        float x[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          x[half] = by.forget * unpack<C>(c[r].word, j + half) + key * values[j + half];
          h[j + half] += query * x[half];
        }
        c[r].word[j / 2] = pack_stochastic(x[0], x[1], pair_bits(bits, uint32_t(column + j) / 2));
      }
    }
  }
};

// Sums h and l of a token over the lanes of a wave that have the same values, and stores a partial sum for each wave in
// LDS. A barrier must follow.
template <class Tile, class TileSums>
XLSTM_DEVICE void store_partial_sums(TileSums& sums, int buffer, float (&h)[Tile::kWidth], typename Tile::L l) {
#pragma unroll
  for (int mask = Tile::kLanes; mask < kWave; mask *= 2) {
#pragma unroll
    for (int j = 0; j < Tile::kWidth; ++j) h[j] += shuffle_xor(h[j], mask);
    l += shuffle_from(l, lane_id() ^ mask, kWave);
  }
  if (lane_id() >= Tile::kLanes) return;
#pragma unroll
  for (int j = 0; j < Tile::kWidth; j += 4)
    store_vec16_floats(sums.h[buffer][wave_id()] + lane_id() * Tile::kWidth + j, h + j);
  if (lane_id() == 0) sums.l[buffer][wave_id()] = l;
}

// Occupancy: two blocks fit an SM; in float32, one.
template <class E, int kColumns>
__global__ __launch_bounds__(kMaxRecurrentThreads,
                             sizeof(E) == 2 ? 2 : 1) void recurrent_tokens(const RecurrentParams p) {
  using Tile = HeadTile<E, kColumns, sizeof(E) == 4>;
  __shared__ PartialSums<typename Tile::L, kColumns, kMaxRecurrentThreads / kWave> sums;
  __shared__ Steps steps;
  pdl_trigger();
  pdl_wait();
  int64_t state;
  int tile_index;
  if (!find_tile(p, state, tile_index)) return;

  Tile tile(p, tile_index);
  const int64_t n_offset = state * p.q.columns, c_offset = n_offset * p.v.columns;
  if (p.c_initial) tile.load(initial_c<float>(p, c_offset), p.n_initial + n_offset);
  const Head head = head_of(p.where, state);
  const Tokens gate = thread_gate(p);
  TokenOutput<E> output(p, head, tile_index, kColumns);
  if (head.begin < head.end) tile.fetch(p, head);
  double m = p.m_initial && threadIdx.x < 2 * kGateTokens ? double(p.m_initial[state]) : 0.0;

  int within = 0;
  for (int64_t t = head.begin; t < head.end; ++t, within = (within + 1) % kGateTokens) {
    const int buffer = within % 2;
    if (within == 0)
      compute_steps(p, gate, head, t, int(head.end - t < kGateTokens ? head.end - t : kGateTokens), m, steps);
    float h[Tile::kWidth] = {};
    typename Tile::L l = 0;
    tile.update({steps.factor[0][within], steps.forget_rest[within], steps.factor[1][within]}, h, l);
    if (t + 1 < head.end) tile.fetch_next(p);
    store_partial_sums<Tile>(sums, buffer, h, l);
    __syncthreads();
    output.write(p, sums, buffer, blockDim.x / kWave, steps.m[within]);
  }

  tile.store_c(last_c<float>(p, c_offset));
  if (tile.column != 0) return;
  tile.store_n(p.n_last + n_offset);
  if (threadIdx.x == 0) p.m_last[state] = float(m);
}

}  // namespace xlstm::gpu::mlstm
