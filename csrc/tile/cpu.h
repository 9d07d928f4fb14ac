// SPDX-License-Identifier: Apache-2.0
// Tile algebra on a CPU. One product does all the work:
//
//   acc (rows x NR) += sum_k  a[k][row] * b[k][NR]        NR = kVectors vectors
//
// Both operands run along k: a row of b is NR contiguous elements, and the rows of a are contiguous at each k, so that
// one pointer walks each. Matrices are therefore kept in panels:
//   column panels  (K, NR) blocks, one after the other: the right operand, and the state
//   token panels   the same with tokens across and features down: a transposed matrix, which serves as the left operand
//                  of one product and the right operand of another
// K counts elements: Op::kPack values each (arch/cpu.h).
#pragma once

#include "arch/cpu.h"

// Out of line, a tile would go through memory at every call.
#define XLSTM_ALWAYS_INLINE __attribute__((always_inline)) inline

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

template <class T, int R, int V>
struct Tile {
  static constexpr int kTileRows = R;
  Vec<T> acc[R][V];

  void zero() {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) acc[r][v] = Vec<T>{};
  }
  void load_from(const T* p) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) acc[r][v] = load(p + r * NR<T> + v * kLanes<T>);
  }
  void add_scaled(const T* p, T factor) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) acc[r][v] += load(p + r * NR<T> + v * kLanes<T>) * factor;
  }
  void scale_by(const T* p) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) acc[r][v] *= load(p + r * NR<T> + v * kLanes<T>);
  }
  void store_to(T* p, int64_t ld = NR<T>) const {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) store(p + r * ld + v * kLanes<T>, acc[r][v]);
  }
  // The rows as elements along k, kPack rows to one, ld apart: for use as an operand.
  template <class Op>
  void store_packed(T* p, int64_t ld = NR<T>) const {
    for (int r = 0; r < R; r += Op::kPack)
      for (int v = 0; v < V; ++v) {
        const Vec<T> second = r + 1 < R ? acc[r + 1 < R ? r + 1 : r][v] : Vec<T>{};
        store(p + r / Op::kPack * ld + v * kLanes<T>, Op::pack(acc[r][v], second));
      }
  }
  void add_scaled_rows(const T* p, const T* factor) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) acc[r][v] += load(p + r * NR<T> + v * kLanes<T>) * factor[r];
  }
  // a: row r of step k at a[k * a_step + r].  b: step k at b[k * NR].
  // A long sum is taken in parts, so that its rounding errors grow with their length and not with its own.
  template <class Op>
  XLSTM_ALWAYS_INLINE void multiply(const T* a, int64_t a_step, const T* b, int64_t steps) {
    constexpr int64_t kPart = 128;
    multiply_part<Op>(a, a_step, b, steps < kPart ? steps : kPart);
    for (int64_t k = kPart; k < steps; k += kPart) {
      Tile part;
      part.zero();
      part.template multiply_part<Op>(a + k * a_step, a_step, b + k * NR<T>, steps - k < kPart ? steps - k : kPart);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < V; ++v) acc[r][v] += part.acc[r][v];
    }
  }
  template <class Op>
  XLSTM_ALWAYS_INLINE void multiply_part(const T* __restrict a, int64_t a_step, const T* __restrict b, int64_t steps) {
    for (int64_t k = 0; k < steps; ++k, a += a_step, b += NR<T>) {
      Vec<T> right[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) right[v] = load(b + v * kLanes<T>);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) acc[r][v] = Op::multiply_add(acc[r][v], right[v], a[r]);
    }
  }
};

// Calls f(Tile<T, R, V>&) with R = rows <= kRows and V = the vectors that columns <= NR need: full panels take all of
// them, a last panel with few columns one.
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

// A matrix of tokens by features in memory, perhaps with one more feature at the end: the same for all tokens, or one
// value per token. Factors per token are not applied here but to the gate factors, so that rows go in as they lie.
template <class T>
struct Rows {
  const void* data = nullptr;
  xlstm_dtype dtype = XLSTM_FLOAT32;
  int64_t stride = 0, features = 0;
  bool extra = false;              // has one more feature
  const T* extra_value = nullptr;  // its value per token; null: 1

  int64_t width() const { return features + (extra ? 1 : 0); }

  // Asks for row t ahead of its use.
  void prefetch(int64_t t) const {
    const int64_t bytes = element_bytes(dtype);
    const char* p = static_cast<const char*>(data) + t * stride * bytes;
    for (int64_t j = 0; j < features * bytes; j += 64) __builtin_prefetch(p + j, 0, 2);
  }

  // Row t into to[0 .. width), then zeros to `end`.
  void read(int64_t t, T* to, int64_t end = 0) const {
    load_row(to, data, dtype, t * stride, features);
    if (extra) to[features] = extra_value ? extra_value[t] : T(1);
    for (int64_t j = width(); j < end; ++j) to[j] = 0;
  }

  // Row t as elements along the features, then zeros to `end` elements. room holds kPack * end values.
  template <class Op>
  void read_packed(int64_t t, T* to, int64_t end, T* room) const {
    if constexpr (Op::kPack == 1) {
      read(t, to, end);
    } else {
      if (dtype == Op::kStored) {  // the bits are already there
        memcpy(to, static_cast<const uint16_t*>(data) + t * stride, features * 2);
        if (extra) store_row(to, Op::kStored, features, extra_value ? extra_value + t : &kOne, 1);
      } else {
        read(t, room);
        store_row(to, Op::kStored, 0, room, width());
      }
      memset(reinterpret_cast<uint16_t*>(to) + width(), 0, (Op::kPack * end - width()) * 2);
    }
  }
  static constexpr T kOne = 1;
};

// A square block of kLanes vectors, transposed in place by log2(kLanes) rounds of interleaving.
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

// Values that pack_* need as room for a matrix of this width.
template <class T>
constexpr int64_t pack_room(int64_t width) {
  return (kLanes<T> + 2) * round_up(width, NR<T>);
}

// tokens [t0, t0 + n) of rows -> token panels (packed width, NR), zero beyond n.
template <class Op, class T>
inline void pack_transposed(const Rows<T>& rows, int64_t t0, int64_t n, T* to, T* room) {
  constexpr int lanes = kLanes<T>;
  const int64_t width = packed<Op>(rows.width()), ld = round_up(width, lanes);
  for (int64_t t = 0; t < padded<T>(n); t += lanes) {
    for (int r = 0; r < lanes; ++r) {
      if (t + r < n)
        rows.template read_packed<Op>(t0 + t + r, room + r * ld, ld, room + lanes * ld);
      else
        memset(room + r * ld, 0, ld * sizeof(T));
    }
    T* panel = to + t / NR<T> * width * NR<T> + t % NR<T>;
    for (int64_t d = 0; d < width; d += lanes) {
      Vec<T> block[lanes];
      for (int r = 0; r < lanes; ++r) block[r] = load(room + r * ld + d);
      transpose<T>(block);
      for (int j = 0; j < lanes && d + j < width; ++j) store(panel + (d + j) * NR<T>, block[j]);
    }
  }
}

// tokens [t0, t0 + n), each times weight -> one row of ld values per element along the tokens.
template <class Op, class T>
inline void pack_weighted(const Rows<T>& rows, int64_t t0, int64_t n, const T* weight, T* to, int64_t ld, T* room) {
  for (int64_t t = 0; t < n; t += Op::kPack, to += ld) {
    T *first = room, *second = room + ld;
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

// tokens [t0, t0 + n) -> column panels (packed n, NR). Returns whether every value is finite.
template <class Op, class T>
inline bool pack_columns(const Rows<T>& rows, int64_t t0, int64_t n, T* to, T* room) {
  const int64_t full = padded<T>(rows.width()), steps = packed<Op>(n);
  typename VectorOf<IntegerOf<T>>::type bad{};
  T *first = room, *second = room + full;
  for (int64_t t = 0; t < n; t += Op::kPack) {
    rows.read(t0 + t, first, full);
    if (Op::kPack == 2 && t + 1 < n)
      rows.read(t0 + t + 1, second, full);
    else if (Op::kPack == 2)
      memset(second, 0, full * sizeof(T));
    for (int64_t j = 0; j < full; j += kLanes<T>) {
      const Vec<T> x = load(first + j), y = Op::kPack == 2 ? load(second + j) : Vec<T>{};
      bad |= ((x - x) + (y - y)) != Vec<T>{};  // NaN unless both are finite
      store(to + (j / NR<T> * steps + t / Op::kPack) * NR<T> + j % NR<T>, Op::pack(x, y));
    }
  }
  bool finite = true;
  for (int e = 0; e < kLanes<T>; ++e) finite = finite && !bad[e];
  return finite;
}

// Lanes are summed in T, a few values each, and the lanes in double.
template <class T>
inline double sum(const T* a, int64_t n) {
  Vec<T> lanes{};
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) lanes += load(a + j);
  double total = 0;
  for (int e = 0; e < kLanes<T>; ++e) total += double(lanes[e]);
  for (; j < n; ++j) total += double(a[j]);
  return total;
}

// Lanes are summed in T, a few dozen products each, and the lanes in double.
template <class T>
inline double dot(const T* a, const T* b, int64_t n) {
  Vec<T> lanes{};
  int64_t j = 0;
  for (; j + kLanes<T> <= n; j += kLanes<T>) lanes += load(a + j) * load(b + j);
  double total = 0;
  for (int e = 0; e < kLanes<T>; ++e) total += double(lanes[e]);
  for (; j < n; ++j) total += double(a[j]) * double(b[j]);
  return total;
}

}  // namespace xlstm::XLSTM_ISA
