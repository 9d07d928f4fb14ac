// SPDX-License-Identifier: Apache-2.0
// How keys and values come from memory into LDS tiles, whatever layout they have: a stride apart or in pages, a tail,
// fewer features than the tile, rows that are no whole pieces.
#pragma once

#include "attention/layout.h"
#include "tile/gpu.h"

namespace xlstm::gpu {

// The keys of one head of one sequence, or their values, from its first key on.
template <class E>
struct HeadTokens {
  const AttentionLayout& where;
  TokenRows<E> rows;  // of key 0; with pages, of the head's first token in the first page
  int64_t page_stride;

  XLSTM_DEVICE HeadTokens(const AttentionLayout& at, const xlstm_tensor& x, int64_t head, int64_t features, bool whole)
      : where(at), page_stride(x.stride[0]) {
    const int64_t first = in_pages() ? head * x.stride[1] : at.key(x, head, at.first_key);
    rows = {static_cast<const E*>(x.data) + first, x.stride[2], int(features), whole};
  }
  XLSTM_DEVICE bool in_pages() const { return where.in.block_table != nullptr; }

  // Key j's features.
  XLSTM_DEVICE const E* at(int64_t j) const {
    if (!in_pages()) return rows.data + j * rows.stride;
    const int64_t token = where.first_key + j;
    return rows.data + where.page(token) * page_stride + where.in_page(token) * rows.stride;
  }
};

// A Stage that brings features column0 .. column0 + kFeatures - 1 of keys. Keys beyond the valid ones repeat the last
// of these: what scores they have is for the caller to mask.
template <class E, int kTokens, int kFeatures, bool kTransposed, int kThreads>
struct KeyStage : Stage<E, kTokens, kFeatures, kTransposed, kThreads> {
  using Base = Stage<E, kTokens, kFeatures, kTransposed, kThreads>;
  using Storage = typename Base::Storage;
  static constexpr int n = Base::n;

  XLSTM_DEVICE void fetch(const Storage& tile, const HeadTokens<E>& from, int64_t first, int valid, int column0) {
    if (!from.in_pages() && from.rows.whole && valid >= kTokens && from.rows.columns - column0 >= kFeatures) {
      TokenRows<E> rows = from.rows;
      rows.data += column0;
      this->fetch_whole(tile, rows, first);
    } else {
      fetch_any(tile, from, first, valid, column0);
    }
  }

 private:
  XLSTM_DEVICE void fetch_any([[maybe_unused]] const Storage& tile, const HeadTokens<E>& from, int64_t first, int valid,
                              int column0) {
    constexpr int kAlong = Base::kTurn ? kTokens / 4 : kFeatures / n;
    const int me = thread_here();
#pragma unroll
    for (int j = 0; j < Base::kEach; ++j) {
      int unit = me + j * kThreads;
      if (Base::kUnits % kThreads != 0 && unit >= Base::kUnits) unit = 0;  // who has none brings another's
      const int token = Base::kTurn ? unit % kAlong * 4 : unit / kAlong;
      const int column = (Base::kTurn ? unit / kAlong : unit % kAlong) * n;
#pragma unroll
      for (int i = 0; i < Base::kUnitPieces; ++i) {
        const int t = token + i < valid ? token + i : valid - 1;
        const E* row = from.at(first + t);
        if constexpr (kAsyncCopies) {
#if defined(__CUDACC__)
          const bool inside = column0 + column < from.rows.columns;
          if (Base::kUnits % kThreads != 0 && me + j * kThreads >= Base::kUnits) continue;
          if (from.rows.whole)
            copy_async(lds_address(tile.at(token, column)), row + (inside ? column0 + column : 0), inside);
          else
            *reinterpret_cast<Piece*>(tile.at(token, column)) = piece(row, from, column0 + column);
#endif
        } else {
          this->held[Base::kUnitPieces * j + i] = piece(row, from, column0 + column);
        }
      }
    }
  }

  XLSTM_DEVICE static Piece piece(const E* row, const HeadTokens<E>& from, int column) {
    if (!from.rows.whole) return TokenRows<E>{row, 0, from.rows.columns, false}.piece(0, column, true);
    const bool inside = column < from.rows.columns;
    Piece p = read_piece(row + (inside ? column : 0));
#pragma unroll
    for (int w = 0; w < 4; ++w) p.word[w] = inside ? p.word[w] : 0;
    return p;
  }
};

}  // namespace xlstm::gpu
