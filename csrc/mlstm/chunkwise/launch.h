// SPDX-License-Identifier: Apache-2.0
// Launches of the walks, whose kernels are compiled once per dtype (chunk_walk.hip).
#pragma once

#include "arch/launch.h"
#include "mlstm/chunkwise/chunkwise_plan.h"
#include "mlstm/chunkwise/walk_outputs.h"
#include "mlstm/gpu/params.h"
#include "tile/lds_tile.h"
#include "xlstm_hip.h"

namespace xlstm::gpu::mlstm {

// What is computed before walks in segments: the states between them for a walk forward and for one in reverse, which
// have the plan's shape, or for one of the two; n and dn before each chunk; and the normalisers, or null.
struct BeforeWalks {
  const WalkParams *forward, *reverse;  // or null
  const VectorParams *n, *dn;           // or null
  const NormaliserParams* normaliser;   // or null
};
template <class E>
void launch_before_walks(const WalkPlan&, const Chip&, const BeforeWalks&, Stream);

// Launches forward's walk, whose states between segments are there.
template <class E>
void launch_forward_walk(const WalkPlan&, const Chip&, const WalkParams&, Stream);

// The same for backward's. With state_before_last of dq also <dc_last, state_before_last>.
struct BackwardWalks {
  const WalkParams &dq, &dk, &dv;
  const float* dc_last;  // or null
  float* dots;
};
template <class E>
void launch_backward_walks(const BackwardPlan&, const BackwardWalks&, Stream);

// The same, and the states before it, for bfloat16 where the plan says Schedule::hopper, in a library for CUDA.
// scoring: for a walk that makes its scores, where the plan says so; else null.
template <class Output>
void launch_walk_hopper(const WalkPlan&, const WalkParams&, const ScoringParams* scoring, const float* dc_last,
                        float* dots, Stream);
template <bool kBackward>
void launch_scores_hopper(const ScoreParams&, Stream);
// The gate terms, factors and decays that such a walk reads.
void launch_gate_terms_hopper(const ScoreParams&, float* gate_terms, Stream);

// The parallel schedule (parallel.hip), of bfloat16, where the plan says Schedule::parallel, in a library for AMD GPUs.
size_t parallel_workspace(const xlstm_mlstm_forward&);
size_t parallel_workspace(const xlstm_mlstm_backward&);
void run_parallel(const xlstm_mlstm_forward&, void* workspace, Stream);
void run_parallel(const xlstm_mlstm_backward&, void* workspace, Stream);

}  // namespace xlstm::gpu::mlstm
