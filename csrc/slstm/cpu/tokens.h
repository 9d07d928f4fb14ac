// SPDX-License-Identifier: Apache-2.0
// The tasks of a recurrent cell's call on a CPU, and the product of their rows with a head's matrix.
#pragma once

#include "base/arena.h"
#include "slstm/cpu/cell_maths.h"
#include "slstm/cpu/kernel_table.h"
#include "slstm/layout.h"
#include "tile/cpu_panels.h"
#include "tile/tasks.h"

namespace xlstm::XLSTM_ISA::slstm {

using namespace xlstm::slstm;

// Some sequences of one head.
struct Task {
  int64_t head, first, rows;
};

struct Tasks {
  const xlstm_slstm& in;
  int64_t rows;

  int64_t sequences() const { return in.cu_seqlens ? in.sequences : in.batch; }
  int64_t blocks() const { return ceil_div(sequences(), rows); }
  int64_t count() const { return blocks() * in.heads; }
  Task operator[](int64_t index) const {
    const int64_t first = index / in.heads * rows, left = sequences() - first;
    return {index % in.heads, first, left < rows ? left : rows};
  }
  // The first token of a sequence in its batch row; that row; its length.
  int64_t begin(int64_t sequence) const { return in.cu_seqlens ? in.cu_seqlens[sequence] : 0; }
  int64_t batch_row(int64_t sequence) const { return in.cu_seqlens ? 0 : sequence; }
  int64_t length(int64_t sequence) const {
    return in.cu_seqlens ? in.cu_seqlens[sequence + 1] - in.cu_seqlens[sequence] : in.length;
  }
  // A token's index in the contiguous (B, S) of most tensors.
  int64_t token(int64_t sequence, int64_t t) const { return batch_row(sequence) * in.length + begin(sequence) + t; }
};

// A head's matrix, `outputs` rows of `sums` numbers, multiplied with rows of x: packed in panels of T, or as it lies.
template <class T>
struct HeadMatrix {
  int64_t outputs, sums;

  int64_t packed_size() const { return padded<T>(outputs) * sums; }
  int64_t scratch_size() const { return pack_buffer_size<T>(sums); }

  Rows<T> rows(const void* matrices, xlstm_dtype dtype, int64_t head) const {
    Rows<T> r;
    r.data = static_cast<const char*>(matrices) + head * outputs * sums * element_bytes(dtype);
    r.dtype = dtype;
    r.stride = sums;
    r.features = sums;
    return r;
  }
  void pack(const Rows<T>& matrix, T* to, T* scratch) const {
    pack_transposed<Plain<T>>(matrix, 0, outputs, to, scratch);
  }

  // y = x matrix^T for `n` rows; rows of x are sums apart, rows of y padded(outputs).
  void product(const T* packed, const T* x, int64_t n, T* y) const {
    for (int64_t column = 0; column < outputs; column += NR<T>)
      for (int64_t r = 0; r < n; r += kRows)
        with_rows<T, kVectors>(n - r < kRows ? n - r : kRows, [&](auto& tile) {
          product_of_tile(tile, packed + column * sums, x + r * sums);
          tile.store_to(y + r * padded<T>(outputs) + column, padded<T>(outputs));
        });
  }
  void product_as_it_lies(const Rows<T>& matrix, const T* x, int64_t n, T* y, T* scratch) const {
    for (int64_t out = 0; out < outputs; ++out) {
      matrix.read(out, scratch);
      for (int64_t r = 0; r < n; ++r) y[r * padded<T>(outputs) + out] = T(dot(scratch, x + r * sums, sums));
    }
  }

 private:
  // A long sum in parts, as Tile::product has it, of rows that are not next to each other.
  template <class Tile>
  XLSTM_ALWAYS_INLINE void product_of_tile(Tile& tile, const T* panel, const T* x) const {
    constexpr int64_t kPart = Tile::kPart;
    const LeftOperand<T> left{x, 1, sums};
    tile.template product_part<Plain<T>>(left, panel, NR<T>, sums < kPart ? sums : kPart);
    for (int64_t k = kPart; k < sums; k += kPart) {
      Tile part;
      part.template product_part<Plain<T>>(left.at(0, k), panel + k * NR<T>, NR<T>,
                                           sums - k < kPart ? sums - k : kPart);
      tile.add(part);
    }
  }
};

// Calls f(first unit) for each vector of a head's units, whose arrays are padded.
template <class T, class F>
inline void each_vector(int64_t units, F&& f) {
  for (int64_t j = 0; j < units; j += kLanes<T>) f(j);
}

template <class T>
inline void load_state(T* to, const void* states, xlstm_dtype dtype, int64_t row, int64_t units, int64_t padded) {
  if (states) load_row(to, states, dtype, row * units, units);
  for (int64_t j = states ? units : 0; j < padded; ++j) to[j] = 0;
}

template <class T>
constexpr xlstm_dtype kWideDtype = sizeof(T) == 8 ? XLSTM_FLOAT64 : XLSTM_FLOAT32;

// The bytes of Memory<T>(arena, in, plan), T as the tensors' dtype has it.
template <template <class> class Memory>
inline size_t memory_size(const xlstm_slstm& in, const SlstmCpuPlan& plan) {
  Arena counter(nullptr);
  if (in.dtype == XLSTM_FLOAT64)
    Memory<double>(counter, in, plan);
  else
    Memory<float>(counter, in, plan);
  return counter.used();
}

// Packs the matrices of all heads, if the plan says so.
template <class T>
inline void pack_matrices(const xlstm_slstm& in, const HeadMatrix<T>& matrix, T* packed, T* scratch,
                          const Executor& executor) {
  parallel_tasks(executor, in.heads, [&](int64_t head, int32_t worker) {
    matrix.pack(matrix.rows(in.recurrent, in.dtype, head), packed + head * matrix.packed_size(),
                scratch + worker * matrix.scratch_size());
  });
}

}  // namespace xlstm::XLSTM_ISA::slstm
