// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel for a product of a decode step, and its grid: pure functions of shapes and the chip.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "engine/gemm_mma/gemm_mma_shape.h"

namespace xlstm::gpu::engine {

// The linears of one launch: their rows lie one after the other, or side by side for SwiGLU, which has two.
struct GemmShape {
  int64_t batch, columns;
  bool swiglu;
  int bits;        // of a weight
  bool converted;  // the weights are not bfloat16
  int linear_count;
  const int64_t* rows;  // of each linear
  bool adds = false;    // to a residual: Output::add
  // On CDNA, of quantised weights: whether they are integers, have offsets, and stand beside gates of bfloat16.
  bool integers = false, offsets = false, gates = false;
  // Also on CDNA: whether the launch has all of a product's linears, so that there is memory for sums of shards.
  bool all_linears = true;
};

// Numbers the units of so many linears, each of unit_rows rows: the first of each linear, kNoUnit where it has no rows.
// Returns how many there are.
template <class RowsOf>
int number_units(int linears, int unit_rows, RowsOf&& rows_of, int (&first)[kMaxLinears]) {
  int units = 0;
  for (int j = 0; j < kMaxLinears; ++j) {
    const int64_t rows = j < linears ? int64_t(rows_of(j)) : 0;
    first[j] = rows > 0 ? units : kNoUnit;
    units += int((rows + unit_rows - 1) / unit_rows);
  }
  return units;
}

struct GemmMmaPlan {
  bool packed;      // x is packed first, for gemm_stream_k_kernel
  int batch, rows;  // of the batch, and of weights in a unit of work: for gemm_batch_kernel's SwiGLU of each linear
  // gemm_batch_kernel, or 0: the blocks that share a unit, each with every so-many-th step of features; a block's
  // waves, and the rows of weights of each.
  int shards, row_waves, wave_rows;
  int stage_tiles;  // tiles of x that LDS holds at once
  int stages;       // of gemm_stream_k_kernel's pipeline
  int lds_bytes;
  bool early_launch;  // by programmatic dependent launch (arch/nvidia/dependent_launch.h)
  int64_t
      blocks;  // persistent blocks, which take units in turn; passes of the batch over the same weights are neighbours
};

int64_t units_of(const GemmShape&, int rows);
// CDNA: whether gemm_mma takes a product. What it does not take is gemm_cdna's.
bool gemm_mma_takes(const GemmShape&, const Chip&);
GemmMmaPlan plan_gemm_mma(const GemmShape&, const Chip&);
// NVIDIA: for bfloat16 gates beside a product of quantised weights with this plan, of x that was packed for it.
GemmMmaPlan plan_gates(const GemmMmaPlan& of_weights, const Chip&);

// Packed x: how many rows there are, zeros beyond the batch included; and bytes for all formats of a product.
int64_t packed_rows(int64_t batch, int plan_batch);
struct PackedBytes {
  int64_t x, step_sums, rms_factors, partials, arrivals;  // arrivals: counters, of gemm_batch_kernel's waves
};
PackedBytes packed_bytes(const GemmShape&, const GemmMmaPlan&, const Chip&);

}  // namespace xlstm::gpu::engine
