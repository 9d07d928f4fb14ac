// SPDX-License-Identifier: Apache-2.0
// From plans to launches: the walks, compiled once per dtype (chunk_walk.hip).
#pragma once

#include "arch/launch.h"
#include "mlstm/chunkwise/chunkwise_plan.h"
#include "mlstm/gpu/params.h"
#include "tile/lds_tile.h"

namespace xlstm::gpu::mlstm {

// A walk, with what its segments need before. With before_last also the dots of that and dc_last.
template <class E>
void launch_walk(const WalkPlan&, const Chip&, const WalkParams&, const float* dc_last, float* dots, Stream);

// The same for bfloat16 where the plan says Schedule::hopper, in a library for CUDA.
// scoring: of a walk that makes its scores, where the plan says so; else null.
void launch_walk_hopper(const WalkPlan&, const WalkParams&, const ScoringParams* scoring, const float* dc_last,
                        float* dots, Stream);
template <bool kBackward>
void launch_scores_hopper(const ScoreParams&, Stream);
// What such a walk needs of the gates: measures, factors, decays.
void launch_measures_hopper(const ScoreParams&, float* measures, Stream);

}  // namespace xlstm::gpu::mlstm
