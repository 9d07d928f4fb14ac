// SPDX-License-Identifier: Apache-2.0
// CDNA: the launch of a decode step as one persistent kernel.
#pragma once

#include "engine/gpu/heads_step.h"
#include "engine/megakernel/megakernel_launch.h"
#include "engine/megakernel_cdna/megakernel_cdna_plan.h"

namespace xlstm::gpu::engine {

// Where params and values lie in the workspace.
struct MegakernelCdnaMemory {
  GemmParams* product;     // of each block of the model, then the head's
  HeadsStepParams* heads;  // of each block of the model
  float* mailboxes;
};
// first: of the first block of the model, and of its heads; x and outputs are set here.
struct MegakernelCdnaStep {
  const xlstm_decode& model;
  const BlockGemms* block;
  const GemmParams& head;
  const HeadsStepParams& heads;
  const Mailboxes& layout;
  MegakernelCdnaMemory memory;
};
template <class Weights>
void launch_megakernel_cdna(const MegakernelCdnaPlan&, const MegakernelCdnaStep&, Stream);

}  // namespace xlstm::gpu::engine
