// SPDX-License-Identifier: Apache-2.0
// Loads two matrices of the same tokens from memory into LDS tiles, each along its rows, transposed, or both:
// attention's backward pass needs this of q and dout, and of k and v.
//
// AMD: a wave loads subtiles of kTokens tokens. A lane has four tokens of a vector of features, which it stores as four
// vectors of rows and, transposed, as rows of four tokens. The lanes' coordinates in a subtile are such that neither
// store has bank conflicts (tests/cpp/test_lds_conflicts.cpp).
// NVIDIA: asynchronous copies without registers, along the rows only; operands are read from these tiles both ways.
#pragma once

#include "tile/lds_tile.h"

namespace xlstm::gpu {

template <class E, int kTokens, int kFirst, int kSecond, int kThreads>
struct PairStage {
  static constexpr int n = kVec16Elements<E>, kWaves = kThreads / kWave;
  using FirstTile = Tile<E, kTokens, kFirst>;
  using SecondTile = Tile<E, kTokens, kSecond>;
  // The tile for operands whose k is tokens. On NVIDIA it is one of the tiles above.
  template <int kFeatures>
  using Turned = typename Stage<E, kTokens, kFeatures, true, kThreads>::Storage;

  static constexpr int kSubtile = kWave / (kTokens / 4) * n;  // features
  static constexpr int kFirstSubtiles = kFirst / kSubtile, kSubtiles = kFirstSubtiles + kSecond / kSubtile;
  static constexpr int kEach = (kSubtiles + kWaves - 1) / kWaves;
  static_assert(kAsyncCopies || (kFirst % kSubtile == 0 && kSecond % kSubtile == 0));

  Vec16 vecs[kAsyncCopies ? 1 : kEach * 4];

  // Loads tokens first .. first + valid - 1; the others are zeros.
  XLSTM_DEVICE void fetch(const TokenRows<E>& a, const TokenRows<E>& b, int64_t first, int valid) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) fetch_subtile(j, vecs + 4 * j, a, b, first, valid);
  }
  // The same in two steps where waves have as many subtiles each, or one at most, of tiles that are full, in rows of
  // 16-byte vectors and of as many features as the matrices have: which matrix and column the wave loads as its j-th
  // subtile, a lane's offset from there to its vector i, in bytes as the stride of rows is, and the loads.
  static constexpr bool kEvenly = kEach == 1 || kSubtiles % kWaves == 0;
  XLSTM_DEVICE static int wave_subtile(int j = 0) { return (wave_id() + j * kWaves) % kSubtiles; }
  XLSTM_DEVICE static bool wave_loads_second(int j = 0) { return wave_subtile(j) >= kFirstSubtiles; }
  XLSTM_DEVICE static int wave_column(int j = 0) {
    return (wave_loads_second(j) ? wave_subtile(j) - kFirstSubtiles : wave_subtile(j)) * kSubtile;
  }
  XLSTM_DEVICE static uint32_t lane_offset(int i, uint32_t stride) {
    const SubtileCoord at = subtile_coord(kTokens, int(threadIdx.x) % kWave);
    return uint32_t(4 * at.quad + i) * stride + uint32_t(at.vec16) * 16;
  }
  // An offset is opaque where it is used: only there the compiler sees that it has 32 bits, and leaves the sum with the
  // address to the load.
  XLSTM_DEVICE void fetch_vector(int i, const char* base, uint32_t& lane) {
    lane = opaque(lane);
    vecs[i] = load_vec16(base, lane);
  }
  // Calls to(whether of the second matrix, four vectors, first token, first feature) for each subtile of this wave.
  template <class To>
  XLSTM_DEVICE void each(To&& to) const {
    each(opaque_thread(), to);
  }
  template <class To>
  XLSTM_DEVICE void each(int thread, To&& to) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) store_subtile(j, vecs + 4 * j, thread, to);
  }
  // Loads and stores subtile by subtile, in few registers.
  template <class To>
  XLSTM_DEVICE static void move(const TokenRows<E>& a, const TokenRows<E>& b, int64_t first, int valid, To&& to) {
#pragma unroll 1
    for (int j = 0; j < kEach; ++j) {
      Vec16 p[4];
      fetch_subtile(j, p, a, b, first, valid);
      store_subtile(j, p, opaque_thread(), to);
    }
  }

  // Store four tokens' vectors into a tile along its rows, or transposed.
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

  // NVIDIA: the copy of one matrix into a tile. A thread has a vector of each line of 128 bytes in every kRows-th row.
  static constexpr uint32_t kLine = 8, kRows = kThreads / kLine;
  XLSTM_DEVICE static uint32_t lane_token() { return threadIdx.x / kLine; }
  XLSTM_DEVICE static uint32_t lane_first_column() { return threadIdx.x % kLine * n; }

  // All tokens exist and are aligned to 16 bytes; `from` is the thread's first element.
  template <class AnyTile>
  XLSTM_DEVICE static void copy_unmasked(const AnyTile& tile, const E* from, int64_t stride, int columns) {
    const auto to = tile.cursor(int(lane_token()), int(lane_first_column()));
    const uint32_t base = lds_address(tile.base);
#pragma unroll
    for (uint32_t t = 0; t < kTokens; t += kRows, from += kRows * stride) {
      if (kTokens % kRows != 0 && lane_token() + t >= kTokens) break;
#pragma unroll
      for (uint32_t c = 0; c < AnyTile::kVec16s * n; c += kLine * n)  // columns outside are not read
        cp_async(base + to.at(int(t), int(c)), from + c, int(lane_first_column() + c) < columns);
    }
  }
  // The general copy, with any alignment: tokens that do not exist are zeros.
  template <class AnyTile>
  XLSTM_NOINLINE_PATH static void copy(AnyTile tile, TokenRows<E> from, int64_t first, int valid) {
#pragma unroll 1
    for (uint32_t token = lane_token(); token < kTokens; token += kRows)
#pragma unroll 1
      for (uint32_t column = lane_first_column(); column < AnyTile::kVec16s * n; column += kLine * n)
        copy_vec16(tile.at(int(token), int(column)), from, first + token, int(column), int(token) < valid);
  }

 private:
  XLSTM_DEVICE static void fetch_subtile(int j, Vec16* p, const TokenRows<E>& a, const TokenRows<E>& b, int64_t first,
                                         int valid) {
    const SubtileCoord at = subtile_coord(kTokens, opaque_thread() % kWave);
    int subtile = wave_id() + j * kWaves;
    if (kSubtiles % kWaves != 0 && subtile >= kSubtiles) subtile -= kSubtiles;  // a branch would wait for the loads
    if (kSubtiles < kWaves) subtile %= kSubtiles;
    const bool second = subtile >= kFirstSubtiles;
    const TokenRows<E> from{second ? b.data : a.data, second ? b.stride : a.stride, second ? b.columns : a.columns,
                            second ? b.is_aligned16 : a.is_aligned16};
    const int column0 = (second ? subtile - kFirstSubtiles : subtile) * kSubtile, token = 4 * at.quad;
    if (valid <= 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[i] = {{0, 0, 0, 0}};
      return;
    }
    if (from.is_aligned16) {
      const uint32_t stride = uint32_t(from.stride) * uint32_t(sizeof(E));
      if (valid >= kTokens && column0 + kSubtile <= from.columns) {
        const char* base = reinterpret_cast<const char*>(from.data + first * from.stride + column0);
        const uint32_t lane_offset = uint32_t(token) * stride + uint32_t(at.vec16) * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) p[i] = load_vec16(base + i * stride, lane_offset);
        return;
      }
      const char* base = reinterpret_cast<const char*>(from.data + first * from.stride);
      const int column = column0 + at.vec16 * n;
      const bool inside = column < from.columns;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // loads the last token again for tokens beyond it, then masks them
        const int t = token + i < valid ? token + i : valid - 1;
        p[i] = load_vec16(base, uint32_t(t) * stride + (inside ? uint32_t(column) * uint32_t(sizeof(E)) : 0));
        const uint32_t mask = inside && token + i < valid ? ~0u : 0u;  // a conditional would put the load into a branch
#pragma unroll
        for (int w = 0; w < 4; ++w) p[i].word[w] &= mask;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = from.vec16(first + token + i, column0 + at.vec16 * n, token + i < valid);
  }
  template <class To>
  XLSTM_DEVICE static void store_subtile(int j, const Vec16* p, int thread, To&& to) {
    const SubtileCoord at = subtile_coord(kTokens, thread % kWave);
    const int subtile = wave_id() + j * kWaves;
    if (kSubtiles % kWaves != 0 && subtile >= kSubtiles) return;  // uniform in a wave
    const bool second = subtile >= kFirstSubtiles;
    to(second, p, 4 * at.quad, (second ? subtile - kFirstSubtiles : subtile) * kSubtile + at.vec16 * n);
  }
};

}  // namespace xlstm::gpu
