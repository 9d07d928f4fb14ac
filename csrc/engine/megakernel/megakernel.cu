// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of a megakernel (engine/megakernel/megakernel.h, megakernel_rows.h).
#include <memory>

#include "arch/hopper/clusters.h"
#include "arch/launch.h"
#include "engine/gpu/one_token.h"
#include "engine/megakernel/megakernel.h"
#include "engine/megakernel/megakernel_launch.h"
#include "engine/megakernel/megakernel_rows.h"

namespace xlstm::gpu::engine {
namespace {

mlstm::RecurrentParams step_of(const MegakernelCall& call) {
  const xlstm_decode& p = call.model;
  mlstm::RecurrentParams step = one_token_params(p, ceil_div(p.dhv, kStepColumns));
  step.n_last = call.pending_state, step.m_last = call.pending_state + p.batch * p.heads * p.dqk;
  return step;
}

constexpr const char* kName = "decode megakernel";

template <class Weights>
auto kernel_of(const MegakernelPlan& plan) {
  switch (plan.rows) {
    case 1:
      return megakernel<Weights>;
    case 2:
      return megakernel_rows<Weights, 2>;
    case 4:
      return megakernel_rows<Weights, 4>;
    default:
      return megakernel_rows<Weights, kMegakernelRows>;
  }
}
Grid grid_of(const MegakernelPlan& plan) {
  Grid grid{plan.blocks, kMegakernelThreads, plan.smem.bytes};
  grid.cooperative = true;
  grid.cluster = plan.rows == 1 ? 0 : 1 << plan.cluster_bits;
  return grid;
}

MegakernelWeights weights_of(const DeviceLinear& w) { return {w.data, w.scales, w.offsets, w.bias}; }

}  // namespace

template <class Weights>
void launch_megakernel(const MegakernelPlan& plan, const MegakernelCall& call, Stream stream) {
  const auto params = std::make_unique<MegakernelParams>();
  MegakernelParams& to = *params;
  const BlockGemms& first = call.block[0];
  const GemmParams* const of[kPhases] = {&first.projections, &first.projections, &first.output,
                                         &first.up,          &first.down,        &call.head};
  for (int s = 0; s < kPhases; ++s) to.phase[s] = {plan.phase[s], phase_items(*of[s], Phase(s)), *of[s]};
  to.smem = plan.smem;
  to.blocks = int(call.model.blocks), to.heads = int(call.model.heads);
  to.batch = int(call.model.batch), to.cluster_bits = plan.cluster_bits;
  to.step = step_of(call);
  to.layout = plan.mailboxes, to.mailboxes = call.mailboxes;
  for (int n = 0; n < to.blocks; ++n) {
    const BlockGemms& block_gemms = call.block[n];
    const xlstm_decode_block& block = call.model.block[n];
    MegakernelWeights* linear = to.block[n].linear;
    for (const GemmParams* gemm : {&block_gemms.projections, &block_gemms.output, &block_gemms.up, &block_gemms.down})
      for (int j = 0; j < gemm->linear_count; ++j) *linear++ = weights_of(gemm->linear[j]);
    to.block[n].norm = block_gemms.projections.weight, to.block[n].norm_ffn = block_gemms.up.weight;
    to.block[n].head_norm = {block.head_norm.weight.data, block.head_norm.weight.dtype};
    to.block[n].c = block.c, to.block[n].n = block.n, to.block[n].m = block.m;
  }
  to.block[to.blocks].linear[0] = weights_of(call.head.linear[0]);
  to.block[to.blocks].norm = call.head.weight;
  launch(kName, kernel_of<Weights>(plan), grid_of(plan), stream, to);
}

template <class Weights>
bool fits_megakernel(const MegakernelPlan& plan) {
  return plan.rows == 1 || fits_at_once(kName, kernel_of<Weights>(plan), grid_of(plan));
}

template bool fits_megakernel<ByteWeights>(const MegakernelPlan&);
template bool fits_megakernel<NibbleWeights>(const MegakernelPlan&);
template bool fits_megakernel<Bfloat16Weights>(const MegakernelPlan&);
template void launch_megakernel<ByteWeights>(const MegakernelPlan&, const MegakernelCall&, Stream);
template void launch_megakernel<NibbleWeights>(const MegakernelPlan&, const MegakernelCall&, Stream);
template void launch_megakernel<Bfloat16Weights>(const MegakernelPlan&, const MegakernelCall&, Stream);

}  // namespace xlstm::gpu::engine
