// SPDX-License-Identifier: Apache-2.0
// launch_walk_hopper().
#include <type_traits>

#include "mlstm/chunkwise/hopper/chunk_walk_hopper.h"
#include "mlstm/chunkwise/hopper/launch_hopper.h"
#include "mlstm/chunkwise/normalisers.h"

namespace xlstm::gpu::mlstm {
namespace {

// segment_n: n at the borders between segments, for walks that keep n with the state. The blocks after the state's
// blocks scan it, one block for each head of each sequence.
template <int kRows, int kYPanels, bool kPair>
__global__ __launch_bounds__(kHopperStateThreads) void scan_segment_states_hopper(const ScanParams p,
                                                                                  const ScoringParams n,
                                                                                  int state_blocks) {
  if (int(blockIdx.x) < state_blocks)
    scan_tile_over_segments<HopperStateLayout<kRows, kYPanels, kPair>>(p, blockIdx.x);
  else
    scan_vector_over_segments<kHopperStateThreads>(p, blockIdx.x - state_blocks, n.segment_n, n.n_initial, kRows);
}
template <int kRows, int kYPanels, bool kPair>
__global__ __launch_bounds__(kHopperStateThreads) void dot_last_states_hopper(const StateDotParams p) {
  dot_tile<HopperStateLayout<kRows, kYPanels, kPair>>(p);
}

TokenMaps token_maps(const Tokens& x, const Sequences& where) {
  TokenMaps maps{token_map(x, where), {}};
  for (int box = 0; where.cu_seqlens && box < 2; ++box) maps.rows[box] = token_map(x, where, rows_of_box(box));
  return maps;
}

template <int kRows, int kYPanels, bool kPair, class Output>
void launch_kernel(const HopperWalkParams& p, int64_t blocks, Stream stream) {
  const auto launch_for = [&](auto packed) {
    constexpr bool kPacked = decltype(packed)::value;
    constexpr int kBytes = HopperWalkSmem<kRows, kYPanels, kPair, Output, kPacked>::kBytes;
    launch(Output::kTerms.name, chunk_walk_hopper<kRows, kYPanels, kPair, Output, kPacked>,
           {blocks, kHopperBlockThreads, kBytes, false, kPair ? 2 : 0}, stream, p);
  };
  const Sequences& where = p.walk.where;
  where.cu_seqlens || where.sequence_begin ? launch_for(std::true_type{}) : launch_for(std::false_type{});
}

template <int kRows, int kYPanels, bool kPair, class Output>
void launch_shape(const WalkPlan& plan, const WalkParams& p, const ScoringParams* scoring, const float* dc_last,
                  float* dots, Stream stream) {
  using State = HopperStateLayout<kRows, kYPanels, kPair>;
  constexpr bool kMakesScores = HopperWalkSmem<kRows, kYPanels, kPair, Output, false>::kMakesScores;
  using States = std::conditional_t<kMakesScores, output::c_and_n, StatesOf<Output>>;
  const int64_t states = p.where.sequences * p.where.heads, blocks = states * plan.segments * plan.tiles;
  if (blocks == 0) return;
  HopperWalkParams params{p, {}, {}, {}, token_maps(p.x, p.where), token_maps(p.y, p.where), {}};
  if (kMakesScores) params.scoring = *scoring;
  if (plan.segments > 1) {
    launch_kernel<kRows, kYPanels, kPair, States>(params, blocks, stream);
    const ScanParams scan{p.where,    p.segment_states, p.decay, p.state_in,  p.state_x,   p.state_y,
                          p.segments, p.segment_chunks, p.tiles, p.x.columns, p.y.columns, Output::kTerms.reverse};
    const int64_t scans = states * plan.tiles * (State::kRegisters / kScannedEach);
    launch("scan of segments", scan_segment_states_hopper<kRows, kYPanels, kPair>,
           {scans + (kMakesScores ? states : 0), State::kThreads, 0}, stream, scan, params.scoring, int(scans));
  }
  params.a = token_map(p.a, p.where);
  if (!kMakesScores)
    params.scores = tensor_map(p.scores, kHopperChunk, p.where.rows * p.where.slots * kHopperChunk, 1, 1,
                               {0, 0, kHopperChunk}, kHopperChunk);
  params.out = token_map(p.out, p.where);
  launch_kernel<kRows, kYPanels, kPair, Output>(params, blocks, stream);
  if (!p.state_before_last) return;
  const StateDotParams dot_params{p.state_before_last, dc_last, dots,     states,      p.state_x,
                                  p.state_y,           p.tiles, p.slices, p.x.columns, p.y.columns};
  launch("dots of states", dot_last_states_hopper<kRows, kYPanels, kPair>, {states * plan.tiles, State::kThreads, 0},
         stream, dot_params);
}

}  // namespace

template <class Output>
void launch_walk_hopper(const WalkPlan& plan, const WalkParams& p, const ScoringParams* scoring, const float* dc_last,
                        float* dots, Stream stream) {
  if (plan.rows == 512) return launch_shape<256, 2, true, Output>(plan, p, scoring, dc_last, dots, stream);
  if (plan.rows == 256) return launch_shape<256, 2, false, Output>(plan, p, scoring, dc_last, dots, stream);
  if (plan.y_tile == 256) return launch_shape<128, 4, false, Output>(plan, p, scoring, dc_last, dots, stream);
  launch_shape<128, 2, false, Output>(plan, p, scoring, dc_last, dots, stream);
}

template void launch_walk_hopper<output::h>(const WalkPlan&, const WalkParams&, const ScoringParams*, const float*,
                                            float*, Stream);
template void launch_walk_hopper<output::dq>(const WalkPlan&, const WalkParams&, const ScoringParams*, const float*,
                                             float*, Stream);
template void launch_walk_hopper<output::dk>(const WalkPlan&, const WalkParams&, const ScoringParams*, const float*,
                                             float*, Stream);
template void launch_walk_hopper<output::dv>(const WalkPlan&, const WalkParams&, const ScoringParams*, const float*,
                                             float*, Stream);

}  // namespace xlstm::gpu::mlstm
