// SPDX-License-Identifier: Apache-2.0
// launch_walks() for one dtype: included by one file per dtype.
#pragma once

#include "mlstm/launch_gpu.h"
#include "mlstm/vectors_gpu.h"
#include "mlstm/walk_gpu.h"

namespace xlstm::gpu {

template <class E, int kRows, int kChunk>
void launch_shape(const WalkPlan& plan, const Chip& chip, const WalkParams* walks, int count, Stream stream) {
  const WalkShape shape = walk_shape(chip.family, sizeof(E), kRows, kChunk);
  const int64_t states = walks[0].where.sequences * walks[0].where.heads;
  const Grid grid{states * plan.segments * plan.tiles, shape.threads, shape.lds_bytes, count};
  WalkPair pair{{walks[0], walks[count - 1]}};
  if (plan.segments > 1) {
    WalkPair alone = pair;
    for (WalkParams& w : alone.walk) {
      w.alone = true;
      w.out.data = nullptr;
    }
    launch("states of segments", walk<E, kRows, kChunk>, grid, stream, alone);
    for (int n = 0; n < count; ++n) {
      const WalkParams& w = walks[n];
      const ScanParams scan{w.where,       w.between,          w.decay,     w.state_in, w.state_x,   w.state_y,
                            w.segments,    w.segment_chunks,   w.tiles,     w.x.columns, w.y.columns, w.reverse};
      const int64_t registers = int64_t(kRows) * shape.y_tile / shape.threads;
      launch("scan of segments", scan_segments<E, kRows, kChunk>, {states * plan.tiles * registers, shape.threads, 0},
             stream, scan);
    }
  }
  launch("walk", walk<E, kRows, kChunk>, grid, stream, pair);
}

template <class E, int kChunk>
void launch_rows(const WalkPlan& plan, const Chip& chip, const WalkParams* walks, int count, Stream stream) {
  switch (plan.rows) {
    case 64:
      return launch_shape<E, 64, kChunk>(plan, chip, walks, count, stream);
    case 128:
      return launch_shape<E, 128, kChunk>(plan, chip, walks, count, stream);
    case 256:
      return launch_shape<E, 256, kChunk>(plan, chip, walks, count, stream);
    default:
      return launch_shape<E, 512, kChunk>(plan, chip, walks, count, stream);
  }
}

template <class E>
void launch_walks(const WalkPlan& plan, const Chip& chip, const WalkParams* walks, int count, Stream stream) {
  if constexpr (sizeof(E) == 2)
    if (plan.chunk == 32) return launch_rows<E, 32>(plan, chip, walks, count, stream);
  launch_rows<E, 16>(plan, chip, walks, count, stream);
}

}  // namespace xlstm::gpu
