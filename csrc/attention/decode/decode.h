// SPDX-License-Identifier: Apache-2.0
// Attention decode on a GPU: few rows against many keys (split-KV). The maths and the orientation are those of
// forward.h.
//
// Who owns what: a block has 16 rows of one key head and a part of the keys. Its four waves are arranged along the
// keys: each takes every fourth tile of 32 keys (16 except on CDNA), keeps its own maximum, sum and O, and does not
// synchronise until the waves merge through LDS at the end. Each key is used by one wave and once, so keys and values
// do not go through LDS: a wave reads 16-byte vectors of their rows and makes operands of them in registers
// (arch/operands.h). The next tile of keys loads while the current one is multiplied, into the registers that the
// current tile no longer needs.
//
// Each lane looks up the address of one key of the next tile, one page-table entry per lane; the lanes that load the
// key's row get the address from that lane. So every page size costs the same.
//
// Keys and values of 8 bits: a vector has twice as many features, of two units or blocks of operands. So features have
// another order, which q and out share (key_feature, out_feature); a product's operands are widened ahead of it.
//
// Floor: each key and value is read once, and memory binds: on an MI300X a CU's share of HBM loads a tile of 128
// features in 2000 cycles, of which a wave needs about 500.
#pragma once

#include "arch/operands.h"
#include "attention/decode/decode_shape.h"
#include "attention/decode/few_rows.h"
#include "attention/gpu/epilogue.h"
#include "attention/gpu/key_elements.h"

namespace xlstm::gpu::attention {

template <class E, class Key, int kDqk, int kDv, bool kHasScoreMod>
struct Decode {
  static constexpr DecodeShape kShape = decode_shape(kFamily, sizeof(E), {kDqk, kDv});
  static constexpr int kKeys = kStep<E>, kUnits = kDqk / kUnit<E>, kBlocks = kDv / kTransposedFeatures<E>;
  // The units of a load of keys, the blocks of a load of values, and how many loads a tile has of each.
  static constexpr int kLoadUnits = kIsFloat8<Key> ? 2 : 1, kLoadBlocks = kIsFloat8<Key> && kBlocks % 2 == 0 ? 2 : 1;
  static constexpr int kLoadsK = kUnits / kLoadUnits, kLoadsV = kBlocks / kLoadBlocks;
  static constexpr int kAheadK = kShape.k_ahead < kLoadsK ? kShape.k_ahead : kLoadsK;
  static constexpr int kAheadV = kShape.v_ahead < kLoadsV ? kShape.v_ahead : kLoadsV;
  static_assert(kUnits % kLoadUnits == 0 && kLoadsK % kAheadK == 0 && kLoadsV % kAheadV == 0,
                "what follows the last is the next tile's first");
  static constexpr int kVecK = 16 / int(sizeof(Key)), kVecV = kTransposedElements<E> * kLoadBlocks;  // elements
  struct alignas(kVecV * sizeof(Key)) ValueVec {
    uint32_t word[kVecV * sizeof(Key) / 4];
  };

  const FewRowsParams& p;
  const xlstm_attention& in;
  const AttentionLayout& at;
  int64_t key_head;
  uint32_t group, first_row;
  char* lds;
  RowInfo<1> row_info;
  ScoreRules rules;

  Vec16 q[kShape.q_in_lds ? 1 : kUnits][kChainVec16s<E>];
  Vec16 k[kAheadK][kStreamVec16s<E>];
  ValueVec v[kAheadV][kTransposedVec16s<E>];
  Strip<E> out[kBlocks][kTransposedStrips<E>];
  Columns row_max = Columns::all(kLowestMax), row_sum = Columns::all(0);
  int lane, dqk, dv;  // recomputed for each tile, with all values that derive from them

  XLSTM_DEVICE Decode(const FewRowsParams& params, const AttentionLayout& layout, int64_t head, int64_t first,
                      char* memory)
      : p(params),
        in(params.call.in),
        at(layout),
        key_head(head),
        group(uint32_t(in.heads_q) / uint32_t(in.heads_k)),
        first_row(uint32_t(first)),
        lds(memory),
        row_info(at, head, first),
        rules(in),
        lane(opaque_lane()),
        dqk(int(in.dqk)),
        dv(int(in.dv)) {
    if constexpr (kIsFloat8<Key>) rules.scale_keys(key_descale<Key>(in.k_descale, layout, head));
  }

  XLSTM_DEVICE uint32_t rows() const { return uint32_t(at.queries) * group; }
  XLSTM_DEVICE uint32_t clamp_row(uint32_t row) const { return row < rows() ? row : rows() - 1; }

  XLSTM_DEVICE QueryRow<int64_t> query_of(uint32_t row) const { return query_row(key_head, row, group); }

  // The feature of q and of the keys that is feature `feature` of a unit, and the feature of out that is `feature` of a
  // block; both of a vector's first element.
  XLSTM_DEVICE static int key_feature(int unit, int feature) {
    if constexpr (kLoadUnits == 1) return unit * kUnit<E> + feature;
    return unit / 2 * 2 * kUnit<E> + 2 * feature + unit % 2 * kVec16Elements<E>;
  }
  XLSTM_DEVICE static int out_feature(int block, int feature) {
    if constexpr (kLoadBlocks == 1) return block * kTransposedFeatures<E> + feature;
    return block / 2 * 2 * kTransposedFeatures<E> + 2 * feature + block % 2 * kTransposedElements<E>;
  }

  // ---- Q

  XLSTM_DEVICE Vec16* q_in_lds(int unit, int index) const {
    return reinterpret_cast<Vec16*>(lds) + (unit * kChainVec16s<E> + index) * kWave + lane;
  }
  XLSTM_DEVICE Vec16 q_vec16(int unit, int index) const {
    const Vec16Position of = chain_vec16(kFamily, sizeof(E), lane, index);
    const int feature = key_feature(unit, of.feature);
    const E* row = static_cast<const E*>(in.q.data) + at.query(in.q, query_of(clamp_row(first_row + of.row)));
    return TokenRows<E>{row, 0, int(in.dqk), true}.vec16(0, feature, true);
  }
  XLSTM_DEVICE void load_q() {
    if constexpr (kShape.q_in_lds) {  // in the order in which the lanes read it
      for (int unit = wave_id(); unit < kUnits; unit += kDecodeWaves)
#pragma unroll
        for (int c = 0; c < kChainVec16s<E>; ++c) *q_in_lds(unit, c) = q_vec16(unit, c);
      __syncthreads();
    } else {
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
        for (int c = 0; c < kChainVec16s<E>; ++c) q[unit][c] = q_vec16(unit, c);
    }
  }
  XLSTM_DEVICE ChainOperand<E> q_operand(int unit, int step) const {
    if constexpr (kShape.q_in_lds) {
      Vec16 vecs[kChainVec16s<E>];
#pragma unroll
      for (int c = 0; c < kChainVec16s<E>; ++c) vecs[c] = *q_in_lds(unit, c);
      return chain_of_vec16s<E>(vecs, step);
    } else {
      return chain_of_vec16s<E>(q[unit], step);
    }
  }

  // ---- loads of keys and values

  // Keys beyond the last one repeat it; the mask removes them.
  struct KeyOffsets {
    int64_t key, value;  // of the key of a tile that this lane looks up
  };
  XLSTM_DEVICE KeyOffsets offsets_of(int first) const {
    const int j = first + lane % kKeys, last = int(at.keys) - 1;
    const int64_t token = at.first_key + (j < last ? j : last);
    return {at.key(in.k, key_head, token), at.key(in.v, key_head, token)};
  }
  XLSTM_DEVICE static const char* row_of(const xlstm_tensor& x, int64_t offset, int key) {
    return static_cast<const char*>(x.data) + shuffle_from(offset, key, kWave) * int64_t(sizeof(Key));
  }
  // Vectors beyond the last one repeat it: q is zero there, and those features of out are not stored.
  XLSTM_DEVICE static uint32_t clamped_byte(int feature, int last) {
    return uint32_t(feature < last ? feature : last) * uint32_t(sizeof(Key));
  }
  XLSTM_DEVICE void fetch_keys(const KeyOffsets& at, int load) {
#pragma unroll
    for (int c = 0; c < kStreamVec16s<E>; ++c) {
      const Vec16Position of = stream_vec16(kFamily, sizeof(E), lane, c);
      k[load % kAheadK][c] = load_vec16(row_of(in.k, at.key, of.row),
                                        clamped_byte(key_feature(load * kLoadUnits, of.feature), dqk - kVecK));
    }
  }
  XLSTM_DEVICE void fetch_values(const KeyOffsets& at, int load) {
#pragma unroll
    for (int c = 0; c < kTransposedVec16s<E>; ++c) {
      if (c % 4 == 0) load_barrier();  // addresses of a few vectors at a time
      const Vec16Position of = transposed_vec16(kFamily, sizeof(E), lane, c);
      v[load % kAheadV][c] = load_as<ValueVec>(row_of(in.v, at.value, of.row),
                                               clamped_byte(out_feature(load * kLoadBlocks, of.feature), dv - kVecV));
    }
  }

  // ---- a tile

  // s = K Q^T. The next loads start as soon as registers are free: later units of this tile, then units of the next
  // tile.
  XLSTM_DEVICE void multiply_keys(Strip<E>& s, const KeyOffsets& current, const KeyOffsets& next) {
    s.zero();
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if constexpr (kShape.q_in_lds) lane = opaque_lane();  // otherwise the compiler reads all of Q in advance
      Vec16(&loaded)[kStreamVec16s<E>] = k[unit / kLoadUnits % kAheadK];
      Vec16 widened[kStreamVec16s<E>];
      if constexpr (kIsFloat8<Key>)
#pragma unroll
        for (int c = 0; c < kStreamVec16s<E>; ++c) widen_words<E, Key>(loaded[c].word + unit % 2 * 2, widened[c].word);
      Vec16(&vecs)[kStreamVec16s<E>] = kIsFloat8<Key> ? widened : loaded;
      if (unit * kUnit<E> + kUnit < E >> in.dqk) clear_beyond(vecs, unit);
#pragma unroll
      for (int step = 0; step < kUnitSteps<E>; ++step) {
        load_barrier();
        multiply(s, stream_of<E>(vecs, step), q_operand(unit, step));
      }
      s.materialise();  // before the next unit's branch: otherwise the compiler delays the products, and keeps their
                        // operands, past the branch
      load_barrier();
      if (const int load = unit / kLoadUnits + kAheadK; unit % kLoadUnits == kLoadUnits - 1)
        fetch_keys(load < kLoadsK ? current : next, load % kLoadsK);
    }
  }
  // Clears the features beyond the last one: infinities there must not be multiplied by q's zeros.
  XLSTM_DEVICE void clear_beyond(Vec16 (&vecs)[kStreamVec16s<E>], int unit) const {
#pragma unroll
    for (int c = 0; c < kStreamVec16s<E>; ++c) {
      const int feature = key_feature(unit, stream_vec16(kFamily, sizeof(E), lane, c).feature);
#pragma unroll
      for (int w = 0; w < 4; ++w) vecs[c].word[w] = feature < dqk ? vecs[c].word[w] : 0;
    }
  }

  // Online softmax: turns scores into weights; rescales out and the sums where a maximum has grown.
  XLSTM_DEVICE void online_softmax(Strip<E>& s, int first, bool is_fully_visible) {
    if constexpr (kHasScoreMod) {
      rules.apply_score_mod(s, row_info, 0, first);
    } else {
      s.scale(rules.scale);
    }
    if (!is_fully_visible) row_info.mask(s, 0, first);
    Columns tile_max = Columns::all(-__builtin_inff());
    tile_max.take_in(s, [](float x, float y) { return fmaxf(x, y); });
    tile_max.over_rows([](float x, float y) { return fmaxf(x, y); });
    if (needs_rescale(row_max, tile_max)) {
      const Columns rescale = update_row_max(row_max, row_sum, tile_max);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int t = 0; t < kTransposedStrips<E>; ++t) scale_columns(out[b][t], rescale);
    }
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) s.value[r] = exp2_fast(s.value[r] - row_max.value[Columns::of(r)]);
    row_sum.take_in(s, [](float x, float y) { return x + y; });
  }

  // out += V^T P^T
  XLSTM_DEVICE void multiply_values(const Strip<E>& weights, const KeyOffsets& current, const KeyOffsets& next) {
    const ChainOperand<E> chain = as_chain(weights, 1.0f);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      TransposedVec16<E> vecs[kTransposedVec16s<E>];
#pragma unroll
      for (int c = 0; c < kTransposedVec16s<E>; ++c) {
        const ValueVec& loaded = v[b / kLoadBlocks % kAheadV][c];
        if constexpr (kIsFloat8<Key>)
          widen_words<E, Key>(loaded.word + b % kLoadBlocks * (kTransposedElements<E> / 4), vecs[c].word);
        else
          vecs[c] = __builtin_bit_cast(TransposedVec16<E>, loaded);
      }
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) {
        load_barrier();
        multiply(out[b][t], transposed<E>(vecs, t), chain);
      }
      load_barrier();
      const int load = b / kLoadBlocks + kAheadV;
      if (b % kLoadBlocks != kLoadBlocks - 1) continue;
      if constexpr (kAheadV < kLoadsV)
        lane = opaque_lane();  // otherwise the compiler keeps the rows' offsets from block to block
      fetch_values(load < kLoadsV ? current : next, load % kLoadsV);
    }
  }

  // Walks keys [begin, end), of which the wave takes every kDecodeWaves-th tile. begin is a multiple of a tile.
  XLSTM_DEVICE void walk(int begin, int end, const VisibleKeys& visible) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) out[b][t].zero();
    constexpr int kAtOnce = kDecodeWaves * kKeys;
    int first = begin + wave_id() * kKeys;
    if (first >= end) return;
    KeyOffsets current = offsets_of(first);
#pragma unroll
    for (int load = 0; load < kAheadK; ++load) fetch_keys(current, load);
#pragma unroll
    for (int load = 0; load < kAheadV; ++load) fetch_values(current, load);
    for (; first < end; first += kAtOnce) {
      lane = opaque_lane();
      dqk = opaque_uniform(dqk);
      dv = opaque_uniform(dv);
      const KeyOffsets next = offsets_of(first + kAtOnce < end ? first + kAtOnce : first);
      Strip<E> s;
      multiply_keys(s, current, next);
      online_softmax(s, first, visible.fully(first, kKeys));
      multiply_values(s, current, next);
      current = next;
    }
    row_sum.over_rows([](float x, float y) { return x + y; });
  }

  // ---- epilogue

  // Merges the waves' outs and sums in LDS: rows of out, then the maxima and sums of every wave.
  XLSTM_DEVICE float* merged_out() const { return reinterpret_cast<float*>(lds); }
  XLSTM_DEVICE float* statistics() const { return merged_out() + kDecodeRows * merge_row(kDv); }
  XLSTM_DEVICE void merge() {
    __syncthreads();  // all waves have finished reading Q
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j) {
      float* wave_stats = statistics() + wave_id() * 2 * kDecodeRows + Columns::position(j);
      wave_stats[0] = row_max.value[j];
      wave_stats[kDecodeRows] = row_sum.value[j];
    }
    __syncthreads();
    Columns rescale;
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j)
      rescale.value[j] = exp2_fast(row_max.value[j] - merged_stats(Columns::position(j)).max);
#pragma unroll 1
    for (int w = 0; w < kDecodeWaves; ++w) {
      if (wave_id() == w)
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
          for (int t = 0; t < kTransposedStrips<E>; ++t) scale_columns(out[b][t], rescale);
          for_each_run<E>(out[b], 1, [&](int feature, int j, const float* value) {
            float* to = merged_out() + Columns::position(j) * merge_row(kDv) + out_feature(b, feature);
#pragma unroll
            for (int e = 0; e < kTransposedElements<E>; e += 4) {
              Vec16 vec4 = w == 0 ? Vec16{} : read_vec16(to + e);
#pragma unroll
              for (int f = 0; f < 4; ++f) vec4.word[f] = as_bits(as_float(vec4.word[f]) + value[e + f]);
              *reinterpret_cast<Vec16*>(to + e) = vec4;
            }
          });
        }
      __syncthreads();
    }
  }
  struct RowStats {
    float max, sum;
  };
  XLSTM_DEVICE RowStats merged_stats(int row) const {
    RowStats all{kLowestMax, 0};
#pragma unroll
    for (int w = 0; w < kDecodeWaves; ++w) all.max = fmaxf(all.max, statistics()[w * 2 * kDecodeRows + row]);
#pragma unroll
    for (int w = 0; w < kDecodeWaves; ++w) {
      const float* of = statistics() + w * 2 * kDecodeRows + row;
      all.sum += of[kDecodeRows] * exp2_fast(of[0] - all.max);
    }
    return all;
  }

  // Stores the rows, four features per thread: as the call's out, or as a split's part.
  XLSTM_DEVICE void write(int64_t split) const {
    const ForwardEpilogue<E, FewRowsParams> epilogue{p, at, split};
    constexpr int kLine = kDv / 4;
    const float descale = key_descale<Key>(in.v_descale, at, key_head);
#pragma unroll 1
    for (int unit = int(threadIdx.x); unit < kDecodeRows * kLine; unit += kShape.threads) {
      const int row = unit / kLine, column = unit % kLine * 4;
      const uint32_t r = first_row + row;
      if (r >= rows() || column >= in.dv) continue;
      const auto [head, i] = query_of(r);
      const RowStats merged = merged_stats(row);
      const auto result = epilogue.finish(merged.max, merged.sum, head, descale);
      const auto to = epilogue.offset(head, i);
      float value[4];
      const Vec16 vec4 = read_vec16(merged_out() + row * merge_row(kDv) + column);
#pragma unroll
      for (int e = 0; e < 4; ++e) value[e] = as_float(vec4.word[e]) * result.factor;
      epilogue.store(to.out, column, int(in.dv), value, in.dv % 4 == 0);
      if (column == 0) epilogue.store_lse(to, result.lse);
    }
  }
};

template <class Elements, int kDqk, int kDv, bool kHasScoreMod>
__global__ __launch_bounds__(
    decode_shape(kFamily, sizeof(QueryOf<Elements>), {kDqk, kDv}).threads,
    decode_shape(kFamily, sizeof(QueryOf<Elements>), {kDqk, kDv}).blocks) void decode_kernel(const FewRowsParams p) {
  if constexpr (has_decode(kFamily, sizeof(QueryOf<Elements>), {kDqk, kDv})) {
    using E = QueryOf<Elements>;
    extern __shared__ __align__(128) char lds[];
    constexpr int kKeys = kStep<E>;
    const FewRowsBlock<kDecodeRows, kKeys> part(p);
    if (part.empty()) return;
    Decode<E, KeyOf<Elements>, kDqk, kDv, kHasScoreMod> block(p, part.at, part.key_head, part.first, lds);
    const VisibleKeys visible = part.visible();
    const auto [from, to] = part.tiles(visible);
    block.load_q();
    block.walk(from * kKeys, to * kKeys < visible.end ? to * kKeys : visible.end, visible);
    block.merge();
    block.write(part.coord.split);
  }
}

}  // namespace xlstm::gpu::attention
