// SPDX-License-Identifier: Apache-2.0
// How keys and values come from memory into LDS tiles, whatever layout they have: a stride apart or in pages, a tail,
// fewer features than the tile, rows that are no whole pieces.
#pragma once

#include "attention/layout.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::attention {

// The keys of one head of one sequence, or their values, from its first key on. What a call's params say is read where
// it is used, from `in` and `x`, which may be set to what reload_params() makes of them.
template <class E>
struct HeadTokens {
  const xlstm_attention* in;
  const xlstm_tensor* x;
  const E* data;  // of key 0; in pages, of the head's first token in the first page
  int features, first_key, sequence;
  int whole;  // rows are whole pieces: a number, of a bool AMD's compiler keeps a bit for every lane

  XLSTM_DEVICE HeadTokens(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t features, bool whole)
      : in(&at.in),
        x(&x),
        data(static_cast<const E*>(x.data) + (in_pages() ? head * x.stride[1] : at.key(x, head, at.first_key))),
        features(int(features)),
        first_key(int(at.first_key)),
        sequence(int(at.index)),
        whole(uniform(int(whole))) {}
  XLSTM_DEVICE bool in_pages() const { return in->block_table != nullptr; }

  // Key j's features.
  XLSTM_DEVICE const E* at(int j) const {
    if (!in_pages()) return data + j * x->stride[2];
    const uint32_t token = uint32_t(first_key + j), size = uint32_t(in->page_size);
    // RDNA's compiler may have the pointer in vector registers here, and cannot bring it back.
    const auto table = kFamily == Family::rdna ? opaque(in->block_table) : global(in->block_table);
    const int entry = table[sequence * in->block_table_stride + token / size], last = int(in->pages - 1);
    const int page = entry < 0 ? 0 : entry < last ? entry : last;
    return data + page * x->stride[0] + int64_t(token % size) * x->stride[2];
  }
  XLSTM_DEVICE TokenRows<E> rows(int column0) const { return {data + column0, x->stride[2], features - column0, true}; }
  XLSTM_DEVICE Vec16 piece(const E* row, int column) const {
    return TokenRows<E>{row, 0, features, whole != 0}.piece(0, column, true);
  }
};

// A Stage that brings features column0 .. column0 + kFeatures - 1 of keys. Keys beyond the valid ones repeat the last
// of these: what scores they have is for the caller to mask. What registers are too few for, and rows that are no whole
// pieces, is brought when it is stored.
template <class E, int kTokens, int kFeatures, bool kTransposed, int kThreads, bool kAhead>
struct KeyStage : Stage<E, kTokens, kFeatures, kTransposed, kThreads> {
  using Base = Stage<E, kTokens, kFeatures, kTransposed, kThreads>;
  using Storage = typename Base::Storage;
  static constexpr int n = Base::n, kEach = Base::kEach, kUnits = Base::kUnits, kUnitVec16s = Base::kUnitVec16s;
  static constexpr int kAlong = Base::kTurn ? kTokens / 4 : kFeatures / n;  // units along a row of them

  XLSTM_DEVICE static int token_of(int unit) { return Base::kTurn ? unit % kAlong * 4 : unit / kAlong; }
  XLSTM_DEVICE static int column_of(int unit) { return (Base::kTurn ? unit / kAlong : unit % kAlong) * n; }

  // Tiles of kFeatures each, side by side: part p of them from column p kFeatures on, into tile(p).
  template <int kParts, class Tiles>
  XLSTM_DEVICE static void fetch_parts(KeyStage (&stage)[kParts], Tiles&& tile, const HeadTokens<E>& from, int first,
                                       int valid) {
    const bool at_a_stride = !from.in_pages() && valid >= kTokens;
    if constexpr (kAsyncCopies) {
      if (from.whole && at_a_stride) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) Base::copy_whole(tile(part), from.rows(part * kFeatures), first);
      } else {
#pragma unroll
        for (int part = 0; part < kParts; ++part) copy_apart(tile(part), from, first, valid, part * kFeatures);
      }
    } else if constexpr (kAhead) {
      if (!from.whole) return;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (at_a_stride && from.features - part * kFeatures >= kFeatures)
          stage[part].fetch_whole(from.rows(part * kFeatures), first);
        else
          stage[part].gather(from, first, valid, part * kFeatures);
      }
    }
  }
  XLSTM_DEVICE void store(const Storage& tile, const HeadTokens<E>& from, int first, int valid, int column0) {
    if constexpr (kAsyncCopies) return;
    if (kAhead && from.whole)
      Base::store(tile);
    else
      bring(tile, from, first, valid, column0);
  }

 private:
  // Whole pieces, wherever their rows are.
  XLSTM_DEVICE void gather(const HeadTokens<E>& from, int first, int valid, int column0) {
    const int me = opaque_thread();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      int unit = me + j * kThreads;
      if (kUnits % kThreads != 0 && unit >= kUnits) unit = 0;  // who has none brings another's
      const int token = token_of(unit), column = column_of(unit);
      const bool inside = column0 + column < from.features;
      const int place = inside ? column0 + column : 0;
#pragma unroll
      for (int i = 0; i < kUnitVec16s; ++i) {
        const E* row = from.at(first + (token + i < valid ? token + i : valid - 1));
        Vec16& held = this->held[kUnitVec16s * j + i];
        held = load_vec16(reinterpret_cast<const char*>(row + place), 0);
#pragma unroll
        for (int w = 0; w < 4; ++w) held.word[w] = inside ? held.word[w] : 0;
      }
    }
  }
  // The same on its way to the tile; rows that are no whole pieces go through registers.
  XLSTM_NOINLINE_PATH static void copy_apart(Storage tile, HeadTokens<E> from, int first, int valid, int column0) {
    if (!from.whole) return bring(tile, from, first, valid, column0);
#pragma unroll 1
    for (int unit = threadIdx.x; unit < kUnits; unit += kThreads) {
      const int token = token_of(unit), column = column_of(unit);
      copy_row_vec16(tile.at(token, column), from.at(first + (token < valid ? token : valid - 1)) + column0, column,
                     from.features - column0);
    }
  }
  // Whatever it is, from memory to the tile.
  XLSTM_DEVICE static void bring(const Storage& tile, const HeadTokens<E>& from, int first, int valid, int column0) {
#pragma unroll 1
    for (int unit = opaque_thread(); unit < kUnits; unit += kThreads) {
      const int token = token_of(unit), column = column_of(unit);
      Vec16 p[kUnitVec16s];
#pragma unroll
      for (int i = 0; i < kUnitVec16s; ++i)
        p[i] = from.piece(from.at(first + (token + i < valid ? token + i : valid - 1)), column0 + column);
      if constexpr (Base::kTurn)
        Base::store_transposed(tile, p, token, column);
      else
        *reinterpret_cast<Vec16*>(tile.at(token, column)) = p[0];
    }
  }
};

}  // namespace xlstm::gpu::attention
