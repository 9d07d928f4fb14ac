// SPDX-License-Identifier: Apache-2.0
// Two matrices of the same tokens on their way from memory into LDS, each to lie there along its rows, transposed, or
// both: what attention's backward pass needs of q and dout, and of k and v.
//
// AMD: a wave brings squares, kTokens tokens by 16 bytes for each of its lanes: a lane has four tokens of a piece of
// features, which it stores as four pieces of rows and, turned, as rows of four tokens. The lanes' places in a square
// are those at which neither store has bank conflicts (tests/cpp/test_lds_conflicts.cpp).
// NVIDIA: copied without registers, along the rows only; operands are read from there both ways.
#pragma once

#include "tile/lds_tile.h"

namespace xlstm::gpu {

template <class E, int kTokens, int kFirst, int kSecond, int kThreads>
struct PairStage {
  static constexpr int n = kVec16Elements<E>, kWaves = kThreads / kWave;
  using FirstTile = Tile<E, kTokens, kFirst>;
  using SecondTile = Tile<E, kTokens, kSecond>;
  // Where operands whose k is tokens are read from: NVIDIA reads the tiles above.
  template <int kFeatures>
  using Turned = typename Stage<E, kTokens, kFeatures, true, kThreads>::Storage;

  static constexpr int kSubtile = kWave / (kTokens / 4) * n;  // features
  static constexpr int kFirstSubtiles = kFirst / kSubtile, kSubtiles = kFirstSubtiles + kSecond / kSubtile;
  static constexpr int kEach = (kSubtiles + kWaves - 1) / kWaves;
  static_assert(kAsyncCopies || (kFirst % kSubtile == 0 && kSecond % kSubtile == 0));

  Vec16 held[kAsyncCopies ? 1 : kEach * 4];

  // Tokens first .. first + valid - 1, zeros for the others.
  XLSTM_DEVICE void fetch(const TokenRows<E>& a, const TokenRows<E>& b, int64_t first, int valid) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) fetch_subtile(j, held + 4 * j, a, b, first, valid);
  }
  // to(second, column0, four pieces, first token, first feature) for each square that this wave brought.
  template <class To>
  XLSTM_DEVICE void each(To&& to) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) store_subtile(j, held + 4 * j, to);
  }
  // Both at once, square by square, in few registers.
  template <class To>
  XLSTM_DEVICE static void move(const TokenRows<E>& a, const TokenRows<E>& b, int64_t first, int valid, To&& to) {
#pragma unroll 1
    for (int j = 0; j < kEach; ++j) {
      Vec16 p[4];
      fetch_subtile(j, p, a, b, first, valid);
      store_subtile(j, p, to);
    }
  }

  // Four pieces of tokens into a tile as it lies in memory, or turned.
  template <class AnyTile>
  XLSTM_DEVICE static void store_along(const AnyTile& tile, const Vec16* p, int token, int column) {
    const auto to = tile.cursor(token, column);
#pragma unroll
    for (int i = 0; i < 4; ++i) *reinterpret_cast<Vec16*>(tile.at(to, i, 0)) = p[i];
  }
  template <int kFeatures>
  XLSTM_DEVICE static void store_transposed(const Turned<kFeatures>& tile, const Vec16* p, int token, int column) {
    Stage<E, kTokens, kFeatures, true, kThreads>::store_transposed(tile, p, token, column);
  }

  // NVIDIA: one matrix into a tile. A thread has a piece of each line of 128 bytes in every kRows-th row.
  static constexpr uint32_t kLine = 8, kRows = kThreads / kLine;
  XLSTM_DEVICE static uint32_t lane_token() { return threadIdx.x / kLine; }
  XLSTM_DEVICE static uint32_t lane_first_column() { return threadIdx.x % kLine * n; }

  // All tokens are there, in whole pieces; `mine` is the thread's first.
  template <class AnyTile>
  XLSTM_DEVICE static void copy_whole(const AnyTile& tile, const E* mine, int64_t stride, int columns) {
    const auto to = tile.cursor(int(lane_token()), int(lane_first_column()));
    const uint32_t base = lds_address(tile.base);
#pragma unroll
    for (uint32_t t = 0; t < kTokens; t += kRows, mine += kRows * stride) {
      if (kTokens % kRows != 0 && lane_token() + t >= kTokens) break;
#pragma unroll
      for (uint32_t c = 0; c < AnyTile::kVec16s * n; c += kLine * n)  // of what is outside nothing is read
        cp_async(base + to.at(int(t), int(c)), mine + c, int(lane_first_column() + c) < columns);
    }
  }
  // Whatever it is: tokens that are not there are zeros.
  template <class AnyTile>
  XLSTM_NOINLINE_PATH static void copy(AnyTile tile, TokenRows<E> from, int64_t first, int valid) {
#pragma unroll 1
    for (uint32_t token = lane_token(); token < kTokens; token += kRows)
#pragma unroll 1
      for (uint32_t column = lane_first_column(); column < AnyTile::kVec16s * n; column += kLine * n) {
        E* to = tile.at(int(token), int(column));
        const bool there = int(token) < valid;
        if (from.whole)
          copy_row_vec16(to, from.data + (first + (there ? token : 0)) * from.stride, int(column),
                         there ? from.columns : 0);
        else
          *reinterpret_cast<Vec16*>(to) = from.piece(first + token, int(column), there);
      }
  }

 private:
  XLSTM_DEVICE static void fetch_subtile(int j, Vec16* p, const TokenRows<E>& a, const TokenRows<E>& b, int64_t first,
                                         int valid) {
    const SubtileCoord at = subtile_coord(kTokens, opaque_thread() % kWave);
    int square = wave_id() + j * kWaves;
    if (kSubtiles % kWaves != 0 && square >= kSubtiles) square -= kSubtiles;  // a condition would be waited for
    if (kSubtiles < kWaves) square %= kSubtiles;
    const bool second = square >= kFirstSubtiles;
    const TokenRows<E> from{second ? b.data : a.data, second ? b.stride : a.stride, second ? b.columns : a.columns,
                            second ? b.whole : a.whole};
    const int column0 = (second ? square - kFirstSubtiles : square) * kSubtile, token = 4 * at.four;
    if (valid <= 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[i] = {{0, 0, 0, 0}};
      return;
    }
    if (from.whole) {
      const uint32_t stride = uint32_t(from.stride) * uint32_t(sizeof(E));
      if (valid >= kTokens && column0 + kSubtile <= from.columns) {
        const char* base = reinterpret_cast<const char*>(from.data + first * from.stride + column0);
        const uint32_t mine = uint32_t(token) * stride + uint32_t(at.piece) * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = load_vec16(base + i * stride, mine);
        return;
      }
      const char* base = reinterpret_cast<const char*>(from.data + first * from.stride);
      const int column = column0 + at.piece * n;
      const bool inside = column < from.columns;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // the last one repeated, then left out
        const int t = token + i < valid ? token + i : valid - 1;
        p[i] = load_vec16(base, uint32_t(t) * stride + (inside ? uint32_t(column) * uint32_t(sizeof(E)) : 0));
        const uint32_t mask = inside && token + i < valid ? ~0u : 0u;  // a choice would put the load behind a condition
#pragma unroll
        for (int w = 0; w < 4; ++w) p[i].word[w] &= mask;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = from.piece(first + token + i, column0 + at.piece * n, token + i < valid);
  }
  template <class To>
  XLSTM_DEVICE static void store_subtile(int j, const Vec16* p, To&& to) {
    const SubtileCoord at = subtile_coord(kTokens, opaque_thread() % kWave);
    const int square = wave_id() + j * kWaves;
    if (kSubtiles % kWaves != 0 && square >= kSubtiles) return;  // whole waves
    const bool second = square >= kFirstSubtiles;
    to(second, p, 4 * at.four, (second ? square - kFirstSubtiles : square) * kSubtile + at.piece * n);
  }
};

}  // namespace xlstm::gpu
