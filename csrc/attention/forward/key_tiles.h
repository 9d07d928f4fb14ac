// SPDX-License-Identifier: Apache-2.0
// Loads keys and values from memory into LDS tiles, for every layout: at a stride or in pages, with a tail, with fewer
// features than the tile, with rows that are not aligned to 16 bytes, of q's elements or of floats of 8 bits.
#pragma once

#include "attention/gpu/key_elements.h"
#include "attention/layout.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::attention {

// The keys, or the values, of one head of one sequence, from its first key on. `in` and `x` are read at each use; a
// caller may replace them by what reload_params() returns.
template <class E, class Key = E>
struct HeadTokens {
  const xlstm_attention* in;
  const xlstm_tensor* x;
  const Key* data;  // of key 0; with pages, of the head's first token in the first page
  int features, first_key, sequence;
  int is_aligned16;  // rows consist of 16-byte vectors; an int, because AMD's compiler keeps a bool as a bit per lane

  XLSTM_DEVICE HeadTokens(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t features,
                          bool is_aligned16)
      : in(&at.in),
        x(&x),
        data(static_cast<const Key*>(x.data) + (in_pages() ? head * x.stride[1] : at.key(x, head, at.first_key))),
        features(int(features)),
        first_key(int(at.first_key)),
        sequence(int(at.index)),
        is_aligned16(uniform(int(is_aligned16))) {}
  XLSTM_DEVICE bool in_pages() const { return in->block_table != nullptr; }

  // The features of key j.
  XLSTM_DEVICE const Key* at(int j) const {
    if (!in_pages()) return data + j * x->stride[2];
    const uint32_t token = uint32_t(first_key + j), size = uint32_t(in->page_size);
    // RDNA's compiler may hold the pointer in vector registers here, and cannot move it back to scalar ones.
    const auto table = is_rdna(kFamily) ? opaque(in->block_table) : global(in->block_table);
    const int entry = table[sequence * in->block_table_stride + token / size], last = int(in->pages - 1);
    const int page = entry < 0 ? 0 : entry < last ? entry : last;
    return data + page * x->stride[0] + int64_t(token % size) * x->stride[2];
  }
  XLSTM_DEVICE TokenRows<E> rows(int column0) const { return {data + column0, x->stride[2], features - column0, true}; }
  // Elements [column, column + kVec16Elements) of a row, zeros beyond the last one.
  XLSTM_DEVICE Vec16 vec16(const Key* row, int column) const {
    if constexpr (!kIsFloat8<Key>) {
      return TokenRows<E>{row, 0, features, is_aligned16 != 0}.vec16(0, column, true);
    } else {
      Float8Vec<4> bytes{{0, 0}};
      if (is_aligned16 && column < features) {
        bytes = *reinterpret_cast<const Float8Vec<4>*>(row + column);
      } else {
        uint64_t all = 0;
#pragma unroll 1
        for (int j = 0; j < kVec16Elements<E> && column + j < features; ++j)
          all |= uint64_t(reinterpret_cast<const uint8_t*>(row)[column + j]) << 8 * j;
        bytes = {{uint32_t(all), uint32_t(all >> 32)}};
      }
      Vec16 elements;
      widen_words<E, Key>(bytes.word, elements.word);
      return elements;
    }
  }
};

// KeyStage is a Stage that loads features column0 .. column0 + kFeatures - 1 of keys. Keys beyond the valid ones repeat
// the last valid one; the caller masks their scores. Where registers do not suffice for prefetching, or rows are not
// aligned, store() does the loading.
template <class E, class Key, int kTokens, int kFeatures, bool kTransposed, int kThreads, bool kPrefetch>
struct KeyStage : Stage<E, kTokens, kFeatures, kTransposed, kThreads> {
  using Base = Stage<E, kTokens, kFeatures, kTransposed, kThreads>;
  using Storage = typename Base::Storage;
  static constexpr int n = Base::n, kEach = Base::kEach, kUnits = Base::kUnits, kUnitVec16s = Base::kUnitVec16s;
  static constexpr int kAlong = Base::kTurn ? kTokens / 4 : kFeatures / n;  // units along a row of units

  XLSTM_DEVICE static int token_of(int unit) { return Base::kTurn ? unit % kAlong * 4 : unit / kAlong; }
  XLSTM_DEVICE static int column_of(int unit) { return (Base::kTurn ? unit / kAlong : unit % kAlong) * n; }

  // Fetches adjacent tiles of kFeatures each: part p begins at column p kFeatures and goes to tile(p).
  template <int kParts, class Tiles>
  XLSTM_DEVICE static void fetch_parts(KeyStage (&stage)[kParts], Tiles&& tile, const HeadTokens<E, Key>& from,
                                       int first, int valid) {
    const bool is_strided = !from.in_pages() && valid >= kTokens;
    if constexpr (kIsFloat8<Key>) {
      if (!kAsyncCopies && (!kPrefetch || !from.is_aligned16)) return;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        if constexpr (kAsyncCopies)
          copy_through_registers(tile(part), from, first, valid, part * kFeatures);
        else
          stage[part].gather(from, first, valid, part * kFeatures);
    } else if constexpr (kAsyncCopies) {
      if (from.is_aligned16 && is_strided) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) Base::copy_unmasked(tile(part), from.rows(part * kFeatures), first);
      } else {
#pragma unroll
        for (int part = 0; part < kParts; ++part) copy_scattered(tile(part), from, first, valid, part * kFeatures);
      }
    } else if constexpr (kPrefetch) {
      if (!from.is_aligned16) return;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (is_strided && from.features - part * kFeatures >= kFeatures)
          stage[part].fetch_unmasked(from.rows(part * kFeatures), first);
        else
          stage[part].gather(from, first, valid, part * kFeatures);
      }
    }
  }
  XLSTM_DEVICE void store(const Storage& tile, const HeadTokens<E, Key>& from, int first, int valid, int column0) {
    if constexpr (kAsyncCopies) return;
    if (kPrefetch && from.is_aligned16) {
      if constexpr (kIsFloat8<Key>) widen_fetched();
      Base::store(tile);
    } else
      copy_through_registers(tile, from, first, valid, column0);
  }

 private:
  // Fetches 16-byte vectors from rows at any address.
  XLSTM_DEVICE void gather(const HeadTokens<E, Key>& from, int first, int valid, int column0) {
    const int thread = opaque_thread();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      int unit = thread + j * kThreads;
      if (kUnits % kThreads != 0 && unit >= kUnits) unit = 0;  // a thread without a unit repeats unit 0
      const int token = token_of(unit), column = column_of(unit);
      const bool inside = column0 + column < from.features;
      const int source_column = inside ? column0 + column : 0;
#pragma unroll
      for (int i = 0; i < kUnitVec16s; ++i) {
        const Key* row = from.at(first + (token + i < valid ? token + i : valid - 1));
        Vec16& slot = this->fetched[kUnitVec16s * j + i];
        const char* source = reinterpret_cast<const char*>(row + source_column);
        if constexpr (kIsFloat8<Key>) {
          const Float8Vec<4> bytes = load_as<Float8Vec<4>>(source, 0);
          slot = {{bytes.word[0], bytes.word[1], 0, 0}};
        } else {
          slot = load_vec16(source, 0);
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) slot.word[w] = inside ? slot.word[w] : 0;
      }
    }
  }
  // Makes elements of the floats of 8 bits that gather() has loaded, once they have arrived.
  XLSTM_DEVICE void widen_fetched() {
#pragma unroll
    for (Vec16& slot : this->fetched) {
      const Vec16 bytes = slot;
      widen_words<E, Key>(bytes.word, slot.word);
    }
  }
  // The same by cp.async; rows that are not aligned go through registers.
  XLSTM_NOINLINE_PATH static void copy_scattered(Storage tile, HeadTokens<E, Key> from, int first, int valid,
                                                 int column0) {
    if (!from.is_aligned16) return copy_through_registers(tile, from, first, valid, column0);
#pragma unroll 1
    for (int unit = threadIdx.x; unit < kUnits; unit += kThreads) {
      const int token = token_of(unit), column = column_of(unit);
      copy_row_vec16(tile.at(token, column), from.at(first + (token < valid ? token : valid - 1)) + column0, column,
                     from.features - column0);
    }
  }
  // Any layout, from memory through registers to the tile.
  XLSTM_DEVICE static void copy_through_registers(const Storage& tile, const HeadTokens<E, Key>& from, int first,
                                                  int valid, int column0) {
#pragma unroll 1
    for (int unit = opaque_thread(); unit < kUnits; unit += kThreads) {
      const int token = token_of(unit), column = column_of(unit);
      Vec16 p[kUnitVec16s];
#pragma unroll
      for (int i = 0; i < kUnitVec16s; ++i)
        p[i] = from.vec16(from.at(first + (token + i < valid ? token + i : valid - 1)), column0 + column);
      if constexpr (Base::kTurn)
        Base::store_transposed(tile, p, token, column);
      else
        *reinterpret_cast<Vec16*>(tile.at(token, column)) = p[0];
    }
  }
};

}  // namespace xlstm::gpu::attention
