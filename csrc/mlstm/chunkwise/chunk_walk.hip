// SPDX-License-Identifier: Apache-2.0
// Launches of walks and of what is before them, from their plans: launch_forward_walk(), launch_backward_walks(),
// launch_before_walks().
// Compiled once for each XLSTM_ELEMENT of: BFloat16 Float16 float

#include <algorithm>

#include "mlstm/chunkwise/backward_walks_cdna.h"
#include "mlstm/chunkwise/chunk_walk_wide.h"
#include "mlstm/chunkwise/launch.h"
#include "mlstm/chunkwise/segment_states.h"

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

// CDNA's schedule, where every token of every tensor is a row of vectors of 16 bytes; else the common one. Backward's
// walks of the narrow class have one launch there (launch_together).
template <class E, int kRows, int kChunk, class Output>
auto walk_kernel([[maybe_unused]] const Chip& chip, [[maybe_unused]] const WalkParams& p) {
  if constexpr (!kAsyncCopies && (kRows != kNarrowClass || std::is_same_v<Output, output::h>))
    if (chip.family == Family::cdna && rows_are_vectors(p, Output::kTerms))
      return chunk_walk_cdna<E, kRows, kChunk, Output>;
  return chunk_walk<E, kRows, kChunk, Output>;
}

// The same choice of the kernel for the states between segments.
template <class E, int kRows, int kChunk>
auto states_kernel([[maybe_unused]] const Chip& chip, [[maybe_unused]] const BeforeWalks& before) {
  if constexpr (!kAsyncCopies) {
    const auto fits = [&](const WalkParams* p) { return !p || rows_are_vectors(*p, output::c::kTerms); };
    if (chip.family == Family::cdna && fits(before.forward) && fits(before.reverse))
      return segment_states_cdna<E, kRows, kChunk>;
  }
  return segment_states<E, kRows, kChunk>;
}

template <class E, int kRows, int kChunk>
void launch_before_shape(const WalkPlan& plan, const Chip& chip, const BeforeWalks& before, Stream stream) {
  const WalkShape shape = walk_shape(chip.family, sizeof(E), kRows, kChunk);
  const int64_t parts_of_tile = int64_t(class_rows(kRows)) * shape.y_tile / shape.threads / kScannedEach;
  SegmentStatesParams states{};
  SegmentScanParams scans{};
  int64_t state_blocks = 0, scan_blocks = 0;
  const WalkParams* const walks[] = {before.forward, before.reverse};
  const VectorParams* const vectors[] = {before.n, before.dn};
  for (int i = 0; i < 2; ++i) {
    if (const WalkParams* p = walks[i]) {
      const int64_t tiles = p->where.sequences * p->where.heads * plan.tiles;
      states.walks[i] = *p;
      scans.scans[i] = {p->where,    p->segment_states, p->decay, p->state_in,  p->state_x,   p->state_y,
                        p->segments, p->segment_chunks, p->tiles, p->x.columns, p->y.columns, i == 1};
      state_blocks += states.walk_blocks[i] = uint32_t(tiles * plan.segments);
      scan_blocks += scans.scan_blocks[i] = uint32_t(tiles * parts_of_tile);
    }
    if (const VectorParams* p = vectors[i]) {
      states.vectors[i] = *p;
      state_blocks += states.vector_blocks[i] = uint32_t(vector_blocks(*p));
    }
  }
  if (const NormaliserParams* p = before.normaliser) {
    scans.normaliser = *p;
    scan_blocks += p->where.rows * p->where.slots;
  }
  launch("states of segments", states_kernel<E, kRows, kChunk>(chip, before),
         {state_blocks, shape.threads, shape.lds_bytes}, stream, states);
  launch("scan of segments", scan_segment_states<E, kRows, kChunk>, {scan_blocks, shape.threads, 0}, stream, scans);
}

template <class E, int kRows, int kChunk, class Output>
void launch_shape(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                  Stream stream) {
  const WalkShape shape = walk_shape(chip.family, sizeof(E), kRows, kChunk);
  const int64_t states = p.where.sequences * p.where.heads;
  const Grid grid{states * plan.segments * plan.tiles, shape.threads, shape.lds_bytes};
  launch(Output::kTerms.name, walk_kernel<E, kRows, kChunk, Output>(chip, p), grid, stream, p);
  launch_dots<E, kRows, kChunk>(plan, chip, p, dc_last, dots, stream);
}

// Calls f(class of rows, chunk) with the plan's, as constants.
template <class E, class F>
void with_shape(const WalkPlan& plan, F&& f) {
  const auto with_rows = [&](auto chunk) {
    switch (walk_class(plan)) {
      case 64:
        return f(std::integral_constant<int, 64>{}, chunk);
      case 128:
        return f(std::integral_constant<int, 128>{}, chunk);
      case kNarrowClass:
        return f(std::integral_constant<int, kNarrowClass>{}, chunk);
      case 256:
        return f(std::integral_constant<int, 256>{}, chunk);
      default:
        return f(std::integral_constant<int, 512>{}, chunk);
    }
  };
  if constexpr (sizeof(E) == 2)
    if (plan.chunk == 32) return with_rows(std::integral_constant<int, 32>{});
  with_rows(std::integral_constant<int, 16>{});
}

template <class E, class Output>
void launch_walk(const WalkPlan& plan, const Chip& chip, const WalkParams& p, const float* dc_last, float* dots,
                 Stream stream) {
  with_shape<E>(plan, [&](auto rows, auto chunk) {
    if (plan.slices > 1) return launch_wide<E, chunk.value, Output>(plan, chip, p, dc_last, dots, stream);
    launch_shape<E, rows.value, chunk.value, Output>(plan, chip, p, dc_last, dots, stream);
  });
}
template <class E>
void launch_forward_walk(const WalkPlan& plan, const Chip& chip, const WalkParams& p, Stream stream) {
  launch_walk<E, output::h>(plan, chip, p, nullptr, nullptr, stream);
}
template void launch_forward_walk<XLSTM_ELEMENT>(const WalkPlan&, const Chip&, const WalkParams&, Stream);

// The three walks of backward as one launch of CDNA, for states of these classes: dq's and dk's, and dv's.
template <class E, int kValueRows, int kKeyRows>
void launch_together([[maybe_unused]] const BackwardPlan& plan, [[maybe_unused]] const BackwardWalks& walks,
                     [[maybe_unused]] Stream stream) {
  if constexpr (!kAsyncCopies && sizeof(E) == 2) {
    constexpr int kChunk = strip_step(Family::cdna, sizeof(E));
    const auto shape_of = [&](int rows) { return walk_shape(plan.chip.family, sizeof(E), rows, kChunk); };
    const auto blocks_of = [](const WalkPlan& p) { return uint32_t(p.blocks); };
    const WalkShape of_values = shape_of(kValueRows), of_keys = shape_of(kKeyRows);
    launch("walks of backward", backward_walks_cdna<E, kValueRows, kKeyRows, kChunk>,
           {blocks_of(plan.dq) + blocks_of(plan.dk) + blocks_of(plan.dv), of_keys.threads,
            std::max(of_values.lds_bytes, of_keys.lds_bytes)},
           stream, BackwardWalkParams{{walks.dq, walks.dk, walks.dv}, {blocks_of(plan.dq), blocks_of(plan.dk)}});
    launch_dots<E, kValueRows, kChunk>(plan.dq, plan.chip, walks.dq, walks.dc_last, walks.dots, stream);
  }
}
// Whether the walks have been launched together.
template <class E>
bool launch_together(const BackwardPlan& plan, const BackwardWalks& walks, Stream stream) {
  if (kAsyncCopies || !plan.walks_together || !rows_are_vectors(walks.dq, output::dq::kTerms) ||
      !rows_are_vectors(walks.dk, output::dk::kTerms) || !rows_are_vectors(walks.dv, output::dv::kTerms))
    return false;
  if (plan.dk.narrow)
    launch_together<E, kNarrowClass, 64>(plan, walks, stream);
  else if (plan.dv.narrow)
    launch_together<E, 64, kNarrowClass>(plan, walks, stream);
  else if (plan.dk.rows == 64)
    launch_together<E, 64, 64>(plan, walks, stream);
  else
    launch_together<E, 128, 128>(plan, walks, stream);
  return true;
}

template <class E>
void launch_backward_walks(const BackwardPlan& plan, const BackwardWalks& walks, Stream stream) {
  if (launch_together<E>(plan, walks, stream)) return;
  launch_walk<E, output::dq>(plan.dq, plan.chip, walks.dq, walks.dc_last, walks.dots, stream);
  launch_walk<E, output::dk>(plan.dk, plan.chip, walks.dk, nullptr, nullptr, stream);
  launch_walk<E, output::dv>(plan.dv, plan.chip, walks.dv, nullptr, nullptr, stream);
}
template void launch_backward_walks<XLSTM_ELEMENT>(const BackwardPlan&, const BackwardWalks&, Stream);

template <class E>
void launch_before_walks(const WalkPlan& plan, const Chip& chip, const BeforeWalks& before, Stream stream) {
  with_shape<E>(plan, [&](auto rows, auto chunk) {
    launch_before_shape<E, rows.value, chunk.value>(plan, chip, before, stream);
  });
}
template void launch_before_walks<XLSTM_ELEMENT>(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);

}  // namespace xlstm::gpu::mlstm
