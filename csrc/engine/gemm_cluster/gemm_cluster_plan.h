// SPDX-License-Identifier: Apache-2.0
// Products of a step on Hopper by clusters of blocks: which part of them a block makes, and what lies where in its
// shared memory. Pure functions of shapes and the chip, for host, kernel and tests.
//
// The blocks of a cluster share items, 16 rows of weights each, and have a part of the features each: so x's come to an
// SM once, a part of them, whatever the rows are. A block's warps take the items in turn, the same in all of them; what
// they sum up goes to one block of the cluster, the item's owner. Where there are more items than have room there, they
// come in rounds.
#pragma once

#include <cstdint>

#include "engine/gemm_mma/gemm_mma_plan.h"
#include "engine/params.h"

namespace xlstm::gpu::engine {

constexpr int kMostPartBits = 3;  // 8 blocks of a cluster, as every Hopper has them
// Of the number of parts that so many steps of 64 features are cut into.
constexpr int part_bits_of(int64_t steps) {
  int bits = kMostPartBits;
  while (bits > 1 && steps < 4 << bits) --bits;
  return bits;
}
constexpr int kItemRows = 16;                // of weights; of SwiGLU 8 of either side
constexpr int kSlots = 2;                    // of a warp's ring
constexpr int kSegmentBytes = 256;           // of a row in a slot
constexpr int kGroupBytes = 32;              // of a row's scales in a slot
constexpr int kGroupRowBytes = 48;           // from one row's to the next one's, in other banks
constexpr int kClusterBatch[] = {1, 8, 16};  // rows of the batch that a kernel is made for

// Of a block: as many as shared memory has rings for.
constexpr int cluster_warps(int batch) { return batch == 16 ? 8 : 12; }

// Rows lie so that lanes that read together, 16 or 8 bytes (nibbles) each, do so from all banks.
constexpr int segment_stride(int bits) { return kSegmentBytes + (bits == 4 ? 32 : 64); }
constexpr int slot_bytes(int bits) { return kItemRows * (segment_stride(bits) + (bits < 16 ? 2 * kGroupRowBytes : 0)); }

// Bytes from the beginning of a block's shared memory.
struct ClusterRoom {
  int ring, x, sums, squares, all_squares, received, bytes;
};
// batch: a kernel's; owned: items whose sums come to a block.
constexpr ClusterRoom cluster_room(int bits, int batch, int parts, int part_steps, int owned) {
  ClusterRoom room{};
  room.ring = 128;  // behind a barrier
  room.x = room.ring + cluster_warps(batch) * kSlots * slot_bytes(bits);
  room.sums = room.x + part_steps * kStepFeatures * 4 * batch;
  room.squares = room.sums + part_steps * (batch == 1 ? 16 : batch * 8);
  room.all_squares = room.squares + part_steps * batch * 4;
  room.received = room.all_squares + parts * batch * 4;
  room.received += (16 - room.received % 16) % 16;
  room.bytes = room.received + owned * parts * kItemRows * batch * 4;
  return room;
}

// Pieces of weights that have rows, quantised ones before gates of 2 bytes: which, and where their items end.
struct ClusterItems {
  int count, gates_from;
  int piece[kMostPieces], end[kMostPieces];

  int all() const { return count ? end[count - 1] : 0; }
};
ClusterItems cluster_items(const ProductParams&);

struct ClusterPlan {
  int batch;       // of a pass; 0: these products are not for clusters
  int passes;      // over the batch: clusters of their own
  int part_bits;   // of the number of blocks in a cluster: 1 to 3
  int part_steps;  // of features that each has
  int clusters;    // of a pass
  int owned;       // items of a round whose sums come to a block
  int lds_bytes;

  constexpr int parts() const { return 1 << part_bits; }
};

// Whether copies of 16 bytes can take any steps of a row, whose weights are whole pieces, and their scales.
bool suits_clusters(const ProductParams&);
// suits: what that says.
ClusterPlan plan_cluster(const ProductShape&, bool suits, const Chip&);

}  // namespace xlstm::gpu::engine
