// SPDX-License-Identifier: Apache-2.0
// LDS tiles, and stages that load tokens from memory into them. A tile is a matrix in LDS whose 16-byte vectors are
// swizzled, so that the lanes which are served together hit different banks (arch/layouts.h; tests/cpp counts the
// conflicts).
//
// A stage loads one matrix of tokens by features, either along its rows, for operands whose k is the features, or
// transposed, for operands whose k is the tokens. NVIDIA transposes while it reads LDS. AMD transposes in registers
// before the store, so that every read of an operand is one 16-byte vector.
#pragma once

#include "arch/fragments.h"
#include "arch/memory_range.h"

namespace xlstm::gpu {

template <class E, int kRows, int kColumns>
struct Tile {
  static constexpr int kVec16s = kColumns * int(sizeof(E)) / 16;  // of a row
  static constexpr int kBytes = kRows * kColumns * int(sizeof(E));
  E* base;

  // The element's offset from base.
  XLSTM_DEVICE static constexpr int offset(int row, int column) {
    constexpr int n = kVec16Elements<E>;
    const int vec16 = swizzled_vec16(kFamily, kVec16s, row, column / n);
    return (swizzled_row(kFamily, kVec16s, row) * kVec16s + vec16) * n + column % n;
  }
  XLSTM_DEVICE E* at(int row, int column) const { return base + offset(row, column); }

  // A lane's position for reads step after step: the offset in bytes of (row + r, column + c), for constants r and c
  // that have no bit in common with row and column. The swizzle is an exclusive or of bits within a line of 128 bytes.
  // So the offset of (row, column) is computed once, and r and c add constants, which fit into an instruction's offset
  // field.
  struct Cursor {
    uint32_t first;
    XLSTM_DEVICE uint32_t at(int r, int c) const {
      const uint32_t delta = uint32_t(offset(r, c)) * uint32_t(sizeof(E));
      return (first ^ delta % 128) + delta / 128 * 128;
    }
  };
  XLSTM_DEVICE Cursor cursor(int row, int column) const {
    return {uint32_t(offset(row, column)) * uint32_t(sizeof(E))};
  }
  XLSTM_DEVICE char* at(const Cursor& from, int r, int c) const {
    return reinterpret_cast<char*>(base) + from.at(r, c);
  }
};

// Features of one head's tokens in memory.
template <class E>
struct TokenRows {
  const E* data;  // of token 0
  int64_t stride;
  int columns;        // features; a tile's further columns are zeros
  bool is_aligned16;  // vectors of 16 bytes are aligned and end with the row; 32 bits hold the bytes of 32 tokens

  // Whether halves of vectors, 8 bytes each, are aligned and end with the row.
  XLSTM_DEVICE bool is_aligned8() const {
    return (reinterpret_cast<uintptr_t>(data) | uint64_t(stride) * sizeof(E) | uint64_t(columns) * sizeof(E)) % 8 == 0;
  }
  // The 16-byte vector at (token, column), zeros where it is outside.
  XLSTM_DEVICE Vec16 vec16(int64_t token, int column, bool inside) const {
    if (!inside || column >= columns) return {{0, 0, 0, 0}};
    const E* from = data + token * stride + column;
    if (is_aligned16) return *reinterpret_cast<const Vec16*>(from);
    uint64_t low = 0, high = 0;
#pragma unroll 1
    for (int j = 0; j < kVec16Elements<E> && column + j < columns; ++j) {
      const int at = j * 8 * int(sizeof(E));
      (at < 64 ? low : high) |= uint64_t(element_bits(from[j])) << (at % 64);
    }
    return {{uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32)}};
  }
};

// Element j of a vector.
template <class E>
XLSTM_DEVICE float element(const Vec16& p, int j) {
  if constexpr (sizeof(E) == 4)
    return as_float(p.word[j]);
  else
    return j % 2 ? high_float(E{}, p.word[j / 2]) : low_float(E{}, p.word[j / 2]);
}

// Stores a register of features of each of four tokens into a tile of features by tokens, at `row` from `to` on.
template <class E, class Tile>
XLSTM_DEVICE void store_transposed_word(const Tile& tile, const typename Tile::Cursor& to, int row,
                                        const Vec16& token) {
  if constexpr (sizeof(E) == 2) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t low = join_halves(token.word[0], token.word[1], h);
      const uint32_t high = join_halves(token.word[2], token.word[3], h);
      *reinterpret_cast<uint64_t*>(tile.at(to, row + h, 0)) = uint64_t(high) << 32 | low;
    }
  } else {
    *reinterpret_cast<Vec16*>(tile.at(to, row, 0)) = token;
  }
}

// Issues the asynchronous copy into LDS of the vector at `column` of a row of `columns`, zeros where it is outside.
template <class E>
XLSTM_DEVICE void copy_row_vec16(E* to, const E* row, int column, int columns) {
  cp_async(lds_address(to), row + (column < columns ? column : 0), column < columns);
}
// Copies the vector at (token, column) into LDS, zeros where it is outside: asynchronously, by halves where rows are
// aligned to 8 bytes alone, and through registers where they are not even that.
template <class E>
XLSTM_DEVICE void copy_vec16(E* to, const TokenRows<E>& from, int64_t token, int column, bool inside) {
  constexpr int kHalf = kVec16Elements<E> / 2;
  const E* row = from.data + (inside ? token : 0) * from.stride;
  const int columns = inside ? from.columns : 0;
  if (from.is_aligned16) {
    copy_row_vec16(to, row, column, columns);
  } else if (from.is_aligned8()) {
#pragma unroll
    for (int c = column; c < column + 2 * kHalf; c += kHalf)
      cp_async_half(lds_address(to + (c - column)), row + (c < columns ? c : 0), c < columns);
  } else {
    *reinterpret_cast<Vec16*>(to) = from.vec16(token, column, inside);
  }
}

template <class E, int kTokens, int kFeatures, bool kTransposed, int kThreads>
struct Stage {
  static constexpr bool kTurn = kTransposed && !kAsyncCopies;
  using Storage = Tile<E, kTurn ? kFeatures : kTokens, kTurn ? kTokens : kFeatures>;
  static constexpr int n = kVec16Elements<E>;
  // The unit of a thread is a vector, or, where the stage transposes, four tokens by one vector of features.
  static constexpr int kUnitVec16s = kTurn ? 4 : 1;
  static constexpr int kUnits = kTokens * kFeatures / n / kUnitVec16s;
  static constexpr int kEach = (kUnits + kThreads - 1) / kThreads;
  static constexpr int kRowBytes = kFeatures * int(sizeof(E));
  static constexpr int kRowUnits = kTurn ? kTokens / 4 : kFeatures / n;  // that lie along one row of units

  static constexpr int kVectors = kAsyncCopies ? 1 : kEach * kUnitVec16s;

  Vec16 fetched[kVectors];

  // Loads tokens first..first + valid - 1 of `from`; the tile's further tokens are zeros. Where copies are
  // asynchronous, fetch() writes the tile, and store() does nothing.
  XLSTM_DEVICE void fetch([[maybe_unused]] const Storage& tile, const TokenRows<E>& from, int64_t first, int valid) {
    const int thread = opaque_thread();
    if constexpr (!kAsyncCopies)
      if (from.is_aligned16 && valid == kTokens && from.columns >= kFeatures) return fetch_plain(from, first, thread);
    // Otherwise a thread without a unit keeps the last tile's vectors, in registers that products of floats need.
    if constexpr (kFamily == Family::rdna && sizeof(E) == 4 && kUnits % kThreads != 0)
#pragma unroll
      for (Vec16& vec : fetched) vec = {};
    if constexpr (kTurn) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int unit = thread + j * kThreads;
        if (kUnits % kThreads != 0 && unit >= kUnits) break;
        const int token = unit % (kTokens / 4) * 4, column = unit / (kTokens / 4) * n;
#pragma unroll
        for (int i = 0; i < 4; ++i) fetched[4 * j + i] = from.vec16(first + token + i, column, token + i < valid);
      }
    } else if constexpr (kAsyncCopies) {
      copy(tile, from, first, valid);
    } else {
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (const int unit = thread + j * kThreads; kUnits % kThreads == 0 || unit < kUnits) {
          const int token = unit / (kFeatures / n);
          fetched[j] = from.vec16(first + token, unit % (kFeatures / n) * n, token < valid);
        }
    }
  }

  // The same for a tile all of whose tokens and features exist, aligned to 16 bytes.
  XLSTM_DEVICE void fetch_unmasked(const TokenRows<E>& from, int64_t first) {
    fetch_plain(from, first, opaque_thread());
  }

  // The same in two steps: a thread's offset in a tile, in bytes as the stride of rows is, and the loads from a tile at
  // a uniform address.
  XLSTM_DEVICE static uint32_t lane_offset(uint32_t stride, int thread) {
    return uint32_t(first_token(thread)) * stride + uint32_t(first_column(thread)) * uint32_t(sizeof(E));
  }
  XLSTM_DEVICE static int first_token(int thread) {
    static_assert(kThreads % kRowUnits == 0 || kEach == 1);
    const int unit = unit_of(thread);
    return kTurn ? unit % kRowUnits * 4 : unit / kRowUnits;
  }
  XLSTM_DEVICE static int first_column(int thread) {
    const int unit = unit_of(thread);
    return (kTurn ? unit / kRowUnits : unit % kRowUnits) * n;
  }
  // A thread without a unit loads another's: a branch would wait for the loads.
  XLSTM_DEVICE static int unit_of(int thread) { return thread % (kUnits < kThreads ? kUnits : kThreads); }
  XLSTM_DEVICE void fetch_at(const char* base, uint32_t stride, uint32_t lane_offset) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) fetched[v] = load_vec16(base + uniform_offset(v, stride), lane_offset);
  }
  // The same from a range, which ends with the last token that exists.
  XLSTM_DEVICE void fetch_range(const MemoryRange& from, uint32_t stride, uint32_t lane_offset) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) fetched[v] = load_vec16(from, lane_offset + uniform_offset(v, stride));
  }
  XLSTM_DEVICE static uint32_t uniform_offset(int v, uint32_t stride) {
    const int unit = v / kUnitVec16s * (kThreads / kRowUnits);
    return kTurn ? v % kUnitVec16s * stride + unit * n * uint32_t(sizeof(E)) : unit * stride;
  }

  // The jth vector that this thread loaded without transposing, of (token(j), column(j)).
  XLSTM_DEVICE static int token(int j) { return (opaque_thread() + j * kThreads) / (kFeatures / n); }
  XLSTM_DEVICE static int column(int j) { return (opaque_thread() + j * kThreads) % (kFeatures / n) * n; }
  XLSTM_DEVICE Vec16 vec16(const Storage& tile, int j) const {
    if constexpr (kAsyncCopies)
      return *reinterpret_cast<const Vec16*>(tile.at(token(j), column(j)));
    else
      return fetched[j];
  }

  // Stores the loaded tokens into the tile. The caller puts store() between two barriers.
  XLSTM_DEVICE void store(const Storage& tile) { store_fetched(tile, opaque_thread()); }
  XLSTM_DEVICE void store_fetched([[maybe_unused]] const Storage& tile, [[maybe_unused]] int thread) {
    if constexpr (!kAsyncCopies) {
      if constexpr (kTurn) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const int unit = thread + j * kThreads;
          if (kUnits % kThreads != 0 && unit >= kUnits) break;
          store_transposed(tile, fetched + 4 * j, unit % (kTokens / 4) * 4, unit / (kTokens / 4) * n);
        }
      } else {
        constexpr int kRows = kThreads / kRowUnits;  // of the block at a time
        const auto to = tile.cursor(thread / kRowUnits, thread % kRowUnits * n);
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          if (kUnits % kThreads != 0 && thread + j * kThreads >= kUnits) break;
          *reinterpret_cast<Vec16*>(tile.at(to, j * kRows, 0)) = fetched[j];
        }
      }
    }
  }

 protected:
  // All of the tile exists: a lane's offset is computed once, and all further offsets are uniform.
  XLSTM_DEVICE void fetch_plain(const TokenRows<E>& from, int64_t first, int thread) {
    const uint32_t stride = uint32_t(from.stride) * uint32_t(sizeof(E));
    fetch_at(reinterpret_cast<const char*>(from.data + first * from.stride), stride, lane_offset(stride, thread));
  }

  // The asynchronous copy of a tile.
  XLSTM_DEVICE static void copy(const Storage& tile, const TokenRows<E>& from, int64_t first, int valid) {
    if (from.is_aligned16 && valid == kTokens)
      return copy_unmasked(tile, from, first);                                // but for odd tensors and a last chunk
    constexpr int kRowVec16s = kFeatures / n, kRows = kThreads / kRowVec16s;  // rows of the block at a time
    const int token0 = opaque_thread() / kRowVec16s, column0 = opaque_thread() % kRowVec16s * n;
#pragma unroll 1
    for (int token = token0; token < kTokens; token += kRows)
      copy_vec16(tile.at(token, column0), from, first + token, column0, token < valid);
  }
  // The same where all of the tile's tokens exist and are aligned to 16 bytes.
  XLSTM_DEVICE static void copy_unmasked(const Storage& tile, const TokenRows<E>& from, int64_t first) {
    constexpr uint32_t kRowVec16s = kFeatures / n, kRows = kThreads / kRowVec16s;
    static_assert(kRows >= 8 || Storage::kVec16s >= 8 || kEach == 1);
    const uint32_t token0 = threadIdx.x / kRowVec16s, column0 = threadIdx.x % kRowVec16s * n;
    const bool inside = int(column0) < from.columns;
    const uint32_t to = lds_address(tile.at(token0, column0));
    const char* at = reinterpret_cast<const char*>(from.data + (first + token0) * from.stride + (inside ? column0 : 0));
    const int64_t step = int64_t(kRows * sizeof(E)) * from.stride;
#pragma unroll
    for (uint32_t j = 0; j < kEach; ++j, at += step) {
      if (kUnits % kThreads != 0 && token0 + j * kRows >= kTokens) break;
      // The block's next rows differ from its first rows in bits that the first rows do not have, or in no swizzled
      // bit.
      cp_async((to ^ j * kRows % 8 * 16) + j * kRows * Storage::kVec16s * 16, at, inside);
    }
  }

 public:
  // Stores four tokens of n features each as n rows of four tokens.
  XLSTM_DEVICE static void store_transposed(const Storage& tile, const Vec16* p, int token, int column) {
    const auto to = tile.cursor(column, token);
#pragma unroll
    for (int w = 0; w < 4; ++w)
      store_transposed_word<E>(tile, to, w * 4 / int(sizeof(E)),
                               {{p[0].word[w], p[1].word[w], p[2].word[w], p[3].word[w]}});
  }
};

// Loads a contiguous matrix of kSide tokens by kSide features and transposes it in registers: a thread loads one
// register of features of four tokens, so four registers, where a Stage would need sixteen.
template <class E, int kSide, int kThreads>
struct TransposedSubtile {
  using Storage = Tile<E, kSide, kSide>;
  static constexpr int kInWord = 4 / int(sizeof(E)), kWords = kSide / kInWord;  // features of a word; words of a row
  static constexpr int kQuads = kSide / 4, kUnits = kQuads * kWords;
  static_assert(kUnits <= kThreads);
  Vec16 words;

  XLSTM_DEVICE static int quad(int unit) { return unit % kQuads; }
  XLSTM_DEVICE static int word(int unit) { return transposed_word(sizeof(E), kSide, unit / kQuads); }
  XLSTM_DEVICE void fetch(const E* from) { fetch(from, opaque_thread()); }
  XLSTM_DEVICE void fetch(const E* from, int thread) {
    const int unit = thread % kUnits;  // as in Stage
    const uint32_t* at = reinterpret_cast<const uint32_t*>(from) + quad(unit) * 4 * kWords + word(unit);
#pragma unroll
    for (int i = 0; i < 4; ++i) words.word[i] = at[i * kWords];
  }
  XLSTM_DEVICE void store(const Storage& tile) const { store(tile, opaque_thread()); }
  XLSTM_DEVICE void store(const Storage& tile, int unit) const {
    if (unit >= kUnits) return;
    store_transposed_word<E>(tile, tile.cursor(word(unit) * kInWord, quad(unit) * 4), 0, words);
  }
};

// The same for a vector of floats: loads `count` contiguous floats; the others of kCount are zeros.
template <int kCount, int kThreads>
struct FloatStage {
  static constexpr int kEach = (kCount + kThreads - 1) / kThreads;
  float values[kAsyncCopies ? 1 : kEach];

  XLSTM_DEVICE void fetch([[maybe_unused]] float* to, const float* from, int count) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int index = opaque_thread() + j * kThreads;
      const bool inside = index < count && index < kCount;
      if constexpr (!kAsyncCopies)
        values[j] = inside ? from[index] : 0.0f;
      else if (inside)
        cp_async_float(to + index, from + index);
      else if (index < kCount)
        to[index] = 0;
    }
  }
  // The same without branches: a thread without a float of its own loads another's, where a branch would wait for the
  // loads. Floats beyond `count` are copies of the last one.
  XLSTM_DEVICE void fetch_clamped(const float* from, int count) {
    static_assert(!kAsyncCopies && kEach == 1);
    const int index = opaque_thread() % (kCount < kThreads ? kCount : kThreads);
    values[0] = from[index < count ? index : count - 1];
  }
  XLSTM_DEVICE void store([[maybe_unused]] float* to) {
    if constexpr (!kAsyncCopies)
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if (opaque_thread() + j * kThreads < kCount) to[opaque_thread() + j * kThreads] = values[j];
  }
};

// Stores the fetched data and makes it visible to the block, where all threads are done with the tiles' old contents.
template <class Store>
XLSTM_DEVICE void arrive_free(Store&& store) {
  store();
  if constexpr (kAsyncCopies) cp_async_wait_all();
  __syncthreads();
}
// The same where a thread may still read the old contents.
template <class Store>
XLSTM_DEVICE void arrive(Store&& store) {
  if constexpr (!kAsyncCopies) __syncthreads();
  arrive_free(store);
}

}  // namespace xlstm::gpu
