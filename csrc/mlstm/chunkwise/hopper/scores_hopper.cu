// SPDX-License-Identifier: Apache-2.0
// launch_scores_hopper(), launch_gate_terms_hopper().
#include "mlstm/chunkwise/hopper/launch_hopper.h"
#include "mlstm/chunkwise/hopper/scores_hopper.h"

namespace xlstm::gpu::mlstm {

template <bool kBackward>
void launch_scores_hopper(const ScoreParams& p, Stream stream) {
  using Kernel = HopperScores<kBackward>;
  HopperScoreParams params{p, token_map(p.q, p.where), token_map(p.k, p.where), {}, {}, {}};
  int slices = Kernel::slices_of(p.q.columns);
  if constexpr (kBackward) {
    params.v = token_map(p.v, p.where);
    params.dh = token_map(p.dh, p.where);
    params.h = token_map(p.h, p.where);
    slices += Kernel::slices_of(p.v.columns);
  }
  launch("scores", chunk_scores_hopper<kBackward>,
         {p.where.rows * p.where.slots, Kernel::kThreads, Kernel::lds_bytes(slices)}, stream, params);
}
template void launch_scores_hopper<false>(const ScoreParams&, Stream);
template void launch_scores_hopper<true>(const ScoreParams&, Stream);

void launch_gate_terms_hopper(const ScoreParams& p, float* gate_terms, Stream stream) {
  launch("measures", chunk_gate_terms_hopper<0>, {p.where.rows * p.where.slots, kHopperChunk, 0}, stream, p,
         gate_terms);
}

}  // namespace xlstm::gpu::mlstm
