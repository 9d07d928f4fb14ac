// SPDX-License-Identifier: Apache-2.0
// Attention of few rows against many keys, on a GPU: decoding. The maths and the orientation are those of
// forward.h.
//
// Who owns what: a block has 16 rows of one key head and a part of the keys. Its four waves lie along the keys: each
// takes every fourth tile of 32 keys (16 but on CDNA) with a maximum, a sum and an O of its own, and waits for nobody
// until they are merged through LDS at the end. A key is used by one wave and once, so neither keys nor values go
// through LDS: a wave reads its own pieces of their rows and makes operands of them in registers (arch/operands.h). A
// tile of the next keys is under way while this one is multiplied, in the registers that this one's units leave as they
// are done.
//
// Where a key lies, each lane works out for one key of the next tile, a table entry for each; the lanes that bring
// pieces of its row get it from that lane. So any size of page costs the same.
//
// Floor: each key and value is read once, and memory binds: on an MI300X a CU's share of HBM brings a tile of 128
// features in 2000 cycles, of which a wave needs about 500.
#pragma once

#include "arch/operands.h"
#include "attention/decode/decode_shape.h"
#include "attention/forward/forward_params.h"
#include "attention/gpu/score_rules.h"

namespace xlstm::gpu::attention {

template <class E, int kDqk, int kDv, bool kFull>
struct Decode {
  static constexpr DecodeShape kShape = decode_shape(kFamily, sizeof(E), {kDqk, kDv});
  static constexpr int kKeys = kStep<E>, kUnits = kDqk / kUnit<E>, kBlocks = kDv / kTransposedFeatures<E>;
  static constexpr int kAheadK = kShape.k_ahead, kAheadV = kShape.v_ahead;
  static_assert(kUnits % kAheadK == 0 && kBlocks % kAheadV == 0, "what follows the last is the next tile's first");

  const FewRowsParams& p;
  const xlstm_attention& in;
  AttentionLayout at;
  int64_t key_head;
  uint32_t group, first_row;
  char* lds;
  RowFacts<1> facts;
  ScoreRules rules;

  Vec16 q[kShape.q_in_lds ? 1 : kUnits][kChainVec16s<E>];
  Vec16 k[kAheadK][kStreamVec16s<E>];
  TransposedVec16<E> v[kAheadV][kTransposedVec16s<E>];
  Strip<E> out[kBlocks][kTransposedStrips<E>];
  Columns most = Columns::all(kLowest), sum = Columns::all(0);
  int lane, dqk, dv;  // made anew for each tile, with what follows from them

  XLSTM_DEVICE Decode(const FewRowsParams& params, const AttentionLayout& layout, int64_t head, int64_t first,
                      char* memory)
      : p(params),
        in(params.call.in),
        at(layout),
        key_head(head),
        group(uint32_t(in.heads_q) / uint32_t(in.heads_k)),
        first_row(uint32_t(first)),
        lds(memory),
        facts(at, head, first),
        rules(in),
        lane(opaque_lane()),
        dqk(int(in.dqk)),
        dv(int(in.dv)) {}

  XLSTM_DEVICE uint32_t rows() const { return uint32_t(at.queries) * group; }
  XLSTM_DEVICE uint32_t live(uint32_t row) const { return row < rows() ? row : rows() - 1; }

  XLSTM_DEVICE QueryRow<int64_t> query_of(uint32_t row) const { return query_row(key_head, row, group); }

  // ---- Q

  XLSTM_DEVICE Vec16* q_in_lds(int unit, int piece) const {
    return reinterpret_cast<Vec16*>(lds) + (unit * kChainVec16s<E> + piece) * kWave + lane;
  }
  XLSTM_DEVICE Vec16 q_piece(int unit, int piece) const {
    const Vec16Position of = chain_vec16(kFamily, sizeof(E), lane, piece);
    const int feature = unit * kUnit<E> + of.feature;
    const E* row = static_cast<const E*>(in.q.data) + at.query(in.q, query_of(live(first_row + of.row)));
    return TokenRows<E>{row, 0, int(in.dqk), true}.piece(0, feature, true);
  }
  XLSTM_DEVICE void load_q() {
    if constexpr (kShape.q_in_lds) {  // as the lanes will read it
      for (int unit = wave_id(); unit < kUnits; unit += kDecodeWaves)
#pragma unroll
        for (int c = 0; c < kChainVec16s<E>; ++c) *q_in_lds(unit, c) = q_piece(unit, c);
      __syncthreads();
    } else {
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
        for (int c = 0; c < kChainVec16s<E>; ++c) q[unit][c] = q_piece(unit, c);
    }
  }
  XLSTM_DEVICE ChainOperand<E> q_operand(int unit, int step) const {
    if constexpr (kShape.q_in_lds) {
      Vec16 held[kChainVec16s<E>];
#pragma unroll
      for (int c = 0; c < kChainVec16s<E>; ++c) held[c] = *q_in_lds(unit, c);
      return chain_of_vec16s<E>(held, step);
    } else {
      return chain_of_vec16s<E>(q[unit], step);
    }
  }

  // ---- keys and values on their way

  // Keys beyond the last one repeat it: the mask takes them out.
  struct Places {
    int64_t key, value;  // of one key of a tile: what this lane tells the others
  };
  XLSTM_DEVICE Places find(int first) const {
    const int j = first + lane % kKeys, last = int(at.keys) - 1;
    const int64_t token = at.first_key + (j < last ? j : last);
    return {at.key(in.k, key_head, token), at.key(in.v, key_head, token)};
  }
  XLSTM_DEVICE static const char* row_of(const xlstm_tensor& x, int64_t place, int key) {
    return static_cast<const char*>(x.data) + shuffle_from(place, key, kWave) * int64_t(sizeof(E));
  }
  // Pieces beyond the last one repeat it: for q these are zeros, and of out they are not kept.
  XLSTM_DEVICE static uint32_t inside(int feature, int last) {
    return uint32_t(feature < last ? feature : last) * uint32_t(sizeof(E));
  }
  XLSTM_DEVICE void fetch_keys(const Places& at, int unit) {
#pragma unroll
    for (int c = 0; c < kStreamVec16s<E>; ++c) {
      const Vec16Position of = stream_vec16(kFamily, sizeof(E), lane, c);
      k[unit % kAheadK][c] =
          load_vec16(row_of(in.k, at.key, of.row), inside(unit * kUnit<E> + of.feature, dqk - kVec16Elements<E>));
    }
  }
  XLSTM_DEVICE void fetch_values(const Places& at, int block) {
#pragma unroll
    for (int c = 0; c < kTransposedVec16s<E>; ++c) {
      if (c % 4 == 0) load_barrier();  // addresses of a few pieces at a time
      const Vec16Position of = transposed_vec16(kFamily, sizeof(E), lane, c);
      v[block % kAheadV][c] =
          load_transposed<E>(row_of(in.v, at.value, of.row),
                             inside(block * kTransposedFeatures<E> + of.feature, dv - kTransposedElements<E>));
    }
  }

  // ---- a tile

  // s = K Q^T. What comes next is asked for as registers are done with: later units of this tile, then the next one's.
  XLSTM_DEVICE void multiply_keys(Strip<E>& s, const Places& here, const Places& next) {
    s.zero();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if constexpr (kShape.q_in_lds) lane = opaque_lane();  // else all of Q is read ahead
      Vec16(&held)[kStreamVec16s<E>] = k[unit % kAheadK];
      if (unit * kUnit<E> + kUnit < E >> in.dqk) clear_beyond(held, unit);
#pragma unroll
      for (int step = 0; step < kUnitSteps<E>; ++step) {
        load_barrier();
        multiply(s, stream_of<E>(held, step), q_operand(unit, step));
      }
      s.materialise();  // before the next unit's branch, which it would be put off behind with all that it is made of
      load_barrier();
      fetch_keys(unit + kAheadK < kUnits ? here : next, (unit + kAheadK) % kUnits);
    }
  }
  // Infinities there must not meet q's zeros.
  XLSTM_DEVICE void clear_beyond(Vec16 (&held)[kStreamVec16s<E>], int unit) const {
#pragma unroll
    for (int c = 0; c < kStreamVec16s<E>; ++c) {
      const int feature = unit * kUnit<E> + stream_vec16(kFamily, sizeof(E), lane, c).feature;
#pragma unroll
      for (int w = 0; w < 4; ++w) held[c].word[w] = feature < dqk ? held[c].word[w] : 0;
    }
  }

  // Scores into weights; out and sums are scaled where a maximum has grown much.
  XLSTM_DEVICE void weigh(Strip<E>& s, int first, bool whole) {
    if constexpr (kFull) {
      rules.bend(s, facts, 0, first);
    } else {
      s.scale(rules.scale);
    }
    if (!whole) facts.mask(s, 0, first);
    Columns top = Columns::all(-__builtin_inff());
    top.take_in(s, [](float x, float y) { return fmaxf(x, y); });
    top.over_rows([](float x, float y) { return fmaxf(x, y); });
    if (has_grown(most, top)) {
      const Columns by = grow(most, sum, top);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int t = 0; t < kTransposedStrips<E>; ++t) scale_columns(out[b][t], by);
    }
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) s.value[r] = exp2_fast(s.value[r] - most.value[Columns::of(r)]);
    sum.take_in(s, [](float x, float y) { return x + y; });
  }

  // out += V^T P^T
  XLSTM_DEVICE void multiply_values(const Strip<E>& weights, const Places& here, const Places& next) {
    const ChainOperand<E> chain = as_chain(weights, 1.0f);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) {
        load_barrier();
        multiply(out[b][t], transposed<E>(v[b % kAheadV], t), chain);
      }
      load_barrier();
      if constexpr (kAheadV < kBlocks) lane = opaque_lane();  // else rows' places are kept from block to block
      fetch_values(b + kAheadV < kBlocks ? here : next, (b + kAheadV) % kBlocks);
    }
  }

  // Keys [begin, end), of which the wave takes every kDecodeWaves-th tile. begin is a multiple of a tile.
  XLSTM_DEVICE void walk(int begin, int end, const RowsSee& see) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) out[b][t].zero();
    constexpr int kAtOnce = kDecodeWaves * kKeys;
    int first = begin + wave_id() * kKeys;
    if (first >= end) return;
    Places here = find(first);
#pragma unroll
    for (int unit = 0; unit < kAheadK; ++unit) fetch_keys(here, unit);
#pragma unroll
    for (int b = 0; b < kAheadV; ++b) fetch_values(here, b);
    for (; first < end; first += kAtOnce) {
      lane = opaque_lane();
      dqk = opaque_uniform(dqk);
      dv = opaque_uniform(dv);
      const Places next = find(first + kAtOnce < end ? first + kAtOnce : first);
      Strip<E> s;
      multiply_keys(s, here, next);
      weigh(s, first, see.whole(first, kKeys));
      multiply_values(s, here, next);
      here = next;
    }
    sum.over_rows([](float x, float y) { return x + y; });
  }

  // ---- the end

  // The waves' outs and sums as one, in LDS: rows of out, then every wave's maxima and sums.
  XLSTM_DEVICE float* merged() const { return reinterpret_cast<float*>(lds); }
  XLSTM_DEVICE float* statistics() const { return merged() + kDecodeRows * merge_row(kDv); }
  XLSTM_DEVICE void merge() {
    __syncthreads();  // Q is done with
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j) {
      float* mine = statistics() + wave_id() * 2 * kDecodeRows + Columns::position(j);
      mine[0] = most.value[j];
      mine[kDecodeRows] = sum.value[j];
    }
    __syncthreads();
    Columns by;
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j)
      by.value[j] = exp2_fast(most.value[j] - whole_of(Columns::position(j)).most);
#pragma unroll 1
    for (int w = 0; w < kDecodeWaves; ++w) {
      if (wave_id() == w)
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int t = 0; t < kTransposedStrips<E>; ++t) scale_columns(out[b][t], by);
          each_held<E>(out[b], 1, [&](int feature, int j, const float* value) {
            float* to = merged() + Columns::position(j) * merge_row(kDv) + b * kTransposedFeatures<E> + feature;
#pragma unroll
            for (int e = 0; e < kTransposedElements<E>; e += 4) {
              Vec16 four = w == 0 ? Vec16{} : read_vec16(to + e);
#pragma unroll
              for (int f = 0; f < 4; ++f) four.word[f] = as_bits(as_float(four.word[f]) + value[e + f]);
              *reinterpret_cast<Vec16*>(to + e) = four;
            }
          });
        }
      __syncthreads();
    }
  }
  struct RowSum {
    float most, sum;
  };
  XLSTM_DEVICE RowSum whole_of(int row) const {
    RowSum all{kLowest, 0};
#pragma unroll
    for (int w = 0; w < kDecodeWaves; ++w) all.most = fmaxf(all.most, statistics()[w * 2 * kDecodeRows + row]);
#pragma unroll
    for (int w = 0; w < kDecodeWaves; ++w) {
      const float* of = statistics() + w * 2 * kDecodeRows + row;
      all.sum += of[kDecodeRows] * exp2_fast(of[0] - all.most);
    }
    return all;
  }

  // Rows to memory, four features a thread: as they are wanted, or as a part.
  XLSTM_DEVICE void write(int64_t split) const {
    constexpr int kLine = kDv / 4;
#pragma unroll 1
    for (int unit = int(threadIdx.x); unit < kDecodeRows * kLine; unit += kShape.threads) {
      const int row = unit / kLine, column = unit % kLine * 4;
      const uint32_t r = first_row + row;
      if (r >= rows() || column >= in.dv) continue;
      const auto [head, i] = query_of(r);
      const RowSum all = whole_of(row);
      const float keys = all.sum == 0 ? -__builtin_inff() : all.most * kLn2 + ::log(all.sum);  // NaN goes on as NaN
      WithSink<float> sink = without_sink(keys);
      if (p.splits == 1 && in.sink)
        sink = with_sink(keys, static_cast<const float*>(in.sink)[head], p.call.lse_with_sink != 0);
      const float factor = all.sum == 0 ? 0.0f : sink.factor / all.sum;
      float value[4];
      const Vec16 four = read_vec16(merged() + row * merge_row(kDv) + column);
#pragma unroll
      for (int e = 0; e < 4; ++e) value[e] = as_float(four.word[e]) * factor;
      if (p.splits > 1) {
        const int64_t part = split * ForwardParts::rows(in) + ForwardParts::row(in, at.index, head, i);
        store_row(p.parts.out + part * in.dv, column, value, in.dv % 4 == 0);
        if (column == 0) p.parts.lse[part] = keys;
      } else {
        store_row(static_cast<E*>(p.call.out.data) + at.query(p.call.out, head, i), column, value, p.whole_out);
        if (column == 0) static_cast<float*>(p.call.lse.data)[at.query(p.call.lse, head, i)] = sink.lse;
      }
    }
  }
  template <class T>
  XLSTM_DEVICE void store_row(T* row, int column, const float (&value)[4], bool whole) const {
    if (whole) return store_elements(row + column, value);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (column + e < in.dv) row[column + e] = from_float<T>(value[e]);
  }
};

template <class E, int kDqk, int kDv, bool kFull>
__global__ __launch_bounds__(decode_shape(kFamily, sizeof(E), {kDqk, kDv}).threads,
                             decode_shape(kFamily, sizeof(E), {kDqk, kDv}).blocks) void decode(const FewRowsParams p) {
  if constexpr (has_decode(kFamily, sizeof(E), {kDqk, kDv})) {
    extern __shared__ __align__(128) char lds[];
    const xlstm_attention& in = p.call.in;
    const ForwardPlace place = forward_place(blockIdx.x, in.batch * in.heads_k, p.splits, p.blocks);
    const uint32_t head = uint32_t(place.head), heads_k = uint32_t(in.heads_k);
    const AttentionLayout at(in, head / heads_k);
    const int64_t first = place.rows * kDecodeRows, left = at.rows() - first;
    if (left <= 0) return;
    Decode<E, kDqk, kDv, kFull> block(p, at, head % heads_k, first, lds);
    const RowsSee see(at, first, left < kDecodeRows ? left : kDecodeRows);
    constexpr int kKeys = kStep<E>;
    const int origin = see.begin / kKeys, tiles = (see.end + kKeys - 1) / kKeys - origin;
    const int from = origin + part_of(tiles, place.split, p.splits);
    const int to = origin + part_of(tiles, place.split + 1, p.splits);
    block.load_q();
    block.walk(from * kKeys, to * kKeys < see.end ? to * kKeys : see.end, see);
    block.merge();
    block.write(place.split);
  }
}

}  // namespace xlstm::gpu::attention
