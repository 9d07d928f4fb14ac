// SPDX-License-Identifier: Apache-2.0
// From a plan to the launch of engine/megakernel/megakernel.h.
#include <cmath>
#include <memory>

#include "arch/launch.h"
#include "engine/launches.h"
#include "engine/megakernel/megakernel.h"

namespace xlstm::gpu::engine {
namespace {

mlstm::RecurrentParams step_of(const WholeCall& call) {
  const xlstm_decode& p = call.model;
  mlstm::RecurrentParams step{};
  step.q.columns = int(p.dqk), step.v.columns = int(p.dhv);
  step.tiles = int(ceil_div(p.dhv, kStepColumns));
  step.sigmoid = p.gate == XLSTM_GATE_SIGMOID;
  step.normalize = !step.sigmoid || p.normalize;
  step.scale = 1 / std::sqrt(double(p.dqk));
  step.eps = p.eps;
  step.n_last = call.settling, step.m_last = call.settling + p.heads * p.dqk;
  return step;
}

WholeWeights weights_of(const DeviceLinear& w) { return {w.data, w.scales, w.offsets, w.bias}; }

}  // namespace

template <class Weights>
void launch_whole(const WholePlan& plan, const WholeCall& call, Stream stream) {
  const auto params = std::make_unique<WholeParams>();
  WholeParams& to = *params;
  const BlockProducts& first = call.block[0];
  const ProductParams* const of[kPhases] = {&first.projections, &first.projections, &first.output,
                                            &first.up,          &first.down,        &call.head};
  for (int s = 0; s < kPhases; ++s) to.phase[s] = {plan.phase[s], whole_items(*of[s], Phase(s)), *of[s]};
  to.room = plan.room;
  to.blocks = int(call.model.blocks), to.heads = int(call.model.heads);
  to.step = step_of(call);
  to.at = plan.passed, to.passed = call.passed;
  for (int n = 0; n < to.blocks; ++n) {
    const BlockProducts& own = call.block[n];
    const xlstm_decode_block& block = call.model.block[n];
    WholeWeights* linear = to.block[n].linear;
    for (const ProductParams* product : {&own.projections, &own.output, &own.up, &own.down})
      for (int j = 0; j < product->pieces; ++j) *linear++ = weights_of(product->linear[j]);
    to.block[n].norm = own.projections.weight, to.block[n].norm_ffn = own.up.weight;
    to.block[n].head_norm = {block.head_norm.weight.data, block.head_norm.weight.dtype};
    to.block[n].c = block.c, to.block[n].n = block.n, to.block[n].m = block.m;
  }
  to.block[to.blocks].linear[0] = weights_of(call.head.linear[0]);
  to.block[to.blocks].norm = call.head.weight;
  Grid grid{plan.blocks, kWholeThreads, plan.room.bytes};
  grid.together = true;
  launch("decode, a whole step", whole_step<Weights>, grid, stream, to);
}

template void launch_whole<ByteWeights>(const WholePlan&, const WholeCall&, Stream);
template void launch_whole<NibbleWeights>(const WholePlan&, const WholeCall&, Stream);
template void launch_whole<Bfloat16Weights>(const WholePlan&, const WholeCall&, Stream);

}  // namespace xlstm::gpu::engine
