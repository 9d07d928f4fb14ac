// SPDX-License-Identifier: Apache-2.0
// Products by AMX: eight tile registers of up to 16 rows of 64 bytes, one instruction for 16 x 16 sums of 32 products
// of bfloat16, or of 64 of bytes.
//
// Of bfloat16 pairs:
//
//   sums (rows x 16)  +=  left (rows x 16 pairs)  right (16 pairs x 16)
//
// Rows are 8, the rows of a register tile of vectors (multiply_tiles), or 16, where sums stay in memory
// (multiply_rows). The right operand is a panel of pairs as it lies (tile/cpu_panels.h). The left one needs a row's
// pairs next to each other: an operand that lies so is loaded from there, any other is transposed on its way, 16 pairs
// of 8 rows at a time. Sums leave the tiles through memory, once for each product.
//
// What binds: 8 rows by 32 columns take 20 cache lines of loads' cycles, and 16 to 32 cycles of the products' unit, for
// 8192 multiply-adds; vdpbf16ps takes 256 cycles.
//
// Of bytes, the left operand is 16 rows as they lie in memory, and the right one is packed as quads along the rows:
//
//   sums (16 x 16, int32)  =  left (16 x 64 bytes)  right (16 quads x 16)
#pragma once

#include <cstdint>

#include "arch/cpu/compiled_isa.h"

namespace xlstm::XLSTM_ISA {

constexpr int kTileRows = 8, kTilePairs = 16, kTileColumns = 16;
constexpr int kByteTileRows = 16, kByteTileBytes = 64;

}  // namespace xlstm::XLSTM_ISA

#if defined(__AMX_BF16__)
#include <immintrin.h>

namespace xlstm::XLSTM_ISA {

constexpr bool kHasTiles = true;

// The shapes of tile registers, for as long as a worker has tasks.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// Of pairs: sums 0 and 1, the left operand 2, the right operands 3 and 4. Of bytes: sums 5 and 6, the left operand 7,
// the right operands 3 and 4.
constexpr TileShapes kTileShapes = {.rows = {kTileRows, kTileRows, kTileRows, 16, 16, 16, 16, 16}};
// Of pairs by 16 rows: sums 0 to 3, the left operands 4 and 5, the right operands 6 and 7.
constexpr TileShapes kRowTileShapes = {.rows = {16, 16, 16, 16, 16, 16, 16, 16}};

// GCC's loads of tiles do not say that they read memory: what was stored before must be there when they run.
inline void finish_stores(const void* p, const void* q) { asm volatile("" ::"r"(p), "r"(q) : "memory"); }

// Gives this thread's tile registers their shapes for as long as it lives. Other libraries' shapes are not kept.
struct TileSession {
  explicit TileSession(const TileShapes& shapes = kTileShapes) {
    finish_stores(&shapes, nullptr);
    _tile_loadconfig(&shapes);
  }
  ~TileSession() { _tile_release(); }
  TileSession(const TileSession&) = delete;
};
struct RowTileSession : TileSession {
  RowTileSession() : TileSession(kRowTileShapes) {}
};

// Writes 8 rows of 16 pairs, `ld` apart, that lie as 16 rows of 8 pairs, `step` apart: by 4 x 4 blocks within the 16
// bytes of a lane.
inline void transpose_left(const float* a, int64_t step, float* to, int64_t ld) {
  __m512 rows[8];  // rows[r]: step r of each of four groups of four steps, of 4 rows; then of the upper 4
  const auto part = [&](int64_t k) { return _mm_loadu_ps(a + k * step); };
  for (int half = 0; half < 2; ++half, a += 4)
    for (int r = 0; r < 4; ++r) {
      __m512 x = _mm512_castps128_ps512(part(r));
      x = _mm512_insertf32x4(x, part(4 + r), 1);
      x = _mm512_insertf32x4(x, part(8 + r), 2);
      rows[half * 4 + r] = _mm512_insertf32x4(x, part(12 + r), 3);
    }
  for (int half = 0; half < 2; ++half, to += 4 * ld) {
    const __m512* x = rows + half * 4;
    const __m512 low01 = _mm512_unpacklo_ps(x[0], x[1]), high01 = _mm512_unpackhi_ps(x[0], x[1]);
    const __m512 low23 = _mm512_unpacklo_ps(x[2], x[3]), high23 = _mm512_unpackhi_ps(x[2], x[3]);
    _mm512_storeu_ps(to, _mm512_shuffle_ps(low01, low23, 0x44));
    _mm512_storeu_ps(to + ld, _mm512_shuffle_ps(low01, low23, 0xee));
    _mm512_storeu_ps(to + 2 * ld, _mm512_shuffle_ps(high01, high23, 0x44));
    _mm512_storeu_ps(to + 3 * ld, _mm512_shuffle_ps(high01, high23, 0xee));
  }
}

// The rest of an operand's steps: `pairs` of them, then zeros to 16.
inline void copy_left(const float* a, int64_t step, int64_t row, int64_t pairs, float* to, int64_t ld) {
  for (int r = 0; r < kTileRows; ++r)
    for (int64_t k = 0; k < kTilePairs; ++k) to[r * ld + k] = k < pairs ? a[k * step + r * row] : 0.f;
}
inline void copy_right(const float* b, int64_t step, int64_t pairs, float* to) {
  for (int64_t k = 0; k < kTilePairs; ++k)
    _mm512_store_ps(to + k * kTileColumns, k < pairs ? _mm512_loadu_ps(b + k * step) : _mm512_setzero_ps());
}

// sums (8, V x 16) = left right: row r of step k of the left operand at a[k * a_step + r * a_row], one of both steps 1;
// step k of the right one at b[k * b_step]. 8 rows are read, whatever the sums of some are used for. Out of line: the
// sums go through memory anyway.
template <int V>
__attribute__((noinline)) inline void multiply_tiles(const float* a, int64_t a_step, int64_t a_row, const float* b,
                                                     int64_t b_step, int64_t steps, float* sums) {
  static_assert(V == 1 || V == 2);
  alignas(64) float left[kTileRows * kTilePairs], right[V][kTilePairs * kTileColumns];
  _tile_zero(0);
  if constexpr (V == 2) _tile_zero(1);
  for (int64_t k = 0; k < steps; k += kTilePairs, a += kTilePairs * a_step, b += kTilePairs * b_step) {
    const int64_t pairs = steps - k < kTilePairs ? steps - k : kTilePairs;
    const bool is_rest = pairs < kTilePairs;
    if (is_rest)
      copy_left(a, a_step, a_row, pairs, left, kTilePairs);
    else if (a_step != 1)
      transpose_left(a, a_step, left, kTilePairs);
    for (int v = 0; v < V && is_rest; ++v) copy_right(b + v * kTileColumns, b_step, pairs, right[v]);
    const bool is_copied = is_rest || a_step != 1;
    finish_stores(left, right);
    _tile_loadd(2, is_copied ? left : a, is_copied ? 64 : a_row * 4);
    const float* columns = is_rest ? right[0] : b;
    const int64_t step = is_rest ? kTileColumns : b_step, next = is_rest ? kTilePairs * kTileColumns : kTileColumns;
    _tile_loadd(3, columns, step * 4);
    _tile_dpbf16ps(0, 2, 3);
    if constexpr (V == 2) {
      _tile_loadd(4, columns + next, step * 4);
      _tile_dpbf16ps(1, 2, 4);
    }
  }
  _tile_stored(0, sums, V * 64);
  if constexpr (V == 2) _tile_stored(1, sums + kTileColumns, V * 64);
}

// sums (16 Strips, 32), rows `ld` apart, = left right, or += if kAdd, in a RowTileSession: row r of the left operand at
// a[r * a_row], its steps next to each other, with zeros behind the last one to a multiple of 16; step k of the right
// one at b[k * b_step]. With two strips four products share four loads: 64 cycles of the unit, 32 of loads.
template <int Strips, bool kAdd>
inline void multiply_rows(const float* a, int64_t a_row, const float* b, int64_t b_step, int64_t steps, float* sums,
                          int64_t ld) {
  static_assert(Strips == 1 || Strips == 2);
  alignas(64) float rest[2][kTilePairs * kTileColumns];
  float *const next_sums = sums + 16 * ld, *const right_sums = sums + kTileColumns;
  finish_stores(a, b);
  if constexpr (kAdd) {
    _tile_loadd(0, sums, ld * 4);
    _tile_loadd(1, right_sums, ld * 4);
    if constexpr (Strips == 2) {
      _tile_loadd(2, next_sums, ld * 4);
      _tile_loadd(3, next_sums + kTileColumns, ld * 4);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (Strips == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t k = 0; k < steps; k += kTilePairs, a += kTilePairs, b += kTilePairs * b_step) {
    const float *first = b, *second = b + kTileColumns;
    int64_t step = b_step;
    if (steps - k < kTilePairs) {
      copy_right(first, b_step, steps - k, rest[0]);
      copy_right(second, b_step, steps - k, rest[1]);
      finish_stores(rest, nullptr);
      first = rest[0], second = rest[1], step = kTileColumns;
    }
    _tile_loadd(4, a, a_row * 4);
    _tile_loadd(6, first, step * 4);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, second, step * 4);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (Strips == 2) {
      _tile_loadd(5, a + 16 * a_row, a_row * 4);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, ld * 4);
  _tile_stored(1, right_sums, ld * 4);
  if constexpr (Strips == 2) {
    _tile_stored(2, next_sums, ld * 4);
    _tile_stored(3, next_sums + kTileColumns, ld * 4);
  }
}

// sums (16, 16) = left right, exactly, of signed bytes: left rows are `row` bytes apart, right is 16 rows of 16 quads.
// Neighbouring products have different numbers, 0 and 1, so that neither waits for the other's registers.
template <int kNumber>
inline void multiply_bytes(const void* left, int64_t row, const void* right, int32_t* sums) {
  finish_stores(left, right);
  if constexpr (kNumber == 0) {
    _tile_zero(5);
    _tile_loadd(7, left, row);
    _tile_loadd(3, right, 64);
    _tile_dpbssd(5, 7, 3);
    _tile_stored(5, sums, 64);
  } else {
    _tile_zero(6);
    _tile_loadd(7, left, row);
    _tile_loadd(4, right, 64);
    _tile_dpbssd(6, 7, 4);
    _tile_stored(6, sums, 64);
  }
}

}  // namespace xlstm::XLSTM_ISA
#else
namespace xlstm::XLSTM_ISA {

constexpr bool kHasTiles = false;
struct TileSession {
  TileSession() {}
};
struct RowTileSession : TileSession {};
void transpose_left(const float*, int64_t, float*, int64_t);
void copy_left(const float*, int64_t, int64_t, int64_t, float*, int64_t);
template <int V>
void multiply_tiles(const float*, int64_t, int64_t, const float*, int64_t, int64_t, float*);
template <int Strips, bool kAdd>
void multiply_rows(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t);
template <int kNumber>
void multiply_bytes(const void*, int64_t, const void*, int32_t*);

}  // namespace xlstm::XLSTM_ISA
#endif
