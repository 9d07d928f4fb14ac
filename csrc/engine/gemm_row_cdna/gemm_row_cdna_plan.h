// SPDX-License-Identifier: Apache-2.0
// Plans of CDNA's products of one row of x (engine/gemm_row_cdna/row_product.h): how many rows of weights a group of
// waves takes at a time, and the layout of LDS. Pure functions of shapes and the chip, for host, kernel and tests.
#pragma once

#include "engine/gemm_mma/gemm_mma_plan.h"

namespace xlstm::gpu::engine {

constexpr int kCdnaGroups = 2, kRowCdnaThreads = kCdnaGroups * kGemmMmaThreads;
constexpr int kCdnaWaves = split_k_waves(Family::cdna);                // of a group
constexpr int kCdnaSlotBits = 5, kCdnaUnitSlots = 1 << kCdnaSlotBits;  // of a unit: row_product.h
constexpr int kCdnaMostSliceBits = 2;
constexpr int kCdnaDepth = 4, kCdnaGateDepth = 2;  // steps of weights on their way; four of the gates spill on gfx90a
constexpr int kCdnaMostVec8s = 3;                  // of x, for a thread

// The bytes of 64 features of x in LDS, and the steps of each wave for a product in 2^slice_bits slices.
constexpr int cdna_step_bytes(bool integers) { return kStepFeatures * (integers ? 3 : 4); }
constexpr int cdna_wave_steps(int columns, int slice_bits, int depth) {
  const int at_once = kCdnaWaves << slice_bits, steps = (columns / kStepFeatures + at_once - 1) / at_once;
  return (steps + depth - 1) / depth * depth;
}

constexpr int kCdnaSumBytes = 2 * kCdnaWaves * kCdnaUnitSlots * 4;  // of a group, in two buffers

// Whether a product's features suit, and the LDS of its x in any slices.
bool cdna_row_fits(const GemmShape&);
int cdna_row_x_bytes(const GemmShape&);
// The units of groups of waves, and the units with so many rows; the blocks for gates beside quantised projections.
CdnaUnits cdna_units_for(const GemmShape&, int64_t groups, int depth);
int64_t cdna_units_with(const GemmShape&, int rows);
int cdna_gate_blocks(const GemmShape& gates, int64_t blocks);

// One product as a launch (engine/gemm_row_cdna/gemm_row_cdna.h).
struct GemmRowCdnaPlan {
  int64_t blocks;  // one on a compute unit; 0: another kernel takes the product
  CdnaUnits units, gate_units;
  int gate_blocks;         // the last blocks of the grid, which multiply the gates instead
  int sums_at, lds_bytes;  // LDS: x, then sums
};
// gates: bfloat16 linears beside the quantised ones, which then have no rows of theirs.
GemmRowCdnaPlan plan_gemm_row_cdna(const GemmShape&, const GemmShape& gates, const Chip&);

}  // namespace xlstm::gpu::engine
