// SPDX-License-Identifier: Apache-2.0
// Launches of a walk, from its plan: launch_walk().
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

#include "mlstm/chunkwise/chunk_walk_wide.h"
#include "mlstm/chunkwise/launch.h"

namespace xlstm::gpu::mlstm {

// <dc_last, the state before the last chunk>
template <class E, int kRows, int kChunk>
void launch_dots(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                 Stream stream) {
  if (!p.state_before_last) return;
  const int64_t states = p.where.sequences * p.where.heads;
  const StateDotParams params{p.state_before_last, dc_last, dots,     states,      p.state_x,
                              p.state_y,           p.tiles, p.slices, p.x.columns, p.y.columns};
  launch("dots of states", dot_last_states<E, kRows, kChunk>,
         {states * plan.tiles * plan.slices, walk_shape(chip.family, sizeof(E), kRows, kChunk).threads, 0}, stream,
         params);
}

template <class E, int kChunk>
void launch_wide(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                 Stream stream) {
  const WalkShape shape = walk_shape(chip.family, sizeof(E), kWideRows, kChunk);
  const int64_t states = p.where.sequences * p.where.heads;
  launch(plan.name, chunk_walk_wide<E, kChunk>, {states * plan.tiles, shape.threads, shape.lds_bytes}, stream, p);
  launch_dots<E, kWideRows, kChunk>(plan, chip, p, dc_last, dots, stream);
}

template <class E, int kRows, int kChunk>
void launch_shape(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                  Stream stream) {
  const WalkShape shape = walk_shape(chip.family, sizeof(E), kRows, kChunk);
  const int64_t states = p.where.sequences * p.where.heads;
  const Grid grid{states * plan.segments * plan.tiles, shape.threads, shape.lds_bytes};
  if (plan.segments > 1) {
    WalkParams states_only = p;
    states_only.states_only = true;
    states_only.out.data = nullptr;
    launch("states of segments", chunk_walk<E, kRows, kChunk>, grid, stream, states_only);
    const ScanParams scan{p.where,    p.segment_states, p.decay, p.state_in,  p.state_x,   p.state_y,
                          p.segments, p.segment_chunks, p.tiles, p.x.columns, p.y.columns, p.reverse};
    const int64_t blocks_of_tile = int64_t(kRows) * shape.y_tile / shape.threads / kScannedEach;
    launch("scan of segments", scan_segment_states<E, kRows, kChunk>,
           {states * plan.tiles * blocks_of_tile, shape.threads, 0}, stream, scan);
  }
  launch(plan.name, chunk_walk<E, kRows, kChunk>, grid, stream, p);
  launch_dots<E, kRows, kChunk>(plan, chip, p, dc_last, dots, stream);
}

template <class E, int kChunk, class... Arguments>
void launch_rows(const WalkPlan& plan, const Arguments&... arguments) {
  if (plan.slices > 1) return launch_wide<E, kChunk>(plan, arguments...);
  switch (plan.rows) {
    case 64:
      return launch_shape<E, 64, kChunk>(plan, arguments...);
    case 128:
      return launch_shape<E, 128, kChunk>(plan, arguments...);
    case 256:
      return launch_shape<E, 256, kChunk>(plan, arguments...);
    default:
      return launch_shape<E, 512, kChunk>(plan, arguments...);
  }
}

template <class E>
void launch_walk(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                 Stream stream) {
  if constexpr (sizeof(E) == 2)
    if (plan.chunk == 32) return launch_rows<E, 32>(plan, chip, p, dc_last, dots, stream);
  launch_rows<E, 16>(plan, chip, p, dc_last, dots, stream);
}

template void launch_walk<XLSTM_ELEMENT>(const WalkPlan&, const Chip&, const WalkParams&, const float* dc_last,
                                         float* dots, Stream);

}  // namespace xlstm::gpu::mlstm
