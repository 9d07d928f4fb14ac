// SPDX-License-Identifier: Apache-2.0
// Plans of the megakernels, which run a decode step in one persistent launch on Hopper: of one row
// (engine/megakernel/megakernel.h), and of two to eight (engine/megakernel/megakernel_rows.h). Which multiprocessor
// computes which part of each product, and the layout of its shared memory. Pure functions of shapes and the chip, for
// host, kernel and tests.
//
// Each multiprocessor has one block. Blocks, or clusters of them, take items, 16 rows of weights (for SwiGLU 8 of
// either linear), in turn. The features are split (split-K) among a block's warps, or among a cluster's blocks, whose
// shared memory holds a part of several rows of x. Either way the parts are those of
// engine/gemm_cluster/gemm_cluster_plan.h, and are added up in the same order. If there are fewer parts than warps or
// blocks, those of a part take the items in turn.
#pragma once

#include <cstdint>

#include "engine/gemm_cluster/gemm_cluster_plan.h"
#include "mlstm/recurrent/recurrent_plan.h"

namespace xlstm::gpu::engine {

// The phases of a block of the model, then the head. gate: the output gate of h, a linear of the projections that no
// phase needs before the norm of heads.
enum class Phase { projections, gate, output, up, down, head };
constexpr int kPhases = 6;

constexpr int kMaxMegakernelBlocks = 48;  // of a model: the addresses of their weights are kernel parameters
constexpr int kMegakernelWarps = 16, kMegakernelThreads = 32 * kMegakernelWarps;
constexpr int kStepColumns = 32;  // of C, in a tile of the mLSTM step
constexpr int kMaxHeadVec8s = 2;  // vec8s of a head's values in a lane

// Bytes in shared memory: the scales of 64 features of x; a RowItem; a WarpPart; the gates of an mLSTM step; its sums.
constexpr int kXScaleBytes = 16, kItemBytes = 16, kPartBytes = 32, kStepBytes = 64;
constexpr int kStepSumBytes = 2 * kMegakernelWarps * (kStepColumns + 1) * 4;

// Rows in the ring are not padded. Their vec16s are swizzled, so that lanes that read together have no bank conflict:
// an offset within the row is XORed with this.
constexpr int segment_swizzle(int bits, int row) { return bits == 4 ? row % 4 * 32 : row % 2 * 64; }
// The most rows of x of a megakernel; those of several rows are made for 2, 4 and 8.
constexpr int kMegakernelRows = 8;
constexpr int megakernel_rows_of(int64_t batch) { return batch <= 2 ? int(batch) : batch <= 4 ? 4 : kMegakernelRows; }
// Slots of a warp's ring; smaller slots are more. A slot has the segments of its rows, then, for quantised weights,
// scales and offsets. rows: of x that a kernel is made for.
constexpr int megakernel_slots(int bits, int rows) { return bits < 16 ? 2 : rows <= 4 ? 5 : 4; }
constexpr int megakernel_segment_bytes(int bits) { return bits == 16 ? 128 : kSegmentBytes; }
constexpr int megakernel_groups_offset(int bits) { return kItemRows * megakernel_segment_bytes(bits); }
constexpr int kGroupsBytes = kItemRows * kGroupBytes;
constexpr int megakernel_slot_bytes(int bits) {
  return megakernel_groups_offset(bits) + (bits < 16 ? 2 * kGroupsBytes : 0);
}
constexpr int group_swizzle(int row) { return row / 4 % 2 * 16; }

// Tiles of C that a block updates at once: one by all threads, or of several rows of the batch as many as it has
// threads for, up to four.
constexpr int threads_of_tile(int64_t dqk) {
  const int needed = int(dqk) / mlstm::kRecurrentRows * (kStepColumns / mlstm::kRecurrentColumns);
  return needed <= kMegakernelThreads / 4   ? kMegakernelThreads / 4
         : needed <= kMegakernelThreads / 2 ? kMegakernelThreads / 2
                                            : kMegakernelThreads;
}
constexpr int tiles_at_once(int rows, int64_t dqk) { return rows == 1 ? 1 : kMegakernelThreads / threads_of_tile(dqk); }
// Of q, k and a tile's v.
constexpr int token_bytes(int64_t dqk) { return int(2 * dqk + kStepColumns) * 4; }

struct PhaseShape {
  int64_t columns;
  int64_t items;
};
struct MegakernelShape {
  int64_t batch, blocks, heads, dqk, dhv;
  int bits;    // of a weight
  bool suits;  // whether its tensors do: see step.hip
  PhaseShape phase[kPhases];
};

struct PhasePlan {
  int steps;       // of 64 features
  int part_bits;   // log2 of the number of parts
  int part_steps;  // in each part
  int items;       // of all thread blocks
  int table;       // index of a block's first item of this phase in its table of the items of all phases
  int first_item;  // the item that is taken first; after the last comes item 0
  int owned;       // of several rows: the items of a round whose sums a block adds up

  constexpr int parts() const { return 1 << part_bits; }
};

// Byte offsets in a block's shared memory. token: q, k and a tile's v. factor: of an RMS norm; of several rows, the
// sums of squares of all parts. received: an mbarrier, of several rows.
struct MegakernelSmem {
  int ring, x, x_scales, squares, factor, partial_sums, residual, items, parts, step, token, received, bytes;
};

// The layout of mailboxes in device memory, as offsets in floats from where those of a block of the model begin. Each
// is published once in a step (engine/megakernel/mailbox.h).
struct Mailboxes {
  int from[kPhases];             // the input of a phase
  int to[kPhases][kMaxLinears];  // the outputs of its linears; the head has none
  int x;      // floats of x, which is the first input of a block of the model and the last output of the last
  int block;  // floats of each block of the model

  constexpr int64_t floats(int64_t blocks) const { return blocks * block + x; }
};

struct MegakernelPlan {
  int blocks;        // of the grid; 0: no megakernel takes this model
  int rows;          // of x that the kernel is made for: megakernel_rows_of
  int cluster_bits;  // log2 of the blocks of a cluster; 0 for one row
  PhasePlan phase[kPhases];
  MegakernelSmem smem;
  Mailboxes mailboxes;
};

// Mailboxes of several rows are vectors one after the other.
Mailboxes mailboxes_of(int64_t batch, int64_t dim, int64_t heads, int64_t dqk, int64_t dhv, int64_t ffn);
// The linears of a phase, in their order.
ClusterItems phase_items(const GemmParams&, Phase);
MegakernelPlan plan_megakernel(const MegakernelShape&, const Chip&);

}  // namespace xlstm::gpu::engine
