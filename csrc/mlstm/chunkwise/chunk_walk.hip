// SPDX-License-Identifier: Apache-2.0
// Launches of a walk, from its plan: launch_walk().
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

#include "mlstm/chunkwise/chunk_walk_cdna.h"
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

template <class E, int kChunk, class Output>
void launch_wide(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                 Stream stream) {
  const WalkShape shape = walk_shape(chip.family, sizeof(E), kWideRows, kChunk);
  const int64_t states = p.where.sequences * p.where.heads;
  launch(Output::kTerms.name, chunk_walk_wide<E, kChunk, Output>, {states * plan.tiles, shape.threads, shape.lds_bytes},
         stream, p);
  launch_dots<E, kWideRows, kChunk>(plan, chip, p, dc_last, dots, stream);
}

// CDNA's schedule, where every token of every tensor is a row of vectors of 16 bytes; else the common one.
template <class E, int kRows, int kChunk, class Output>
auto walk_kernel([[maybe_unused]] const Chip& chip, [[maybe_unused]] const WalkParams& p) {
  if constexpr (!kAsyncCopies)
    if (chip.family == Family::cdna && rows_are_vectors(p, Output::kTerms))
      return chunk_walk_cdna<E, kRows, kChunk, Output>;
  return chunk_walk<E, kRows, kChunk, Output>;
}

template <class E, int kRows, int kChunk, class Output>
void launch_shape(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                  Stream stream) {
  const WalkShape shape = walk_shape(chip.family, sizeof(E), kRows, kChunk);
  const int64_t states = p.where.sequences * p.where.heads;
  const Grid grid{states * plan.segments * plan.tiles, shape.threads, shape.lds_bytes};
  if (plan.segments > 1) {
    using States = StatesOf<Output>;
    launch(States::kTerms.name, walk_kernel<E, kRows, kChunk, States>(chip, p), grid, stream, p);
    const ScanParams scan{p.where,    p.segment_states, p.decay, p.state_in,  p.state_x,   p.state_y,
                          p.segments, p.segment_chunks, p.tiles, p.x.columns, p.y.columns, Output::kTerms.reverse};
    const int64_t blocks_of_tile = int64_t(kRows) * shape.y_tile / shape.threads / kScannedEach;
    launch("scan of segments", scan_segment_states<E, kRows, kChunk>,
           {states * plan.tiles * blocks_of_tile, shape.threads, 0}, stream, scan);
  }
  launch(Output::kTerms.name, walk_kernel<E, kRows, kChunk, Output>(chip, p), grid, stream, p);
  launch_dots<E, kRows, kChunk>(plan, chip, p, dc_last, dots, stream);
}

template <class E, int kChunk, class Output, class... Arguments>
void launch_rows(const WalkPlan& plan, const Arguments&... arguments) {
  if (plan.slices > 1) return launch_wide<E, kChunk, Output>(plan, arguments...);
  switch (plan.rows) {
    case 64:
      return launch_shape<E, 64, kChunk, Output>(plan, arguments...);
    case 128:
      return launch_shape<E, 128, kChunk, Output>(plan, arguments...);
    case 256:
      return launch_shape<E, 256, kChunk, Output>(plan, arguments...);
    default:
      return launch_shape<E, 512, kChunk, Output>(plan, arguments...);
  }
}

template <class E, class Output>
void launch_walk(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                 Stream stream) {
  if constexpr (sizeof(E) == 2)
    if (plan.chunk == 32) return launch_rows<E, 32, Output>(plan, chip, p, dc_last, dots, stream);
  launch_rows<E, 16, Output>(plan, chip, p, dc_last, dots, stream);
}

#define XLSTM_WALK(Output)                                                                                  \
  template void launch_walk<XLSTM_ELEMENT, output::Output>(const WalkPlan&, const Chip&, const WalkParams&, \
                                                           const float*, float*, Stream);
XLSTM_WALK(h)
XLSTM_WALK(dq)
XLSTM_WALK(dk)
XLSTM_WALK(dv)
#undef XLSTM_WALK

}  // namespace xlstm::gpu::mlstm
