// SPDX-License-Identifier: Apache-2.0
// The plan of the mLSTM on a GPU: chunk length, kernel, tiles and segments. It is a pure function of shape and chip, so
// that tests run it anywhere.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "mlstm/chunkwise/chunk_walk_hopper_shape.h"
#include "mlstm/chunkwise/chunk_walk_shape.h"

namespace xlstm::gpu::mlstm {

// The inputs of a plan.
struct MlstmShape {
  int64_t sequences, heads, length, dqk,
      dhv;                 // length: of a row; the sequences of a packed row have this length together
  int element_bytes;       // of q
  bool panels;             // everything is bfloat16 and TMA can load all tensors (Schedule::hopper, parallel)
  int64_t chunk = 0;       // of the schedule for all chips; 0 leaves the chunk, and the schedule, to the plan
  int64_t segments = 0;    // 0 leaves it to the plan; at most one segment a chunk
  bool stateless = false;  // there are no initial or last states (Schedule::parallel, joined rows)
  bool packed = false;     // the sequences are those of one row
};

// common: chunk_walk.h, on every chip. hopper: chunk_walk_hopper.h. parallel: parallel_scores.h, of CDNA, without
// walks.
enum class Schedule { common, hopper, parallel };

// One walk: which kernel, and the number of segments of a sequence.
struct WalkPlan {
  Schedule schedule;
  int rows, chunk;    // of the kernel
  bool narrow;        // kNarrowClass
  int slices;         // slices of the rows, for a state that exceeds registers; else 1
  int y_tile, tiles;  // columns of y in a block; blocks along y
  bool makes_scores;  // a forward walk that makes its scores, n and normalisers itself
  int segments, segment_chunks;
  bool reads_transposed;  // dv's walk: its segments begin with the states of the walk for dk
  int blocks;             // of the walk itself, without the launch for the states between segments
};

// Of walk_shape().
inline int walk_class(const WalkPlan& p) { return p.narrow ? kNarrowClass : p.rows; }
// A parallel "walk" is a product of kProductColumns columns a block.
inline bool is_parallel(const WalkPlan& p) { return p.schedule == Schedule::parallel; }

// Floats for the states between segments, or for the states of a walk in slices.
int64_t segment_state_floats(const WalkPlan&, int64_t states);

struct ForwardPlan {
  Chip chip;
  WalkPlan walk;
  bool joined = false;  // a packed row is walked as one sequence, whose states are cut (gpu/params.h)
};
struct BackwardPlan {
  Chip chip;
  WalkPlan dq, dk, dv;          // all three have one chunk length
  bool walks_together = false;  // one launch of CDNA, where all rows are vectors of 16 bytes
  bool joined = false;          // as in forward
};

// Both throw std::invalid_argument where no kernel fits the chip's LDS, or where no kernel exists for a requested chunk
// or segment count.
ForwardPlan plan_forward(const MlstmShape&, const Chip&);
BackwardPlan plan_backward(const MlstmShape&, const Chip&);

}  // namespace xlstm::gpu::mlstm
