// SPDX-License-Identifier: Apache-2.0
// MLA decoding (mla.h), what a block does with a tile of keys: its way into LDS, scores, weights, values.
#pragma once

#include <numbers>

#include "arch/operands.h"
#include "attention/forward/forward_params.h"
#include "attention/forward/forward_shape.h"
#include "attention/gpu/score_rules.h"
#include "attention/mla/mla_shape.h"

namespace xlstm::gpu::attention {

template <class E_, int kRows_, int kFeatures_, bool kAhead>
struct MlaTiles {
  using E = E_;
  static constexpr int kRows = kRows_, kFeatures = kFeatures_;
  static constexpr MlaShape kShape = mla_shape(kFamily, kRows, kFeatures, kAhead);
  static constexpr int kKeys = kShape.keys, kWaves = kShape.waves, kThreads = kShape.threads;
  static constexpr int kRowStrips = kShape.row_strips, kParts = kShape.parts, kKeyStrips = kKeys / kStep<E>;
  static constexpr int kUnits = kFeatures / kUnit<E>, kMine = (kUnits + kParts - 1) / kParts;
  static constexpr int kBlocks = kMlaValues / kWaves / kTransposedFeatures<E>;
  static constexpr int kRowBytes = kFeatures * 2, kLine = 128, kLines = kRowBytes / kLine;
  static constexpr int kAtOnce = kThreads / 8, kPasses = kKeys / kAtOnce;  // keys that the block brings at a time

  // A place in a tile of which the compiler knows how far others are: no bit of theirs may be in it.
  struct Cursor {
    uint32_t first;
    XLSTM_DEVICE explicit Cursor(uint32_t place) : first(place) {}
    XLSTM_DEVICE Cursor(int row, int byte)
        : first(uint32_t(row * kRowBytes + two_way_vec16(kFamily, row, byte / 16) * 16 + byte % 16)) {}
    XLSTM_DEVICE uint32_t at(int row, int byte) const {
      return (first ^ uint32_t(two_way_vec16(kFamily, row, byte % kLine / 16) * 16)) +
             uint32_t(row * kRowBytes + byte / kLine * kLine);
    }
  };

  const FewRowsParams& p;
  const xlstm_attention& in;
  AttentionLayout at;
  int64_t key_head;
  uint32_t group, first_row;
  char* lds;
  int strip, part;  // of the scores' product: this wave's rows and features
  RowFacts<1> facts;
  float scale;
  ChainOperand<E> q[kMine][kUnitSteps<E>];
  Strip<E> out[kBlocks][kTransposedStrips<E>][kRowStrips];
  Columns most = Columns::all(kLowest), sum = Columns::all(0);
  Vec16 held[kAsyncCopies ? 1 : kPasses][kAsyncCopies ? 1 : kLines];

  XLSTM_DEVICE MlaTiles(const FewRowsParams& params, const AttentionLayout& layout, int64_t head, int64_t first,
                        char* memory)
      : p(params),
        in(params.call.in),
        at(layout),
        key_head(head),
        group(uint32_t(in.heads_q) / uint32_t(in.heads_k)),
        first_row(uint32_t(first)),
        lds(memory),
        strip(wave_id() % kRowStrips),
        part(wave_id() / kRowStrips),
        facts(at, head, first + strip * kStripColumns),
        scale(float(in.softmax_scale * std::numbers::log2e)) {}

  XLSTM_DEVICE QueryRow<int64_t> query_of(uint32_t row) const { return query_row(key_head, row, group); }

  // ---- LDS

  XLSTM_DEVICE char* tile(int n) const { return lds + n % kShape.buffers * kShape.tile_bytes; }
  // Weights, their factors and parts of scores are those of tile n; where tiles overlap, two have room.
  XLSTM_DEVICE static int turn(int n) { return n % kShape.turns; }
  XLSTM_DEVICE Vec16* partial(int n, int wave, int key_strip, int half) const {
    constexpr int kHalves = Strip<E>::kRegisters / 4;
    char* all = lds + kShape.buffers * kShape.tile_bytes + turn(n) * kShape.partial_bytes;
    return reinterpret_cast<Vec16*>(all) + ((wave * kKeyStrips + key_strip) * kHalves + half) * kWave + lane_id();
  }
  XLSTM_DEVICE ChainOperand<E>* weights(int n, int row_strip, int key_strip) const {
    char* all = lds + kShape.buffers * kShape.tile_bytes + kShape.turns * kShape.partial_bytes;
    return reinterpret_cast<ChainOperand<E>*>(all + turn(n) * kShape.weight_bytes) +
           (row_strip * kKeyStrips + key_strip) * kWave + lane_id();
  }
  enum Number { kFactor, kMost = kShape.turns, kSum };
  XLSTM_DEVICE float* numbers(int which) const {
    char* all = lds + kShape.buffers * kShape.tile_bytes + kShape.turns * (kShape.partial_bytes + kShape.weight_bytes);
    return reinterpret_cast<float*>(all) + which * kRows;
  }
  XLSTM_DEVICE int* grown(int n, int row_strip) const {
    return reinterpret_cast<int*>(numbers(kSum + 1)) + turn(n) * kRowStrips + row_strip;
  }

  // ---- Q, and tiles on their way

  XLSTM_DEVICE void load_q() {
    const uint32_t last = uint32_t(at.queries) * group - 1;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      Vec16 piece[kChainVec16s<E>];
      const int unit = part + i * kParts;
#pragma unroll
      for (int c = 0; c < kChainVec16s<E>; ++c) {
        const Vec16Position of = chain_vec16(kFamily, sizeof(E), lane_id(), c);
        const uint32_t row = first_row + strip * kStripColumns + of.row;
        const E* from = static_cast<const E*>(in.q.data) + at.query(in.q, query_of(row < last ? row : last));
        piece[c] = read_vec16(from + (unit < kUnits ? unit : 0) * kUnit<E> + of.feature);
      }
#pragma unroll
      for (int step = 0; step < kUnitSteps<E>; ++step) q[i][step] = chain_of_vec16s<E>(piece, step);
    }
  }

  XLSTM_DEVICE static int line_key() { return int(threadIdx.x) / 8; }
  XLSTM_DEVICE static int line_byte() { return int(threadIdx.x) % 8 * 16; }
  // Keys beyond the last one repeat it: the mask takes them out.
  XLSTM_DEVICE void fetch([[maybe_unused]] int n, int first) {
    const int last = int(at.keys) - 1;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int j = first + pass * kAtOnce + line_key();
      const int64_t place = at.key(in.k, key_head, at.first_key + (j < last ? j : last));
      const char* row = static_cast<const char*>(in.k.data) + place * int64_t(sizeof(E)) + line_byte();
      if constexpr (kAsyncCopies) {
        const uint32_t to = lds_address(tile(n)) + Cursor(line_key(), line_byte()).at(pass * kAtOnce, 0);
#pragma unroll
        for (int line = 0; line < kLines; ++line) cp_async(to + line * kLine, row + line * kLine, true);
      } else {
#pragma unroll
        for (int line = 0; line < kLines; ++line) held[pass][line] = load_vec16(row, line * kLine);
      }
    }
  }
  XLSTM_DEVICE void store([[maybe_unused]] int n) {
    if constexpr (!kAsyncCopies) {
      const Cursor to(line_key(), line_byte());
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
        for (int line = 0; line < kLines; ++line)
          *reinterpret_cast<Vec16*>(tile(n) + to.at(pass * kAtOnce, line * kLine)) = held[pass][line];
    }
  }

  // ---- a tile

  using Scores = Strip<E>[kKeyStrips];

  XLSTM_DEVICE void multiply_keys(Scores& s, int n) const {
    const char* const keys = tile(n);
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) s[ks].zero();
    const Vec16Position mine = stream_vec16(kFamily, sizeof(E), lane_id(), 0);
    constexpr Vec16Position kZero = stream_vec16(kFamily, sizeof(E), 0, 0);
    // With the features in parts, every kParts-th unit is this wave's; the places of a wave's are those of part 0
    // moved.
    const Cursor begin(mine.row, mine.feature * int(sizeof(E)));
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int unit = part + i * kParts;
      if (kUnits % kParts != 0 && unit >= kUnits) break;
      if constexpr (kFamily != Family::cdna) load_barrier();  // there are no registers for more units at once
      const Cursor from = kFamily != Family::cdna ? Cursor(opaque(begin.first)) : begin;
#pragma unroll
      for (int ks = 0; ks < kKeyStrips; ++ks) {
        Vec16 piece[kStreamVec16s<E>];
#pragma unroll
        for (int c = 0; c < kStreamVec16s<E>; ++c) {
          const Vec16Position of = stream_vec16(kFamily, sizeof(E), 0, c);
          const int row = ks * kStep<E> + of.row - kZero.row;
          const int byte = unit * kUnit<E> * int(sizeof(E)) + (of.feature - kZero.feature) * int(sizeof(E));
          piece[c] = read_vec16(keys + from.at(row, byte));
        }
#pragma unroll
        for (int step = 0; step < kUnitSteps<E>; ++step) multiply(s[ks], stream_of<E>(piece, step), q[i][step]);
      }
    }
  }
  XLSTM_DEVICE void write_part(const Scores& s, int n, int wave) const {
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
      for (int r = 0; r < Strip<E>::kRegisters; r += 4) {
        const float* v = s[ks].value + r;
        *partial(n, wave, ks, r / 4) = {{as_bits(v[0]), as_bits(v[1]), as_bits(v[2]), as_bits(v[3])}};
      }
  }
  // What `waves` of them wrote of this wave's rows, onto s.
  XLSTM_DEVICE void add_parts(Scores& s, int n, int waves) const {
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
      for (int r = 0; r < Strip<E>::kRegisters; r += 4)
#pragma unroll
        for (int other = strip; other < waves; other += kRowStrips) {
          const Vec16 four = *partial(n, other, ks, r / 4);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[ks].value[r + e] += as_float(four.word[e]);
        }
  }

  // Scores into weights. Returns whether a maximum has grown so much that sums are to be scaled, and by what.
  XLSTM_DEVICE bool weigh(Scores& s, int first, bool whole, Columns& by) {
    Columns top = Columns::all(-__builtin_inff());
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) {
      s[ks].scale(scale);
      if (!whole) facts.mask(s[ks], 0, first + ks * kStep<E>);
      top.take_in(s[ks], [](float x, float y) { return fmaxf(x, y); });
    }
    top.over_rows([](float x, float y) { return fmaxf(x, y); });
    const bool more = has_grown(most, top);
    by = Columns::all(1);
    if (more) by = grow(most, sum, top);
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) {
#pragma unroll
      for (int r = 0; r < Strip<E>::kRegisters; ++r)
        s[ks].value[r] = exp2_fast(s[ks].value[r] - most.value[Columns::of(r)]);
      sum.take_in(s[ks], [](float x, float y) { return x + y; });
    }
    return more;
  }
  XLSTM_DEVICE void scale_out(int row_strip, const Columns& by) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) scale_columns(out[b][t][row_strip], by);
  }

  // This wave's weights to all others, as operands, and by what out is scaled before.
  XLSTM_DEVICE void share(const Scores& s, int n, bool more, const Columns& by) const {
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) *weights(n, strip, ks) = as_chain(s[ks], 1.0f);
    write_rows(kFactor + turn(n), by);
    if (lane_id() == 0) *grown(n, strip) = more;
  }
  XLSTM_DEVICE void scale_where_grown(int n) {
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs)
      if (uniform(*grown(n, rs))) scale_out(rs, read_rows(kFactor + turn(n), rs));
  }
  XLSTM_DEVICE void write_rows(int which, const Columns& x) const {  // of this wave's rows
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j) numbers(which)[strip * kStripColumns + Columns::position(j)] = x.value[j];
  }
  XLSTM_DEVICE Columns read_rows(int which, int row_strip) const {
    Columns x;
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j)
      x.value[j] = numbers(which)[row_strip * kStripColumns + Columns::position(j)];
    return x;
  }

  XLSTM_DEVICE int feature0(int block) const { return (wave_id() * kBlocks + block) * kTransposedFeatures<E>; }
  // With 16 rows the weights are this wave's own, else those that were shared.
  XLSTM_DEVICE void multiply_values([[maybe_unused]] const Scores* s, int n) {
    const char* const values = tile(n);
    const Vec16Position mine = transposed_vec16(kFamily, sizeof(E), lane_id(), 0);
    const Cursor from(mine.row, feature0(0) * int(sizeof(E)) + mine.feature * int(sizeof(E)));
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) {
      ChainOperand<E> chain[kRowStrips];
#pragma unroll
      for (int rs = 0; rs < kRowStrips; ++rs) {
        if constexpr (kRowStrips == 1)
          chain[rs] = as_chain((*s)[ks], 1.0f);
        else
          chain[rs] = *weights(n, rs, ks);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        if constexpr (kFamily == Family::rdna) load_barrier();  // there are no registers for two blocks
        TransposedVec16<E> piece[kTransposedVec16s<E>];
#pragma unroll
        for (int c = 0; c < kTransposedVec16s<E>; ++c) {
          const int row = ks * kStep<E> + transposed_vec16(kFamily, sizeof(E), 0, c).row;
          piece[c] = read_transposed<E>(values + from.at(row, b * kTransposedFeatures<E> * int(sizeof(E))));
        }
#pragma unroll
        for (int t = 0; t < kTransposedStrips<E>; ++t) {
          if constexpr (kFamily != Family::cdna) load_barrier();
          const StreamOperand<E> stream = transposed<E>(piece, t);
#pragma unroll
          for (int rs = 0; rs < kRowStrips; ++rs) multiply(out[b][t][rs], stream, chain[rs]);
        }
      }
    }
  }
};

}  // namespace xlstm::gpu::attention
