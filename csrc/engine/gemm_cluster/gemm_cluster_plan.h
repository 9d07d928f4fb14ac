// SPDX-License-Identifier: Apache-2.0
// Plans of gemm_cluster, the matrix products of a decode step on Hopper by clusters of thread blocks: which part of a
// product a block computes, and the layout of its shared memory. Pure functions of shapes and the chip, for host,
// kernel and tests.
//
// The blocks of a cluster share items, 16 rows of weights each, and split the features (split-K): each block loads its
// part of x once, whatever the number of rows. A block's warps take the items in turn, in the same order in all blocks.
// The partial sums of an item go to one block of the cluster, the item's owner. If there are more items than shared
// memory has space for their sums, they are computed in rounds.
#pragma once

#include <cstdint>

#include "engine/gemm_mma/gemm_mma_plan.h"
#include "engine/gpu/params.h"

namespace xlstm::gpu::engine {

constexpr int kMaxPartBits = 3;  // 8 blocks to a cluster: the portable maximum of Hopper
// The number of parts, as a power of two, that so many steps of 64 features are split into.
constexpr int part_bits_of(int64_t steps) {
  int bits = kMaxPartBits;
  while (bits > 1 && steps < 4 << bits) --bits;
  return bits;
}
constexpr int kItemRows = 16;                // rows of weights in an item; for SwiGLU 8 of either linear
constexpr int kSlots = 2;                    // of a warp's ring
constexpr int kSegmentBytes = 256;           // of a row in a slot
constexpr int kGroupBytes = 32;              // of a row's scales in a slot
constexpr int kGroupRowBytes = 48;           // from one row's scales to the next row's, which are in other banks
constexpr int kClusterBatch[] = {1, 8, 16};  // the rows of the batch that kernels are made for

// Warps of a block: as many as shared memory has rings for.
constexpr int cluster_warps(int batch) { return batch == 16 ? 8 : 12; }

// Strides that keep lanes that read together, 16 or 8 bytes (nibbles) each, free of bank conflicts.
constexpr int segment_stride(int bits) { return kSegmentBytes + (bits == 4 ? 32 : 64); }
constexpr int slot_bytes(int bits) { return kItemRows * (segment_stride(bits) + (bits < 16 ? 2 * kGroupRowBytes : 0)); }

// Byte offsets in a block's shared memory.
struct ClusterSmem {
  int ring, x, x_scales, squares, all_squares, received, bytes;
};
// batch: the kernel's; owned: the items whose sums a block owns.
constexpr ClusterSmem cluster_smem(int bits, int batch, int parts, int part_steps, int owned) {
  ClusterSmem smem{};
  smem.ring = 128;  // after an mbarrier
  smem.x = smem.ring + cluster_warps(batch) * kSlots * slot_bytes(bits);
  smem.x_scales = smem.x + part_steps * kStepFeatures * 4 * batch;
  smem.squares = smem.x_scales + part_steps * (batch == 1 ? 16 : batch * 8);
  smem.all_squares = smem.squares + part_steps * batch * 4;
  smem.received = smem.all_squares + parts * batch * 4;
  smem.received += (16 - smem.received % 16) % 16;
  smem.bytes = smem.received + owned * parts * kItemRows * batch * 4;
  return smem;
}

// The linears that have rows, quantised ones before gates of 2 bytes: which they are, and where their items end.
struct ClusterItems {
  int count, gates_from;
  int linear[kMaxLinears], end[kMaxLinears];

  int total() const { return count ? end[count - 1] : 0; }
};
ClusterItems cluster_items(const GemmParams&);

struct ClusterPlan {
  int batch;       // of a pass; 0: gemm_cluster does not take this product
  int passes;      // over the batch, by different clusters
  int part_bits;   // log2 of the blocks in a cluster: 1 to 3
  int part_steps;  // steps of features in each part
  int clusters;    // of a pass
  int owned;       // items of a round that a block owns
  int lds_bytes;

  constexpr int parts() const { return 1 << part_bits; }
};

// The clusters that a chip runs at once, each block on a multiprocessor of its own. The blocks of a cluster run on one
// GPC, which has 16 or 18 multiprocessors, less one or two on some: an H200 runs 15 clusters of 8 at once on its 132; a
// 16th would run alone, after all the rest.
int clusters_at_once(const Chip&, int parts);
// Whether copies of 16 bytes can deliver any step of a row, its weights and its scales.
bool suits_clusters(const GemmParams&);
// suits: the result of suits_clusters.
ClusterPlan plan_cluster(const GemmShape&, bool suits, const Chip&);

}  // namespace xlstm::gpu::engine
