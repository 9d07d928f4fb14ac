// SPDX-License-Identifier: Apache-2.0
// Heads, sequences, chunks and segments, as a thread block looks them up.
#pragma once

#include "mlstm/gpu/params.h"
#include "mlstm/recurrence.h"
#include "tile/lds_tile.h"
#include "tile/vectors.h"

namespace xlstm::gpu::mlstm {

// One head of one sequence. Offsets from the caller are clamped to the row, whatever they are.
struct Head {
  int state, batch, head, row;  // row = batch NH + head. A grid has a block for each row, so 32 bits hold it
  int64_t begin, end;           // its tokens
  int64_t slot;                 // slot of its first chunk

  XLSTM_DEVICE int64_t slot_of(const Sequences& s, int64_t chunk) const { return row * s.slots + slot + chunk; }
  XLSTM_DEVICE int64_t in_slots(const Sequences& s, int64_t chunk) const { return slot_of(s, chunk) * s.chunk; }
};

XLSTM_DEVICE int64_t clamp_offset(const int64_t* cu_seqlens, int64_t length, int64_t n) {
  const int64_t x = global(cu_seqlens)[n];
  return x < 0 ? 0 : x > length ? length : x;
}
XLSTM_DEVICE int64_t clamp_offset(const Sequences& s, int64_t n) { return clamp_offset(s.cu_seqlens, s.length, n); }

// The last sequence of which begins_by(sequence) is true; sequence 0 where none is.
template <class F>
XLSTM_DEVICE int64_t last_sequence(int64_t sequences, F&& begins_by) {
  int64_t sequence = 0, last = sequences - 1;
  while (sequence < last) {
    const int64_t middle = (sequence + last + 1) / 2;
    if (begins_by(middle))
      sequence = middle;
    else
      last = middle - 1;
  }
  return sequence;
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

// Finds the head and the chunk that a slot of a row holds. Returns false for an empty slot.
XLSTM_DEVICE bool head_at(const Sequences& s, int64_t row, int64_t slot, Head& h, int64_t& chunk) {
  if (s.cu_seqlens) {  // the last sequence whose slots begin at `slot` or before
    const int64_t sequence =
        last_sequence(s.sequences, [&](int64_t n) { return clamp_offset(s, n) / s.chunk + n <= slot; });
    h = head_of(s, sequence * s.heads + row);
  } else {
    h = head_of(s, row);
  }
  chunk = slot - h.slot;
  return h.begin + chunk * s.chunk < h.end;
}

// The same for a slot of all rows. Grids have a block for each, so 32 bits hold it: a division of 64 bits takes long.
XLSTM_DEVICE bool head_at(const Sequences& s, uint32_t slot_of_rows, Head& h, int64_t& chunk) {
  const uint32_t slots = uint32_t(s.slots);
  return head_at(s, slot_of_rows / slots, slot_of_rows % slots, h, chunk);
}

// One chunk of one head.
struct Chunk {
  Head head;
  int64_t slot, t0;  // slot: row slots + slot; t0: first token
  int valid;         // number of tokens

  XLSTM_DEVICE Chunk(const Sequences& s, const Head& h, int64_t chunk)
      : head(h), slot(h.slot_of(s, chunk)), t0(h.begin + chunk * s.chunk) {
    valid = int(h.end - t0 < s.chunk ? h.end - t0 : s.chunk);
  }
};

// The tokens of a chunk for a group of kTokenLanes lanes: each lane has kEach consecutive tokens.
constexpr int kTokenLanes = 32;
template <int kEach>
struct ChunkTokens {
  Head head;
  int64_t chunk, first, slot,
      at;  // first: the lane's first token; slot: index into per-chunk arrays; at: index into per-token arrays
  int lane, first_in_chunk;  // first_in_chunk: the first token's index within the chunk
  int count;                 // number of tokens in the chunk
  bool chunk_inside;

  XLSTM_DEVICE ChunkTokens(const Sequences& s, int chunks_per_block) {
    slot = int64_t(blockIdx.x) * chunks_per_block + threadIdx.x / kTokenLanes;
    lane = threadIdx.x % kTokenLanes;
    first_in_chunk = lane * kEach;
    chunk_inside = slot < s.rows * s.slots && head_at(s, uint32_t(slot), head, chunk);
    const int64_t begin = head.begin + chunk * s.chunk;
    first = begin + first_in_chunk;
    at = slot * s.chunk + first_in_chunk;
    count = !chunk_inside ? 0 : int(head.end - begin < s.chunk ? head.end - begin : s.chunk);
  }
  XLSTM_DEVICE bool inside(int j) const { return first_in_chunk + j < count; }
};

// Where in the chunk the sequence of a joined row's token begins, or -1 where that is before the chunk. Rows that are
// not joined have -1 throughout.
XLSTM_DEVICE int sequence_begin(const Sequences& s, int64_t token) {
  return s.sequence_begin ? global(s.sequence_begin)[token] : -1;
}
// The same from cu_seqlens, for a chunk whose first token is t0. Whatever the offsets are, it is not after the token.
XLSTM_DEVICE int find_sequence_begin(const JoinedRow& joined, int64_t length, int64_t t0, int64_t token) {
  const auto offset = [&](int64_t n) { return clamp_offset(joined.cu_seqlens, length, n); };
  const int64_t begin = offset(last_sequence(joined.sequences, [&](int64_t n) { return offset(n) <= token; }));
  return begin < t0 ? -1 : int((begin < token ? begin : token) - t0);
}

// x times the decay of chunks. Where a sequence of a joined row begins among them, nothing of x is left, not even NaN.
XLSTM_DEVICE float decayed(const Sequences& s, float x, float decay) {
  return s.sequence_begin && decay == 0 ? 0.0f : decay * x;
}
// The decay of chunks and of those that follow.
XLSTM_DEVICE float then_decay(const Sequences& s, float decay, float next) {
  return s.sequence_begin && decay == 0 ? 0.0f : decayed(s, decay, next);
}

// Index of a token's factor in the array of factors.
XLSTM_DEVICE int64_t factor_at(int64_t slot, Factor which, int token, int chunk) {
  return (slot * kFactors + which) * chunk + token;
}

struct Segment : Head {
  int first_chunk, last_chunk;  // chunks [first_chunk, last_chunk)
  int order_and_last;  // 2 order + is_last, order in the walk's direction: AMD's compiler keeps a bool in two registers
  bool empty;

  XLSTM_DEVICE int order() const { return order_and_last / 2; }
  XLSTM_DEVICE bool last() const { return order_and_last % 2; }
};

XLSTM_DEVICE Segment segment_of(const Sequences& s, int64_t state, int order, int segment_chunks, bool reverse) {
  Segment g{head_of(s, state), 0, 0, 2 * order, true};
  const int chunks = int((g.end - g.begin + s.chunk - 1) / s.chunk);
  const int count = (chunks + segment_chunks - 1) / segment_chunks;
  if (order >= count) return g;
  g.first_chunk = (reverse ? count - 1 - order : order) * segment_chunks;
  g.last_chunk = g.first_chunk + segment_chunks < chunks ? g.first_chunk + segment_chunks : chunks;
  g.order_and_last = uniform(2 * order + int(order + 1 == count));
  g.empty = false;
  return g;
}

template <class E>
XLSTM_DEVICE TokenRows<E> rows(const Tokens& x, const Head& h) {
  return {global(static_cast<const E*>(x.data)) + h.batch * x.stride[0] + h.head * x.stride[1], x.stride[2], x.columns,
          x.is_aligned16};
}

// Stores a vector's elements that are inside; on NVIDIA by halves where rows are aligned to 8 bytes alone.
template <class E, int n>
XLSTM_DEVICE void store_vec16(const TokenRows<E>& rows, int64_t token, int column, const float (&value)[n]) {
  E* row = const_cast<E*>(rows.data) + token * rows.stride;
  if constexpr (kAsyncCopies)
    if (!rows.is_aligned16 && rows.is_aligned8()) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float half[n / 2];
#pragma unroll
        for (int j = 0; j < n / 2; ++j) half[j] = value[h * (n / 2) + j];
        store_run(row, column + h * (n / 2), rows.columns, true, half);
      }
      return;
    }
  store_run(row, column, rows.columns, rows.is_aligned16, value);
}

// A gate is one number a token, in q's dtype or in float.
XLSTM_DEVICE int64_t gate_offset(const Tokens& x, const Head& h, int64_t token) {
  return h.batch * x.stride[0] + h.head * x.stride[1] + token * x.stride[2];
}
// Its bits. The conversion of one gate would wait for its load before the next load is issued.
XLSTM_DEVICE uint32_t load_gate_bits(const Tokens& x, const Head& h, int64_t token) {
  const int64_t at = gate_offset(x, h, token);
  return x.element == 0 ? static_cast<const uint32_t*>(x.data)[at] : static_cast<const uint16_t*>(x.data)[at];
}
XLSTM_DEVICE double gate_of(const Tokens& x, uint32_t bits) {
  if (x.element == 0) return as_float(bits);
  return x.element == 1 ? to_float(BFloat16{uint16_t(bits)}) : to_float(Float16{uint16_t(bits)});
}
XLSTM_DEVICE double load_gate(const Tokens& x, const Head& h, int64_t token) {
  return gate_of(x, load_gate_bits(x, h, token));
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

// A token's log forget gate and log input gate. lf is kept finite, so that differences of its sums are defined;
// e^-100000 is zero just as e^-inf is.
struct TokenGates {
  double lf, ig;
};
XLSTM_DEVICE TokenGates token_gates(const Tokens& i, const Tokens& f, bool sigmoid_gate, const Head& h, int64_t token) {
  const uint32_t i_bits = load_gate_bits(i, h, token), f_bits = load_gate_bits(f, h, token);
  const double ig = gate_of(i, i_bits), lf = log_sigmoid(gate_of(f, f_bits));
  return {lf < -1e5 ? -1e5 : lf, sigmoid_gate ? log_sigmoid(ig) : ig};
}

// The effect of consecutive tokens on the exp gate's m: m becomes max(m + sum, max), or max alone where a sequence of a
// joined row begins among the tokens: then sum is -inf, which no token's lf is.
struct GateSums {
  double sum = 0, max = -INFINITY;

  XLSTM_DEVICE static GateSums restart(double m) { return {-INFINITY, m}; }
  XLSTM_DEVICE bool restarts() const { return sum == -INFINITY; }
  XLSTM_DEVICE double exp_gate_after(double m) const { return restarts() ? max : nan_max(m + sum, max); }
  XLSTM_DEVICE GateSums then(const GateSums& next) const { return {sum + next.sum, next.exp_gate_after(max)}; }
  XLSTM_DEVICE double after(bool sigmoid_gate, double m) const { return sigmoid_gate ? 0.0 : exp_gate_after(m); }
};

// Inclusive scan over the tokens of a chunk, where kTokenLanes lanes have kEach tokens each.
template <int kEach>
XLSTM_DEVICE void scan_gates(GateSums (&x)[kEach], int lane) {
#pragma unroll
  for (int j = 1; j < kEach; ++j) x[j] = x[j - 1].then(x[j]);
  GateSums all = x[kEach - 1];
  const auto below = [&](int by) {
    return GateSums{shuffle_from(all.sum, lane - by, kTokenLanes), shuffle_from(all.max, lane - by, kTokenLanes)};
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
