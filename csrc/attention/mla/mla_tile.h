// SPDX-License-Identifier: Apache-2.0
// MLA decode (mla.h): the steps of a block on one tile of keys: load into LDS, scores, online softmax, values.
#pragma once

#include <numbers>

#include "arch/operands.h"
#include "attention/decode/few_rows.h"
#include "attention/gpu/key_elements.h"
#include "attention/mla/key_slots.h"
#include "attention/mla/mla_shape.h"

namespace xlstm::gpu::attention {

template <class E>
constexpr float weight_exponent() {
  if constexpr (kIsFloat8<E>) return E::kFnuz ? 5 : 6;
  return 0;
}

// A tile in LDS has elements E, q's. Keys in floats of 8 bits, where q has others, become E between their load and the
// store into LDS.
template <class Elements, int kRows_, int kFeatures_, bool kOverlapped_>
struct MlaTiles {
  using E = QueryOf<Elements>;
  using Key = KeyOf<Elements>;
  using Out = OutOf<Elements>;
  static constexpr int kRows = kRows_, kFeatures = kFeatures_;
  static constexpr bool kOverlapped = kOverlapped_;
  static constexpr MlaShape kShape = mla_shape(kFamily, kRows, kFeatures, kOverlapped, sizeof(E));
  static constexpr int kKeys = kShape.keys, kWaves = kShape.waves, kThreads = kShape.threads;
  static constexpr int kRowStrips = kShape.row_strips, kParts = kShape.parts, kKeyStrips = kKeys / kStep<E>;
  static constexpr int kUnits = kFeatures / kUnit<E>, kWaveUnits = (kUnits + kParts - 1) / kParts;
  static constexpr int kBlocks = kMlaValues / kWaves / kTransposedFeatures<E>;
  static constexpr int kRowBytes = mla_row_bytes(kFeatures, sizeof(E)), kLine = 128, kLines = kRowBytes / kLine;
  static constexpr bool kEndsInHalfLine = kFeatures * int(sizeof(E)) % kLine != 0;  // of floats of 8 bits
  // Eight lanes load a line. Where the block has more lanes than a line of each key takes, groups of lanes share a
  // row's lines: group g has lines g, g + kLineGroups, ...
  static constexpr int kLineGroups = kThreads / 8 > kKeys ? kThreads / 8 / kKeys : 1;
  static constexpr int kAtOnce = kThreads / 8 / kLineGroups;  // keys that the block loads at a time
  static constexpr int kPasses = kKeys / kAtOnce, kLaneLines = (kLines + kLineGroups - 1) / kLineGroups;
  static_assert(kPasses * kAtOnce == kKeys);
  static constexpr bool kCopiesAsync = kAsyncCopies && !kIsFloat8<Key>;
  struct alignas(kVec16Elements<E> * sizeof(Key)) KeyVec {  // of a Vec16 in LDS
    uint32_t word[kVec16Elements<E> * sizeof(Key) / 4];
  };

  // An offset in a tile such that the compiler knows the distance to other offsets. The distances must not share a bit
  // with the offset.
  struct Cursor {
    uint32_t first;
    XLSTM_DEVICE explicit Cursor(uint32_t offset) : first(offset) {}
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
  RowInfo<1> row_info;
  float scale;
  ChainOperand<E> q[kWaveUnits][kUnitSteps<E>];
  Strip<E> out[kBlocks][kTransposedStrips<E>][kRowStrips];
  Columns row_max = Columns::all(kLowestMax), row_sum = Columns::all(0);
  KeySlots keys;
  KeySlots::Slot next_slot[kPasses];  // of the tile that loads next
  KeyVec staged[kShape.tiles_ahead][kCopiesAsync ? 1 : kPasses][kCopiesAsync ? 1 : kLaneLines];

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
        row_info(at, head, first + strip * kStripColumns),
        scale(float(in.softmax_scale * std::numbers::log2e) * key_descale<Key>(in.k_descale, layout, head)) {
    if constexpr (kFamily == Family::rdna) scale = uniform(scale);  // one register less, so one wave more fits a SIMD
  }

  XLSTM_DEVICE QueryRow<int64_t> query_of(uint32_t row) const { return query_row(key_head, row, group); }

  // ---- LDS

  XLSTM_DEVICE char* tile(int n) const { return lds + n % kShape.buffers * kShape.tile_bytes; }
  // Weights, their factors and partial scores belong to tile n; where tiles overlap, two stages of them exist.
  XLSTM_DEVICE static int stage(int n) { return n % kShape.stages; }
  XLSTM_DEVICE Vec16* partial(int n, int wave, int key_strip, int half) const {
    constexpr int kHalves = Strip<E>::kRegisters / 4;
    char* all = lds + kShape.buffers * kShape.tile_bytes + stage(n) * kShape.partial_bytes;
    return reinterpret_cast<Vec16*>(all) + ((wave * kKeyStrips + key_strip) * kHalves + half) * kWave + lane_id();
  }
  XLSTM_DEVICE ChainOperand<E>* weights(int n, int row_strip, int key_strip) const {
    char* all = lds + kShape.buffers * kShape.tile_bytes + kShape.stages * kShape.partial_bytes;
    return reinterpret_cast<ChainOperand<E>*>(all + stage(n) * kShape.weight_bytes) +
           (row_strip * kKeyStrips + key_strip) * kWave + lane_id();
  }
  enum RowNumber { kFactor, kRowMax = kShape.stages, kRowSum };
  XLSTM_DEVICE float* row_numbers(int which) const {
    char* all = lds + kShape.buffers * kShape.tile_bytes + kShape.stages * (kShape.partial_bytes + kShape.weight_bytes);
    return reinterpret_cast<float*>(all) + which * kRows;
  }
  XLSTM_DEVICE int* rescale_flag(int n, int row_strip) const {
    return reinterpret_cast<int*>(row_numbers(kRowSum + 1)) + stage(n) * kRowStrips + row_strip;
  }

  // ---- loads of Q and of tiles

  using QueryVecs = Vec16[kWaveUnits][kChainVec16s<E>];
  XLSTM_DEVICE void load_query_vecs(QueryVecs& vecs) const {
    const uint32_t last = uint32_t(at.queries) * group - 1;
#pragma unroll
    for (int i = 0; i < kWaveUnits; ++i) {
      const int unit = part + i * kParts;
#pragma unroll
      for (int c = 0; c < kChainVec16s<E>; ++c) {
        const Vec16Position of = chain_vec16(kFamily, sizeof(E), lane_id(), c);
        const uint32_t row = first_row + strip * kStripColumns + of.row;
        const E* from = static_cast<const E*>(in.q.data) + at.query(in.q, query_of(row < last ? row : last));
        vecs[i][c] = read_vec16(from + (unit < kUnits ? unit : 0) * kUnit<E> + of.feature);
      }
    }
    // Q arrives here. Otherwise the compiler waits for it in the walk, and there for the loads of the next tile too.
#pragma unroll
    for (int i = 0; i < kWaveUnits; ++i)
#pragma unroll
      for (Vec16& vec : vecs[i]) arrive_at(vec);
  }
  XLSTM_DEVICE void load_q() {
    QueryVecs vecs;
    load_query_vecs(vecs);
#pragma unroll
    for (int i = 0; i < kWaveUnits; ++i)
#pragma unroll
      for (int step = 0; step < kUnitSteps<E>; ++step) q[i][step] = chain_of_vec16s<E>(vecs[i], step);
  }

  // A byte of a tile's row, in the key's row in memory.
  XLSTM_DEVICE static int key_byte(int byte) { return byte * int(sizeof(Key)) / int(sizeof(E)); }
  XLSTM_DEVICE static Vec16 as_elements(const KeyVec& vec) {
    if constexpr (!kWidensKeys<Elements>) {
      return __builtin_bit_cast(Vec16, vec);
    } else {
      Vec16 elements;
      widen_words<E, Key>(vec.word, elements.word);
      return elements;
    }
  }
  XLSTM_DEVICE static int line_key() { return int(threadIdx.x) / 8 % kAtOnce; }
  XLSTM_DEVICE static int line_byte() { return int(threadIdx.x) % 8 * 16; }
  // Calls f(i, byte) for this lane's i-th line of a row, byte: where the line begins.
  template <class F>
  XLSTM_DEVICE static void for_each_line(F&& f) {
    const int group = kLineGroups > 1 ? uniform(int(threadIdx.x) / 8 / kAtOnce) : 0;
#pragma unroll
    for (int i = 0; i < kLaneLines; ++i) {
      if ((i + 1) * kLineGroups > kLines && i * kLineGroups + group >= kLines) break;
      f(i, (i * kLineGroups + group) * kLine);
    }
  }
  // Looks up where the lane's keys of the tile lie that fetch() loads next, so that its addresses do not wait for the
  // page table.
  XLSTM_DEVICE void look_up(int first) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) next_slot[pass] = keys.slot(first + pass * kAtOnce + line_key());
  }
  // Loads tile n, which begins at key `first`. The tile after it is looked up first: loads arrive in order, so that the
  // next call waits for no tile. set: the tile's registers, n % tiles_ahead.
  XLSTM_DEVICE void fetch([[maybe_unused]] int n, int first, [[maybe_unused]] int set) {
    const char* rows[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      next_slot[pass].entry = int32_t(opaque(uint32_t(next_slot[pass].entry)));
      rows[pass] = keys.address(next_slot[pass]) + key_byte(line_byte());
    }
    look_up(first + kKeys);
    sched_barrier();
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const char* row = rows[pass];
      if constexpr (kCopiesAsync) {
        const uint32_t to = lds_address(tile(n)) + Cursor(line_key(), line_byte()).at(pass * kAtOnce, 0);
        for_each_line([&](int, int byte) { cp_async(to + byte, row + byte, true); });
      } else {
        for_each_line([&](int i, int byte) {
          // Behind half a line lies another key: lanes without bytes load those of others, which LDS has room for.
          const bool is_half = kEndsInHalfLine && i == kLaneLines - 1;
          staged[set][pass][i] = load_as<KeyVec>(is_half ? row - line_byte() / 64 * 64 : row, key_byte(byte));
        });
      }
    }
  }
  XLSTM_DEVICE void store([[maybe_unused]] int n, [[maybe_unused]] int set) {
    if constexpr (!kCopiesAsync) {
      const Cursor to(line_key(), line_byte());
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
        for_each_line([&](int i, int byte) {
          *reinterpret_cast<Vec16*>(tile(n) + to.at(pass * kAtOnce, byte)) = as_elements(staged[set][pass][i]);
        });
    }
  }

  // ---- a tile

  using Scores = Strip<E>[kKeyStrips];

  // On CDNA an operand's reads are issued ahead of the products before it; other families lack registers for that.
  static constexpr bool kReadsAhead = kFamily == Family::cdna;

  // A unit's vectors that have two steps arrive here. Otherwise the compiler reads them from LDS as halves, with bank
  // conflicts.
  XLSTM_DEVICE static void arrive_whole(Vec16 (&vecs)[kStreamVec16s<E>]) {
#pragma unroll
    for (Vec16& vec : vecs) arrive_at(vec);
  }
  XLSTM_DEVICE void multiply_keys(Scores& s, int n) const {
    const char* const lds_keys = tile(n);
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) s[ks].zero();
    const Vec16Position lane_vec = stream_vec16(kFamily, sizeof(E), lane_id(), 0);
    constexpr Vec16Position kZero = stream_vec16(kFamily, sizeof(E), 0, 0);
    // With the features in parts, the wave takes every kParts-th unit; its offsets are those of part 0, shifted.
    const Cursor begin(lane_vec.row, lane_vec.feature * int(sizeof(E)));
    const auto exists = [&](int i) { return i < kWaveUnits && (kUnits % kParts == 0 || part + i * kParts < kUnits); };
    Vec16 vecs[kReadsAhead ? 2 : 1][kKeyStrips][kStreamVec16s<E>];
    const auto read = [&](int i) {
      const Cursor from = kReadsAhead ? begin : Cursor(opaque(begin.first));
#pragma unroll
      for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
        for (int c = 0; c < kStreamVec16s<E>; ++c) {
          const Vec16Position of = stream_vec16(kFamily, sizeof(E), 0, c);
          const int row = ks * kStep<E> + of.row - kZero.row;
          const int byte =
              (part + i * kParts) * kUnit<E> * int(sizeof(E)) + (of.feature - kZero.feature) * int(sizeof(E));
          vecs[kReadsAhead ? i % 2 : 0][ks][c] = read_vec16(lds_keys + from.at(row, byte));
        }
    };
    if (kReadsAhead) read(0);
#pragma unroll
    for (int i = 0; i < kWaveUnits; ++i) {
      if (!exists(i)) break;
      if constexpr (kReadsAhead) {
        if (exists(i + 1)) read(i + 1);
        sched_barrier();
      } else {
        load_barrier();
        read(i);
      }
#pragma unroll
      for (int ks = 0; ks < kKeyStrips; ++ks) {
        if constexpr (kReadsAhead && kUnitSteps<E> > 1) arrive_whole(vecs[i % 2][ks]);
#pragma unroll
        for (int step = 0; step < kUnitSteps<E>; ++step)
          multiply<false, true>(s[ks], stream_of<E>(vecs[kReadsAhead ? i % 2 : 0][ks], step), q[i][step]);
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
  // Adds the partial scores that `waves` waves wrote for this wave's rows to s.
  XLSTM_DEVICE void add_parts(Scores& s, int n, int waves) const {
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
      for (int r = 0; r < Strip<E>::kRegisters; r += 4)
#pragma unroll
        for (int writer = strip; writer < waves; writer += kRowStrips) {
          const Vec16 vec4 = *partial(n, writer, ks, r / 4);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[ks].value[r + e] += as_float(vec4.word[e]);
        }
  }

  XLSTM_DEVICE void mask(Strip<E>& s, int first) const { row_info.mask(s, 0, first); }
  template <class F>
  XLSTM_DEVICE static void over_rows(Columns& x, F&& f) {
    x.over_rows(f);
  }

  // A row's weights are powers of 2 of its scores less row_max, which the rules of score_rules.h make the maximum. For
  // weights of 8 bits it is kWeightExponent less, and grows sooner: the largest weight is 2^5 to 2^7, of 240 at the
  // most, or in OCP's format 2^6 to 2^8, of 448 at the most. So all down to 2^-12 of it keep 3 bits of fraction.
  static constexpr float kWeightExponent = weight_exponent<E>(), kMaxGrowth = kIsFloat8<E> ? 2 : kRescaleThreshold;

  // Online softmax: turns scores into weights. Returns whether a maximum has grown so much that sums must be rescaled,
  // and the factor. tiles: these, as a class that may mask and reduce in its way.
  template <class Tiles>
  XLSTM_DEVICE bool online_softmax(Tiles& tiles, Scores& s, int first, bool is_fully_visible, Columns& rescale) {
    // Whether a maximum grew is a vote of the lanes, each with its own scores: lanes exchange maxima only then.
    Columns lane_max = Columns::all(-__builtin_inff());
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) {
      s[ks].scale(scale);
      if (!is_fully_visible) tiles.mask(s[ks], first + ks * kStep<E>);
      lane_max.take_in(s[ks], [](float x, float y) { return fmaxf(x, y); });
    }
#pragma unroll
    for (float& x : lane_max.value) x -= kWeightExponent;
    const bool rescales = needs_rescale(row_max, lane_max, kMaxGrowth);
    rescale = Columns::all(1);
    if (rescales) {
      tiles.over_rows(lane_max, [](float x, float y) { return fmaxf(x, y); });
      rescale = update_row_max(row_max, row_sum, lane_max);
    }
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) {
#pragma unroll
      for (int r = 0; r < Strip<E>::kRegisters; ++r)
        s[ks].value[r] = exp2_fast(s[ks].value[r] - row_max.value[Columns::of(r)]);
      row_sum.add(s[ks]);
    }
    return rescales;
  }
  XLSTM_DEVICE void scale_out(int row_strip, const Columns& rescale) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) scale_columns(out[b][t][row_strip], rescale);
  }

  // Sends this wave's weights to the other waves, as operands, with the factor by which out must be rescaled first.
  XLSTM_DEVICE void share_weights(const Scores& s, int n, bool rescales, const Columns& rescale) const {
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) *weights(n, strip, ks) = as_chain(s[ks], 1.0f);
    write_rows(kFactor + stage(n), rescale);
    if (lane_id() == 0) *rescale_flag(n, strip) = rescales;
  }
  XLSTM_DEVICE void rescale_out(int n) {
    int rescales = 0;  // one branch for all strips: most tiles rescale none, and a factor of 1 is exact
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) rescales |= *rescale_flag(n, rs);
    if (!uniform(rescales)) return;
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) scale_out(rs, read_rows(kFactor + stage(n), rs));
  }
  XLSTM_DEVICE void write_rows(int which, const Columns& x) const {  // of this wave's rows
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j)
      row_numbers(which)[strip * kStripColumns + Columns::position(j)] = x.value[j];
  }
  XLSTM_DEVICE Columns read_rows(int which, int row_strip) const {
    Columns x;
#pragma unroll
    for (int j = 0; j < Columns::kEach; ++j)
      x.value[j] = row_numbers(which)[row_strip * kStripColumns + Columns::position(j)];
    return x;
  }

  XLSTM_DEVICE static int lane() { return lane_id(); }
  XLSTM_DEVICE static int column(int j) { return Columns::position(j); }  // of a strip: the lane's column j
  XLSTM_DEVICE static bool stores_lse() { return wave_id() == 0 && Strip<E>::position(0).row == 0; }
  XLSTM_DEVICE int feature0(int block) const { return (wave_id() * kBlocks + block) * kTransposedFeatures<E>; }
  // The values of a step of the product: a strip of keys, a block of features.
  static constexpr int kValueSteps = kKeyStrips * kBlocks;
  struct Values {
    TransposedVec16<E> vecs[kReadsAhead ? 2 : 1][kTransposedVec16s<E>];
  };
  XLSTM_DEVICE void read_values(Values& v, int n, int step) const {
    const Vec16Position lane_vec = transposed_vec16(kFamily, sizeof(E), lane_id(), 0);
    const Cursor from(lane_vec.row, feature0(0) * int(sizeof(E)) + lane_vec.feature * int(sizeof(E)));
    const int ks = step / kBlocks, b = step % kBlocks;
#pragma unroll
    for (int c = 0; c < kTransposedVec16s<E>; ++c) {
      const int row = ks * kStep<E> + transposed_vec16(kFamily, sizeof(E), 0, c).row;
      v.vecs[kReadsAhead ? step % 2 : 0][c] =
          read_transposed<E>(tile(n) + from.at(row, b * kTransposedFeatures<E> * int(sizeof(E))));
    }
  }
  // With 16 rows the wave multiplies its own weights, otherwise the shared ones. With kReadsAhead step 0 of v is read.
  XLSTM_DEVICE void multiply_values([[maybe_unused]] const Scores* s, Values& v, int n) {
    ChainOperand<E> chain[kRowStrips];
#pragma unroll
    for (int step = 0; step < kValueSteps; ++step) {
      const int ks = step / kBlocks, b = step % kBlocks;
      if (b == 0) {
#pragma unroll
        for (int rs = 0; rs < kRowStrips; ++rs) {
          if constexpr (kRowStrips == 1)
            chain[rs] = as_chain((*s)[ks], 1.0f);
          else
            chain[rs] = *weights(n, rs, ks);
        }
      }
      if constexpr (kReadsAhead) {
        if (step + 1 < kValueSteps) read_values(v, n, step + 1);
        sched_barrier();
      } else {
        if constexpr (is_rdna(kFamily)) load_barrier();  // registers do not suffice for two blocks
        read_values(v, n, step);
      }
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) {
        if constexpr (kFamily != Family::cdna) load_barrier();
        const StreamOperand<E> stream = transposed<E>(v.vecs[kReadsAhead ? step % 2 : 0], t);
#pragma unroll
        for (int rs = 0; rs < kRowStrips; ++rs) multiply(out[b][t][rs], stream, chain[rs]);
      }
    }
  }
};

}  // namespace xlstm::gpu::attention
