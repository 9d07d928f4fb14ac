// SPDX-License-Identifier: Apache-2.0
// launch_walk() of the Hopper schedule.
#include <type_traits>

#include "mlstm/chunkwise/hopper/chunk_walk_hopper.h"
#include "mlstm/chunkwise/hopper/launch_hopper.h"
#include "mlstm/chunkwise/normalisers.h"

namespace xlstm::gpu::mlstm {
namespace {

// n_between: where n is kept beside the state; blocks after the state's, one for each.
template <int kRows, int kHalves, bool kPair>
__global__ __launch_bounds__(kHopperStateThreads) void scan_segments_hopper(const ScanParams p, const ScoringParams n,
                                                                            int state_blocks) {
  if (int(blockIdx.x) < state_blocks)
    scan_between<HopperState<kRows, kHalves, kPair>>(p);
  else
    scan_vector_between<kHopperStateThreads>(p, blockIdx.x - state_blocks, n.n_between, n.n_initial, kRows);
}
template <int kRows, int kHalves, bool kPair>
__global__ __launch_bounds__(kHopperStateThreads) void dot_states_hopper(const StateDotParams p) {
  dot_tile<HopperState<kRows, kHalves, kPair>>(p);
}

template <HopperOutput kOutput>
using Is = std::integral_constant<HopperOutput, kOutput>;

template <int kRows, int kHalves, bool kPair, HopperOutput kOutput>
void launch_kernel(const char* name, const HopperWalkParams& p, int64_t blocks, Stream stream) {
  const auto kernel = walk_hopper<kRows, kHalves, kPair, kOutput>;
  constexpr int kBytes = HopperRoom<kRows, kHalves, kPair, kOutput>::kBytes;
  launch(name, kernel, {blocks, kHopperBlockThreads, kBytes, false, kPair ? 2 : 0}, stream, p);
}

template <int kRows, int kHalves, bool kPair>
void launch_shape(const WalkPlan& plan, const WalkParams& p, const ScoringParams* scoring, const float* dc_last,
                  float* dots, Stream stream) {
  using State = HopperState<kRows, kHalves, kPair>;
  const int64_t states = p.where.sequences * p.where.heads, blocks = states * plan.segments * plan.tiles;
  if (blocks == 0) return;
  HopperWalkParams all{p, {}, token_map(p.x, p.where), token_map(p.y, p.where), {}, {}, {}};
  if (scoring) all.scoring = *scoring;
  const auto run = [&](const char* name, auto output) {
    constexpr HopperOutput kOutput = decltype(output)::value;
    if constexpr (kPair ? kOutput == HopperOutput::none || kOutput >= HopperOutput::summed
                        : kOutput != HopperOutput::summed)
      launch_kernel<kRows, kHalves, kPair, kOutput>(name, all, blocks, stream);
  };
  if (plan.segments > 1) {
    all.walk.alone = true;
    all.walk.out.data = nullptr;
    if (scoring)
      run("states of segments", Is<HopperOutput::none_with_n>{});
    else
      run("states of segments", Is<HopperOutput::none>{});
    const ScanParams scan{p.where,    p.between,        p.decay, p.state_in,  p.state_x,   p.state_y,
                          p.segments, p.segment_chunks, p.tiles, p.x.columns, p.y.columns, p.reverse};
    const int64_t scans = states * plan.tiles * (State::kRegisters / kScannedEach);
    launch("scan of segments", scan_segments_hopper<kRows, kHalves, kPair>,
           {scans + (scoring ? states : 0), State::kThreads, 0}, stream, scan, all.scoring, int(scans));
    all.walk = p;
  }
  all.a = token_map(p.a, p.where);
  if (!scoring)
    all.scores = tensor_map(p.scores, kHopperChunk, p.where.rows * p.where.slots * kHopperChunk, 1, 1,
                            {0, 0, kHopperChunk}, kHopperChunk);
  all.out = token_map(p.out, p.where);
  if (p.with_self)  // and with them a vector and dots
    run("walk", Is<HopperOutput::flowing>{});
  else if (kPair)
    run("walk", Is<HopperOutput::summed>{});
  else if (scoring)
    run("walk", Is<HopperOutput::scored>{});
  else
    run("walk", Is<HopperOutput::plain>{});
  if (!p.before_last) return;
  const StateDotParams dot{p.before_last, dc_last, dots,     states,      p.state_x,
                           p.state_y,     p.tiles, p.slices, p.x.columns, p.y.columns};
  launch("dots of states", dot_states_hopper<kRows, kHalves, kPair>, {states * plan.tiles, State::kThreads, 0}, stream,
         dot);
}

}  // namespace

void launch_walk_hopper(const WalkPlan& plan, const WalkParams& p, const ScoringParams* scoring, const float* dc_last,
                        float* dots, Stream stream) {
  if (plan.rows == 512) return launch_shape<256, 2, true>(plan, p, scoring, dc_last, dots, stream);
  if (plan.rows == 256) return launch_shape<256, 2, false>(plan, p, scoring, dc_last, dots, stream);
  if (plan.y_tile == 256) return launch_shape<128, 4, false>(plan, p, scoring, dc_last, dots, stream);
  launch_shape<128, 2, false>(plan, p, scoring, dc_last, dots, stream);
}

}  // namespace xlstm::gpu::mlstm
