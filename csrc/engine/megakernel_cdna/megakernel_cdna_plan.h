// SPDX-License-Identifier: Apache-2.0
// The plan of CDNA's megakernel (engine/megakernel_cdna/megakernel_cdna.h). A pure function of shapes and the chip, for
// host, kernel and tests.
#pragma once

#include "engine/gemm_row_cdna/gemm_row_cdna_plan.h"

namespace xlstm::gpu::engine {

constexpr int kCdnaStepColumns = 16;  // of C, in a tile of the mLSTM's step
constexpr int kCdnaProducts = 4, kCdnaOutput = 1,
              kCdnaHead = 4;  // of a block of the model; the head stands behind them

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
