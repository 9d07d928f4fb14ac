// SPDX-License-Identifier: Apache-2.0
// How quantised_linear_kernel lies on a cluster, on a block and in shared memory, and how x is packed for it. Plan,
// kernels and tests use the same functions.
#pragma once

#include "engine/gemm_mma/gemm_mma_shape.h"

namespace xlstm::gpu::engine {

// A launch multiplies 16, 32, 64 or 128 rows of x; further rows are passes.
constexpr int kLinearBatch[] = {16, 32, 64, 128};
constexpr int kMostLinearRows = 256;  // of x: for more, dequantised weights in memory cost little beside the product
constexpr int kLinearRows = 128;      // of weights in a tile: wgmma's 64 of two warpgroups
constexpr int kLinearConsumers = 256, kLinearThreads = kLinearConsumers + 32;  // and a producer warp
constexpr int kMostLinearParts = 4;                                            // blocks of a cluster
constexpr int kMostLinearStages = 8, kLeastLinearStages = 2;

// A stage of the pipeline has 128 bytes of each row.
constexpr int kLinearRowBytes = 128;
constexpr int linear_stage_steps(int bits) { return kLinearRowBytes * 8 / bits / kStepFeatures; }

// Blocks that share a multiprocessor, where their registers and stages allow it: one loads while the other sums up.
constexpr int linear_blocks_per_sm(int batch) { return batch <= 64 ? 2 : 1; }

// From so many rows of x on, weights are scaled when they become bfloat16, not the sums of 64 features: a sum would be
// scaled for each row of x, a weight is for all of them.
constexpr bool linear_scales_weights(int batch) { return batch >= 64; }
constexpr bool linear_has_x_sums(int batch, bool offsets) { return offsets && !linear_scales_weights(batch); }

// Where a stage has what: a panel of weights, one of x for each step (arch/hopper/hopper.h), sums of x. And the bytes
// of the tile's sums.
struct LinearStage {
  int x, x_sums, bytes, tile_sums;
};
constexpr int linear_panel_bytes(int batch) { return batch * kStepFeatures * 2; }
constexpr LinearStage linear_stage(int bits, int batch, bool offsets) {
  const int steps = linear_stage_steps(bits);
  LinearStage at{};
  at.x = kLinearRows * kLinearRowBytes;
  at.x_sums = at.x + steps * linear_panel_bytes(batch);
  at.bytes = (at.x_sums + (linear_has_x_sums(batch, offsets) ? steps * batch * 4 : 0) + 1023) / 1024 * 1024;
  at.tile_sums = kLinearRows * batch * 4;
  return at;
}

// Where a block has what. The stages are first, and in their place, at the end, the partial sums of all parts for the
// rows that this block owns, then this block's for all rows; behind the stages are the scales, and the offsets, of all
// of the block's groups, by rows, each from the multiple of 16 bytes on in which its first one lies; then mbarriers,
// two of each stage, and one for partial sums.
struct LinearSmem {
  int stages, scales, offsets, barriers, bytes;
  int scale_row;  // bytes from row to row
};
// steps: the most of a block.
constexpr LinearSmem linear_smem(const LinearStage& stage, int stages, int steps, int group_size, bool offsets) {
  const int groups = steps / (group_size / kStepFeatures) + 2, vec16s = (groups * 2 + 14 + 15) / 16 | 1;  // odd: banks
  LinearSmem at{};
  at.stages = stages, at.scale_row = vec16s * 16;
  at.scales = stages * stage.bytes;
  at.offsets = at.scales + kLinearRows * at.scale_row;
  at.barriers = at.offsets + (offsets ? kLinearRows * at.scale_row : 0);
  at.bytes = at.barriers + (2 * stages + 1) * 8;
  return at;
}
// With as many stages as fit, or none.
constexpr LinearSmem linear_smem_within(const LinearStage& stage, int steps, int group_size, bool offsets,
                                        int lds_bytes) {
  LinearSmem at{};
  for (int stages = kLeastLinearStages; stages <= kMostLinearStages; ++stages) {
    const LinearSmem more = linear_smem(stage, stages, steps, group_size, offsets);
    if (more.bytes <= lds_bytes && more.scales >= 2 * stage.tile_sums) at = more;
  }
  return at;
}
// What a block may have of a chip's shared memory for a block where two share it: each block has 1 KB more.
constexpr int half_lds(int lds_bytes) { return lds_bytes / 2 - 512; }

// ---- the order of features
//
// A step's features go by quads, four features whose weights are a word of bytes, or half of each byte of a word. Of an
// instruction's 16 features a thread has one quad, as the pairs (0, 2) and (1, 3). Which quad follows from the bytes
// that the four threads of a row load: 16 each of the step's bytes, 8 each of its nibbles.
constexpr int linear_quad(int bits, int thread, int k16) {
  return bits == 8 ? thread * 4 + k16 : thread / 2 * 8 + k16 / 2 * 4 + thread % 2 * 2 + k16 % 2;
}
// The first of two neighbouring rows of a warp's 16 that lanes 4 n to 4 n + 3 have. Lanes that load together have rows
// that the 128-byte swizzle puts apart.
constexpr int linear_lane_row(int n) { return n / 4 * 8 + n % 4 / 2 * 2 + n % 2 * 4; }

}  // namespace xlstm::gpu::engine
