// SPDX-License-Identifier: Apache-2.0
// A whole step of one row in one launch on Hopper (engine/megakernel/megakernel.h): which multiprocessor makes what of
// each product, and what lies where in its shared memory. Pure functions of shapes and the chip, for host, kernel and
// tests.
//
// Each multiprocessor has one block and takes items, 16 rows of weights (of SwiGLU 8 of either side), in turn. Its
// warps have a part of the features each, as the blocks of a cluster have in engine/gemm_cluster/gemm_cluster_plan.h,
// so that sums are made in the same order; where parts are fewer than warps, the warps of a part take the block's items
// in turn.
#pragma once

#include <cstdint>

#include "engine/gemm_cluster/gemm_cluster_plan.h"

namespace xlstm::gpu::engine {

// Products of a model's block, then what stands behind the last block. gate: of h, which nobody waits for before the
// norm of heads.
enum class Phase { projections, gate, output, up, down, head };
constexpr int kPhases = 6;

constexpr int kMostWholeBlocks = 48;  // of a model: their weights' addresses are params
constexpr int kWholeWarps = 16, kWholeThreads = 32 * kWholeWarps;
constexpr int kStepColumns = 32;    // of C, of a tile of the mLSTM's step
constexpr int kMostHeadEights = 2;  // eights of a head's values that a lane has

// In shared memory: of 64 features of x; of an item; of what a warp has of a product; of a step's gates, and its sums.
constexpr int kFactBytes = 16, kItemBytes = 16, kPartBytes = 32, kStepBytes = 64;
constexpr int kStepSumBytes = 2 * kWholeWarps * (kStepColumns + 1) * 4;

// Rows in the ring are not padded: pieces of 16 bytes are permuted, so that lanes that read together do so from all
// banks. Bytes that a row's places are turned by.
constexpr int segment_turn(int bits, int row) { return bits == 4 ? row % 4 * 32 : row % 2 * 64; }
// Slots of a warp's ring; where they are small, more of them are on their way. Of a slot: rows' segments, then, of
// quantised weights, scales and offsets.
constexpr int whole_slots(int bits) { return bits == 16 ? 5 : 2; }
constexpr int whole_segment_bytes(int bits) { return bits == 16 ? 128 : kSegmentBytes; }
constexpr int whole_groups_at(int bits) { return kItemRows * whole_segment_bytes(bits); }
constexpr int kGroupsBytes = kItemRows * kGroupBytes;
constexpr int whole_slot_bytes(int bits) { return whole_groups_at(bits) + (bits < 16 ? 2 * kGroupsBytes : 0); }
constexpr int group_turn(int row) { return row / 4 % 2 * 16; }

struct PhaseShape {
  int64_t columns;
  int64_t items;
};
struct WholeShape {
  int64_t batch, blocks, heads, dqk, dhv;
  int bits;    // of a weight
  bool suits;  // whether its tensors do: step.hip
  PhaseShape phase[kPhases];
};

struct PhasePlan {
  int steps;       // of 64 features
  int part_bits;   // of the number of parts
  int part_steps;  // that each part has
  int items;       // of all blocks
  int table;       // where those of a block begin among its items of all phases
  int transposed;  // the first that is taken; behind the last comes the first

  constexpr int parts() const { return 1 << part_bits; }
};

// Bytes from the beginning of a block's shared memory. token: q, k and a tile's v.
struct WholeRoom {
  int ring, x, facts, squares, factor, received, residual, items, parts, step, token, bytes;
};

// What multiprocessors hand to each other, in memory, as floats from where those of a block of the model begin. Nothing
// there is written twice (engine/megakernel/mailbox.h).
struct WholePassed {
  int from[kPhases];             // what a product multiplies
  int to[kPhases][kMostPieces];  // what becomes of its pieces; not of the head
  int x;                         // of what each begins with, and what stands behind the last
  int block;                     // of each

  constexpr int64_t floats(int64_t blocks) const { return blocks * block + x; }
};

struct WholePlan {
  int blocks;  // of the grid; 0: this is not for one launch
  PhasePlan phase[kPhases];
  WholeRoom room;
  WholePassed passed;
};

WholePassed passed_of(int64_t dim, int64_t heads, int64_t dqk, int64_t dhv, int64_t ffn);
// Of a product's pieces, in their order; of the projections those that the phase has.
ClusterItems whole_items(const ProductParams&, Phase);
WholePlan plan_whole(const WholeShape&, const Chip&);

}  // namespace xlstm::gpu::engine
