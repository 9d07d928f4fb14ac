// SPDX-License-Identifier: Apache-2.0
// Plans of CDNA's megakernel (engine/megakernel_cdna/megakernel_cdna.h): how many rows of weights a group takes at a
// time, and the layout of LDS. Pure functions of shapes and the chip, for host, kernel and tests.
#pragma once

#include "engine/gemm_mma/gemm_mma_plan.h"

namespace xlstm::gpu::engine {

constexpr int kCdnaGroups = 2, kMegakernelCdnaThreads = kCdnaGroups * kGemmMmaThreads;
constexpr int kCdnaWaves = split_k_waves(Family::cdna);                // of a group
constexpr int kCdnaSlotBits = 5, kCdnaUnitSlots = 1 << kCdnaSlotBits;  // of a unit: megakernel_cdna_product.h
constexpr int kCdnaMostSliceBits = 2;
constexpr int kCdnaDepth = 4, kCdnaGateDepth = 2;  // steps of weights on their way; four of the gates spill on gfx90a
constexpr int kCdnaMostVec8s = 3;                  // of x, for a thread
constexpr int kCdnaStepColumns = 16;               // of C, in a tile of the mLSTM's step
constexpr int kCdnaProducts = 4, kCdnaOutput = 1,
              kCdnaHead = 4;  // of a block of the model; the head stands behind them

// The bytes of 64 features of x in LDS, and the steps of each wave for a product in 2^slice_bits slices.
constexpr int cdna_step_bytes(bool integers) { return kStepFeatures * (integers ? 3 : 4); }
constexpr int cdna_wave_steps(int columns, int slice_bits, int depth) {
  const int at_once = kCdnaWaves << slice_bits, steps = (columns / kStepFeatures + at_once - 1) / at_once;
  return (steps + depth - 1) / depth * depth;
}

constexpr int kCdnaSumBytes = 2 * kCdnaWaves * kCdnaUnitSlots * 4;  // of a group, in two buffers

struct MegakernelCdnaCall {
  bool suits;  // whether its tensors do: see step.hip
  int64_t heads, dqk, dhv;
  GemmShape product[kCdnaProducts + 1];  // projections, output, up, down, head
  GemmShape gates;                       // bfloat16 beside quantised projections, which then have no rows of theirs
};

struct MegakernelCdnaPlan {
  int64_t blocks;  // of the grid, one on a compute unit; 0: the megakernel does not take this model
  CdnaUnits units[kCdnaProducts + 1], gate_units;
  int gate_blocks;         // the last blocks of the grid, which multiply the gates instead of projections
  int sums_at, lds_bytes;  // LDS: x, then sums
};

MegakernelCdnaPlan plan_megakernel_cdna(const MegakernelCdnaCall&, const Chip&);

}  // namespace xlstm::gpu::engine
