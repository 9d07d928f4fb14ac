// SPDX-License-Identifier: Apache-2.0
// Tile algebra on a CPU. All matrix products are one register-tiled product:
//
//   acc (rows x NR) += sum_k  a[k][row] * b[k][NR]        NR = kVectors vectors
//
// Both operands run along k: a row of b is NR contiguous elements, and the rows of a are contiguous at each k, so that
// each operand needs one pointer. Matrices are therefore packed into panels:
//   column panels  (K, NR) blocks, one after the other: the right operand, and the state
//   token panels   such blocks with tokens across and features down: a transposed matrix, the left operand of one
//                  product and the right operand of another
// K counts elements of Op::kPack values (arch/cpu/vector.h). A left operand whose rows lie next to each other is copied
// once for tile registers, which need its steps next to each other (LeftOperand).
#pragma once

#include "arch/cpu/amx.h"
#include "arch/cpu/vector.h"

// Out of line, a tile would go through memory at every call. XLSTM_INLINED is the form for lambdas.
#define XLSTM_ALWAYS_INLINE __attribute__((always_inline)) inline
#define XLSTM_INLINED __attribute__((always_inline))
#define XLSTM_UNROLL _Pragma("GCC unroll 8")

namespace xlstm::XLSTM_ISA {

constexpr int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <class T>
constexpr int NR = kVectors * kLanes<T>;
static_assert(NR<float> % kRows == 0 && NR<double> % kRows == 0, "a tile's rows must not straddle token panels");
template <class T>
constexpr int64_t panels(int64_t columns) {
  return (columns + NR<T> - 1) / NR<T>;
}
template <class T>
constexpr int64_t padded(int64_t columns) {
  return round_up(columns, NR<T>);
}
template <class Op>
constexpr int64_t packed(int64_t values) {  // elements
  return (values + Op::kPack - 1) / Op::kPack;
}

// A left operand: row r of step k at data[k * step + r * row]. One of both is 1. kRows rows are readable from each
// multiple of kRows on.
template <class T>
struct LeftOperand {
  const T* data;
  int64_t step, row;

  LeftOperand at(int64_t r, int64_t k) const { return {data + k * step + r * row, step, row}; }
};

// The distance of the rows of a left operand that was copied for tile registers.
constexpr int64_t steps_of_copy(int64_t steps) { return round_up(steps, 16); }
template <class Op>
constexpr int64_t left_copy_size(int64_t rows, int64_t steps) {
  return Op::kTiles ? round_up(rows, kRows) * steps_of_copy(steps) : 0;
}

// The left operand for a product with several panels, of rows next to each other, steps `step` apart. Tile registers
// read a copy of it in `copy`, with zeros behind the last step.
template <class Op, class T>
inline LeftOperand<T> left_operand(const T* a, int64_t step, [[maybe_unused]] int64_t rows,
                                   [[maybe_unused]] int64_t steps, [[maybe_unused]] T* copy) {
  if constexpr (Op::kTiles) {
    const int64_t ld = steps_of_copy(steps);
    for (int64_t r = 0; r < rows; r += kRows)
      for (int64_t k = 0; k < steps; k += kTilePairs) {
        T* to = copy + r * ld + k;
        if (k + kTilePairs <= steps)
          transpose_left(a + k * step + r, step, to, ld);
        else
          copy_left(a + k * step + r, step, 1, steps - k, to, ld);
      }
    return {copy, 1, ld};
  }
  return {a, step, 1};
}

// Token panels as a left operand, whose rows are the tokens. Constants where they are no copy, for the products' loops.
template <class Op>
struct LeftPanels {
  using T = typename Op::Scalar;
  const T* data;
  int64_t panel;  // from one panel to the next

  LeftOperand<T> at(int64_t token) const {
    const int64_t row = Op::kTiles ? panel / NR<T> : 1;
    return {data + token / NR<T> * panel + token % NR<T> * row, Op::kTiles ? 1 : NR<T>, row};
  }
};
template <class Op>
constexpr int64_t left_panels_size(int64_t tokens, int64_t steps) {
  return left_copy_size<Op>(padded<typename Op::Scalar>(tokens), steps);
}
template <class Op, class T>
inline LeftPanels<Op> left_panels(const T* a, int64_t tokens, int64_t steps, T* copy) {
  if (!Op::kTiles) return {a, NR<T> * steps};
  const int64_t panel = NR<T> * steps_of_copy(steps);
  for (int64_t t = 0; t < tokens; t += NR<T>)
    left_operand<Op>(a + t * steps, NR<T>, tokens - t < NR<T> ? tokens - t : NR<T>, steps, copy + t / NR<T> * panel);
  return {copy, panel};
}

// A tile of accumulators. Its methods are fully unrolled, so that the accumulators are registers and not an array.
template <class T, int R, int V>
struct Tile {
  static constexpr int kTileRows = R;
  Vec<T> acc[R][V];

  // Calls f(row, vector, offset in memory whose rows are ld apart) for each vector of accumulators.
  template <class F>
  XLSTM_ALWAYS_INLINE static void each(int64_t ld, F&& f) {
    XLSTM_UNROLL for (int r = 0; r < R; ++r) XLSTM_UNROLL for (int v = 0; v < V; ++v) f(r, v, r * ld + v * kLanes<T>);
  }
  XLSTM_ALWAYS_INLINE void zero() {
    each(0, [&](int r, int v, int64_t) XLSTM_INLINED { acc[r][v] = Vec<T>{}; });
  }
  XLSTM_ALWAYS_INLINE void load_from(const T* p) {
    each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED { acc[r][v] = load(p + at); });
  }
  XLSTM_ALWAYS_INLINE void add(const Tile& other) {
    each(0, [&](int r, int v, int64_t) XLSTM_INLINED { acc[r][v] += other.acc[r][v]; });
  }
  XLSTM_ALWAYS_INLINE void add_scaled(const T* p, T factor) {
    each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED { acc[r][v] += load(p + at) * factor; });
  }
  XLSTM_ALWAYS_INLINE void add_scaled_rows(const T* p, const T* factor) {
    each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED { acc[r][v] += load(p + at) * factor[r]; });
  }
  XLSTM_ALWAYS_INLINE void add_scaled_columns(const T* p, const T* factor) {
    each(NR<T>,
         [&](int r, int v, int64_t at) XLSTM_INLINED { acc[r][v] += load(p + at) * load(factor + v * kLanes<T>); });
  }
  // acc[r][c] += row[r] * column[c].
  XLSTM_ALWAYS_INLINE void add_outer(const T* row, const T* column) {
    each(0, [&](int r, int v, int64_t) XLSTM_INLINED { acc[r][v] += load(column + v * kLanes<T>) * row[r]; });
  }
  XLSTM_ALWAYS_INLINE void scale_by(const T* p) {
    each(NR<T>, [&](int r, int v, int64_t at) XLSTM_INLINED { acc[r][v] *= load(p + at); });
  }
  // Scales the values at p by the tile.
  XLSTM_ALWAYS_INLINE void scale(T* p, int64_t ld) const {
    each(ld, [&](int r, int v, int64_t at) XLSTM_INLINED { store(p + at, load(p + at) * acc[r][v]); });
  }
  XLSTM_ALWAYS_INLINE void store_to(T* p, int64_t ld = NR<T>) const {
    each(ld, [&](int r, int v, int64_t at) XLSTM_INLINED { store(p + at, acc[r][v]); });
  }
  // Stores the rows as elements along k, kPack rows per element, ld apart: for use as an operand.
  template <class Op>
  XLSTM_ALWAYS_INLINE void store_packed(T* p, int64_t ld = NR<T>) const {
    XLSTM_UNROLL for (int r = 0; r < R; r += Op::kPack) XLSTM_UNROLL for (int v = 0; v < V; ++v) {
      const Vec<T> second = r + 1 < R ? acc[r + 1 < R ? r + 1 : r][v] : Vec<T>{};
      store(p + r / Op::kPack * ld + v * kLanes<T>, Op::pack(acc[r][v], second));
    }
  }
  // Replaces the tile by the rounding error of store_packed.
  template <class Op>
  XLSTM_ALWAYS_INLINE void keep_rounding_error() {
    each(0, [&](int r, int v, int64_t) XLSTM_INLINED {
      Vec<T> rounded, unused;
      Op::unpack(Op::pack(acc[r][v], acc[r][v]), rounded, unused);
      acc[r][v] -= rounded;
    });
  }
  // The product of a, whose rows are next to each other unless Op has tile registers, and b, step k of b at
  // b[k * b_step]. A long sum is computed in parts, so that its rounding errors grow with the length of a part.
  template <class Op>
  XLSTM_ALWAYS_INLINE void product(const LeftOperand<T>& a, const T* b, int64_t steps, int64_t b_step = NR<T>) {
    const LeftOperand<T> left{a.data, a.step, Op::kTiles ? a.row : 1};
    product_part<Op>(left, b, b_step, steps < kPart ? steps : kPart);
    for (int64_t k = kPart; k < steps; k += kPart) {
      Tile part;
      part.template product_part<Op>(left.at(0, k), b + k * b_step, b_step, steps - k < kPart ? steps - k : kPart);
      add(part);
    }
  }
  static constexpr int64_t kPart = 128;
  // b: step k at b[k * b_step].
  template <class Op>
  XLSTM_ALWAYS_INLINE void product_part(const LeftOperand<T>& left, const T* __restrict b, int64_t b_step,
                                        int64_t steps) {
    if constexpr (Op::kTiles) {
      alignas(kVectorBytes) T sums[kRows * V * kLanes<T>];
      multiply_tiles<V>(left.data, left.step, left.row, b, b_step, steps, sums);
      each(V * kLanes<T>, [&](int r, int v, int64_t at) XLSTM_INLINED { acc[r][v] = load(sums + at); });
      return;
    }
    const T* __restrict a = left.data;
    const int64_t a_step = left.step, a_row = left.row == 1 ? 1 : left.row;
    Vec<T> sums[R][V];
    each(0, [&](int r, int v, int64_t) XLSTM_INLINED { sums[r][v] = Vec<T>{}; });
    for (int64_t k = 0; k < steps; ++k, a += a_step, b += b_step) {
      Vec<T> right[V];
      XLSTM_UNROLL for (int v = 0; v < V; ++v) right[v] = load(b + v * kLanes<T>);
      XLSTM_UNROLL for (int r = 0; r < R; ++r) XLSTM_UNROLL for (int v = 0; v < V; ++v) sums[r][v] =
          Op::multiply_add(sums[r][v], right[v], a[r * a_row]);
    }
    each(0, [&](int r, int v, int64_t) XLSTM_INLINED { acc[r][v] = sums[r][v]; });
  }
};

// with_rows calls f(Tile<T, R, V>&) with R = rows <= kRows. with_tile chooses V too, for columns <= NR: kVectors, or
// one vector for a last panel with few columns.
template <class T, int V, class F>
inline void with_rows(int64_t rows, F&& f) {
  switch (rows) {
#define XLSTM_ROWS(n)           \
  case n:                       \
    if constexpr (n <= kRows) { \
      Tile<T, n, V> tile;       \
      f(tile);                  \
    }                           \
    break;
    XLSTM_ROWS(1) XLSTM_ROWS(2) XLSTM_ROWS(3) XLSTM_ROWS(4) XLSTM_ROWS(5) XLSTM_ROWS(6) XLSTM_ROWS(7) XLSTM_ROWS(8)
#undef XLSTM_ROWS
  }
}
template <class T, class F>
inline void with_tile(int64_t rows, int64_t columns, F&& f) {
  if (columns <= kLanes<T>)
    with_rows<T, 1>(rows, f);
  else
    with_rows<T, kVectors>(rows, f);
}

// A matrix of tokens by features in memory. Factors per token are applied to the gate factors and not to the rows, so
// that rows are packed as they lie.
template <class T>
struct Rows {
  const void* data = nullptr;
  xlstm_dtype dtype = XLSTM_FLOAT32;
  int64_t stride = 0, features = 0;
  const int64_t* offsets = nullptr;  // of each row, where rows are not a stride apart (pages, heads that share keys)

  int64_t offset(int64_t t) const { return offsets ? offsets[t] : t * stride; }

  // Prefetches row t.
  void prefetch(int64_t t) const {
    const int64_t bytes = element_bytes(dtype);
    const char* p = static_cast<const char*>(data) + offset(t) * bytes;
    for (int64_t j = 0; j < features * bytes; j += 64) __builtin_prefetch(p + j, 0, 2);
  }

  // Reads features [from, from + n) of row t into to[0 .. n).
  void read_part(int64_t t, int64_t from, int64_t n, T* to) const { load_row(to, data, dtype, offset(t) + from, n); }

  // Reads row t into to[0 .. features), then writes zeros to `end`.
  void read(int64_t t, T* to, int64_t end = 0) const {
    read_part(t, 0, features, to);
    for (int64_t j = features; j < end; ++j) to[j] = 0;
  }

  // Returns row t as elements along the features, then zeros to `end` elements: a pointer to the row in memory if it
  // has that form, else `to`. buffer holds kPack * end values.
  template <class Op>
  const T* read_packed(int64_t t, T* to, int64_t end, T* buffer) const {
    const int64_t bytes = element_bytes(dtype);
    const char* row = static_cast<const char*>(data) + offset(t) * bytes;
    if (dtype == Op::kStored && features == Op::kPack * end) return reinterpret_cast<const T*>(row);
    if constexpr (Op::kPack == 1) {
      read(t, to, end);
    } else {
      if (dtype == Op::kStored) {
        memcpy(to, row, features * bytes);
      } else {
        read(t, buffer);
        store_row(to, Op::kStored, 0, buffer, features);
      }
      memset(reinterpret_cast<uint16_t*>(to) + features, 0, (Op::kPack * end - features) * 2);
    }
    return to;
  }
};

// Transposes a square block of kLanes vectors in place by log2(kLanes) rounds of interleaving.
template <class T>
inline void transpose(Vec<T>* rows) {
  constexpr int n = kLanes<T>;
  using Index = typename VectorOf<IntegerOf<T>>::type;
  Index low, high;
  for (int e = 0; e < n; ++e) {
    low[e] = e / 2 + (e % 2 ? n : 0);
    high[e] = low[e] + n / 2;
  }
  for (int round = 1; round < n; round *= 2) {
    Vec<T> next[n];
    for (int r = 0; r < n / 2; ++r) {
      next[2 * r] = __builtin_shuffle(rows[r], rows[r + n / 2], low);
      next[2 * r + 1] = __builtin_shuffle(rows[r], rows[r + n / 2], high);
    }
    for (int r = 0; r < n; ++r) rows[r] = next[r];
  }
}

// The values of the buffer that pack_* need for a matrix of this width.
template <class T>
constexpr int64_t pack_buffer_size(int64_t width) {
  return (kLanes<T> + 2) * round_up(width, NR<T>);
}

// Packs tokens [t0, t0 + n) of rows into token panels (packed features, NR), zero beyond n.
template <class Op, class T>
inline void pack_transposed(const Rows<T>& rows, int64_t t0, int64_t n, T* to, T* buffer) {
  constexpr int lanes = kLanes<T>;
  const int64_t width = packed<Op>(rows.features), ld = round_up(width, lanes);
  for (int64_t t = 0; t < padded<T>(n); t += lanes) {
    const T* row[lanes];
    for (int r = 0; r < lanes; ++r) {
      row[r] = buffer + r * ld;
      if (t + r < n)
        row[r] = rows.template read_packed<Op>(t0 + t + r, buffer + r * ld, ld, buffer + lanes * ld);
      else
        memset(buffer + r * ld, 0, ld * sizeof(T));
    }
    T* panel = to + t / NR<T> * width * NR<T> + t % NR<T>;
    for (int64_t d = 0; d < width; d += lanes) {
      Vec<T> block[lanes];
      for (int r = 0; r < lanes; ++r) block[r] = load(row[r] + d);
      transpose<T>(block);
      for (int j = 0; j < lanes && d + j < width; ++j) store(panel + (d + j) * NR<T>, block[j]);
    }
  }
}

// Packs tokens [t0, t0 + n), each times its weight, into one row of ld values per element along the tokens.
template <class Op, class T>
inline void pack_weighted(const Rows<T>& rows, int64_t t0, int64_t n, const T* weight, T* to, int64_t ld, T* buffer) {
  for (int64_t t = 0; t < n; t += Op::kPack, to += ld) {
    T *first = buffer, *second = buffer + ld;
    rows.read(t0 + t, first, ld);
    if (Op::kPack == 2 && t + 1 < n)
      rows.read(t0 + t + 1, second, ld);
    else if (Op::kPack == 2)
      memset(second, 0, ld * sizeof(T));
    const T w0 = weight[t], w1 = t + 1 < n ? weight[t + 1] : T(0);
    for (int64_t j = 0; j < ld; j += kLanes<T>)
      store(to + j, Op::pack(load(first + j) * w0, Op::kPack == 2 ? load(second + j) * w1 : Vec<T>{}));
  }
}

// Packs tokens [t0, t0 + n) as elements along the tokens: features [j, j + kLanes) of element k go to to(k, j), for j
// up to `width`, with zeros beyond the features. Returns whether every value is finite.
template <class Op, class T, class To>
inline bool pack_along_tokens(const Rows<T>& rows, int64_t t0, int64_t n, int64_t width, T* buffer, To&& to) {
  typename VectorOf<IntegerOf<T>>::type bad{};
  const auto put = [&](int64_t t, int64_t j, Vec<T> element) {
    Vec<T> x, y;
    Op::unpack(element, x, y);
    bad |= ((x - x) + (y - y)) != Vec<T>{};  // NaN unless both are finite
    store(to(t / Op::kPack, j), element);
  };
  for (int64_t t = 0; t < n; t += Op::kPack) {
    int64_t j = 0;
    if (rows.dtype == Op::kStored && t + Op::kPack <= n) {
      const int64_t bytes = sizeof(T) / Op::kPack;
      const char* first = static_cast<const char*>(rows.data) + rows.offset(t0 + t) * bytes;
      const char* second = static_cast<const char*>(rows.data) + rows.offset(t0 + t + Op::kPack - 1) * bytes;
      for (; j + kLanes<T> <= rows.features; j += kLanes<T>) put(t, j, Op::zip(first + j * bytes, second + j * bytes));
    }
    if (j == width) continue;
    T *first = buffer, *second = buffer + width;
    for (int64_t r = 0; r < Op::kPack; ++r) {
      memset(buffer + r * width, 0, width * sizeof(T));
      if (t + r < n) rows.read_part(t0 + t + r, j, rows.features - j, buffer + r * width + j);
    }
    for (; j < width; j += kLanes<T>)
      put(t, j, Op::pack(load(first + j), Op::kPack == 2 ? load(second + j) : Vec<T>{}));
  }
  bool finite = true;
  for (int e = 0; e < kLanes<T>; ++e) finite = finite && !bad[e];
  return finite;
}

// Packs tokens [t0, t0 + n) into column panels (packed n, NR). Returns whether every value is finite.
template <class Op, class T>
inline bool pack_columns(const Rows<T>& rows, int64_t t0, int64_t n, T* to, T* buffer) {
  const int64_t steps = packed<Op>(n);
  return pack_along_tokens<Op>(rows, t0, n, padded<T>(rows.features), buffer,
                               [=](int64_t k, int64_t j) { return to + (j / NR<T> * steps + k) * NR<T> + j % NR<T>; });
}

// Packs tokens [t0, t0 + n) into one row of ld values per element. Returns whether every value is finite.
template <class Op, class T>
inline bool pack_rows(const Rows<T>& rows, int64_t t0, int64_t n, T* to, int64_t ld, T* buffer) {
  return pack_along_tokens<Op>(rows, t0, n, ld, buffer, [=](int64_t k, int64_t j) { return to + k * ld + j; });
}

// Sums the lanes in double, by halves.
template <class T>
inline double total(Vec<T> lanes) {
  double sums[kLanes<T>];
  for (int e = 0; e < kLanes<T>; ++e) sums[e] = double(lanes[e]);
  for (int half = kLanes<T> / 2; half > 0; half /= 2)
    for (int e = 0; e < half; ++e) sums[e] += sums[e + half];
  return sums[0];
}

// Lanes are summed in T, a few values each, and the lanes in double.
template <class T>
inline double sum(const T* a, int64_t n) {
  Vec<T> lanes{};
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) lanes += load(a + j);
  double rest = 0;
  for (; j < n; ++j) rest += double(a[j]);
  return total<T>(lanes) + rest;
}

// Lanes are summed in T, a few dozen products each, and the lanes in double.
template <class T>
inline double dot(const T* a, const T* b, int64_t n) {
  Vec<T> lanes{};
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) lanes += load(a + j) * load(b + j);
  double rest = 0;
  for (; j < n; ++j) rest += double(a[j]) * double(b[j]);
  return total<T>(lanes) + rest;
}

// A dot product with every product and sum in double.
template <class T>
inline double wide_dot(const T* __restrict a, const double* __restrict b, int64_t n) {
  constexpr int kWide = 2 * kLanes<double>;
  double lanes[kWide] = {};
  int64_t j = 0;
  for (; j + kWide <= n; j += kWide)
    for (int e = 0; e < kWide; ++e) lanes[e] += double(a[j + e]) * b[j + e];
  for (; j < n; ++j) lanes[0] += double(a[j]) * b[j];
  for (int half = kWide / 2; half > 0; half /= 2)
    for (int e = 0; e < half; ++e) lanes[e] += lanes[e + half];
  return lanes[0];
}

}  // namespace xlstm::XLSTM_ISA
