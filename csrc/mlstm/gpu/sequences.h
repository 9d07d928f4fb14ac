// SPDX-License-Identifier: Apache-2.0
// Heads, sequences, chunks and segments as a block of threads finds them.
#pragma once

#include "mlstm/gpu/params.h"
#include "mlstm/recurrence.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::mlstm {

// One head of one sequence. Offsets that the caller gives are kept inside the row, whatever they are.
struct Head {
  int state, batch, head, row;  // row = batch NH + head. A grid has a block for each: 32 bits hold them
  int64_t begin, end;           // its tokens
  int64_t slot;                 // its first chunk's

  XLSTM_DEVICE int64_t slot_of(const Sequences& s, int64_t chunk) const { return row * s.slots + slot + chunk; }
  XLSTM_DEVICE int64_t in_slots(const Sequences& s, int64_t chunk) const { return slot_of(s, chunk) * s.chunk; }
};

XLSTM_DEVICE int64_t clamp_offset(const Sequences& s, int64_t n) {
  const int64_t x = global(s.cu_seqlens)[n];
  return x < 0 ? 0 : x > s.length ? s.length : x;
}

XLSTM_DEVICE Head head_of(const Sequences& s, int64_t state) {
  const int sequence = int(uint32_t(state) / uint32_t(s.heads)), head = int(uint32_t(state) % uint32_t(s.heads));
  Head h{int(state), sequence, head, int(state), 0, s.length, 0};
  if (s.cu_seqlens) {
    h.batch = 0;
    h.row = head;
    h.begin = clamp_offset(s, sequence);
    h.end = clamp_offset(s, sequence + 1);
    h.slot = h.begin / s.chunk + sequence;
  }
  return h;
}

// The head and the chunk that a slot of a row holds; false when it holds none.
XLSTM_DEVICE bool head_at(const Sequences& s, int64_t row, int64_t slot, Head& h, int64_t& chunk) {
  int64_t sequence = 0;
  if (s.cu_seqlens) {  // the last sequence whose slots begin here or before
    int64_t last = s.sequences - 1;
    while (sequence < last) {
      const int64_t middle = (sequence + last + 1) / 2;
      if (clamp_offset(s, middle) / s.chunk + middle <= slot)
        sequence = middle;
      else
        last = middle - 1;
    }
    h = head_of(s, sequence * s.heads + row);
  } else {
    h = head_of(s, row);
  }
  chunk = slot - h.slot;
  return h.begin + chunk * s.chunk < h.end;
}

// One chunk of one head.
struct Chunk {
  Head head;
  int64_t slot, t0;  // row slots + slot; first token
  int valid;         // tokens

  XLSTM_DEVICE Chunk(const Sequences& s, const Head& h, int64_t chunk)
      : head(h), slot(h.slot_of(s, chunk)), t0(h.begin + chunk * s.chunk) {
    valid = int(h.end - t0 < s.chunk ? h.end - t0 : s.chunk);
  }
};

// The tokens of a chunk for a group of lanes: kEach that follow each other for each.
constexpr int kTokenLanes = 32;
template <int kEach>
struct ChunkTokens {
  Head head;
  int64_t chunk, first, slot, at;  // of the lane's first token; slot: in arrays of chunks; at: in arrays of tokens
  int lane, here;                  // its place in the chunk
  int count;                       // of the chunk's tokens that there are
  bool chunk_inside;

  XLSTM_DEVICE ChunkTokens(const Sequences& s, int chunks_per_block) {
    slot = int64_t(blockIdx.x) * chunks_per_block + threadIdx.x / kTokenLanes;
    lane = threadIdx.x % kTokenLanes;
    here = lane * kEach;
    chunk_inside = slot < s.rows * s.slots && head_at(s, slot / s.slots, slot % s.slots, head, chunk);
    const int64_t begin = head.begin + chunk * s.chunk;
    first = begin + here;
    at = slot * s.chunk + here;
    count = !chunk_inside ? 0 : int(head.end - begin < s.chunk ? head.end - begin : s.chunk);
  }
  XLSTM_DEVICE bool inside(int j) const { return here + j < count; }
};

// A factor of a token of a chunk.
XLSTM_DEVICE int64_t factor_at(int64_t slot, Factor which, int token, int chunk) {
  return (slot * kFactors + which) * chunk + token;
}

struct Segment : Head {
  int first_chunk, last_chunk;  // its chunks, the last one excluded
  int place;  // in the walk's direction, twice, and one more for the last: AMD keeps a bool in two registers
  bool empty;

  XLSTM_DEVICE int order() const { return place / 2; }
  XLSTM_DEVICE bool last() const { return place % 2; }
};

XLSTM_DEVICE Segment segment_of(const Sequences& s, int64_t state, int order, int segment_chunks, bool reverse) {
  Segment g{head_of(s, state), 0, 0, 2 * order, true};
  const int chunks = int((g.end - g.begin + s.chunk - 1) / s.chunk);
  const int count = (chunks + segment_chunks - 1) / segment_chunks;
  if (order >= count) return g;
  g.first_chunk = (reverse ? count - 1 - order : order) * segment_chunks;
  g.last_chunk = g.first_chunk + segment_chunks < chunks ? g.first_chunk + segment_chunks : chunks;
  g.place = uniform(2 * order + int(order + 1 == count));
  g.empty = false;
  return g;
}

template <class E>
XLSTM_DEVICE TokenRows<E> rows(const Tokens& x, const Head& h) {
  return {global(static_cast<const E*>(x.data)) + h.batch * x.stride[0] + h.head * x.stride[1], x.stride[2], x.columns,
          x.whole};
}

template <class E, int n>
XLSTM_DEVICE void store_piece(const TokenRows<E>& rows, int64_t token, int column, const float (&value)[n]) {
  if (column >= rows.columns) return;
  E* to = const_cast<E*>(rows.data) + token * rows.stride + column;
  Vec16 p;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (sizeof(E) == 4)
      p.word[w] = as_bits(value[w]);
    else
      p.word[w] = pack_exact(E{}, value[2 * w], value[2 * w + 1]);
  }
  if (rows.whole) {
    *reinterpret_cast<Vec16*>(to) = p;
    return;
  }
#pragma unroll
  for (int j = 0; j < n; ++j) {
    if (column + j >= rows.columns) return;
    if constexpr (sizeof(E) == 4)
      to[j] = as_float(p.word[j]);
    else
      to[j] = E{uint16_t(p.word[j / 2] >> (16 * (j % 2)))};
  }
}

// A gate: one number a token, in q's dtype or float.
XLSTM_DEVICE int64_t gate_offset(const Tokens& x, const Head& h, int64_t token) {
  return h.batch * x.stride[0] + h.head * x.stride[1] + token * x.stride[2];
}
XLSTM_DEVICE double load_gate(const Tokens& x, const Head& h, int64_t token) {
  const int64_t at = gate_offset(x, h, token);
  if (x.element == 0) return static_cast<const float*>(x.data)[at];
  if (x.element == 1) return to_float(static_cast<const BFloat16*>(x.data)[at]);
  return to_float(static_cast<const Float16*>(x.data)[at]);
}
XLSTM_DEVICE void store_gate(const Tokens& x, const Head& h, int64_t token, float value) {
  const int64_t at = gate_offset(x, h, token);
  if (x.element == 0)
    static_cast<float*>(x.data)[at] = value;
  else if (x.element == 1)
    static_cast<BFloat16*>(x.data)[at] = from_float<BFloat16>(value);
  else
    static_cast<Float16*>(x.data)[at] = from_float<Float16>(value);
}

// What a gate's token does: log forget, log input. lf is kept finite, so that sums of it have differences; e^-100000 is
// zero as e^-inf is.
struct TokenGates {
  double lf, ig;
};
XLSTM_DEVICE TokenGates token_gates(const Tokens& i, const Tokens& f, bool sigmoid_gate, const Head& h, int64_t token) {
  const double ig = load_gate(i, h, token), lf = log_sigmoid(load_gate(f, h, token));
  return {lf < -1e5 ? -1e5 : lf, sigmoid_gate ? log_sigmoid(ig) : ig};
}

// What tokens that follow each other do to the exp gate's m: it becomes max(m + sum, most).
struct GateSums {
  double sum = 0, most = -INFINITY;

  XLSTM_DEVICE GateSums then(const GateSums& next) const {
    return {sum + next.sum, nan_max(most + next.sum, next.most)};
  }
  XLSTM_DEVICE double after(bool sigmoid_gate, double m) const { return sigmoid_gate ? 0.0 : nan_max(m + sum, most); }
};

// Each token with those before it, where kTokenLanes lanes have kEach tokens each.
template <int kEach>
XLSTM_DEVICE void scan_gates(GateSums (&x)[kEach], int lane) {
#pragma unroll
  for (int j = 1; j < kEach; ++j) x[j] = x[j - 1].then(x[j]);
  GateSums all = x[kEach - 1];
  const auto below = [&](int by) {
    return GateSums{shuffle_from(all.sum, lane - by, kTokenLanes), shuffle_from(all.most, lane - by, kTokenLanes)};
  };
#pragma unroll
  for (int by = 1; by < kTokenLanes; by *= 2) {
    const GateSums before = below(by);
    if (lane >= by) all = before.then(all);
  }
  if constexpr (kEach > 1) {
    const GateSums before = below(1);
#pragma unroll
    for (int j = 0; j + 1 < kEach; ++j)
      if (lane > 0) x[j] = before.then(x[j]);
  }
  x[kEach - 1] = all;
}

}  // namespace xlstm::gpu::mlstm
