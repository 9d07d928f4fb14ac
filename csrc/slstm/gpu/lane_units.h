// SPDX-License-Identifier: Apache-2.0
// What a lane owns of a recurrent cell's call: one sequence of its block, and units of that sequence whose gates are in
// its registers of a strip.
//
//   strip of gate g:  rows: the wave's units      columns: the block's sequences
//   lane:             its registers of one column: kUnits units that follow one another
//
// Which unit a row of a strip is, is free, since the wave reads the rows of the matrix in that order: so that a lane's
// units are one vector in memory. (On NVIDIA half of a strip's columns stay empty. Products with the sides swapped, 16
// units by 8 sequences, take half of the tensor cores' time, but a lane then has two sequences with two units each, and
// twice the loads and stores, which cost more.)
#pragma once

#include "arch/elementwise.h"
#include "slstm/gpu/params.h"
#include "slstm/recurrence.h"

namespace xlstm::gpu::slstm {

// Threads of a block at most, and whether the family has registers for a resident matrix.
template <class E, int kResident, bool kBackward>
constexpr int kThreads = (kResident ? kResident / kStep<E> : max_waves(kFamily, kBackward)) * kWave;
template <class E, int kResident>
constexpr bool kHasKernel = kResident == 0 || fits_registers(kFamily, sizeof(E), kResident);

template <class E>
constexpr int kUnits = Strip<E>::kRegisters / lane_columns(kFamily);

// The register of a strip that holds unit `u` of a lane: on NVIDIA every other pair is of the lane's second column.
constexpr int register_of(int u) { return kFamily == Family::nvidia ? u % 2 + 4 * (u / 2) : u; }

// The unit of the wave that row `row` of its strips is. NVIDIA's lanes have rows 2 q, 2 q + 1, 2 q + 8, 2 q + 9,
// RDNA3's every other one; the others' follow one another.
constexpr int unit_of_row(Family f, int row) {
  if (f == Family::nvidia) return 4 * (row % 8 / 2) + 2 * (row / 8) + row % 2;
  return f == Family::rdna ? 8 * (row % 2) + row / 2 : row;
}

// A lane's units of one value of a token, as they lie in memory.
template <class T, class E>
struct alignas(kUnits<E> * sizeof(T) < 16 ? kUnits<E> * sizeof(T) : 16) Units {
  T value[kUnits<E>];

  XLSTM_DEVICE float at(int u) const { return to_float(value[u]); }
  XLSTM_DEVICE void set(int u, float x) {
    if constexpr (sizeof(T) == 2)
      value[u] = {uint16_t(pack_exact(T{}, x, 0.0f))};  // without from_float's branch for NaN
    else
      value[u] = x;
  }
};

// In as few accesses as there are vectors of 16 bytes: the compiler would store each value by itself.
template <class T, class E>
XLSTM_DEVICE void store_vectors(T* to, const Units<T, E>& values) {
  constexpr int kBytes = sizeof(Units<T, E>);
  if constexpr (kBytes == 8) {
    *reinterpret_cast<uint64_t*>(to) = __builtin_bit_cast(uint64_t, values);
  } else {
    static_assert(kBytes % 16 == 0);
    struct Vectors {
      Vec16 vec[kBytes / 16];
    };
    const Vectors vectors = __builtin_bit_cast(Vectors, values);
#pragma unroll
    for (int v = 0; v < kBytes / 16; ++v) write_vec16(reinterpret_cast<Vec16*>(to) + v, vectors.vec[v]);
  }
}

// Where the units of a lane lie in a head. Where units pad the head, the lane reads the first ones once more, which
// saves a branch: rows and columns of the matrix are zero there, and nothing is stored.
template <class E>
struct LaneUnits {
  int unit;
  bool exist;

  XLSTM_DEVICE LaneUnits(const CellShape& at, int wave_unit)
      : unit(wave_unit + unit_of_row(kFamily, Strip<E>::position(0).row)), exist(unit < at.units) {}

  // of_head: unit 0 of the head.
  template <class T>
  XLSTM_DEVICE Units<T, E> load(const T* of_head) const {
    return *reinterpret_cast<const Units<T, E>*>(of_head + (exist ? unit : 0));
  }
  // The same where there may be no such tensor: then zeros.
  template <class T>
  XLSTM_DEVICE Units<T, E> load_or_zero(const T* tensor, int64_t head) const {
    Units<T, E> values{};
    if (tensor) values = load(tensor + head);
    return values;
  }
  template <class T>
  XLSTM_DEVICE void store(T* of_head, const Units<T, E>& values, bool is_wanted) const {
    if (is_wanted && exist) store_vectors(of_head + unit, values);
  }
  // Into a row of LDS, which has room for the padding.
  XLSTM_DEVICE void store_lds(E* row, const Units<E, E>& values) const { store_vectors(row + unit, values); }
};

// A lane's sequence. A lane without one walks the tokens of another, and stores nothing.
struct LaneSequence {
  int head, column;  // column: of the block's sequences
  int64_t sequence;
  int length;          // 0: the lane has none
  int64_t row, begin;  // its batch row; its first token in there

  XLSTM_DEVICE explicit LaneSequence(const CellShape& at)
      : head(opaque_uniform(int(blockIdx.x % uint32_t(at.heads)))), column(column_position(kFamily, lane_id(), 0)) {
    const int64_t wanted = int64_t(blockIdx.x / uint32_t(at.heads)) * at.rows + column;
    const bool exists = column < at.rows && wanted < at.sequences;
    sequence = wanted < at.sequences ? wanted : at.sequences - 1;
    length = exists ? length_of(at, sequence) : 0;
    begin = at.cu_seqlens ? begin_of(at, sequence) : 0;
    if (begin >= at.length) begin = at.length - 1;
    row = at.cu_seqlens ? 0 : sequence;
  }
  // Offsets that do not rise or that exceed the row are clamped, since no host has read them.
  XLSTM_DEVICE static int64_t begin_of(const CellShape& at, int64_t sequence) {
    const int64_t x = at.cu_seqlens[sequence];
    return x < 0 ? 0 : x > at.length ? at.length : x;
  }
  XLSTM_DEVICE static int length_of(const CellShape& at, int64_t sequence) {
    if (!at.cu_seqlens) return at.length;
    const int64_t n = begin_of(at, sequence + 1) - begin_of(at, sequence);
    return n < 0 ? 0 : int(n);
  }
  // The longest of the block.
  XLSTM_DEVICE static int longest(const CellShape& at) {
    if (!at.cu_seqlens) return at.length;
    const int64_t first = int64_t(blockIdx.x / uint32_t(at.heads)) * at.rows;
    int most = 0;
    for (int64_t s = first; s < first + at.rows && s < at.sequences; ++s) {
      const int n = length_of(at, s);
      most = n > most ? n : most;
    }
    return most;
  }
  // Unit 0 of the lane's head in a token of a contiguous (B, S, NH, U), and in a state.
  XLSTM_DEVICE int64_t token(const CellShape& at, int t) const {
    return ((row * at.length + begin + t) * at.heads + head) * at.units;
  }
  // The same unit in a contiguous (B, S, values, NH, U), where it is `token` in (B, S, NH, U).
  XLSTM_DEVICE int64_t among_values(const CellShape& at, int values, int64_t token) const {
    return values * token - int64_t((values - 1) * head * at.units);
  }
  XLSTM_DEVICE int64_t state(const CellShape& at) const { return (sequence * at.heads + head) * at.units; }
};

// Calls f with the cell as a constant: a branch for all units of a token rather than one for each.
template <class F>
XLSTM_DEVICE void with_cell(xlstm_cell cell, F&& f) {
  if (cell == XLSTM_CELL_SLSTM)
    f(std::integral_constant<xlstm_cell, XLSTM_CELL_SLSTM>{});
  else if (cell == XLSTM_CELL_LSTM)
    f(std::integral_constant<xlstm_cell, XLSTM_CELL_LSTM>{});
  else
    f(std::integral_constant<xlstm_cell, XLSTM_CELL_SLSTM_EXP_FORGET>{});
}

// Values of the block's sequences in rows of LDS, as chain operands. Columns without a sequence are zero.
template <class E>
struct SequenceRows {
  const char* base;
  int row_bytes, rows;

  // Calls f(step of k, operand) for each step of `units` units of k.
  template <class F>
  XLSTM_DEVICE void each_step(int first_unit, int units, F&& f) const {
#pragma unroll
    for (int u = 0; u < units; ++u) {
      Vec16 vec[kChainVec16s<E>] = {};
#pragma unroll
      for (int p = 0; p < kChainVec16s<E>; ++p) {
        const Vec16Position at = chain_vec16(kFamily, sizeof(E), lane_id(), p);
        if (kFamily == Family::nvidia && p % 2 == 1) continue;  // of columns that no block uses
        if (at.row < rows)
          vec[p] = read_vec16(base + at.row * row_bytes + ((first_unit + u) * kUnit<E> + at.feature) * int(sizeof(E)));
      }
#pragma unroll
      for (int s = 0; s < kUnitSteps<E>; ++s) f(u * kUnitSteps<E> + s, chain_of_vec16s<E>(vec, s));
    }
  }
};

// Rows of a matrix in memory as stream operands: the kStep<E> units from `rows` on, `stride` elements apart.
template <class E>
struct MatrixRows {
  const E* rows;
  int64_t stride;

  // Calls f(step of k, operand) for each step of a unit of k.
  template <class F>
  XLSTM_DEVICE void each_step_of(int unit, F&& f) const {
    Vec16 vec[kStreamVec16s<E>];
#pragma unroll
    for (int p = 0; p < kStreamVec16s<E>; ++p) {
      const Vec16Position at = stream_vec16(kFamily, sizeof(E), lane_id(), p);
      vec[p] = read_vec16(rows + unit_of_row(kFamily, at.row) * stride + unit * kUnit<E> + at.feature);
    }
#pragma unroll
    for (int s = 0; s < kUnitSteps<E>; ++s) f(s, stream_of<E>(vec, s));
  }
};

// multiply(), whose sums of floats are added in parts: the rounding errors of one long sum would be twice as large.
template <class E>
XLSTM_DEVICE void multiply_in_parts(Strip<E>& sum, const StreamOperand<E>& stream, const ChainOperand<E>& chain) {
  if constexpr (sizeof(E) == 2 || kFamily != Family::cdna) {
    multiply(sum, stream, chain);
  } else {
    Strip<E> part;
    part.zero();
    multiply(part, stream, chain);
#pragma unroll
    for (int r = 0; r < Strip<E>::kRegisters; ++r) sum.value[r] += part.value[r];
  }
}

// The functions of slstm/recurrence.h on a GPU's floats. For elements of 2 bytes by the GPU's own instructions, with an
// absolute error of 2^-22 or so; for floats by the compiler's library.
template <class E>
struct FloatMaths {
  using V = float;
  static constexpr bool kFast = sizeof(E) == 2;
  XLSTM_DEVICE static float of(float x) { return x; }
  XLSTM_DEVICE static float exp(float x) { return kFast ? exp2_fast(x * kLog2E) : expf(x); }
  XLSTM_DEVICE static float divide(float x, float y) { return kFast ? x * reciprocal_fast(y) : x / y; }
  XLSTM_DEVICE static float sigmoid(float x) { return divide(1, 1 + exp(-x)); }
  XLSTM_DEVICE static float log_sigmoid(float x, float& slope) {
    const float e = exp(-fabsf(x)), smaller = divide(e, 1 + e);
    slope = x > 0 ? smaller : 1 - smaller;
    return (x > 0 ? 0.0f : x) - (kFast ? kLn2 * log2_fast(1 + e) : log1pf(e));
  }
  // Near zero (1 - e) / (1 + e) cancels: there an odd polynomial.
  XLSTM_DEVICE static float tanh(float x) {
    if (!kFast) return tanhf(x);
    const float z = x * x;
    float p = -0.00566477536f;
    p = p * z + 0.02059568f;
    p = p * z - 0.0537226793f;
    p = p * z + 0.133311502f;
    p = p * z - 0.333332616f;
    const float e = exp(-2 * fabsf(x)), far = divide(1 - e, 1 + e);
    return z < 0.390625f ? x * z * p + x : __builtin_copysignf(far, x);
  }
  // With one reciprocal for both divisions.
  XLSTM_DEVICE static float gated_ratio(float gate, float c, float n, float& open) {
    if (!kFast) {
      open = sigmoid(gate);
      return open * (c / n);
    }
    const float both = reciprocal_fast(n * (1 + exp(-gate)));
    open = n * both;
    return c * both;
  }
};

}  // namespace xlstm::gpu::slstm
