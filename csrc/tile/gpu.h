// SPDX-License-Identifier: Apache-2.0
// LDS tiles, and how tokens come from memory into them. A tile is a matrix in LDS whose 16-byte pieces are permuted, so
// that the lanes which are served together hit different banks (arch/family.h; tests/cpp counts the conflicts).
//
// A stage moves one matrix of tokens by features. Straight: k will run along the features. Transposed: k will run along
// the tokens. NVIDIA transposes while it reads LDS; the others transpose in registers on the way in, so that every read
// of an operand is one 16-byte piece.
#pragma once

#include "arch/gpu.h"

namespace xlstm::gpu {

template <class E, int kRows, int kColumns>
struct Tile {
  static constexpr int kPieces = kColumns * int(sizeof(E)) / 16;  // of a row
  static constexpr int kBytes = kRows * kColumns * int(sizeof(E));
  E* base;

  XLSTM_DEVICE E* at(int row, int column) const {
    constexpr int n = kPieceElements<E>;
    const int piece = swizzled_piece(kFamily, kPieces, row, column / n);
    return base + (swizzled_row(kFamily, kPieces, row) * kPieces + piece) * n + column % n;
  }
};

// Features of one head's tokens in memory.
template <class E>
struct TokenRows {
  const E* data;  // of token 0
  int64_t stride;
  int columns;   // features; a tile's further columns are zeros
  bool aligned;  // every piece starts at a multiple of 16 bytes

  // The piece at (token, column), zeros where it is outside.
  XLSTM_DEVICE Piece piece(int64_t token, int column, bool inside) const {
    Piece p = {{0, 0, 0, 0}};
    if (!inside || column >= columns) return p;
    const E* from = data + token * stride + column;
    if (aligned && column + kPieceElements<E> <= columns) return *reinterpret_cast<const Piece*>(from);
    E e[kPieceElements<E>];
#pragma unroll
    for (int j = 0; j < kPieceElements<E>; ++j) e[j] = column + j < columns ? from[j] : from_float<E>(0.0f);
    __builtin_memcpy(&p, e, 16);
    return p;
  }
};

template <class E, int kTokens, int kFeatures, bool kTransposed, int kThreads>
struct Stage {
  static constexpr bool kTurn = kTransposed && !kAsyncCopies;
  using Storage = Tile<E, kTurn ? kFeatures : kTokens, kTurn ? kTokens : kFeatures>;
  static constexpr int n = kPieceElements<E>;
  // A straight unit is a piece; one to turn is four tokens by one piece of features.
  static constexpr int kUnitPieces = kTurn ? 4 : 1;
  static constexpr int kUnits = kTokens * kFeatures / n / kUnitPieces;
  static constexpr int kEach = (kUnits + kThreads - 1) / kThreads;

  Piece held[kAsyncCopies ? 1 : kEach * kUnitPieces];

  // Tokens first..first + valid - 1 of `from`, from column0 on; the tile's further tokens are zeros. On NVIDIA this
  // writes the tile already.
  XLSTM_DEVICE void fetch(const Storage& tile, const TokenRows<E>& from, int64_t first, int valid) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int unit = threadIdx.x + j * kThreads;
      if (kUnits % kThreads != 0 && unit >= kUnits) break;
      if constexpr (kTurn) {
        const int token = unit % (kTokens / 4) * 4, column = unit / (kTokens / 4) * n;
#pragma unroll
        for (int i = 0; i < 4; ++i) held[4 * j + i] = from.piece(first + token + i, column, token + i < valid);
      } else {
        const int token = unit / (kFeatures / n), column = unit % (kFeatures / n) * n;
#if defined(__CUDACC__)
        const bool inside = token < valid && column < from.columns;
        if (!inside || (from.aligned && column + n <= from.columns))
          copy_async(tile.at(token, column), inside ? from.data + (first + token) * from.stride + column : from.data,
                     inside);
        else
          *reinterpret_cast<Piece*>(tile.at(token, column)) = from.piece(first + token, column, true);
#else
        held[j] = from.piece(first + token, column, token < valid);
#endif
      }
    }
  }

  // The piece that a straight fetch of this thread brought as its jth, at (token(j), column(j)).
  XLSTM_DEVICE static int token(int j) { return (threadIdx.x + j * kThreads) / (kFeatures / n); }
  XLSTM_DEVICE static int column(int j) { return (threadIdx.x + j * kThreads) % (kFeatures / n) * n; }
  XLSTM_DEVICE Piece piece(const Storage& tile, int j) const {
    if constexpr (kAsyncCopies)
      return *reinterpret_cast<const Piece*>(tile.at(token(j), column(j)));
    else
      return held[j];
  }

  // What was fetched into the tile. Between two barriers.
  XLSTM_DEVICE void store(const Storage& tile) {
    if constexpr (!kAsyncCopies) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int unit = threadIdx.x + j * kThreads;
        if (kUnits % kThreads != 0 && unit >= kUnits) break;
        if constexpr (kTurn) {
          const int token = unit % (kTokens / 4) * 4, column = unit / (kTokens / 4) * n;
          store_turned(tile, held + 4 * j, token, column);
        } else {
          const int token = unit / (kFeatures / n), column = unit % (kFeatures / n) * n;
          *reinterpret_cast<Piece*>(tile.at(token, column)) = held[j];
        }
      }
    }
  }

 private:
  // Four tokens of n features each, to n rows of four tokens.
  XLSTM_DEVICE static void store_turned(const Storage& tile, const Piece* p, int token, int column) {
#if !defined(__CUDACC__)
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (sizeof(E) == 2) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint32_t select = h ? 0x07060302u : 0x05040100u;
          const uint32_t low = __builtin_amdgcn_perm(p[1].word[w], p[0].word[w], select);
          const uint32_t high = __builtin_amdgcn_perm(p[3].word[w], p[2].word[w], select);
          *reinterpret_cast<uint64_t*>(tile.at(column + 2 * w + h, token)) = uint64_t(high) << 32 | low;
        }
      } else {
        *reinterpret_cast<Piece*>(tile.at(column + w, token)) = {{p[0].word[w], p[1].word[w], p[2].word[w], p[3].word[w]}};
      }
    }
#endif
  }
};

// Single floats on the same way: kCount of them, each from where source(index) says, or nowhere.
template <int kCount, int kThreads>
struct FloatStage {
  static constexpr int kEach = (kCount + kThreads - 1) / kThreads;
  float held[kAsyncCopies ? 1 : kEach];

  template <class Source>
  XLSTM_DEVICE void fetch(float* to, Source&& source) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int index = threadIdx.x + j * kThreads;
      const float* from = index < kCount ? source(index) : nullptr;
#if defined(__CUDACC__)
      if (from) copy_async_float(to + index, from);
#else
      held[j] = from ? *from : 0.0f;
#endif
    }
  }
  XLSTM_DEVICE void store(float* to) {
    if constexpr (!kAsyncCopies)
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (int(threadIdx.x) + j * kThreads < kCount) to[threadIdx.x + j * kThreads] = held[j];
  }
};

// Makes what was fetched visible to the block: everybody is done with the tiles' old contents, then has the new ones.
template <class Store>
XLSTM_DEVICE void arrive(Store&& store) {
  if constexpr (!kAsyncCopies) __syncthreads();
  store();
#if defined(__CUDACC__)
  copies_wait();
#endif
  __syncthreads();
}

}  // namespace xlstm::gpu
