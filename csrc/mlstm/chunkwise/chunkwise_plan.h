// SPDX-License-Identifier: Apache-2.0
// How the mLSTM is cut up on a GPU: a pure function of shape and chip, so that it is tested anywhere.
#pragma once

#include <cstdint>

#include "arch/chip.h"
#include "mlstm/chunkwise/chunk_walk_shape.h"
#include "mlstm/chunkwise/hopper/chunk_walk_hopper_shape.h"

namespace xlstm::gpu::mlstm {

// What a plan depends on.
struct MlstmShape {
  int64_t sequences, heads, length, dqk, dhv;  // length: of a row; the sequences of a packed row are together that long
  bool packed;
  int element_bytes;  // of q
  bool panels;        // bfloat16 throughout, and all tensors lie so that bulk copies can take them (Schedule::hopper)
  int64_t chunk = 0;  // of the common schedule; 0 leaves it, and the schedule, to the plan
  int64_t segments = 0;  // likewise; of fewer chunks there are fewer
};

// common: chunk_walk.h, on every chip. hopper: chunk_walk_hopper.h.
enum class Schedule { common, hopper };

// One walk: which kernel, and into how many segments a sequence is cut.
struct WalkPlan {
  Schedule schedule;
  int rows, chunk;    // the kernel's
  int slices;         // of rows, where a state has more than any kernel keeps; else 1
  int y_tile, tiles;  // columns of y in a block; blocks along y
  bool scores;        // a forward walk makes its scores, n and normalisers itself
  int segments, segment_chunks;
  int blocks;  // of the walk itself; states only between segments come before
};

// Floats of the states between its segments, or of those that are walked in slices.
int64_t between_floats(const WalkPlan&, int64_t states);

struct ForwardPlan {
  Chip chip;
  WalkPlan walk;
};
struct BackwardPlan {
  Chip chip;
  WalkPlan dq, dk, dv;  // one chunk length for all
};

// Throw std::invalid_argument where the chip's LDS has no room for any kernel, or there is none for what was asked.
ForwardPlan plan_forward(const MlstmShape&, const Chip&);
BackwardPlan plan_backward(const MlstmShape&, const Chip&);

}  // namespace xlstm::gpu::mlstm
