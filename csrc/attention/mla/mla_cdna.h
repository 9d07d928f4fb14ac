// SPDX-License-Identifier: Apache-2.0
// MLA decode on CDNA for more than 64 rows: attention as in mla.h, with 128 rows of a key head and a part of the keys
// in a block.
//
// Who owns what: eight waves, two a SIMD. A wave has 16 rows with all their features in the scores' product, so that
// its softmax needs no other wave, and 64 of the 512 features of out for all 128 rows. A tile of 32 keys is in LDS
// once, and serves both products. Q lies in registers but for two units of 576 features, which LDS has room for.
// Elements of 8 bits, multiplied as they are, have tiles of 64 keys, which take the same bytes and as many products.
//
//   scores   of the wave's rows; the next tile's page is looked up and its vectors load, a few products apart
//   softmax  the wave's values of this tile are read, and transposed in registers; its weights go to LDS
//   -------- __syncthreads(): weights are visible, and no wave reads the tile any more
//   out      from registers and the weights in LDS; the next tile is stored into LDS, a vector behind each row strip
//   -------- __syncthreads(): the next tile is visible, and no wave reads the weights any more
//
// Of the waves of a SIMD the one that is served first has its softmax while the other one multiplies.
//
// LDS, 576 features: a tile of 36 KB, 8 KB of weights, 16 KB of Q, 1.5 KB of maxima, sums and factors. Registers: out
// 128, Q 64, the next tile 18; 16 of the values during out, or 24 of keys and Q during the scores. From tile to tile
// five others: the thread's number, a row's maximum and sum, where the next tile's key lies. All else is computed anew
// from the thread's number, and from scalar registers. With elements of 8 bits Q has 36 registers, the next tile 18,
// keys 16 during the scores and values 16 during out; what derives from the thread's number has the others.
//
// Floor, 128 heads: the matrix units, 2 (576 + 512) flops for each head and key; keys are loaded once. By the clock of
// an MI300X a tile takes 1.8 times as long: the softmax of the SIMD's second wave, two barriers, and vector
// instructions, of which none starts in half of a product's cycles.
#pragma once

#include "attention/mla/mla.h"

namespace xlstm::gpu::attention {

template <class Elements, int kFeatures_>
struct MlaCdnaTiles : MlaTiles<Elements, kMlaCdnaRows, kFeatures_, false> {
  using Base = MlaTiles<Elements, kMlaCdnaRows, kFeatures_, false>;
  using Base::keys, Base::out, Base::lds, Base::row_info, Base::strip;
  using Base::kKeys, Base::kKeyStrips, Base::kRowStrips, Base::kLine, Base::kShape, Base::kUnits;
  using typename Base::Cursor, typename Base::E, typename Base::Key, typename Base::KeyVec, typename Base::Scores;

  static constexpr int kQueryUnits = kUnits - kShape.lds_units;  // in registers
  // Eight lanes load a line. With 32 keys two groups of lanes share the lines of a row. Where half a line is left for
  // each group, a lane loads half a vector of it.
  static constexpr int kGroups = Base::kThreads / 8 / kKeys, kLaneBytes = kFeatures_ * int(sizeof(E)) / kGroups;
  static constexpr int kLaneLines = kLaneBytes / kLine;
  static constexpr bool kHasHalfLine = kLaneBytes % kLine != 0;
  static constexpr int kLaneVecs = kLaneLines + kHasHalfLine;
  struct alignas(sizeof(KeyVec) / 2) HalfVec {
    uint32_t word[sizeof(KeyVec) / 8];
  };

  Vec16 queries[kQueryUnits];
  KeySlots::Slot next;  // of the tile after the one that loads
  const char* row;      // what the lane loads of the next tile
  KeyVec staged[kLaneLines];
  HalfVec staged_half;

  using Base::Base;

  XLSTM_DEVICE static int lane() { return opaque_thread() % kWave; }
  // The same in the walk. Floats of 8 bits leave registers for what derives from it, which is kept.
  XLSTM_DEVICE static int walk_thread() { return kIsFloat8<E> ? int(threadIdx.x) : opaque_thread(); }
  XLSTM_DEVICE static int walk_lane() { return walk_thread() % kWave; }

  // As in MlaTiles, computed anew: until the walk's end they would take registers.
  XLSTM_DEVICE static int column(int) { return lane() % kStripColumns; }
  XLSTM_DEVICE bool stores_lse() const { return opaque_thread() < kStripColumns; }
  XLSTM_DEVICE int feature0(int) const { return strip * kTransposedFeatures<E>; }
  XLSTM_DEVICE void write_rows(int which, const Columns& x) const {
    Base::row_numbers(which)[strip * kStripColumns + column(0)] = x.value[0];
  }
  XLSTM_DEVICE Columns read_rows(int which, int row_strip) const {
    return Columns::all(Base::row_numbers(which)[row_strip * kStripColumns + column(0)]);
  }

  XLSTM_DEVICE Vec16* lds_query(int unit) const {
    return reinterpret_cast<Vec16*>(lds + kShape.lds_bytes - kShape.query_bytes) +
           (strip * kShape.lds_units + unit - kQueryUnits) * kWave + lane();
  }
  XLSTM_DEVICE void load_q() {
    typename Base::QueryVecs vecs;
    Base::load_query_vecs(vecs);
#pragma unroll
    for (int i = 0; i < kUnits; ++i)
      if (i < kQueryUnits)
        queries[i < kQueryUnits ? i : 0] = vecs[i][0];
      else
        *lds_query(i) = vecs[i][0];
  }

  // ---- the next tile: look up, load, store

  // The lane's key of a tile, and its bytes of the key's row.
  struct LanePosition {
    int key, group, vec;
    XLSTM_DEVICE LanePosition() {
      const int thread = walk_thread();
      key = thread / 8 % kKeys, vec = thread % 8;
      group = uniform(thread / 8 / kKeys);
    }
    XLSTM_DEVICE int line_byte() const { return group * kLine + vec * 16; }  // of its first line
    XLSTM_DEVICE int half_byte() const { return kLaneLines * kGroups * kLine + group * (kLine / 2) + vec * 8; }
  };
  XLSTM_DEVICE void look_up(int first) {
    next = keys.in_scalars().slot(first + LanePosition().key);
    next.in_page = opaque(next.in_page);
  }
  // Locates the tile that begins with key `first`, and looks up the one after it: loads arrive in order, so that its
  // page is known before a load of keys is waited for.
  XLSTM_DEVICE void locate(int first) {
    next.entry = int32_t(opaque(uint32_t(next.entry)));
    row = keys.in_scalars().address(next) + int(opaque(uint32_t(Base::key_byte(LanePosition().line_byte()))));
    look_up(first + kKeys);
    sched_barrier();
  }
  // Loads the lane's vector i; the last one is half a vector.
  XLSTM_DEVICE void fetch(int i) {
    if (i < kLaneLines) {
      staged[i < kLaneLines ? i : 0] = load_as<KeyVec>(row, Base::key_byte(i * kGroups * kLine));
    } else {
      const LanePosition lane;
      staged_half = load_as<HalfVec>(row + Base::key_byte(lane.half_byte() - lane.line_byte()), 0);
    }
    sched_barrier();
  }
  struct StoreOffsets {
    uint32_t line, half;
  };
  XLSTM_DEVICE static StoreOffsets store_offsets() {
    const LanePosition lane;
    return {Cursor(lane.key, lane.line_byte()).first, kHasHalfLine ? Cursor(lane.key, lane.half_byte()).first : 0};
  }
  XLSTM_DEVICE void store(const StoreOffsets& to, int i) const {
    if (i < kLaneLines) {
      char* const line = lds + to.line + i * kGroups * kLine;
      *reinterpret_cast<Vec16*>(line) = Base::as_elements(staged[i < kLaneLines ? i : 0]);
    } else if constexpr (kWidensKeys<Elements>) {
      uint32_t words[2];
      widen_words<E, Key>(staged_half.word, words);
      *reinterpret_cast<uint64_t*>(lds + to.half) = __builtin_bit_cast(uint64_t, words);
    } else {
      *reinterpret_cast<uint64_t*>(lds + to.half) = __builtin_bit_cast(uint64_t, staged_half);
    }
  }

  // ---- a tile

  // The scores of the wave's rows. The tile that begins with key `next_first` loads meanwhile.
  XLSTM_DEVICE void multiply_keys(Scores& s, int next_first) {
#pragma unroll
    for (Strip<E>& strip_of_keys : s) strip_of_keys.zero();
    const Vec16Position lane_vec = stream_vec16(kFamily, sizeof(E), walk_lane(), 0);
    constexpr Vec16Position kZero = stream_vec16(kFamily, sizeof(E), 0, 0);
    const Cursor begin(lane_vec.row, lane_vec.feature * int(sizeof(E)));
    // A part of the product is a unit of features for a strip of keys. While one is multiplied the next is read.
    constexpr int kProductParts = kUnits * kKeyStrips;
    Vec16 vecs[2][kStreamVec16s<E>], from_lds[2];
    // Units whose Q is in LDS come first, while the next tile takes no registers.
    const auto unit = [](int i) { return (i / kKeyStrips + kQueryUnits) % kUnits; };
    const auto read = [&](int i) {
#pragma unroll
      for (int c = 0; c < kStreamVec16s<E>; ++c) {
        const int row = i % kKeyStrips * kStep<E> + stream_vec16(kFamily, sizeof(E), 0, c).row - kZero.row;
        vecs[i % 2][c] = read_vec16(lds + begin.at(row, unit(i) * kUnit<E> * int(sizeof(E))));
      }
      if (unit(i) >= kQueryUnits) from_lds[i % 2] = *lds_query(unit(i));
    };
    read(0);
#pragma unroll
    for (int i = 0; i < kProductParts; ++i) {
      if (i + 1 < kProductParts) read(i + 1);
      sched_barrier();
      if (i == 2) locate(next_first);
      if (i % 2 == 1 && i > 1 && i / 2 <= kLaneVecs) fetch(i / 2 - 1);
      if constexpr (kUnitSteps<E> > 1) Base::arrive_whole(vecs[i % 2]);
      const Vec16 query[] = {unit(i) < kQueryUnits ? queries[unit(i) < kQueryUnits ? unit(i) : 0] : from_lds[i % 2]};
#pragma unroll
      for (int step = 0; step < kUnitSteps<E>; ++step) {
        const ChainOperand<E> chain = chain_of_vec16s<E>(query, step);
        multiply_each<1, false, true>(
            stream_of<E>(vecs[i % 2], step), [&](int) -> Strip<E>& { return s[i % kKeyStrips]; },
            [&](int) -> const ChainOperand<E>& { return chain; }, [](auto) {});
      }
    }
  }

  // The key that is aligned with the lane's row, in LDS until the row's maximum is stored: few tiles are masked.
  XLSTM_DEVICE int* diagonal_key() const {
    return reinterpret_cast<int*>(Base::row_numbers(Base::kRowMax)) + strip * kStripColumns + column(0);
  }
  XLSTM_DEVICE void mask(Strip<E>& s, int first) const {
    RowInfo<1> info = row_info;
    info.diagonal_key[0][0] = *diagonal_key();
    // Opaque: else the compiler keeps -infinity in a register during the walk.
    info.mask(s, 0, first, lane(), as_float(opaque(as_bits(-__builtin_inff()))));
  }

  template <class F>
  XLSTM_DEVICE static void over_rows(Columns& x, F&& f) {
    x.over_rows(f, lane());
  }

  struct alignas(16) Weights {  // of a lane's keys of a tile
    ChainOperand<E> of[kKeyStrips];
  };
  XLSTM_DEVICE Weights* weights(int row_strip) const {
    return reinterpret_cast<Weights*>(lds + kShape.tile_bytes) + row_strip * kWave + walk_lane();
  }
  XLSTM_DEVICE float* factors() const { return Base::row_numbers(Base::kFactor) + column(0); }
  XLSTM_DEVICE void share_weights(const Scores& s, bool rescales, const Columns& rescale) const {
    Weights shared;
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks) shared.of[ks] = as_chain(s[ks], 1.0f);
    *weights(strip) = shared;
    factors()[strip * kStripColumns] = rescale.value[0];
    if (lane() == 0) *Base::rescale_flag(0, strip) = rescales;
  }
  XLSTM_DEVICE void rescale_out() {
    int rescales = 0;  // one branch for all strips, as in MlaTiles
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) rescales |= *Base::rescale_flag(0, rs);
    if (!uniform(rescales)) return;
    const float* const from = factors();
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) Base::scale_out(rs, Columns::all(from[rs * kStripColumns]));
  }

  using Values = StreamOperand<E>[kKeyStrips][kTransposedStrips<E>];
  using ValueVecs = TransposedVec16<E>[kKeyStrips][kTransposedVec16s<E>];
  XLSTM_DEVICE void read_values(ValueVecs& vecs) const {
    const Vec16Position lane_vec = transposed_vec16(kFamily, sizeof(E), walk_lane(), 0);
    const int feature = feature0(0) + lane_vec.feature;
    const Cursor from(lane_vec.row, feature * int(sizeof(E)));
#pragma unroll
    for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
      for (int c = 0; c < kTransposedVec16s<E>; ++c)
        vecs[ks][c] = read_transposed<E>(lds + from.at(ks * kStep<E> + c, 0));
    sched_barrier();
  }
  // Adds to out of all rows, and stores the next tile.
  XLSTM_DEVICE void multiply_values(const Values& values) {
    static_assert(kLaneVecs < kRowStrips);
    const Weights* const shared = weights(0);
    Weights chain[2];
    chain[0] = shared[0];
    StoreOffsets to;
#pragma unroll
    for (int rs = 0; rs < kRowStrips; ++rs) {
      if (rs + 1 < kRowStrips) chain[(rs + 1) % 2] = shared[(rs + 1) * kWave];
      sched_barrier();
#pragma unroll
      for (int ks = 0; ks < kKeyStrips; ++ks)
#pragma unroll
        for (int t = 0; t < kTransposedStrips<E>; ++t)
          multiply_each<1, true, false>(
              values[ks][t], [&](int) -> Strip<E>& { return out[0][t][rs]; },
              [&](int) -> const ChainOperand<E>& { return chain[rs % 2].of[ks]; }, [](auto) {});
      if (rs == 0) to = store_offsets();
      sched_barrier();
      if (rs > 0 && rs <= kLaneVecs) store(to, rs - 1);
      sched_barrier();
    }
  }
};

template <class Tiles>
struct MlaCdna {
  using E = typename Tiles::E;
  static constexpr int kKeys = Tiles::kKeys;

  Tiles& tiles;

  // Walks keys [begin, end), a tile at a time. begin is a multiple of a tile.
  XLSTM_DEVICE void walk(int begin, int end, const VisibleKeys& visible) {
#pragma unroll
    for (int t = 0; t < kTransposedStrips<E>; ++t)
#pragma unroll
      for (int rs = 0; rs < Tiles::kRowStrips; ++rs) tiles.out[0][t][rs].zero();
    tiles.keys = KeySlots(tiles.at, tiles.key_head, sizeof(typename Tiles::Key), uniform(end - 1));
    if (begin < end) {
      tiles.look_up(begin);
      tiles.locate(begin);
#pragma unroll
      for (int i = 0; i < Tiles::kLaneVecs; ++i) tiles.fetch(i);
      const auto to = Tiles::store_offsets();
#pragma unroll
      for (int i = 0; i < Tiles::kLaneVecs; ++i) tiles.store(to, i);
    }
    *tiles.diagonal_key() = tiles.row_info.diagonal_key[0][0];
    __syncthreads();
    for (int first = begin; first < end; first += kKeys) run_tile(first, visible);
    Tiles::over_rows(tiles.row_sum, [](float x, float y) { return x + y; });
    tiles.write_rows(Tiles::kRowMax, tiles.row_max);
    tiles.write_rows(Tiles::kRowSum, tiles.row_sum);
    __syncthreads();
  }
  // Behind the last tile the walk loads and stores the last key once more: a condition would wait for loads.
  XLSTM_DEVICE void run_tile(int first, const VisibleKeys& visible) {
    typename Tiles::Scores s;
    tiles.multiply_keys(s, first + kKeys);
    typename Tiles::ValueVecs vecs;
    tiles.read_values(vecs);
    Columns rescale;
    const bool rescales = tiles.online_softmax(tiles, s, first, visible.fully(first, kKeys), rescale);
    tiles.share_weights(s, rescales, rescale);
    // Here, not behind the barrier: until then the sum would keep the weights in registers.
    tiles.row_sum.value[0] = as_float(opaque(as_bits(tiles.row_sum.value[0])));
    typename Tiles::Values values;
#pragma unroll
    for (int ks = 0; ks < Tiles::kKeyStrips; ++ks)
#pragma unroll
      for (int t = 0; t < kTransposedStrips<E>; ++t) values[ks][t] = transposed<E>(vecs[ks], t);
    sched_barrier();
    __syncthreads();
    tiles.rescale_out();
    tiles.multiply_values(values);
    __syncthreads();
  }
};

template <class Elements, int kFeatures>
__global__ __launch_bounds__(mla_shape(Family::cdna, kMlaCdnaRows, kFeatures, false).threads,
                             2) void mla_cdna_kernel(const FewRowsParams p) {
  if constexpr (has_mla(kFamily, kMlaCdnaRows, false) && kMultiplies<QueryOf<Elements>>) {
    extern __shared__ __align__(128) char lds[];
    using Tiles = MlaCdnaTiles<Elements, kFeatures>;
    constexpr int kKeys = Tiles::kKeys;
    const FewRowsBlock<kMlaCdnaRows, kKeys> part(p);
    if (part.empty()) return;
    Tiles tiles(p, part.at, part.key_head, part.first, lds);
    tiles.scale = uniform(tiles.scale);
    const VisibleKeys visible = part.visible();
    const auto [from, to] = part.template tiles<true>(visible);
    tiles.load_q();
    MlaCdna<Tiles>{tiles}.walk(from * kKeys, to * kKeys < visible.end ? to * kKeys : visible.end, visible);
    // The epilogue computes where rows lie anew, rather than keep them in registers during the walk.
    tiles.first_row = uint32_t(opaque_uniform(int(tiles.first_row)));
    tiles.group = uint32_t(opaque_uniform(int(tiles.group)));
    Mla<Tiles>{tiles}.write(part.coord.split);
  }
}

}  // namespace xlstm::gpu::attention
