// SPDX-License-Identifier: Apache-2.0
// MLA decoding on a GPU: attention whose values are the first 512 features of its keys, 576 or 512. The maths and the
// orientation are those of forward_gpu.h.
//
// Who owns what: a block has 16 or 64 rows (query heads, or queries times them) of one key head and a part of the keys.
// A tile of 32 keys (16 on RDNA) lies in LDS once, as in memory, and serves both products: keys are read along the
// features, values across them and turned in registers (arch/pieces.h).
//   scores   a wave has 16 rows, with Q in registers, and all of the features, or with fewer rows a part of them; such
//            parts are added up through LDS by all waves that share the rows
//   softmax  by the waves that have the scores; with 64 rows their weights go to the others through LDS, as operands
//   out      each wave has 128 (NVIDIA, 64 rows: 64) of the 512 features for all rows of the block
// The next tile is under way in registers, or on NVIDIA into a second buffer, while this one is multiplied. Eight lanes
// bring a key's row, a line of 128 bytes at a time: one entry of the page table for each, whatever the size of a page.
//
// LDS: 36 KB for a tile of 576 features, 4 KB of weights or 8 KB of parts. Registers on CDNA, 64 rows: out 128, Q 72,
// the next tile 36, scores 8, values 16 and as many turned: one wave a SIMD, which has 512.
//
// Floor, 128 heads: 2 (576 + 512) flops for each head and 1152 bytes a key, where a tile is shared through L2 by the
// two blocks of a sequence: the matrix units bind, and LDS as long in the scores' product, for which each wave reads
// the whole tile for its 16 rows.
#pragma once

#include "arch/pieces.h"
#include "attention/combine_gpu.h"
#include "attention/forward_shape.h"
#include "attention/mla_shape.h"
#include "attention/scores_gpu.h"

namespace xlstm::gpu {

struct MlaParams {
  xlstm_attention_forward call;
  int64_t blocks, splits;  // along the rows, along the keys
  bool whole_out;          // rows of out have whole pieces, at multiples of 16 bytes
  ForwardParts parts;      // with splits
};

template <class E, int kRows, int kFeatures>
struct Mla {
  static constexpr MlaShape kShape = mla_shape(kFamily, kRows, kFeatures);
  static constexpr int kKeys = kShape.keys, kWaves = kShape.waves, kThreads = kShape.threads;
  static constexpr int kRowStrips = kShape.row_strips, kParts = kShape.parts, kKeyStrips = kKeys / kStep<E>;
  static constexpr int kUnits = kFeatures / kUnit<E>, kMine = (kUnits + kParts - 1) / kParts;
  static constexpr int kBlocks = kMlaValues / kWaves / kTurnedFeatures<E>;
  static constexpr int kRowBytes = kFeatures * 2, kLine = 128, kLines = kRowBytes / kLine;
  static constexpr int kAtOnce = kThreads / 8, kPasses = kKeys / kAtOnce;  // keys that the block brings at a time
  static constexpr float kGrowth = 8;  // of a maximum, to base 2, before sums are scaled
  static constexpr float kLowest = -0x1p126f;

  // A place in a tile of which the compiler knows how far others are: no bit of theirs may be in it.
  struct Cursor {
    uint32_t first;
    XLSTM_DEVICE explicit Cursor(uint32_t place) : first(place) {}
    XLSTM_DEVICE Cursor(int row, int byte)
        : first(uint32_t(row * kRowBytes + both_ways_piece(kFamily, row, byte / 16) * 16 + byte % 16)) {}
    XLSTM_DEVICE uint32_t at(int row, int byte) const {
      return (first ^ uint32_t(both_ways_piece(kFamily, row, byte % kLine / 16) * 16)) +
             uint32_t(row * kRowBytes + byte / kLine * kLine);
    }
  };

  const MlaParams& p;
  const xlstm_attention& in;
  AttentionLayout at;
  int64_t key_head;
  uint32_t group, first_row;
  char* lds;
  int strip, part;  // of the scores' product: this wave's rows and features
  RowFacts<1> facts;
  float scale;
  ChainOperand<E> q[kMine][kUnitSteps<E>];
  Strip<E> out[kBlocks][kTurnedStrips<E>][kRowStrips];
  Columns most = Columns::all(kLowest), sum = Columns::all(0);
  Piece held[kAsyncCopies ? 1 : kPasses][kAsyncCopies ? 1 : kLines];

  XLSTM_DEVICE Mla(const MlaParams& params, const AttentionLayout& layout, int64_t head, int64_t first, char* memory)
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
        scale(float(in.softmax_scale * 1.44269504088896340736)) {}

  XLSTM_DEVICE int64_t head_of(uint32_t row) const { return key_head * group + row % group; }
  XLSTM_DEVICE int64_t query(const xlstm_tensor& x, uint32_t row) const {
    return at.query(x, head_of(row), row / group);
  }

  // ---- LDS

  XLSTM_DEVICE char* tile(int n) const { return lds + n % kShape.buffers * kShape.tile_bytes; }
  XLSTM_DEVICE Piece* partial(int wave, int key_strip, int half) const {
    constexpr int kHalves = Strip<E>::kRegisters / 4;
    char* all = lds + kShape.buffers * kShape.tile_bytes;
    return reinterpret_cast<Piece*>(all) + ((wave * kKeyStrips + key_strip) * kHalves + half) * kWave + lane_id();
  }
  XLSTM_DEVICE ChainOperand<E>* weights(int row_strip, int key_strip) const {
    char* all = lds + kShape.buffers * kShape.tile_bytes + kShape.partial_bytes;
    return reinterpret_cast<ChainOperand<E>*>(all) + (row_strip * kKeyStrips + key_strip) * kWave + lane_id();
  }
  enum Number { kFactor, kMost, kSum };
  XLSTM_DEVICE float* numbers(Number which) const {
    char* all = lds + kShape.buffers * kShape.tile_bytes + kShape.partial_bytes + kShape.weight_bytes;
    return reinterpret_cast<float*>(all) + which * kRows;
  }
  XLSTM_DEVICE int* grown(int row_strip) const {
    return reinterpret_cast<int*>(numbers(kFactor) + 3 * kRows) + row_strip;
  }

  // ---- Q, and tiles on their way

  XLSTM_DEVICE void load_q() {
    const uint32_t last = uint32_t(at.queries) * group - 1;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      Piece piece[kChainPieces<E>];
      const int unit = part + i * kParts;
#pragma unroll
      for (int c = 0; c < kChainPieces<E>; ++c) {
        const PiecePosition of = chain_piece(kFamily, sizeof(E), lane_id(), c);
        const uint32_t row = first_row + strip * kStripColumns + of.row;
        const E* from = static_cast<const E*>(in.q.data) + query(in.q, row < last ? row : last);
        piece[c] = read_piece(from + (unit < kUnits ? unit : 0) * kUnit<E> + of.feature);
      }
#pragma unroll
      for (int step = 0; step < kUnitSteps<E>; ++step) q[i][step] = chain_of_pieces<E>(piece, step);
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
#if defined(__CUDACC__)
      const uint32_t to = lds_address(tile(n)) + Cursor(line_key(), line_byte()).at(pass * kAtOnce, 0);
#pragma unroll
      for (int line = 0; line < kLines; ++line) copy_async(to + line * kLine, row + line * kLine, true);
#else
#pragma unroll
      for (int line = 0; line < kLines; ++line) held[pass][line] = load_piece(row, line * kLine);
#endif
    }
  }
  XLSTM_DEVICE void store([[maybe_unused]] int n) {
    if constexpr (!kAsyncCopies) {
      const Cursor to(line_key(), line_byte());
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
        for (int line = 0; line < kLines; ++line)
          *reinterpret_cast<Piece*>(tile(n) + to.at(pass * kAtOnce, line * kLine)) = held[pass][line];
    }
  }

  // ---- a tile

  using Scores = Strip<E>[kKeyStrips];

  XLSTM_DEVICE void multiply_keys(Scores& s, const char* keys) const {
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) s[ks].zero();
    const PiecePosition mine = stream_piece(kFamily, sizeof(E), lane_id(), 0);
    constexpr PiecePosition kZero = stream_piece(kFamily, sizeof(E), 0, 0);
    // With the features in parts, every kParts-th unit is this wave's; the places of a wave's are those of part 0
    // moved.
    const Cursor begin(mine.row, mine.feature * int(sizeof(E)));
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int unit = part + i * kParts;
      if (kUnits % kParts != 0 && unit >= kUnits) break;
      if constexpr (kFamily != Family::cdna) loads_in_order();  // there are no registers for more units at once
      const Cursor from = kFamily != Family::cdna ? Cursor(made_here(begin.first)) : begin;
#pragma unroll
      for (int ks = 0; ks < kKeyStrips; ++ks) {
        Piece piece[kStreamPieces<E>];
#pragma unroll
        for (int c = 0; c < kStreamPieces<E>; ++c) {
          const PiecePosition of = stream_piece(kFamily, sizeof(E), 0, c);
          const int row = ks * kStep<E> + of.row - kZero.row;
          const int byte = unit * kUnit<E> * int(sizeof(E)) + (of.feature - kZero.feature) * int(sizeof(E));
          piece[c] = read_piece(keys + from.at(row, byte));
        }
#pragma unroll
        for (int step = 0; step < kUnitSteps<E>; ++step) multiply(s[ks], stream_of<E>(piece, step), q[i][step]);
      }
    }
  }
  // Parts of the scores made whole, in the same order by each wave that shares the rows.
  XLSTM_DEVICE void add_parts(Scores& s) const {
    if constexpr (kParts > 1) {
#pragma unroll
      for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; r += 4) {
          const float* v = s[ks].value + r;
          *partial(wave_id(), ks, r / 4) = {{as_bits(v[0]), as_bits(v[1]), as_bits(v[2]), as_bits(v[3])}};
        }
      __syncthreads();
#pragma unroll
      for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
        for (int r = 0; r < Strip<E>::kRegisters; r += 4) {
          Piece all = *partial(strip, ks, r / 4);
#pragma unroll
          for (int other = 1; other < kParts; ++other) {
            const Piece four = *partial(other * kRowStrips + strip, ks, r / 4);
#pragma unroll
            for (int e = 0; e < 4; ++e) all.word[e] = as_bits(as_float(all.word[e]) + as_float(four.word[e]));
          }
#pragma unroll
          for (int e = 0; e < 4; ++e) s[ks].value[r + e] = as_float(all.word[e]);
        }
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
    bool more = false;
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j) more = more || top.value[j] > most.value[j] + kGrowth;
    more = any_lane(more);
    by = Columns::all(1);
    if (more)
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        const float now = fmaxf(most.value[j], top.value[j]);
        by.value[j] = exp2_fast(most.value[j] - now);
        most.value[j] = now;
        sum.value[j] *= by.value[j];
      }
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
      for (int t = 0; t < kTurnedStrips<E>; ++t) scale_columns(out[b][t][row_strip], by);
  }

  // The weights of all rows to all waves, as operands; and out is scaled where a maximum has grown.
  XLSTM_DEVICE void share(const Scores& s, bool more, const Columns& by) {
    if constexpr (kRowStrips == 1) {
      if (more) scale_out(0, by);
    } else {
      if (part == 0) {
#pragma unroll
        for (int ks = 0; ks < kKeyStrips; ++ks) *weights(strip, ks) = as_chain(s[ks], 1.0f);
        write_rows(kFactor, by);
        if (lane_id() == 0) *grown(strip) = more;
      }
      __syncthreads();
#pragma unroll
      for (int rs = 0; rs < kRowStrips; ++rs)
        if (same_in_all(*grown(rs))) scale_out(rs, read_rows(kFactor, rs));
    }
  }
  XLSTM_DEVICE void write_rows(Number which, const Columns& x) const {  // of this wave's rows
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j) numbers(which)[strip * kStripColumns + Columns::position(j)] = x.value[j];
  }
  XLSTM_DEVICE Columns read_rows(Number which, int row_strip) const {
    Columns x;
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j)
      x.value[j] = numbers(which)[row_strip * kStripColumns + Columns::position(j)];
    return x;
  }

  XLSTM_DEVICE int feature0(int block) const { return (wave_id() * kBlocks + block) * kTurnedFeatures<E>; }
  XLSTM_DEVICE void multiply_values(const Scores& s, const char* values) {
    const PiecePosition mine = turned_piece(kFamily, sizeof(E), lane_id(), 0);
    const Cursor from(mine.row, feature0(0) * int(sizeof(E)) + mine.feature * int(sizeof(E)));
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) {
      ChainOperand<E> chain[kRowStrips];
#pragma unroll
      for (int rs = 0; rs < kRowStrips; ++rs) {
        if constexpr (kRowStrips == 1)
          chain[rs] = as_chain(s[ks], 1.0f);
        else
          chain[rs] = *weights(rs, ks);
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        TurnedPiece<E> piece[kTurnedPieces<E>];
#pragma unroll
        for (int c = 0; c < kTurnedPieces<E>; ++c) {
          const int row = ks * kStep<E> + turned_piece(kFamily, sizeof(E), 0, c).row;
          piece[c] = read_turned<E>(values + from.at(row, b * kTurnedFeatures<E> * int(sizeof(E))));
        }
#pragma unroll
        for (int t = 0; t < kTurnedStrips<E>; ++t) {
          if constexpr (kFamily != Family::cdna) loads_in_order();
          const StreamOperand<E> stream = turned<E>(piece, t);
#pragma unroll
          for (int rs = 0; rs < kRowStrips; ++rs) multiply(out[b][t][rs], stream, chain[rs]);
        }
      }
    }
  }

  // Keys [begin, end), a tile at a time. begin is a multiple of a tile.
  XLSTM_DEVICE void walk(int begin, int end, const RowsSee& see) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTurnedStrips<E>; ++t)
#pragma unroll
        for (int rs = 0; rs < kRowStrips; ++rs) out[b][t][rs].zero();
    if (begin < end) fetch(0, begin);
    int n = 0;
    for (int first = begin; first < end; first += kKeys, ++n) {
      const bool last = first + kKeys >= end;
      if constexpr (kAsyncCopies) {
#if defined(__CUDACC__)
        copies_wait();
#endif
        __syncthreads();
      } else {
        __syncthreads();
        store(n);
        __syncthreads();
      }
      if (!last) fetch(n + 1, first + kKeys);
      Scores s;
      multiply_keys(s, tile(n));
      add_parts(s);
      Columns by;
      const bool more = weigh(s, first, see.whole(first, kKeys), by);
      share(s, more, by);
      multiply_values(s, tile(n));
    }
    sum.over_rows([](float x, float y) { return x + y; });
    if (part == 0) {
      write_rows(kMost, most);
      write_rows(kSum, sum);
    }
    __syncthreads();
  }

  // Rows to memory, a lane's neighbouring features at a time: as they are wanted, or as a part.
  XLSTM_DEVICE void write(int64_t split) const {
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) {
      const Columns row_most = read_rows(kMost, rs), row_sum = read_rows(kSum, rs);
      float factor[Columns::kEach];
      int64_t to[Columns::kEach];  // where the row of out lies; -1: there is none
#pragma unroll
      for (int j = 0; j < Columns::kEach; ++j) {
        const uint32_t r = first_row + rs * kStripColumns + Columns::position(j);
        to[j] = -1;
        if (r >= uint32_t(at.queries) * group) continue;
        const int64_t head = head_of(r), i = r / group;
        const float whole = row_sum.value[j],
                    keys = whole > 0 ? row_most.value[j] * kLn2 + ::log(whole) : -__builtin_inff();
        WithSink<float> sink = without_sink(keys);
        if (p.splits == 1 && in.sink)
          sink = with_sink(keys, static_cast<const float*>(in.sink)[head], p.call.lse_with_sink != 0);
        factor[j] = whole > 0 ? sink.factor / whole : 0.0f;
        const int64_t row = split * ForwardParts::rows(in) + ForwardParts::row(in, at.index, head, i);
        to[j] = p.splits > 1 ? row * kMlaValues : at.query(p.call.out, head, i);
        if (wave_id() != 0 || Strip<E>::position(0).row != 0) continue;
        if (p.splits > 1)
          p.parts.lse[row] = keys;
        else
          static_cast<float*>(p.call.lse.data)[at.query(p.call.lse, head, i)] = sink.lse;
      }
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        each_held<E>(&out[b][0][rs], kRowStrips, [&](int feature, int j, const float* value) {
          if (to[j] < 0) return;
          float scaled[kTurnedElements<E>];
#pragma unroll
          for (int e = 0; e < kTurnedElements<E>; ++e) scaled[e] = value[e] * factor[j];
          store_row(to[j] + feature0(b) + feature, scaled);
        });
    }
  }
  template <int n>
  XLSTM_DEVICE void store_row(int64_t place, const float (&value)[n]) const {
    if (p.splits > 1) {
#pragma unroll
      for (int e = 0; e < n; e += 4) {
        const float four[4] = {value[e], value[e + 1], value[e + 2], value[e + 3]};
        store_elements(p.parts.out + place + e, four);
      }
    } else if (p.whole_out) {
      store_elements(static_cast<E*>(p.call.out.data) + place, value);
    } else {
#pragma unroll
      for (int e = 0; e < n; ++e) static_cast<E*>(p.call.out.data)[place + e] = from_float<E>(value[e]);
    }
  }
};

template <class E, int kRows, int kFeatures>
__global__ __launch_bounds__(mla_shape(kFamily, kRows, kFeatures).threads, 1) void mla(const MlaParams p) {
  if constexpr (has_mla(kFamily, kRows)) {
    extern __shared__ __align__(128) char lds[];
    const xlstm_attention& in = p.call.in;
    const ForwardPlace place = forward_place(blockIdx.x, in.batch * in.heads_k, p.splits, p.blocks);
    const uint32_t head = uint32_t(place.head), heads_k = uint32_t(in.heads_k);
    const AttentionLayout at(in, head / heads_k);
    const int64_t first = place.rows * kRows, left = at.rows() - first;
    if (left <= 0) return;
    Mla<E, kRows, kFeatures> block(p, at, head % heads_k, first, lds);
    const RowsSee see(at, first, left < kRows ? left : kRows);
    constexpr int kKeys = Mla<E, kRows, kFeatures>::kKeys;
    const int origin = see.begin / kKeys, tiles = (see.end + kKeys - 1) / kKeys - origin;
    const int from = origin + part_of(tiles, place.split, p.splits);
    const int to = origin + part_of(tiles, place.split + 1, p.splits);
    block.load_q();
    block.walk(from * kKeys, to * kKeys < see.end ? to * kKeys : see.end, see);
    block.write(place.split);
  }
}

}  // namespace xlstm::gpu
